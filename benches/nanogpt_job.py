"""The experiment of nanoGPT's README for a CPU as a whole job, by `runner` and by nanoGPT's own train.py.

0.8 million parameters learn Shakespeare's plays letter by letter in 2000 steps of 12 rows of 64; every 250 steps the loss
over 20 batches of the training text and 20 of the validation text is estimated. Ours evaluates on 40 batches of the
validation text, which is as much work. Both save a checkpoint when they evaluate. Used by compare_torch.py.
"""

import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXT = ROOT / "datasets" / "tinyshakespeare.txt"
# what nanoGPT's README gives train.py for a machine without a GPU
FLAGS = {
    "device": "cpu",
    "eval_iters": 20,
    "log_interval": 1,
    "block_size": 64,
    "batch_size": 12,
    "n_layer": 4,
    "n_head": 4,
    "n_embd": 128,
    "max_iters": 2000,
    "lr_decay_iters": 2000,
    "dropout": 0.0,
}
CONFIG = "config/train_shakespeare_char.py"


def timed(command, **options):
    """Seconds that a command takes, and what it prints; a failure ends the comparison."""
    command = [str(word) for word in command]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        sys.exit(f"{done.stderr}error: `{' '.join(command)}` ended with {done.returncode}")
    return seconds, done.stdout


def ours(runner, threads):
    """Seconds of `runner recipes/shakespeare-char.toml`, and its last validation loss."""
    changes = {
        "compute.device": "cpu",
        "compute.precision": "fp32",
        "compute.threads": threads,
        "eval.batches": 2 * FLAGS["eval_iters"],
        "checkpoint.every": 250,
        "sample.every": 0,
    }
    changes = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    with tempfile.TemporaryDirectory() as runs:
        recipe = ROOT / "recipes" / "shakespeare-char.toml"
        seconds, run = timed([runner, recipe, "--runs-dir", runs, *changes])
        record = json.loads((Path(run.strip()) / "run.json").read_text())
    return seconds, record["results"]["final_val_loss"]


def tokens(folder):
    """Writes the text as nanoGPT's data/shakespeare_char has it: 16-bit numbers of letters, a tenth for validation."""
    text = TEXT.read_text()
    letters = sorted(set(text))
    numbers = {letter: number for number, letter in enumerate(letters)}
    cut = len(text) * 9 // 10
    folder.mkdir(parents=True)
    for name, part in (("train.bin", text[:cut]), ("val.bin", text[cut:])):
        (folder / name).write_bytes(struct.pack(f"={len(part)}H", *(numbers[letter] for letter in part)))
    meta = {"vocab_size": len(letters), "stoi": numbers, "itos": dict(enumerate(letters))}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def theirs(checkout, python, threads, is_compiled):
    """Seconds of nanoGPT's train.py, and its last validation loss."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "config").mkdir()
        for name in ("train.py", "model.py", "configurator.py", CONFIG):
            shutil.copy(checkout / name, work / name)
        tokens(work / "data" / "shakespeare_char")
        flags = [f"--{name}={value}" for name, value in {**FLAGS, "compile": is_compiled}.items()]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        seconds, said = timed([python, "train.py", CONFIG, *flags], cwd=work, env=environment)
    losses = re.findall(r"val loss ([0-9.]+)", said)
    if not losses:
        sys.exit(f"error: nanoGPT printed no validation loss:\n{said[-2000:]}")
    return seconds, float(losses[-1])
