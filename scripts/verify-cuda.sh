#!/bin/sh
# Everything to run once on a machine with a GPU, to trust this program there and to know how fast it is.
#
#     scripts/verify-cuda.sh [-p PART] [-d DEVICE] [-o DIRECTORY] [-l LLMC] [RUNNER]
#
# Three parts of at most 540 seconds each, so that a GPU which is lent for ten minutes gives figures:
#   1  what is there; every call, kernel and product alone (`runner doctor --selftest`); the speed of GPT-2 124M in
#      bf16; then bf16 and fp32 against the reference
#   2  why it is so fast: time by phase, measured rates, compute-sanitizer and ncu where they are; equal runs, resuming
#      across devices, ranks, the remaining precisions and shapes against the reference
#   3  beside others: more micro-batches and precisions, PyTorch where python3 has it, llm.c where nvcc can build it
#
# -p PART       runs one part; without it all parts run, one after the other
# -d DEVICE     another device: `cuda:1`, or `cpu` to try this script without a GPU
# -o DIRECTORY  where reports, raw output and caches go (default verify-cuda); parts share it
# -l LLMC       a checkout of llm.c to compare with, in part 3
#
# RUNNER is the program, by default target/release/runner beside this directory, else `runner` on PATH. Nothing else is
# needed: recipes are written here, data are built in. A step begins only if it can end within its part; what is left
# out is said. Each part writes part-N.md, and part-N.json with a list of {"step", "seconds", "code", "result"}.
#
# Exit code: 0 everything holds, 1 something does not (listed last), 2 there is no usable device.
set -u

here=$(cd "$(dirname "$0")" && pwd)
device=cuda
directory=verify-cuda
parts="1 2 3"
llmc=
while getopts p:d:o:l: option; do
    case $option in
    p) parts=$OPTARG ;;
    d) device=$OPTARG ;;
    o) directory=$OPTARG ;;
    l) llmc=$OPTARG ;;
    *) sed -n '4s/^# *//p' "$0" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
case $parts in
1 | 2 | 3 | "1 2 3") ;;
*)
    echo "verify-cuda: -p $parts: the parts are 1, 2 and 3" >&2
    exit 2
    ;;
esac

runner=${1:-$here/../target/release/runner}
if [ $# = 0 ] && [ ! -x "$runner" ]; then
    runner=$(command -v runner) || {
        echo "verify-cuda: no program: build it with cargo build --release, or name its path" >&2
        exit 2
    }
fi
"$runner" --version >/dev/null || {
    echo "verify-cuda: $runner cannot be run" >&2
    exit 2
}

mkdir -p "$directory/raw" || exit 2
directory=$(cd "$directory" && pwd)
# machine code and the algorithms of products are kept from part to part
XDG_CACHE_HOME=$directory/cache
export XDG_CACHE_HOME
work=$(mktemp -d) || exit 2
child=
trap 'rm -rf "$work"' EXIT
trap '[ -z "$child" ] || kill "$child" 2>/dev/null; exit 130' INT TERM
failures=$work/failures
: >"$failures"
# seconds of a part
budget=540
report=
results=
began=

# The first of the paths that a pattern gave, if there is any.
first() {
    [ ! -e "$1" ] || printf '%s\n' "$1"
}

elapsed() { echo $(($(date +%s) - began)); }

# to the report and to the terminal
say() {
    printf '%s\n' "$*"
    printf '%s\n' "$*" >>"$report"
}

# heading TEXT
heading() {
    printf '\n== %s (after %s s)\n' "$1" "$(elapsed)"
    printf '\n## %s\n\n' "$1" >>"$report"
}

# fail TEXT [FILE]: notes a failure, and the end of a command's output
fail() {
    say "- FAILED: $1"
    printf -- '- %s\n' "$1" >>"$failures"
    [ -z "${2:-}" ] || quote "$2"
}

# quote FILE [LINES]: its last lines, as a block
quote() {
    {
        echo
        echo '```'
        tail -n "${2:-30}" "$1"
        echo '```'
        echo
    } | tee -a "$report"
}

# within SECONDS COMMAND...: bounded, where the system can
if command -v timeout >/dev/null 2>&1; then
    within() { timeout "$@"; }
else
    within() { shift; "$@"; }
fi

# late SECONDS WHAT: whether there is no time left for something that may take so long
late() {
    [ $(($(elapsed) + $1)) -gt "$budget" ] || return 1
    say "- not begun, for it may take $1 s of the $((budget - $(elapsed))) s left: $2"
    record "$2" 0 null null
}

# record STEP SECONDS CODE RESULT: a line of the JSON; the result is JSON
record() {
    printf '%s{"step": "%s", "seconds": %s, "code": %s, "result": %s}' \
        "$([ ! -s "$results" ] || printf ',\n')" "$1" "$2" "$3" "$4" >>"$results"
}

# step SECONDS NAME COMMAND...: runs a command within these seconds; its output is kept as raw/NAME.out and raw/NAME.err
step() {
    limit=$1 name=$2
    shift 2
    ! late "$limit" "$name" || return 125
    from=$(elapsed)
    within "$limit" "$@" >"$directory/raw/$name.out" 2>"$directory/raw/$name.err"
    code=$?
    result=null
    case $(head -c 1 "$directory/raw/$name.out") in
    '{' | '[') result=$(cat "$directory/raw/$name.out") ;;
    esac
    record "$name" $(($(elapsed) - from)) "$code" "$result"
    return "$code"
}

