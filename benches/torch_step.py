#!/usr/bin/env python3
"""Times one GPT-2 training step in PyTorch, to hold `runner bench` against.

The step is the program's: forward and backward pass over a micro-batch of random tokens, gradient clipping, fused AdamW
with decay on matrices only. The model is written out here, with `scaled_dot_product_attention`, tied embeddings and the
tanh GELU. Prints one JSON object: median tokens/s over the counted steps, milliseconds per step, peak memory in bytes
(of the device, or resident on the CPU).

    python3 benches/torch_step.py --device cuda --precision bf16 --compile --micro-batch 16
"""

import argparse
import json
import resource
import statistics
import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as error:
    sys.exit(f"torch_step: PyTorch is needed: {error}")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, cols, width = x.shape
        heads = self.qkv(self.ln_1(x)).view(rows, cols, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, cols, width))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.wte = nn.Embedding(args.vocab, args.width)
        self.wpe = nn.Embedding(args.block_size, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.heads) for _ in range(args.layers))
        self.ln_f = nn.LayerNorm(args.width)
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="bf16")
    parser.add_argument("--compile", action="store_true", help="run the model and its loss through torch.compile")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--block-size", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocab", type=int, default=50304)
    parser.add_argument("--steps", type=int, default=10, help="steps that are counted, after three that are not")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for PyTorch's choice")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device")
    if args.device == "cpu" and args.precision == "tf32":
        parser.error("tf32 is for CUDA devices")
    if args.width % args.heads:
        parser.error("--width must be a multiple of --heads")
    return args


def main():
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    cuda = args.device == "cuda"
    torch.manual_seed(1337)
    torch.backends.cuda.matmul.allow_tf32 = args.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = args.precision == "tf32"
    model = Gpt2(args).to(args.device)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    loss_of = torch.compile(model) if args.compile else model
    low = torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.precision == "bf16")
    shape = (args.micro_batch, args.block_size + 1)
    rows = [torch.randint(args.vocab, shape, device=args.device) for _ in range(2)]

    def wait():
        if cuda:
            torch.cuda.synchronize()

    def step(number):
        batch = rows[number % len(rows)]
        with low:
            loss = loss_of(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for number in range(3):
        loss = step(number)
    wait()
    times = []
    for number in range(args.steps):
        start = time.perf_counter()
        loss = step(number)
        wait()
        times.append(time.perf_counter() - start)
    seconds = statistics.median(times)
    if cuda:
        memory, device = torch.cuda.max_memory_allocated(), torch.cuda.get_device_name()
    else:
        memory, device = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "cpu"
    report = {
        "torch": torch.__version__,
        "device": device,
        "precision": args.precision,
        "compiled": args.compile,
        "micro_batch": args.micro_batch,
        "block_size": args.block_size,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": args.steps,
        "step_ms": seconds * 1e3,
        "tokens_per_s": args.micro_batch * args.block_size / seconds,
        "peak_memory_bytes": memory,
        "loss": loss.item(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
