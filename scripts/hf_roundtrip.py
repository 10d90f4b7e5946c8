#!/usr/bin/env python3
"""Holds the program against Hugging Face's GPT-2, both ways. Exit code 0 if everything agrees, 1 if not.

    hf_roundtrip.sh                          makes a Python environment where needed and runs this
    python hf_roundtrip.py path/to/runner    needs torch, transformers, safetensors and numpy

1. The program trains a tiny model. GPT2LMHeadModel.from_pretrained loads its last checkpoint: nothing missing, nothing left
   over, the same validation loss on the same rows, the same greedy continuation.
2. Of runs with GPT-2's tokens, characters and bytes, AutoTokenizer loads the checkpoint offline: the same ids for a text with
   everything in it, the same text back, and pipeline("text-generation") continues a prompt.
3. transformers saves a random tiny model. The program trains from it: the first loss and gradient norm are PyTorch's.
"""

import csv
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

# nothing may be fetched
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, pipeline

import make_shard

VOCAB, CONTEXT, ROWS = 50257, 32, 8
# Largest relative difference of a loss or a norm.
BOUND = 1e-5

RECIPE = f"""
[model]
n_layer = 2
n_head = 2
n_embd = 32
block_size = {CONTEXT}
vocab_size = {VOCAB}
vocab_multiple = 128

[data]
train = "train.bin"
val = "val.bin"
shuffle = false

[batch]
total_tokens = {ROWS * CONTEXT}
micro_batch = 4

[optimizer]
lr = 1e-2

[schedule]
max_steps = 40
warmup_steps = 5

[eval]
every = 40
batches = 1

[sample]
every = 0
"""


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} path/to/runner")
    runner = Path(sys.argv[1]).resolve()
    torch.set_num_threads(2)
    vocabulary = {rank: token for token, rank in make_shard.read_vocabulary(None).items()}
    failures = []
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        words = sorted(rank for rank, token in vocabulary.items() if token.startswith(b" ") and token[1:].isalpha())
        data = {"train": tokens(words, 4 * ROWS, 1), "val": tokens(words, ROWS, 2)}
        for name, ids in data.items():
            make_shard.write_shard(str(place / f"{name}.bin"), make_shard.array.array("H", ids))
        (place / "tiny.toml").write_text(RECIPE)
        ours_to_theirs(runner, place, data, vocabulary, failures)
        for kind in ["gpt2", "char", "bytes"]:
            tokenizers(runner, place, kind, failures)
        theirs_to_ours(runner, place, data, failures)
    if failures:
        sys.exit(f"{len(failures)} of the comparisons failed: {', '.join(failures)}")
    print("the program and transformers agree")


def tokens(words, rows, seed):
    """`rows` rows and one token more: each word mostly decides the next, so that a tiny model is sure of something."""
    random.seed(seed)
    at, ids = 0, []
    for _ in range(rows * CONTEXT + 1):
        at = random.randrange(64) if random.random() < 0.1 else (at * 5 + 3) % 64
        ids.append(words[at])
    return ids


TEXT = "First Citizen:\n\nBefore  we proceed\tany further, don't 漢字 🦀 é 1234   \n <x> \"q\" \\\r\n"


def tokenizers(runner, place, kind, failures):
    """A run on a text whose tokens are of this kind, and its checkpoint in transformers."""
    (place / "text.txt").write_text(TEXT * 60, newline="")
    prepared = place / f"prepared-{kind}"
    subprocess.run(
        [runner, "data", "prepare", "text.txt", "--out", prepared.name, "--tokenizer", kind, "--separator", "none"],
        check=True, capture_output=True, cwd=place,
    )
    shard = (prepared / "train-000001.bin").read_bytes()[1024:]
    ours = [int.from_bytes(shard[at : at + 2], "little") for at in range(0, len(shard), 2)]
    size = json.loads((prepared / "dataset.json").read_text())["vocab_size"]
    recipe = RECIPE.replace(f"vocab_size = {VOCAB}\n", "").replace("vocab_multiple = 128\n", "")
    recipe = recipe.replace('train = "train.bin"\nval = "val.bin"', f'train = "{prepared.name}/train-*.bin"')
    recipe = recipe.replace("max_steps = 40", "max_steps = 2").replace("warmup_steps = 5", "warmup_steps = 0")
    recipe = recipe[: recipe.index("[eval]")]
    (place / f"{kind}.toml").write_text(recipe)
    printed = subprocess.run([runner, f"{kind}.toml"], check=True, capture_output=True, cwd=place).stdout
    checkpoint = place / printed.decode().strip() / "checkpoints" / "step-00000002"
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    check(f"{kind}: {len(tokenizer)} ids", len(tokenizer) == size, failures)
    theirs = tokenizer(TEXT * 60)["input_ids"]
    check(f"{kind}: the ids of a text", theirs == ours, failures)
    check(f"{kind}: the text of the ids", tokenizer.decode(theirs) == TEXT * 60, failures)
    said = pipeline("text-generation", model=str(checkpoint))("First", max_new_tokens=5, do_sample=False)
    said = said[0]["generated_text"]
    check(f"{kind}: a pipeline continues a prompt with {said!r}", said.startswith("First"), failures)