# number FILE KEY: a number of a JSON file with one value on a line
number() { sed -n "s/^ *\"$2\": *\([-+0-9.eE]*\),\{0,1\}\$/\1/p" "$1" | head -n 1; }

# field FILE KEY: a number of JSON on one line
field() { sed -n "s/.*\"$2\": *\([-+0-9.eE]*\)[,}].*/\1/p" "$1" | head -n 1; }

# recipe NAME LAYERS HEADS WIDTH BLOCK PRECISION ATTENTION STEPS: a small model on built-in Latin
vocab=50257
recipe() {
    cat >"$work/$1.toml" <<END
name = "$1"
[model]
n_layer = $2
n_head = $3
n_embd = $4
block_size = $5
vocab_size = $vocab
vocab_multiple = 128
[compute]
device = "$device"
precision = "$6"
attention = "$7"
[data]
train = "builtin:lipsum"
val = "builtin:lipsum:seed=2,words=20000"
[batch]
total_tokens = $(($5 * 4))
micro_batch = 2
[optimizer]
lr = 1e-3
[schedule]
max_steps = $8
warmup_steps = 5
[eval]
every = 50
batches = 1
[checkpoint]
every = 20
[sample]
every = 0
END
}

# GPT-2 124M, or a small model where the script is only tried
speed_recipe() {
    if [ "$device" = cpu ]; then
        model='n_layer = 2
n_head = 2
n_embd = 64
block_size = 64
vocab_multiple = 128'
        model_name="A small model" block=64 sizes="1 2" largest_sizes="2 1"
    else
        model='preset = "gpt2-124m"
vocab_multiple = 128'
        model_name="GPT-2 124M" block=1024 sizes="16 32 64" largest_sizes="64 32 16 8"
    fi
    cat >"$work/speed.toml" <<END
name = "speed"
[model]
$model
[compute]
device = "$device"
precision = "bf16"
attention = "flash"
[data]
train = "builtin:lipsum"
[batch]
total_tokens = $block
micro_batch = 1
[optimizer]
lr = 6e-4
[schedule]
max_steps = 100
warmup_steps = 5
END
}

# of what verify trains
dropout=0

# verify LAYERS HEADS WIDTH BLOCK PRECISION ATTENTION
verify() {
    what="$5, $6 attention, $1 layers, $2 heads, width $3, rows of $4, dropout $dropout"
    name=verify-$5-$6-$1-$2-$3-$4-$dropout
    # the head of a whole vocabulary would take the reference most of its time; the data then give way to random tokens
    vocab=500
    recipe verify "$@" 20
    vocab=50257
    step 60 "$name" "$runner" verify "$work/verify.toml" --runs-dir "$work/runs" --set "model.dropout=$dropout"
    case $? in
    0) say "- agrees: $what" ;;
    125) ;;
    *) fail "verify ended with exit code $code: $what" "$directory/raw/$name.err" ;;
    esac
}

