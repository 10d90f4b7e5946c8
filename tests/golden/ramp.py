"""Says how a batch grows under Megatron-LM's `--rampup-batch-size START INCREMENT SAMPLES`, a step at a time.

    python tests/golden/ramp.py > tests/golden/ramp.tsv

The arguments are those of Megatron-LM's example for GPT-3 175B: `--rampup-batch-size 16 16 5859375` with
`--global-batch-size 1536`. The rule is that of its `RampupBatchsizeNumMicroBatchesCalculator`, in floating point as it
has it, and owes nothing to the Rust code. Each line is the first step of a size, the sequences before it, and the size.
"""

START, INCREMENT, SAMPLES, GLOBAL = 16, 16, 5_859_375, 1536

per_increment = SAMPLES / ((GLOBAL - START) // INCREMENT)


def size(consumed):
    if consumed > SAMPLES:
        return GLOBAL
    return START + int(consumed / per_increment) * INCREMENT


print("# made by ramp.py: first step, sequences before it, sequences of a step")
step = consumed = last = 0
while last < GLOBAL:
    now = size(consumed)
    if now != last:
        print(f"{step}\t{consumed}\t{now}")
        last = now
    step, consumed = step + 1, consumed + now
