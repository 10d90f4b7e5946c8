#!/usr/bin/env python3
"""`runner data prepare` beside tiktoken, in turn, on JSON lines with a field `text`.

    python benches/prepare.py target/release/runner TEXTS.jsonl [--rounds 2] [--threads 2] [--ranks r50k_base.tiktoken]

Each row is a process of its own that reads the file, encodes every document behind the separator 50256, and writes
tokens: the program and tiktoken on one thread, then on several. tiktoken encodes as llm.c's `dev/data/fineweb.py` does, in
a `multiprocessing.Pool` that hands out 16 documents at a time, or in a plain loop for one thread; its tokens go to the disk
as they come. The tokens of all rows must be equal. Times are the best of all rounds; processor seconds, which say more on
a machine that does other work, are those of all processes of a row, and memory that of the largest one.

Needs tiktoken and numpy. tiktoken downloads its ranks, unless `--ranks` names the file.
"""

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time


def encoding(ranks):
    import tiktoken
    import tiktoken.load

    if not ranks:
        return tiktoken.get_encoding("gpt2")
    from tiktoken_ext.openai_public import r50k_pat_str

    loaded = tiktoken.load.load_tiktoken_bpe(ranks)
    special = {"<|endoftext|>": 50256}
    return tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=loaded, special_tokens=special)


def texts(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def begin(ranks):
    global gpt2
    gpt2 = encoding(ranks)


def tokens(text):
    import numpy

    return numpy.array([50256] + gpt2.encode_ordinary(text), dtype=numpy.uint16)


def tiktoken_prepares(path, out, threads, ranks):
    """What the process of a row of tiktoken does."""
    begin(ranks)
    with open(out, "wb") as file:
        if threads == 1:
            for text in texts(path):
                file.write(tokens(text).tobytes())
        else:
            import multiprocessing

            with multiprocessing.Pool(threads, begin, (ranks,)) as pool:
                for array in pool.imap(tokens, texts(path), chunksize=16):
                    file.write(array.tobytes())


def measured(command):
    """Wall and processor seconds, and the MiB of the largest process."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = child.stderr.read()
    _, status, used = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)}\n{said}")
    return time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def digest(parts):
    whole = hashlib.blake2b()
    count = 0
    for path, skipped in parts:
        with open(path, "rb") as file:
            file.seek(skipped)
            while block := file.read(1 << 24):
                whole.update(block)
                count += len(block) // 2
    return whole.hexdigest(), count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runner")
    parser.add_argument("texts")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--ranks")
    parser.add_argument("--as-tiktoken", nargs=2, metavar=("OUT", "THREADS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_tiktoken:
        return tiktoken_prepares(args.texts, args.as_tiktoken[0], int(args.as_tiktoken[1]), args.ranks)

    best, found = {}, set()
    for _ in range(args.rounds):
        for threads in dict.fromkeys([1, args.threads]):
            for name in ["runner", "tiktoken"]:
                with tempfile.TemporaryDirectory() as place:
                    place = pathlib.Path(place)
                    if name == "runner":
                        out = str(place / "set")
                        command = [args.runner, "data", "prepare", args.texts, "--out", out, "--threads", str(threads)]
                    else:
                        command = [sys.executable, __file__, args.runner, args.texts]
                        command += ["--as-tiktoken", str(place / "out"), str(threads)]
                        command += ["--ranks", args.ranks] if args.ranks else []
                    row = measured(command)
                    shards = [(path, 1024) for path in sorted(place.glob("set/train-*.bin"))]
                    found.add(digest(shards or [(place / "out", 0)]))
                    print(name, threads, *(f"{number:.1f}" for number in row), file=sys.stderr, flush=True)
                seen = best.setdefault((name, threads), row)
                best[name, threads] = tuple(map(min, seen, row))
    if len(found) != 1:
        sys.exit(f"the tokens differ: {found}")
    count = found.pop()[1]
    size = os.path.getsize(args.texts) / 2**20
    print(f"{size:.0f} MiB, {count:,} tokens, the same from both")
    print("| | threads | s | processor s | tokens/s | tokens per processor s | MiB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (name, threads), (wall, used, memory) in best.items():
        rates = f"{count / wall:,.0f} | {count / used:,.0f}"
        print(f"| {name} | {threads} | {wall:.1f} | {used:.1f} | {rates} | {memory:.0f} |")


if __name__ == "__main__":
    main()
