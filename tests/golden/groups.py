"""Makes the golden trajectories of AdamW with settings of their own for embeddings: what torch.optim.AdamW does with
three parameter groups on the two small GPT-2s of make.py, whose parameters and tokens are read from their files.

    python tests/golden/groups.py        (needs torch, numpy and safetensors)

Next to this file:

  groups.json         versions, and for every case its settings and for every optimizer step loss, lr and grad_norm
  groups.safetensors  CASE.* : both embeddings after the last step, in Hugging Face's names
"""

import json
from pathlib import Path

import numpy
import torch
from make import CONFIGS, TRAIN, loss_of, lr_at
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
EMBEDDINGS = ("wte.weight", "wpe.weight")

CASES = {
    "a-slow": dict(model="a", embedding_lr_factor=0.1, weight_decay_embeddings=2.0),
    "b-fast": dict(model="b", embedding_lr_factor=3.0, weight_decay_embeddings=2.0),
    "b-decay": dict(model="b", embedding_lr_factor=1.0, weight_decay_embeddings=5.0),
}


def run(case):
    c = CONFIGS[case["model"]]
    stored = load_file(HERE / f"{case['model']}.safetensors")
    p = {k.removeprefix("params."): v.float().requires_grad_() for k, v in stored.items() if k.startswith("params.")}
    tokens = stored["tokens"].long()
    factor = case["embedding_lr_factor"]
    groups = [
        dict(params=[p[k] for k in EMBEDDINGS], weight_decay=case["weight_decay_embeddings"], factor=factor),
        dict(
            params=[v for k, v in p.items() if v.dim() >= 2 and k not in EMBEDDINGS],
            weight_decay=TRAIN["weight_decay"], factor=1.0,
        ),
        dict(params=[v for v in p.values() if v.dim() < 2], weight_decay=0.0, factor=1.0),
    ]
    adamw = torch.optim.AdamW(groups, lr=TRAIN["lr"], betas=tuple(TRAIN["betas"]), eps=TRAIN["eps"], foreach=False)
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
        for group in adamw.param_groups:
            group["lr"] = lr_at(step) * group["factor"]
        adamw.step()
        adamw.zero_grad()
        trajectory.append(dict(loss=total, lr=lr_at(step), grad_norm=norm))
    return trajectory, {k: p[k].detach().clone() for k in EMBEDDINGS}


if __name__ == "__main__":
    torch.set_num_threads(1)
    cases, finals = {}, {}
    for name, case in CASES.items():
        trajectory, final = run(case)
        print(f"{name}: loss {trajectory[0]['loss']:.4f} -> {trajectory[-1]['loss']:.4f}")
        cases[name] = dict(groups=case, trajectory=trajectory)
        finals |= {f"{name}.{k}": v.contiguous() for k, v in final.items()}
    save_file(finals, HERE / "groups.safetensors")
    info = dict(versions=dict(torch=torch.__version__, numpy=numpy.__version__), cases=cases)
    (HERE / "groups.json").write_text(json.dumps(info, indent=1) + "\n")