facts() {
    heading "What is there"
    {
        uname -a
        ldd --version 2>/dev/null | head -n 1
        command -v nvidia-smi >/dev/null && nvidia-smi
    } >"$directory/raw/machine.txt" 2>&1
    quote "$directory/raw/machine.txt" 40
    ! command -v nvidia-smi >/dev/null || nvidia-smi -q >"$directory/raw/nvidia-smi-q.txt" 2>&1
    step 60 doctor "$runner" doctor && quote "$directory/raw/doctor.out" 60
    step 60 doctor-json "$runner" doctor --format json || fail "runner doctor" "$directory/raw/doctor-json.err"
}

selftest() {
    [ "$device" != cpu ] || return 0
    heading "Each call, kernel and product alone"
    step 240 selftest "$runner" doctor --selftest
    case $? in
    0) ;;
    125) return ;;
    *) fail "the self-test ended with exit code $code" ;;
    esac
    quote "$directory/raw/selftest.out" 200
}

table() {
    say "| engine | precision | micro-batch | tokens/s | ms per step | MFU | memory, MiB |"
    say "| --- | --- | --- | --- | --- | --- | --- |"
}

# speed PRECISION ATTENTION MICRO-BATCH: a row of the table; fails where it does not fit
speed() {
    name=bench-$1-$2-$3
    step 90 "$name" "$runner" bench "$work/speed.toml" --steps 20 --format json --set "compute.precision=$1" \
        --set "compute.attention=$2" --set "batch.micro_batch=$3" --set "batch.total_tokens=$(($3 * block))"
    case $? in
    0)
        raw=$directory/raw/$name.out
        row "runner, $2" "$1" "$3" "$(number "$raw" tokens_per_s)" "$(number "$raw" step_ms)" \
            "$(number "$raw" mfu)" "$(number "$raw" peak_memory_bytes)"
        ;;
    125) return 1 ;;
    # the plan has refused it, which is what plans are for
    2) say "| runner, $2 | $1 | $3 | does not fit | | | |" && return 1 ;;
    *) fail "bench in $1, micro-batch $3, ended with exit code $code" "$directory/raw/$name.err" && return 1 ;;
    esac
}

# row ENGINE PRECISION MICRO-BATCH TOKENS/S MS MFU BYTES
row() {
    say "$(awk -v e="$1" -v p="$2" -v b="$3" -v t="$4" -v ms="$5" -v mfu="$6" -v m="$7" 'BEGIN {
        share = mfu == "" ? "" : sprintf("%.1f %%", 100 * mfu)
        printf "| %s | %s | %s | %.0f | %.2f | %s | %.0f |", e, p, b, t, ms, share, m / 1048576 }')"
}

# the one line that must exist whatever fails later
first_speed() {
    heading "$model_name in bf16, rows of $block tokens"
    table
    for size in $largest_sizes; do
        ! speed bf16 flash "$size" || return 0
    done
    fail "bench: no micro-batch could be measured"
}

part_1() {
    facts
    selftest
    first_speed
    heading "Against the reference"
    for precision in bf16 fp32; do
        for attention in flash naive; do
            verify 2 2 128 64 "$precision" "$attention"
        done
    done
    dropout=0.2
    for attention in flash naive; do verify 2 2 128 64 bf16 "$attention"; done
    dropout=0
}

phases() {
    heading "Where the time goes (bf16, flash attention)"
    step 60 doctor-measure "$runner" doctor --measure && quote "$directory/raw/doctor-measure.out" 20
    for size in $largest_sizes; do
        step 90 "phases-$size" "$runner" bench "$work/speed.toml" --steps 10 --set "batch.micro_batch=$size" \
            --set "batch.total_tokens=$((size * block))" && quote "$directory/raw/phases-$size.out" 40 && return
    done
}

