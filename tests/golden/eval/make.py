"""Makes the golden files of evaluation: what PyTorch and transformers compute for four small GPT-2s on made-up tasks.

    python tests/golden/eval/make.py TEXT        (needs torch, numpy, transformers; one model is trained on TEXT)

Next to this file:

  hellaswag.jsonl, choices.jsonl, lambada.jsonl    200 examples, in the forms that people's files have
  trained/                  a GPT-2 of bytes, trained for some hundred steps, as transformers saves it
  expected.json             for every model and file: sums and means of losses per ending, accuracies; the loss of
                            transformers on rows of hellaswag.jsonl's bytes

Three models are random: element i of a tensor is a function of i and of the tensor's name (`number`), so both sides
compute the same weights and no file holds them. Tokens are bytes. The scores follow build-nanogpt's definition (tokens
of the context, tokens of a space and the ending; sum and mean of the losses over the ending's tokens; the first of the
lowest is chosen) and that of lm-evaluation-harness 0.4, both written here from their descriptions.
"""

import json
import math
import re
import sys
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

HERE = Path(__file__).parent
SHAPES = {
    "narrow": dict(n_layer=1, n_head=2, n_embd=16, block_size=160, vocab_size=256),
    "deep": dict(n_layer=4, n_head=3, n_embd=24, block_size=96, vocab_size=256),
    "wide": dict(n_layer=2, n_head=4, n_embd=64, block_size=131, vocab_size=301),
}
TRAINED = dict(n_layer=2, n_head=3, n_embd=24, block_size=128, vocab_size=256)
LOSS_ROWS = 12


def number(name, count):
    """The elements of a random tensor, from -0.5 to 0.5: the bits of i and the name, mixed, over 2^32."""
    word = (1 << 32) - 1
    key = 0
    for byte in name.encode():
        key = (key * 31 + byte) & word
    x = (numpy.arange(count, dtype=numpy.uint64) * 2654435761 + key) & word
    x ^= x >> numpy.uint64(15)
    x = (x * 2246822519) & word
    x ^= x >> numpy.uint64(13)
    x = (x * 3266489917) & word
    x ^= x >> numpy.uint64(16)
    return x.astype(numpy.float64) / 2.0**32 - 0.5


def config(shape):
    d = dict(shape)
    return GPT2Config(
        n_positions=d.pop("block_size"), resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None,
        eos_token_id=None, **d,
    )


def random_model(shape):
    model = GPT2LMHeadModel(config(shape)).eval()
    with torch.no_grad():
        for name, tensor in model.transformer.named_parameters():
            values = number(name, tensor.numel())
            is_scale = "ln_" in name and name.endswith("weight")
            values = (1.0 if is_scale else 0.0) + values * (0.6 if tensor.dim() == 2 else 0.2)
            tensor.copy_(torch.from_numpy(values.astype(numpy.float32)).view_as(tensor))
    return model


