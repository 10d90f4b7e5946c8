#!/usr/bin/env python3
"""Trains the same GPT-2 with `runner bench` and with PyTorch, in turn, and prints the ratios.

Each round runs both once in processes of their own, so that whatever else the machine does meets both. Speeds are the
medians over the rounds, peak memory the largest.

    cargo build --release
    python benches/compare_torch.py --model 124m --compile
    python benches/compare_torch.py --model small --compile --rounds 5 --threads 1
    python benches/compare_torch.py --model nanogpt-char --nanogpt ../nanoGPT

The PyTorch side is benches/torch_step.py, run with the Python given by --python. With a checkout of nanoGPT, the model
`nanogpt-char` compares whole jobs instead: the experiment of its README (benches/nanogpt_job.py), from the start of each
program to its end, in seconds.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import nanogpt_job

ROOT = Path(__file__).resolve().parent.parent
# layers, heads, width, vocabulary rows, tokens per row, rows
MODELS = {
    "124m": (12, 12, 768, 50304, 1024, 4),
    "small": (4, 4, 128, 50304, 128, 8),
    "tiny": (2, 2, 64, 1000, 64, 8),
    "nanogpt-char": (4, 4, 128, 65, 64, 12),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="124m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="counted steps per process and round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--compile", action="store_true", help="torch.compile instead of eager PyTorch")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--torch-step", type=Path, default=ROOT / "benches" / "torch_step.py")
    parser.add_argument("--runner", type=Path, default=ROOT / "target" / "release" / "runner")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT: compare whole jobs of nanogpt-char")
    args = parser.parse_args()
    if args.nanogpt and (args.model != "nanogpt-char" or args.precision != "fp32"):
        parser.error("--nanogpt is for --model nanogpt-char in fp32")
    return args


def output(command):
    """What a command says on its standard output; its errors are shown, and a failure ends the comparison."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: `{' '.join(map(str, command))}` ended with {done.returncode}")
    return done.stdout


def ours(args):
    """Tokens per second and peak bytes of one `runner bench`."""
    layers, heads, width, vocabulary, tokens, rows = MODELS[args.model]
    values = {
        "model.n_layer": layers,
        "model.n_head": heads,
        "model.n_embd": width,
        "model.vocab_size": min(vocabulary, 50257),
        "model.vocab_multiple": 128 if vocabulary > 50257 else 1,
        "model.block_size": tokens,
        "batch.micro_batch": rows,
        "batch.total_tokens": rows * tokens,
        "compute.device": "cpu",
        "compute.precision": args.precision,
        "compute.attention": "flash",
        "compute.threads": args.threads,
        "sample.every": 0,
    }
    changes = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    command = [args.runner, "bench", ROOT / "recipes" / "quickstart.toml", *changes]
    measured = json.loads(output([*command, "--steps", args.steps, "--format", "json"]))
    return measured["tokens_per_s"], measured["peak_memory_bytes"], measured["mfu"]


def theirs(args):
    """The same of one run of the PyTorch script."""
    layers, heads, width, vocabulary, tokens, rows = MODELS[args.model]
    command = [args.python, args.torch_step, "--device", "cpu", "--threads", args.threads]
    command += ["--layers", layers, "--heads", heads, "--width", width, "--vocab", vocabulary]
    command += ["--block-size", tokens, "--micro-batch", rows, "--precision", args.precision, "--steps", args.steps]
    measured = json.loads(output(command + ["--compile"] * args.compile))
    return measured["tokens_per_s"], measured["peak_memory_bytes"]


def compare_jobs(args):
    """Whole jobs of nanoGPT's experiment in turn: seconds, and the loss that each reports last."""
    rounds = []
    print("round  runner s   loss  nanoGPT s   loss  ratio")
    for number in range(1, args.rounds + 1):
        seconds, loss = nanogpt_job.ours(args.runner, args.threads)
        their_seconds, their_loss = nanogpt_job.theirs(args.nanogpt, args.python, args.threads, args.compile)
        rounds.append((seconds, their_seconds))
        ratio = their_seconds / seconds
        print(f"{number:>5}  {seconds:>8.1f}  {loss:.3f}  {their_seconds:>9.1f}  {their_loss:.3f}  {ratio:>5.2f}", flush=True)
    seconds, their_seconds = (statistics.median(column) for column in zip(*rounds))
    print(f"medians: {seconds:.1f} and {their_seconds:.1f} s, {their_seconds / seconds:.2f} times as fast")


def main():
    args = arguments()
    for needed in (args.runner, args.torch_step, *([args.nanogpt] if args.nanogpt else [])):
        if not needed.exists():
            sys.exit(f"error: {needed} does not exist")
    if args.nanogpt:
        return compare_jobs(args)
    rounds = []
    print("round  runner tok/s   MFU %  torch tok/s  ratio")
    for number in range(1, args.rounds + 1):
        speed, memory, mfu = ours(args)
        torch_speed, torch_memory = theirs(args)
        rounds.append((speed, torch_speed, memory, torch_memory))
        ratio = speed / torch_speed
        print(f"{number:>5}  {speed:>12.1f}  {mfu * 100:>6.1f}  {torch_speed:>11.1f}  {ratio:>5.2f}", flush=True)
    speeds, torch_speeds, memory, torch_memory = zip(*rounds)
    speed, torch_speed = statistics.median(speeds), statistics.median(torch_speeds)
    memory, torch_memory = max(memory), max(torch_memory)
    print(f"medians: {speed:.1f} and {torch_speed:.1f} tokens/s, {speed / torch_speed:.2f} times as fast")
    print(f"peaks: {memory / 1e9:.2f} and {torch_memory / 1e9:.2f} GB, {memory / torch_memory:.2f} times the memory")


if __name__ == "__main__":
    main()