tools() {
    [ "$device" != cpu ] || return 0
    heading "NVIDIA's tools"
    recipe tools 1 2 128 64 bf16 flash 2
    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck initcheck; do
            step 60 "sanitizer-$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 \
                "$runner" bench "$work/tools.toml" --steps 1
            case $? in
            0) say "- compute-sanitizer finds nothing: $tool" ;;
            125) ;;
            *) fail "compute-sanitizer --tool $tool ended with exit code $code" "$directory/raw/sanitizer-$tool.out" ;;
            esac
        done
    else
        say "- compute-sanitizer is not there"
    fi
    if command -v ncu >/dev/null; then
        step 120 ncu ncu --clock-control none --launch-count 120 --section SpeedOfLight --csv \
            "$runner" bench "$work/speed.toml" --steps 1 --set batch.micro_batch=8 \
            --set "batch.total_tokens=$((8 * block))"
        case $? in
        0) say "- ncu: raw/ncu.out" ;;
        125) ;;
        *) say "- ncu ended with exit code $code: $(tail -n 1 "$directory/raw/ncu.err")" ;;
        esac
    else
        say "- ncu is not there"
    fi
}

# train RUNS-DIR LOG RECIPE [OPTIONS]: prints the run's directory
train() {
    runs=$1 log=$2
    shift 2
    within 60 "$runner" "$@" --runs-dir "$runs" 2>"$log"
}

# same RUN RUN WHAT: whether logs and weights after 40 steps are equal byte by byte
same() {
    # the columns that are promised to be deterministic
    cut -d, -f1-8 "$1/train.csv" >"$work/one.csv"
    cut -d, -f1-8 "$2/train.csv" >"$work/two.csv"
    if ! cmp -s "$work/one.csv" "$work/two.csv"; then
        fail "the logs differ: $3"
    elif ! cmp -s "$1"/checkpoints/*40/model.safetensors "$2"/checkpoints/*40/model.safetensors; then
        fail "the weights differ: $3"
    else
        return 0
    fi
    return 1
}

# twice PRECISION
twice() {
    ! late 60 "two runs in $1" || return 0
    from=$(elapsed)
    recipe "twice-$1" 2 4 256 128 "$1" flash 40
    if ! one=$(train "$work/one" "$work/out" "$work/twice-$1.toml"); then
        fail "training in $1" "$work/out"
    elif ! two=$(train "$work/two" "$work/out" "$work/twice-$1.toml"); then
        fail "training in $1 a second time" "$work/out"
    else
        same "$one" "$two" "two runs in $1" && say "- equal byte by byte after 40 steps: $1"
        record "two runs in $1" $(($(elapsed) - from)) $? null
    fi
}

# across FROM TO: begins a run on one device, interrupts it, ends it on the other, and compares with one that stayed
across() {
    ! late 100 "from $1 to $2" || return 0
    from=$(elapsed)
    # enough to be interrupted on a fast device
    across_steps=4000
    [ "$device" != cpu ] || across_steps=400
    recipe "from-$(echo "$1" | tr : -)" 1 2 32 16 fp32 flash "$across_steps"
    file=$work/from-$(echo "$1" | tr : -).toml
    "$runner" "$file" --set "compute.device=$1" --runs-dir "$work/across" >"$work/dir" 2>"$work/out" &
    child=$!
    # interrupted once it has logged some steps
    while kill -0 "$child" 2>/dev/null; do
        rows=$(cat "$work"/across/from-*/train.csv 2>/dev/null | wc -l)
        [ "$rows" -lt 30 ] || { kill -INT "$child" 2>/dev/null; break; }
        sleep 0.1 2>/dev/null || sleep 1
    done
    wait "$child"
    code=$?
    child=
    run=$(first "$work"/across/from-*)
    if [ "$code" != 130 ]; then
        fail "a run on $1 was to be interrupted, and ended with exit code $code" "$work/out"
    elif ! within 60 "$runner" --resume "$run" --set "compute.device=$2" >/dev/null 2>"$work/out"; then
        fail "a run that began on $1 could not go on on $2" "$work/out"
    elif ! whole=$(train "$work/whole" "$work/out" "$file" --set "compute.device=$2"); then
        fail "a run on $2 alone" "$work/out"
    else
        moved=$(tail -n 1 "$run/train.csv" | cut -d, -f3)
        stayed=$(tail -n 1 "$whole/train.csv" | cut -d, -f3)
        steps=$(tail -n 1 "$run/train.csv" | cut -d, -f1)
        if [ "$steps" = $((across_steps - 1)) ] &&
            awk -v a="$moved" -v b="$stayed" 'BEGIN { d = a - b; exit !(d * d < 0.0004 * b * b) }'; then
            say "- from $1 to $2: last loss $moved, and $stayed for a run on $2 alone"
        else
            fail "from $1 to $2: step $steps with loss $moved, and $stayed for a run on $2 alone"
        fi
    fi
    record "from $1 to $2" $(($(elapsed) - from)) "$code" null
    rm -rf "$work/across" "$work/whole"
}

