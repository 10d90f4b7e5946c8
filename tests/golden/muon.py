"""Makes the golden trajectories of Muon: what torch.optim.Muon (hidden matrices) and torch.optim.AdamW (everything
else) do with the two small GPT-2s of make.py, whose parameters and tokens are read from their files.

    python tests/golden/muon.py        (needs torch 2.9 or later, numpy and safetensors)

Next to this file:

  muon.json         versions, and for every case its settings and for every optimizer step loss, lr and grad_norm
  muon.safetensors  CASE.* for the cases of `FINALS`: the parameters after the last step, in Hugging Face's names and
                    Conv1D layout

torch.optim.Muon works on the matrices of `torch.nn.Linear`, [out, in]: the parameters here are those, and the model
reads them transposed. c_attn is one matrix. Both learning rates follow one schedule. Torch orthogonalizes in bf16; for
the cases in fp32 the cast is taken out of torch's own function, and nothing else.
"""

import inspect
import json
from pathlib import Path

import numpy
import torch
import torch.optim._muon as muon
from make import CONFIGS, TRAIN, loss_of, lr_at
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
MATRICES = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")

DEFAULTS = dict(momentum=0.95, nesterov=True, ns_steps=5, weight_decay=0.1)
CASES = {
    "a-match": DEFAULTS | dict(model="a", adjust="match_rms_adamw", precision="fp32", lr=6e-3),
    "a-original": DEFAULTS | dict(model="a", adjust="original", precision="fp32", lr=1e-2),
    "b-plain": dict(
        model="b", adjust="original", precision="fp32", lr=2e-2, momentum=0.9, nesterov=False, ns_steps=3,
        weight_decay=0.4,
    ),
    "b-match": DEFAULTS | dict(model="b", adjust="match_rms_adamw", precision="fp32", lr=6e-3),
    "a-original-bf16": DEFAULTS | dict(model="a", adjust="original", precision="bf16", lr=1e-2),
    "b-match-bf16": DEFAULTS | dict(model="b", adjust="match_rms_adamw", precision="bf16", lr=6e-3),
}
FINALS = ("a-match", "b-plain")


def in_fp32():
    """torch's own orthogonalization without the cast to bf16."""
    source = inspect.getsource(muon._zeropower_via_newtonschulz)
    assert source.count("grad.bfloat16()") == 1
    space = dict(vars(muon))
    exec(source.replace("grad.bfloat16()", "grad.clone()"), space)
    return space["_zeropower_via_newtonschulz"]


IN = dict(bf16=muon._zeropower_via_newtonschulz, fp32=in_fp32())


def run(case):
    c = CONFIGS[case["model"]]
    stored = load_file(HERE / f"{case['model']}.safetensors")
    start = {k.removeprefix("params."): v.float() for k, v in stored.items() if k.startswith("params.")}
    tokens = stored["tokens"].long()
    hidden = {k for k in start if k.endswith(MATRICES)}
    leaves = {k: (v.T.contiguous() if k in hidden else v).clone().requires_grad_() for k, v in start.items()}

    def parameters():
        return {k: v.T if k in hidden else v for k, v in leaves.items()}

    muon._zeropower_via_newtonschulz = IN[case["precision"]]
    rest = [v for k, v in leaves.items() if k not in hidden]
    groups = [
        dict(params=[v for v in rest if v.dim() >= 2], weight_decay=TRAIN["weight_decay"]),
        dict(params=[v for v in rest if v.dim() < 2], weight_decay=0.0),
    ]
    adamw = torch.optim.AdamW(groups, lr=TRAIN["lr"], betas=tuple(TRAIN["betas"]), eps=TRAIN["eps"], foreach=False)
    of_hidden = torch.optim.Muon(
        [leaves[k] for k in sorted(hidden)],
        lr=case["lr"], weight_decay=case["weight_decay"], momentum=case["momentum"], nesterov=case["nesterov"],
        ns_steps=case["ns_steps"], adjust_lr_fn=case["adjust"],
    )
    rows, micro = c["rows"], TRAIN["micro_steps"]
    trajectory = []
    for step in range(TRAIN["steps"]):
        total = 0.0
        for m in range(micro):
            at = torch.arange(rows) + (step * micro + m) * rows
            _, loss = loss_of(parameters(), c, tokens[at % len(tokens)])
            (loss / micro).backward()
            total += loss.item() / micro
        norm = torch.nn.utils.clip_grad_norm_(leaves.values(), TRAIN["clip_norm"]).item()
        share = lr_at(step) / TRAIN["lr"]
        for group in adamw.param_groups:
            group["lr"] = lr_at(step)
        of_hidden.param_groups[0]["lr"] = case["lr"] * share
        for optimizer in (adamw, of_hidden):
            optimizer.step()
            optimizer.zero_grad()
        trajectory.append(dict(loss=total, lr=lr_at(step), grad_norm=norm))
    return trajectory, {k: v.detach().clone() for k, v in parameters().items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    cases, finals = {}, {}
    for name, case in CASES.items():
        trajectory, final = run(case)
        losses = [step["loss"] for step in trajectory]
        assert losses[-1] < 0.7 * losses[0], f"{name}: the loss should clearly fall"
        print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}")
        cases[name] = dict(muon=case, trajectory=trajectory)
        if name in FINALS:
            finals |= {f"{name}.{k}": v.contiguous() for k, v in final.items()}
    save_file(finals, HERE / "muon.safetensors")
    info = dict(versions=dict(torch=torch.__version__, numpy=numpy.__version__), train=TRAIN, cases=cases)
    (HERE / "muon.json").write_text(json.dumps(info, indent=1) + "\n")
