#!/usr/bin/env python3
"""Generates text from the same weights with `runner sample` and with transformers' `generate`, in turn.

Both keep keys and values, in fp32, one text at a time, drawing from the 50 most likely tokens at temperature 0.8. Each
round runs both once in processes of their own, so that whatever else the machine does meets both. Loading the weights
is not counted: `runner sample` prints the prompt when they are there, and the clock runs from then to its end. Speeds
are medians over the rounds. At last both take the most likely token always, and the tokens are compared.

    cargo build --release
    python benches/compare_generate.py --rounds 5

The other side is benches/torch_generate.py, run with the Python given by --python, which needs torch and transformers.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# the tokens of torch_generate.py's prompt
PROMPT = "Hello,"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a directory with GPT-2 weights; random ones if it is left out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch and transformers")
    parser.add_argument("--runner", type=Path, default=ROOT / "target" / "release" / "runner")
    return parser.parse_args()


def checked(command):
    """What a command says on its standard output; a failure ends the comparison."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"error: `{' '.join(map(str, command))}` ended with {done.returncode}")
    return done.stdout


def our_command(args, model):
    command = [args.runner, "sample", model, "--prompt", PROMPT, "--tokens", args.tokens]
    return [str(word) for word in command + ["--threads", args.threads, "--device", "cpu"]]


def ours(args, model):
    """Seconds from the prompt to the end of the text."""
    with subprocess.Popen(our_command(args, model), stdout=subprocess.PIPE) as process:
        process.stdout.read(1)
        start = time.perf_counter()
        process.stdout.read()
        seconds = time.perf_counter() - start
    if process.returncode != 0:
        sys.exit(f"error: runner ended with {process.returncode}")
    return seconds


def theirs(args, model, *more):
    """Seconds of `generate`, and its tokens."""
    script = ROOT / "benches" / "torch_generate.py"
    command = [args.python, script, model, "--tokens", args.tokens, "--threads", args.threads, *more]
    measured = json.loads(checked(command))
    return measured["seconds"], measured["tokens"]


def main():
    args = arguments()
    with tempfile.TemporaryDirectory() as directory:
        model = args.model or Path(directory) / "gpt2"
        if args.model is None:
            checked([args.python, ROOT / "benches" / "torch_generate.py", model, "--save"])
        rounds = []
        print("round  runner tok/s  torch tok/s  ratio")
        for number in range(1, args.rounds + 1):
            our, their = args.tokens / ours(args, model), args.tokens / theirs(args, model)[0]
            rounds.append((our, their, our / their))
            print(f"{number:>5}  {our:>12.1f}  {their:>11.1f}  {our / their:>5.2f}", flush=True)
        our, their, ratio = (statistics.median(column) for column in zip(*rounds))
        print(f"medians: {our:.1f} and {their:.1f} tokens/s, {ratio:.2f} times as fast")
        greedy = json.loads(checked([*our_command(args, model), "--temperature", "0", "--format", "json"]))
        tokens, expected = greedy[0]["tokens"], theirs(args, model, "--greedy")[1]
        pairs = list(zip(tokens, expected))
        equal = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        print(f"most likely tokens: the first {equal} of {args.tokens} are equal")


if __name__ == "__main__":
    main()