# A launcher's variables make a rank of a process that is alone, whose sums then go through NCCL. With one rank NCCL
# returns before it starts a kernel, so this shows that it is loaded and called, and no more.
ranks() {
    heading "Ranks"
    json=$directory/raw/doctor-json.out
    [ -s "$json" ] || "$runner" doctor --format json >"$json" 2>/dev/null
    if [ "$device" != cpu ] && ! sed -n '/"name": "NCCL"/{n;p;}' "$json" | grep -q true; then
        say "- not done, for NCCL is not there: ranks"
        return
    fi
    index=${device#*:}
    [ "$index" != "$device" ] || index=0
    ! late 60 "a rank alone" || return 0
    recipe alone 2 4 256 128 fp32 flash 40
    if ! one=$(train "$work/one" "$work/out" "$work/alone.toml"); then
        fail "training in fp32" "$work/out"
        return
    fi
    if ! two=$(
        export RANK=0 WORLD_SIZE=1 LOCAL_RANK="$index" MASTER_ADDR=127.0.0.1 MASTER_PORT=29517
        export NCCL_DEBUG=WARN NCCL_DEBUG_FILE="$work/nccl"
        train "$work/alone" "$work/out" "$work/alone.toml"
    ); then
        fail "training as rank 0 of 1" "$work/out"
    elif [ "$device" != cpu ] && ! grep -q "NCCL version" "$work/nccl" 2>/dev/null; then
        fail "rank 0 of 1 has not asked NCCL for anything"
    else
        same "$one" "$two" "without and with NCCL" &&
            say "- NCCL is loaded and changes no byte of a rank that is alone (it does not compute anything then)"
    fi
    [ "$device" = cuda ] && [ "$(grep -c '"pci_bus_id"' "$json")" -gt 1 ] || return 0
    for divided in false true; do
        what="two ranks in fp32, moments divided: $divided"
        ! late 60 "$what" || continue
        if ! two=$(train "$work/ranks-$divided" "$work/out" "$work/alone.toml" --set batch.world_size=2 \
            --set "distributed.shard_optimizer=$divided"); then
            fail "$what" "$work/out"
        elif ! awk -F, 'NR == FNR { loss[$1] = $3; next }
            FNR > 1 { d = ($3 - loss[$1]) / $3; if (d * d > 1e-10) bad = 1 }
            END { exit bad || FNR < 40 }' "$one/train.csv" "$two/train.csv"; then
            fail "the losses are not those of one rank: $what"
        else
            say "- the losses of one rank, to 1e-5: $what"
        fi
    done
}

part_2() {
    phases
    tools
    heading "Two runs of the same recipe"
    for precision in bf16 fp32 fp16; do twice "$precision"; done
    heading "From one device to the other"
    across "$device" cpu
    across cpu "$device"
    ranks
    heading "Against the reference: the remaining precisions and shapes"
    # rows that fill no tile, the widest heads of flash attention, an odd width
    for shape in "2 2 64 40" "1 2 256 96" "1 3 120 33"; do
        for precision in bf16 fp32 tf32 fp16; do
            for attention in flash naive; do
                # shellcheck disable=SC2086
                verify $shape "$precision" "$attention"
            done
        done
    done
}

torch() {
    script=$here/../benches/torch_step.py
    kind=${device%%:*}
    if [ ! -f "$script" ] || ! command -v python3 >/dev/null 2>&1 || ! python3 -c 'import torch' 2>/dev/null; then
        say ""
        say "PyTorch is not there to be compared with."
        return
    fi
    small=
    [ "$device" != cpu ] || small="--layers 2 --heads 2 --width 64 --block-size 64"
    for compiled in --compile ""; do
        for size in $sizes; do
            name=torch${compiled:+-compile}-$size
            # shellcheck disable=SC2086
            step 150 "$name" python3 "$script" --device "$kind" --precision bf16 $compiled $small --micro-batch "$size"
            case $? in
            0)
                raw=$directory/raw/$name.out
                row "PyTorch ${compiled:-eager}, SDPA" bf16 "$size" "$(field "$raw" tokens_per_s)" \
                    "$(field "$raw" step_ms)" "" "$(field "$raw" peak_memory_bytes)"
                ;;
            125) ;;
            *)
                last=$(tail -n 1 "$directory/raw/$name.err" | tr '|' '/')
                say "| PyTorch ${compiled:-eager}, SDPA | bf16 | $size | failed: $last | | | |"
                ;;
            esac
        done
    done
}