def trained_model(text):
    torch.manual_seed(1)
    model = GPT2LMHeadModel(config(TRAINED))
    data = torch.tensor(list(text[:200_000]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    t = TRAINED["block_size"]
    for step in range(400):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 20) * (1.0 - 0.9 * step / 400)
        at = torch.randint(len(data) - t, (8,))
        rows = torch.stack([data[i : i + t] for i in at])
        loss = model(rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1}: {loss.item():.3f}")
    return model.eval()


WORDS = (
    "king queen lord man woman day night heart hand sword love death house fire water good noble gentle strange old "
    "young speaks comes goes falls sings cries laughs stands sits runs the a his her my thy with upon against for and "
    "café naïve Straße 雨 “so”"
).split()


class Draw:
    """Numbers from a seed, so that the examples do not depend on a library's generator."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self.state >> 33) % n

    def words(self, low, high):
        return " ".join(WORDS[self.below(len(WORDS))] for _ in range(low + self.below(high - low + 1)))


def examples():
    draw = Draw(7)
    hellaswag, choices, lambada = [], [], []
    for i in range(110):
        ctx_a = draw.words(3, 8).capitalize() + "."
        ctx_b = draw.words(1, 3)
        if i % 5 == 0:
            ctx_a = "[header] " + draw.words(2, 3) + " [title] " + ctx_a + " [step]  " + draw.words(1, 2) + "."
        if i % 23 == 0:
            ctx_a += " " + draw.words(16, 30)  # longer than a context
        endings = [draw.words(2, 6) + "." for _ in range(4)]
        if i % 7 == 0:
            endings[1] = " [substeps] " + endings[1] + " [title] "
        hellaswag.append(dict(
            ind=i, activity_label=draw.words(1, 2), ctx_a=ctx_a, ctx_b=ctx_b, ctx=ctx_a + " " + ctx_b, split="val",
            split_type="indomain", label=draw.below(4), endings=endings, source_id=f"made-up~{i}",
        ))
    for i in range(60):
        count = 2 + draw.below(4)
        line = dict(context=draw.words(2, 8), endings=[draw.words(1, 5) for _ in range(count)], label=draw.below(count))
        if i % 6 == 0:
            line["delimiter"] = "\n- "
        if i == 31:
            line["endings"][0] = draw.words(30, 40)  # longer than a context by itself
        choices.append(line)
    for i in range(30):
        text = draw.words(4, 10)
        # a greedy choice must be right somewhere: what a model repeats, it guesses
        lambada.append(dict(text=text + " " + ("the the the the the" if i % 3 == 0 else text.split(" ")[0])))
    return dict(hellaswag=hellaswag, choices=choices, lambada=lambada)


def tokens(text):
    return list(text.encode())


def logits_of(model, row):
    with torch.no_grad():
        return model(torch.tensor([row])).logits[0].double()


def ending_losses(model, block_size, context, ending):
    """The losses of an ending's tokens, and whether a greedy choice gives each; cut from the left to T + 1 tokens."""
    context = context or tokens("\n")
    row = (context + ending)[-(block_size + 1) :]
    scored = min(len(ending), block_size)
    logits = logits_of(model, row[:-1])
    targets = torch.tensor(row[1:])
    losses = F.cross_entropy(logits, targets, reduction="none")[-scored:]
    greedy = bool((logits.argmax(-1) == targets)[-scored:].all())
    return losses, greedy


def cleaned(text):
    text = text.strip().replace(" [title]", ". ")
    return re.sub("\\[.*?\\]", "", text).replace("  ", " ")


def pairs(name, line, lm_eval):
    """Tokens of context and ending, and the number of characters, for each ending."""
    if name == "lambada":
        context, word = line["text"].rsplit(" ", 1)
        return [(tokens(context), tokens(" " + word), len(word))]
    context, endings, delimiter = line.get("ctx") or line["context"], line["endings"], line.get("delimiter", " ")
    if lm_eval and name == "hellaswag":
        ctx = line["ctx_a"] + " " + line["ctx_b"].capitalize()
        context, endings = cleaned(line["activity_label"] + ": " + ctx), [cleaned(ending) for ending in endings]
    found = []
    for ending in endings:
        continuation = delimiter + ending
        if lm_eval:
            whole, alone = tokens(context + continuation), tokens(context.rstrip())
            found.append((alone, whole[len(alone) :], len(ending)))
        else:
            found.append((tokens(context), tokens(continuation), len(ending)))
    return found


def scores(model, block_size, name, lines, lm_eval):
    sums, means, right, right_norm, total = [], [], 0, 0, 0.0
    for line in lines:
        own, mean, normalized, greedy = [], [], [], False
        for context, ending, characters in pairs(name, line, lm_eval):
            losses, greedy = ending_losses(model, block_size, context, ending)
            own.append(losses.sum().item())
            mean.append(losses.mean().item())
            normalized.append(own[-1] / characters if lm_eval else mean[-1])
        sums.append([round(x, 8) for x in own])
        means.append([round(x, 8) for x in mean])
        if name == "lambada":
            right += greedy
            total += own[0]
        else:
            right += int(numpy.argmin(own)) == line["label"]
            right_norm += int(numpy.argmin(normalized)) == line["label"]
    found = dict(acc=right / len(lines))
    if name == "lambada":
        found["perplexity"] = math.exp(total / len(lines))
    else:
        found["acc_norm"] = right_norm / len(lines)
    return dict(found, sums=sums, means=None if lm_eval else means)


def data_loss(model, block_size):
    """The mean loss by transformers over the first rows of hellaswag.jsonl's bytes."""
    data = list((HERE / "hellaswag.jsonl").read_bytes())
    total = 0.0
    for i in range(LOSS_ROWS):
        row = torch.tensor([data[i * block_size : (i + 1) * block_size + 1]])
        with torch.no_grad():
            # transformers shifts the labels itself; the last target is not among its inputs
            logits = model(row[:, :-1]).logits
            total += model.loss_function(
                logits=torch.cat([logits, logits[:, -1:]], 1), labels=row, vocab_size=logits.shape[-1]
            ).item()
    return total / LOSS_ROWS


def main():
    torch.set_num_threads(1)
    files = examples()
    for name, lines in files.items():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (HERE / f"{name}.jsonl").write_text(text, encoding="utf-8")
    trained = trained_model(Path(sys.argv[1]).read_bytes())
    trained.save_pretrained(HERE / "trained")
    (HERE / "trained" / "generation_config.json").unlink(missing_ok=True)
    models = {name: (shape, random_model(shape)) for name, shape in SHAPES.items()}
    models["trained"] = (TRAINED, GPT2LMHeadModel.from_pretrained(HERE / "trained").eval())
    versions = dict(torch=torch.__version__, transformers=transformers.__version__)
    expected = dict(versions=versions, loss_rows=LOSS_ROWS, models={})
    for name, (shape, model) in models.items():
        t = shape["block_size"]
        loss = data_loss(model, t)
        found = dict(dims=shape, loss=loss, perplexity=math.exp(loss), tasks={})
        for task, lines in files.items():
            found["tasks"][task] = dict(per_token=scores(model, t, task, lines, False))
            if task != "lambada":
                found["tasks"][task]["lm_eval"] = scores(model, t, task, lines, True)
            numbers = found["tasks"][task]["per_token"]
            print(name, task, {key: value for key, value in numbers.items() if isinstance(value, float)})
        expected["models"][name] = found
    (HERE / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