def ours_to_theirs(runner, place, data, vocabulary, failures):
    run = train(runner, place)
    checkpoint = run / "checkpoints" / "step-00000040"
    model, info = GPT2LMHeadModel.from_pretrained(checkpoint, output_loading_info=True)
    model.eval()
    for kind in ["missing_keys", "unexpected_keys", "mismatched_keys"]:
        left = [str(key) for key in info[kind] if "lm_head" not in str(key)]
        check(f"from_pretrained: {kind} {left}", not left, failures)
    tied = model.lm_head.weight.data_ptr() == model.transformer.wte.weight.data_ptr()
    check("the head is tied to the token embedding", tied, failures)
    with torch.no_grad():
        theirs = loss(model, data["val"]).item()
    close("validation loss of our checkpoint", column(run / "val.csv", "val_loss")[-1], theirs, failures)
    prompt = data["val"][:8]
    text = decode(vocabulary, prompt)
    command = [runner, "sample", checkpoint, "--prompt", text, "--tokens", "20", "--temperature", "0"]
    ours = subprocess.run(command, check=True, capture_output=True, cwd=place).stdout.decode("utf-8").rstrip("\n")
    ids = torch.tensor([prompt])
    options = dict(max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
    with torch.no_grad():
        generated = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0].tolist()
    theirs = decode(vocabulary, generated)
    check(f"greedy continuation{ours[len(text):]!r} against{theirs[len(text):]!r}", ours == theirs, failures)


def theirs_to_ours(runner, place, data, failures):
    torch.manual_seed(3)
    config = GPT2Config(vocab_size=VOCAB, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            # larger than the initialization, biases too: everything contributes
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.eval()
    model.save_pretrained(place / "theirs")
    theirs = loss(model, data["train"][: ROWS * CONTEXT + 1])
    theirs.backward()
    # in double precision: PyTorch's own fp32 sum over the embedding is off in its fifth digit
    norm = sum(parameter.grad.double().square().sum() for parameter in model.parameters()).sqrt().item()
    for setting in [[], ["model.init_from=theirs/model.safetensors"], ["compute.engine=dfdx", "compute.attention=naive"]]:
        start = ["model.init_from=theirs", "schedule.max_steps=1", "schedule.warmup_steps=0"]
        run = train(runner, place, start + setting)
        what = ", ".join(["their model", *setting])
        close(f"first loss of {what}", column(run / "train.csv", "loss")[0], theirs.item(), failures)
        close(f"first gradient norm of {what}", column(run / "train.csv", "grad_norm")[0], norm, failures)


def train(runner, place, settings=()):
    """Trains the recipe; the run's directory."""
    command = [runner, "tiny.toml", "--fresh"]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, cwd=place)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr}")
    return place / done.stdout.strip()


def loss(model, ids):
    """Mean loss over all whole rows of a stream of tokens, every position of them."""
    rows = (len(ids) - 1) // CONTEXT
    inputs = torch.tensor(ids[: rows * CONTEXT]).view(rows, CONTEXT)
    targets = torch.tensor(ids[1 : rows * CONTEXT + 1])
    return torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets)


def decode(vocabulary, ids):
    return b"".join(vocabulary[i] for i in ids).decode("utf-8", errors="replace")


def column(path, name):
    with open(path, newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file)]


def close(what, ours, theirs, failures):
    error = abs(ours - theirs) / abs(theirs)
    check(f"{what}: {ours:.8g} against {theirs:.8g}, off by {error:.1e} of {BOUND:.0e}", error <= BOUND, failures)


def check(what, holds, failures):
    print(f"{'ok  ' if holds else 'FAIL'}  {what}", flush=True)
    if not holds:
        failures.append(what.split(":")[0])


if __name__ == "__main__":
    main()