# llm.c's own program trains on its own data: a shard of random tokens is enough to time it.
llm_c() {
    [ -n "$llmc" ] || return 0
    heading "llm.c"
    if ! command -v nvcc >/dev/null || ! [ -f "$llmc/train_gpt2.cu" ]; then
        say "- not done: nvcc, or $llmc/train_gpt2.cu, is not there"
        return
    fi
    step 200 llmc-build make -C "$llmc" train_gpt2cu USE_CUDNN=0 NO_MULTI_GPU=1 || {
        fail "llm.c could not be built" "$directory/raw/llmc-build.err"
        return
    }
    python3 - "$work/random.bin" <<'END' || { fail "a shard for llm.c could not be written"; return; }
import array, random, sys
tokens = 4_000_000
header = array.array("i", [20240520, 1, tokens] + [0] * 253)
random.seed(1)
words = array.array("H", (random.randrange(50257) for _ in range(tokens)))
with open(sys.argv[1], "wb") as file:
    header.tofile(file)
    words.tofile(file)
END
    step 120 llmc "$llmc/train_gpt2cu" -i "$work/random.bin" -j "$work/random.bin" -e d12 -b 64 -t 1024 -d 65536 \
        -x 30 -v 0 -s 0 -h 0 -n 0 -r 0 -o "$work/llmc"
    case $? in
    0) quote "$directory/raw/llmc.out" 12 ;;
    125) ;;
    *) fail "llm.c ended with exit code $code" "$directory/raw/llmc.out" ;;
    esac
}

part_3() {
    heading "$model_name, rows of $block tokens"
    table
    for size in $sizes; do speed bf16 flash "$size" || break; done
    torch
    smallest=${sizes%% *}
    speed tf32 flash "$smallest"
    speed fp32 flash "$smallest"
    speed bf16 naive "$smallest"
    llm_c
}

if [ "$device" != cpu ]; then
    "$runner" doctor --format json >"$work/doctor.json" || exit 2
    # the first of this name is of CUDA as a whole
    if ! grep -q '^    "usable": true' "$work/doctor.json"; then
        "$runner" doctor
        echo "verify-cuda: there is no CUDA device that could be used" >&2
        exit 2
    fi
fi
speed_recipe
status=0
for part in $parts; do
    began=$(date +%s)
    report=$directory/part-$part.md
    results=$work/results
    : >"$results"
    : >"$failures"
    printf '# Part %s: %s on %s, %s\n' "$part" "$("$runner" --version)" "$(uname -n)" \
        "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >"$report" || exit 2
    case $part in
    1) part_1 ;;
    2) part_2 ;;
    *) part_3 ;;
    esac
    heading "Result of part $part"
    if [ -s "$failures" ]; then
        say "$(wc -l <"$failures" | tr -d ' ') checks failed, after $(elapsed) s:"
        say "$(cat "$failures")"
        status=1
    else
        say "Everything that was done holds, after $(elapsed) s."
    fi
    {
        echo '['
        cat "$results"
        printf '\n]\n'
    } >"$directory/part-$part.json"
    echo "the report is $report"
done
exit "$status"
