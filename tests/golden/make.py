"""Makes the golden files: what PyTorch computes for two small GPT-2s.

    python tests/golden/make.py        (needs torch, numpy and safetensors)

For each configuration, next to this file:

  NAME.json         dimensions, hyperparameters, versions, and for every optimizer step its loss, lr and grad_norm
  NAME.safetensors  params.* (initial; stored as F16, which is exact for them), grads.* (of the first batch), final.*
                    (after the last step), all in Hugging Face's names and Conv1D layout; tokens [sequences, T + 1];
                    logits [rows, T, V] of the first batch

The first batch is the first `rows` sequences. Step s takes the sequences s * micro_steps * rows + i, modulo their
number, `rows` per micro-step. The model is written out in plain tensor operations and owes nothing to the Rust code.
"""

import json
import math
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = Path(__file__).parent

CONFIGS = {
    "a": dict(n_layer=2, n_head=3, n_embd=48, block_size=21, vocab_size=97, vocab_multiple=1, rows=2, sequences=20, seed=1),
    "b": dict(n_layer=3, n_head=2, n_embd=40, block_size=13, vocab_size=61, vocab_multiple=8, rows=3, sequences=24, seed=2),
}
TRAIN = dict(
    steps=60, micro_steps=2, lr=3e-3, min_lr_ratio=0.1, warmup_steps=10,
    betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, clip_norm=1.0,
)


def initial(c):
    """The parameters by name. Biases and LayerNorms are not at 0 and 1, so that no gradient is trivially right."""
    g = torch.Generator().manual_seed(c["seed"])
    C, L = c["n_embd"], c["n_layer"]

    def normal(*shape, std=0.02, mean=0.0):
        return mean + std * torch.randn(*shape, generator=g)

    p = {"wte.weight": normal(c["vocab_size"], C), "wpe.weight": normal(c["block_size"], C)}
    for l in range(L):
        def linear(name, i, o, std=0.02):
            p[f"h.{l}.{name}.weight"] = normal(i, o, std=std)
            p[f"h.{l}.{name}.bias"] = normal(o)

        def norm(name):
            p[f"h.{l}.{name}.weight"] = normal(C, std=0.05, mean=1.0)
            p[f"h.{l}.{name}.bias"] = normal(C, std=0.05)

        residual = 0.02 / math.sqrt(2 * L)
        norm("ln_1")
        linear("attn.c_attn", C, 3 * C)
        linear("attn.c_proj", C, C, residual)
        norm("ln_2")
        linear("mlp.c_fc", C, 4 * C)
        linear("mlp.c_proj", 4 * C, C, residual)
    p["ln_f.weight"] = normal(C, std=0.05, mean=1.0)
    p["ln_f.bias"] = normal(C, std=0.05)
    # Exact in half precision, which is how they are stored.
    return {k: v.half().float() for k, v in p.items()}


