"""Makes the golden trajectories of dropout: what the two small GPT-2s of make.py do when activations are multiplied by
the factors that a run's seed gives. The factors are made here, by numpy, from the definition in the docs; the products
and their gradients are PyTorch's.

    python tests/golden/dropout.py        (needs torch, numpy and safetensors)

Next to this file:

  dropout.json         versions, and for every case its settings and for every optimizer step loss, lr and grad_norm
  dropout.safetensors  CASE.grads.* of the first batch, CASE.final.* after the last step, both for the positions'
                       embedding and the first block's attention, in Hugging Face's names and Conv1D layout

A factor is 0 where the draw is below rate * 2^32, else 1 / (1 - rate). Draws are the words of Philox4x32-7 with the
seed as key and the counter [a, b, row mod 2^32, site << 20 | head << 10 | row / 2^32], where row is the number of the
training row. Sites: 0 the embeddings' sum, and of block l 3 l + 1 attention's probabilities, 3 l + 2 its projection's
output, 3 l + 3 the MLP's. Of channels, a is the position, b a quarter of the channel, and the word is its remainder. Of
probabilities, a and b are query and key without their bit of 8, and these two bits are the word.
"""

import json
from pathlib import Path

import numpy as np
import torch
from make import CONFIGS, TRAIN, loss_of, lr_at
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent

CASES = {"a": dict(model="a", rate=0.2, seed=1337), "b": dict(model="b", rate=0.5, seed=(5 << 40) + 99)}
KEPT = ("wpe.", "h.0.ln_1.", "h.0.attn.")


def philox(counter, seed, rounds=7):
    """Salmon et al., 2011: four arrays of uint64 below 2^32 -> four such arrays."""
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    a, b, c, d = counter
    left, right = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(rounds):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b = (second >> half) ^ b ^ np.uint64(left), second & low
        c, d = (first >> half) ^ d ^ np.uint64(right), first & low
        left, right = (left + 0x9E3779B9) & 0xFFFFFFFF, (right + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


def factors(case, a, b, word, rows, site, head):
    """The factors of elements with these counters, all broadcast."""
    a, b, word, rows, head = np.broadcast_arrays(*(np.asarray(x, dtype=np.uint64) for x in (a, b, word, rows, head)))
    high = np.uint64(site << 20) | head << np.uint64(10) | rows >> np.uint64(32)
    words = philox((a, b, rows & np.uint64(0xFFFFFFFF), high), case["seed"])
    drawn = np.choose(word.astype(np.int64), words)
    rate = case["rate"]
    return torch.from_numpy(np.where(drawn < round(rate * 2**32), 0.0, 1.0 / (1.0 - rate)).astype(np.float32))


def dropout(case, first_row):
    """Dropout of a batch that begins with this training row."""

    def drop(site, layer, x):
        rows = first_row + np.arange(x.shape[0])
        if site == "probabilities":
            _, heads, T, _ = x.shape
            query, key = np.arange(T)[:, None], np.arange(T)
            word = query // 8 % 2 * 2 + key // 8 % 2
            rows, head = rows[:, None, None, None], np.arange(heads)[:, None, None]
            query, key = (i - i // 8 % 2 * 8 for i in (query, key))
            return x * factors(case, query, key, word, rows, 3 * layer + 1, head)
        number = dict(embedding=0, attention=3 * layer + 2, mlp=3 * layer + 3)[site]
        _, T, C = x.shape
        position, channel = np.arange(T)[:, None], np.arange(C)
        return x * factors(case, position, channel // 4, channel % 4, rows[:, None, None], number, 0)

    return drop


def run(case):
    c = CONFIGS[case["model"]]
    stored = load_file(HERE / f"{case['model']}.safetensors")
    p = {k.removeprefix("params."): v.float().requires_grad_() for k, v in stored.items() if k.startswith("params.")}
    tokens = stored["tokens"].long()
    rows, micro = c["rows"], TRAIN["micro_steps"]
    _, loss = loss_of(p, c, tokens[:rows], dropout(case, 0))
    loss.backward()
    out = {f"grads.{k}": v.grad.clone() for k, v in p.items() if k.startswith(KEPT)}
    first_loss = loss.item()
    for v in p.values():
        v.grad = None
    groups = [
        dict(params=[v for v in p.values() if v.dim() >= 2], weight_decay=TRAIN["weight_decay"]),
        dict(params=[v for v in p.values() if v.dim() < 2], weight_decay=0.0),
    ]
    adamw = torch.optim.AdamW(groups, lr=TRAIN["lr"], betas=tuple(TRAIN["betas"]), eps=TRAIN["eps"], foreach=False)
    trajectory = []
    for step in range(TRAIN["steps"]):
        total = 0.0
        for m in range(micro):
            first = (step * micro + m) * rows
            _, loss = loss_of(p, c, tokens[(torch.arange(rows) + first) % len(tokens)], dropout(case, first))
            (loss / micro).backward()
            total += loss.item() / micro
        norm = torch.nn.utils.clip_grad_norm_(p.values(), TRAIN["clip_norm"]).item()
        for group in adamw.param_groups:
            group["lr"] = lr_at(step)
        adamw.step()
        adamw.zero_grad()
        trajectory.append(dict(loss=total, lr=lr_at(step), grad_norm=norm))
    out |= {f"final.{k}": v.detach().clone() for k, v in p.items() if k.startswith(KEPT)}
    return first_loss, trajectory, out


if __name__ == "__main__":
    torch.set_num_threads(1)
    # the numbers that Random123 publishes for zeros
    assert [int(x) for x in philox([np.uint64(0)] * 4, 0)] == [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]
    cases, tensors = {}, {}
    for name, case in CASES.items():
        first_loss, trajectory, out = run(case)
        print(f"{name}: loss {trajectory[0]['loss']:.4f} -> {trajectory[-1]['loss']:.4f}")
        cases[name] = dict(dropout=case, first_loss=first_loss, trajectory=trajectory)
        tensors |= {f"{name}.{k}": v.contiguous() for k, v in out.items()}
    save_file(tensors, HERE / "dropout.safetensors")
    info = dict(versions=dict(torch=torch.__version__, numpy=np.__version__), cases=cases)
    (HERE / "dropout.json").write_text(json.dumps(info, indent=1) + "\n")
