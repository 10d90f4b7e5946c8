"""Makes the weight files of other trainers from which a run may begin, and says what PyTorch computes with them.

    python tests/golden/weights/make.py        (needs torch and numpy)

Next to this file:

  nanogpt.pt         as nanoGPT saves it: a state dict with torch.compile's prefix, an optimizer, dimensions; 48 ids
  no_bias.pt         the same of a model with bias=False and without the prefix, the state dict in bfloat16; 40 ids
  pytorch_model.bin  as Hugging Face saved it before safetensors: Conv1D layout, F16, with the causal masks; 40 ids
  llmc.bin           llm.c's model file, version 3 (fp32), 40 ids in 48 rows
  llmc_bf16.bin      the same, version 5 (bf16)
  expected.json      dimensions; tokens, whose rows of T + 1 overlap by one; for every file the
                     mean loss of these rows

The layout of llm.c's file is that of its train_gpt2.cu (header, then tensors in the order of ParameterTensors), written
out here anew. The model is written out in plain operations and owes nothing to the Rust code.
"""

import json
import math
import struct
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

HERE = Path(__file__).parent
L, H, C, T, V, PADDED = 2, 2, 8, 12, 40, 48


class Norm(nn.Module):
    """LayerNorm with an optional bias, as nanoGPT has it."""

    def __init__(self, bias):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.05 * torch.randn(C))
        self.bias = nn.Parameter(0.05 * torch.randn(C)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, (C,), self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.c_attn = nn.Linear(C, 3 * C, bias=bias)
        self.c_proj = nn.Linear(C, C, bias=bias)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (t.view(B, T, H, C // H).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(C // H)
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        y = scores.masked_fill(future, -math.inf).softmax(dim=3) @ v
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class MLP(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.c_fc = nn.Linear(C, 4 * C, bias=bias)
        self.c_proj = nn.Linear(4 * C, C, bias=bias)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = Norm(bias), Attention(bias), Norm(bias), MLP(bias)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """The names and the layout of nanoGPT's model."""

    def __init__(self, vocab, bias):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(vocab, C), wpe=nn.Embedding(T, C),
            h=nn.ModuleList(Block(bias) for _ in range(L)), ln_f=Norm(bias),
        ))
        self.lm_head = nn.Linear(C, vocab, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.3)

    def forward(self, rows):
        x, y = rows[:, :-1], rows[:, 1:]
        h = self.transformer.wte(x) + self.transformer.wpe(torch.arange(x.shape[1]))
        for block in self.transformer.h:
            h = block(h)
        logits = self.lm_head(self.transformer.ln_f(h))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def model(seed, vocab, bias=True):
    torch.manual_seed(seed)
    return GPT(vocab, bias)


def rounded(m, dtype):
    """The model with the values that a file of this type keeps."""
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(p.to(dtype).float())
    return m


def checkpoint(m, vocab, bias, state):
    """What nanoGPT's train.py saves, after one step of its optimizer."""
    groups = [
        dict(params=[p for p in m.parameters() if p.dim() >= 2], weight_decay=0.1),
        dict(params=[p for p in m.parameters() if p.dim() < 2], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95))
    m(ROWS).backward()
    optimizer.step()
    args = dict(n_layer=L, n_head=H, n_embd=C, block_size=T, bias=bias, vocab_size=vocab, dropout=0.0)
    return dict(
        model=state, optimizer=optimizer.state_dict(), model_args=args, iter_num=2000,
        best_val_loss=torch.tensor(1.25), config=dict(out_dir="out", learning_rate=6e-4, compile=True, init_from=None),
    )


def llmc(m, version, name):
    """llm.c's file: 256 integers, then every tensor of all blocks together; linear layers are [out, in]."""
    p = {k.removeprefix("transformer."): v.detach() for k, v in m.named_parameters()}
    wte = torch.zeros(PADDED, C)
    wte[:V] = p["lm_head.weight"] if "lm_head.weight" in p else p["wte.weight"]
    tensors = [wte, p["wpe.weight"]]
    for part in ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
                 "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
                 "mlp.c_proj.weight", "mlp.c_proj.bias"]:
        tensors += [p[f"h.{l}.{part}"] for l in range(L)]
    tensors += [p["ln_f.weight"], p["ln_f.bias"]]
    header = [20240326, version, T, V, L, H, C, PADDED]
    with open(HERE / name, "wb") as file:
        file.write(struct.pack("<256i", *header, *[0] * (256 - len(header))))
        for t in tensors:
            t = t.to(torch.bfloat16).view(torch.int16) if version == 5 else t
            file.write(t.contiguous().numpy().tobytes())


def hugging_face(m):
    """GPT2LMHeadModel's state dict: Conv1D layout, with the masks that old versions kept, in half precision."""
    state = {}
    for name, value in m.state_dict().items():
        is_linear = any(part in name for part in ("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        state[name] = (value.t() if is_linear else value).contiguous().half()
    for l in range(L):
        mask = torch.ones(T, T, dtype=torch.uint8).tril().view(1, 1, T, T)
        state[f"transformer.h.{l}.attn.bias"] = mask
        state[f"transformer.h.{l}.attn.masked_bias"] = torch.tensor(-1e4)
    return state


if __name__ == "__main__":
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(V, (4 * T + 1,), generator=generator)
    ROWS = tokens.unfold(0, T + 1, T)
    loss = {}

    m = model(1, PADDED)
    loss["nanogpt.pt"] = m(ROWS).item()
    state = m.state_dict()
    for name in list(state):
        state["_orig_mod." + name] = state.pop(name)
    torch.save(checkpoint(m, PADDED, True, state), HERE / "nanogpt.pt")

    m = rounded(model(2, V, bias=False), torch.bfloat16)
    loss["no_bias.pt"] = m(ROWS).item()
    state = {name: value.bfloat16() for name, value in m.state_dict().items()}
    torch.save(checkpoint(m, V, False, state), HERE / "no_bias.pt")

    m = rounded(model(3, V), torch.half)
    loss["pytorch_model.bin"] = m(ROWS).item()
    torch.save(hugging_face(m), HERE / "pytorch_model.bin")

    m = model(4, V)
    loss["llmc.bin"] = m(ROWS).item()
    llmc(m, 3, "llmc.bin")
    m = rounded(m, torch.bfloat16)
    loss["llmc_bf16.bin"] = m(ROWS).item()
    llmc(m, 5, "llmc_bf16.bin")

    dims = dict(n_layer=L, n_head=H, n_embd=C, block_size=T, vocab_size=V, padded=PADDED)
    expected = dict(torch=torch.__version__, dims=dims, tokens=tokens.tolist(), loss=loss)
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")
    print(loss)