def logits_of(p, c, x, drop=lambda site, layer, x: x):
    """GPT-2: tokens [B, T] -> logits [B, T, V]. `drop` is dropout at a site of a layer."""
    B, T = x.shape
    C, H = c["n_embd"], c["n_head"]

    def norm(name, x):
        return F.layer_norm(x, (C,), p[f"{name}.weight"], p[f"{name}.bias"], 1e-5)

    def linear(name, x):
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    h = drop("embedding", 0, p["wte.weight"][x] + p["wpe.weight"][:T])
    for l in range(c["n_layer"]):
        q, k, v = linear(f"h.{l}.attn.c_attn", norm(f"h.{l}.ln_1", h)).split(C, dim=2)
        q, k, v = (t.view(B, T, H, C // H).transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(2, 3)) / math.sqrt(C // H)
        y = drop("probabilities", l, scores.masked_fill(future, -math.inf).softmax(dim=3)) @ v
        y = linear(f"h.{l}.attn.c_proj", y.transpose(1, 2).reshape(B, T, C))
        h = h + drop("attention", l, y)
        m = F.gelu(linear(f"h.{l}.mlp.c_fc", norm(f"h.{l}.ln_2", h)), approximate="tanh")
        h = h + drop("mlp", l, linear(f"h.{l}.mlp.c_proj", m))
    return norm("ln_f", h) @ p["wte.weight"].T


def loss_of(p, c, rows, *drop):
    logits = logits_of(p, c, rows[:, :-1], *drop)
    return logits, F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def lr_at(step):
    peak, warmup = TRAIN["lr"], TRAIN["warmup_steps"]
    low = peak * TRAIN["min_lr_ratio"]
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / (TRAIN["steps"] - warmup)
    return low + 0.5 * (1 + math.cos(math.pi * done)) * (peak - low)


def make(name, c):
    V, T = c["vocab_size"], c["block_size"]
    # Noisy arithmetic progressions: learnable, so that the loss falls, yet every id occurs.
    g = torch.Generator().manual_seed(100 + c["seed"])
    start = torch.randint(V, (c["sequences"], 1), generator=g)
    stride = torch.randint(1, 4, (c["sequences"], 1), generator=g)
    noise = (torch.rand(c["sequences"], T + 1, generator=g) < 0.1).long() * torch.randint(
        V, (c["sequences"], T + 1), generator=g
    )
    tokens = (start + stride * torch.arange(T + 1) + noise) % V

    p = {k: v.requires_grad_() for k, v in initial(c).items()}
    out = {f"params.{k}": v.detach().half() for k, v in p.items()}
    logits, loss = loss_of(p, c, tokens[: c["rows"]])
    loss.backward()
    out |= {f"grads.{k}": v.grad.clone() for k, v in p.items()}
    out["tokens"] = tokens.to(torch.int32)
    out["logits"] = logits.detach()
    first_loss = loss.item()
    for v in p.values():
        v.grad = None

    groups = [
        dict(params=[v for v in p.values() if v.dim() >= 2], weight_decay=TRAIN["weight_decay"]),
        dict(params=[v for v in p.values() if v.dim() < 2], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(groups, lr=TRAIN["lr"], betas=tuple(TRAIN["betas"]), eps=TRAIN["eps"], foreach=False)
    rows, micro = c["rows"], TRAIN["micro_steps"]
    trajectory = []
    for step in range(TRAIN["steps"]):
        total = 0.0
        for m in range(micro):
            at = torch.arange(rows) + (step * micro + m) * rows
            _, loss = loss_of(p, c, tokens[at % len(tokens)])
            (loss / micro).backward()
            total += loss.item() / micro
        norm = torch.nn.utils.clip_grad_norm_(p.values(), TRAIN["clip_norm"]).item()
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        optimizer.step()
        optimizer.zero_grad()
        trajectory.append(dict(loss=total, lr=lr_at(step), grad_norm=norm))
    out |= {f"final.{k}": v.detach().clone() for k, v in p.items()}

    clipped = sum(s["grad_norm"] > TRAIN["clip_norm"] for s in trajectory)
    assert 0 < clipped < TRAIN["steps"], f"clipping should be active on some steps only, not {clipped}"
    assert trajectory[-1]["loss"] < 0.7 * trajectory[0]["loss"], "the loss should clearly fall"
    print(f"{name}: loss {trajectory[0]['loss']:.4f} -> {trajectory[-1]['loss']:.4f}, {clipped} steps clipped")
    save_file({k: v.contiguous() for k, v in out.items()}, HERE / f"{name}.safetensors")
    info = dict(
        versions=dict(torch=torch.__version__, numpy=numpy.__version__),
        dims=c, train=TRAIN, first_loss=first_loss, trajectory=trajectory,
    )
    (HERE / f"{name}.json").write_text(json.dumps(info, indent=1) + "\n")


if __name__ == "__main__":
    # One thread and no fused kernels: sums are then added in one order, on every run.
    torch.set_num_threads(1)
    for name, config in CONFIGS.items():
        make(name, config)
