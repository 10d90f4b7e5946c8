#!/usr/bin/env python3
"""Evaluates the same GPT-2 with `runner eval` and with transformers, in turn, and prints the ratios.

The weights are random and written once, as a Hugging Face directory. Each round runs both once in processes of their
own, so that whatever else the machine does meets both. Both compute the loss of the same tokens and the scores of the
same made-up choices, by build-nanogpt's definition; the script fails if their numbers differ. The time is that of the
evaluation alone on the side of transformers, and of the whole program on ours.

    cargo build --release
    python benches/compare_eval.py                  (needs torch, numpy, transformers)
    python benches/compare_eval.py --model tiny --rounds 5 --threads 1
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# layers, heads, width, tokens per row
MODELS = {"124m": (12, 12, 768, 1024), "tiny": (2, 2, 64, 128)}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="124m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4, help="rows of data")
    parser.add_argument("--examples", type=int, default=16, help="examples of four endings")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--runner", type=Path, default=ROOT / "target" / "release" / "runner")
    parser.add_argument("--theirs", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def make(folder, args):
    """Weights, tokens in llm.c's form, and choices in llm.c's form, so that no tokenizer takes part."""
    import numpy
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, heads, width, positions = MODELS[args.model]
    torch.manual_seed(1)
    config = GPT2Config(n_layer=layers, n_head=heads, n_embd=width, n_positions=positions)
    GPT2LMHeadModel(config).save_pretrained(folder / "model")
    draw = random.Random(1)
    header = numpy.zeros(256, dtype="<i4")
    count = args.rows * positions + 1
    header[:3] = 20240520, 1, count
    tokens = numpy.array([draw.randrange(50256) for _ in range(count)], dtype="<u2")
    (folder / "data.bin").write_bytes(header.tobytes() + tokens.tobytes())
    words = []
    for index in range(args.examples):
        # HellaSwag's lengths: contexts of 20 to 100 tokens, endings of 5 to 50
        longest = positions // 2
        context = [draw.randrange(50256) for _ in range(min(draw.randint(20, 100), longest))]
        endings = [[draw.randrange(50256) for _ in range(min(draw.randint(5, 50), longest))] for _ in range(4)]
        one = [65535, 0, index, draw.randrange(4), 4, len(context), *context]
        for ending in endings:
            one += [len(ending), *ending]
        one[1] = 2 * len(one)
        words += one
    header[:4] = 20240522, 1, args.examples, 4096
    (folder / "choices.bin").write_bytes(header.tobytes() + numpy.array(words, dtype="<u2").tobytes())


def theirs(folder, args):
    """The same by transformers, as build-nanogpt's script does it: an example's four rows at a time."""
    import numpy
    import torch
    import torch.nn.functional as F
    from transformers import GPT2LMHeadModel

    torch.set_num_threads(args.threads)
    model = GPT2LMHeadModel.from_pretrained(folder / "model").eval()
    positions = MODELS[args.model][3]
    data = numpy.fromfile(folder / "data.bin", dtype="<u2")[512:].astype("int64")
    words = iter(numpy.fromfile(folder / "choices.bin", dtype="<u2")[512:].tolist())
    begin, total, right, right_norm = time.perf_counter(), 0.0, 0, 0
    with torch.inference_mode():
        for first in range(0, args.rows, args.micro_batch):
            count = min(args.micro_batch, args.rows - first)
            rows = torch.from_numpy(data[first * positions : (first + count) * positions + 1])
            x, y = rows[:-1].view(count, positions), rows[1:]
            total += F.cross_entropy(model(x).logits.view(-1, 50257), y).item() * count
        for _ in range(args.examples):
            _, _, _, label, endings = (next(words) for _ in range(5))
            context = [next(words) for _ in range(next(words))]
            rows = [[next(words) for _ in range(next(words))] for _ in range(endings)]
            longest = len(context) + max(map(len, rows))
            x, mask = torch.zeros(endings, longest, dtype=torch.long), torch.zeros(endings, longest)
            for i, row in enumerate(rows):
                x[i, : len(context) + len(row)] = torch.tensor(context + row)
                mask[i, len(context) : len(context) + len(row)] = 1.0
            logits = model(x).logits[:, :-1]
            losses = F.cross_entropy(logits.reshape(-1, 50257), x[:, 1:].reshape(-1), reduction="none")
            losses = losses.view(endings, -1) * mask[:, 1:]
            sums = losses.sum(1)
            right += sums.argmin().item() == label
            right_norm += (sums / mask[:, 1:].sum(1)).argmin().item() == label
    found = dict(seconds=time.perf_counter() - begin, val_loss=total / args.rows)
    print(json.dumps(dict(found, acc=right / args.examples, acc_norm=right_norm / args.examples)))


def output(command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: `{' '.join(map(str, command))}` ended with {done.returncode}")
    return done.stdout


def ours(folder, args):
    begin = time.perf_counter()
    found = output([
        args.runner, "eval", folder / "model", "--data", folder / "data.bin", "--hellaswag", folder / "choices.bin",
        "--device", "cpu", "--threads", args.threads, "--micro-batch", args.micro_batch, "--format", "json",
    ])
    metrics = json.loads(found)[0]["metrics"]
    return dict(
        seconds=time.perf_counter() - begin, val_loss=metrics["val_loss"], acc=metrics["hellaswag_acc"],
        acc_norm=metrics["hellaswag_acc_norm"],
    )


def main():
    args = arguments()
    if args.theirs:
        return theirs(args.theirs, args)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        make(folder, args)
        times = dict(runner=[], transformers=[])
        for number in range(args.rounds):
            own = ours(folder, args)
            other = json.loads(output([sys.executable, __file__, *sys.argv[1:], "--theirs", folder]))
            for name in ("val_loss", "acc", "acc_norm"):
                if abs(own[name] - other[name]) > 1e-5 * max(1.0, abs(other[name])):
                    sys.exit(f"error: {name} is {own[name]} here and {other[name]} by transformers")
            times["runner"].append(own["seconds"])
            times["transformers"].append(other["seconds"])
            mine, other = own["seconds"], other["seconds"]
            print(f"round {number + 1}: runner {mine:.2f} s, transformers {other:.2f} s, {other / mine:.2f} x")
        medians = {name: statistics.median(values) for name, values in times.items()}
        print(
            f"{args.model}, {args.threads} threads, loss {own['val_loss']:.6f}: runner {medians['runner']:.2f} s, "
            f"transformers {medians['transformers']:.2f} s, {medians['transformers'] / medians['runner']:.2f} x"
        )
    return None


if __name__ == "__main__":
    main()
