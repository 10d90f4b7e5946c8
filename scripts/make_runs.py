#!/usr/bin/env python3
"""Makes many finished runs with made-up logs, to measure how long reading them takes.

    python3 scripts/make_runs.py DIR [RUNS] [ROWS]
    /usr/bin/time -v target/release/runner compare DIR > /dev/null

The logs look like real ones: 13 columns, the shortest digits of 64-bit floats, an evaluation every 250 steps. The runs
are a grid of learning rates with five seeds each.
"""

import json
import math
import pathlib
import random
import sys

# the columns of the rows below; readers go by name, so a further column needs nothing here
HEADER = (
    "step,tokens,loss,lr,grad_norm,epoch,loss_scale,skipped,step_ms,tokens_per_s,mfu,memory_bytes,elapsed_s"
)


def main() -> None:
    directory = pathlib.Path(sys.argv[1])
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    rows = int(sys.argv[3]) if len(sys.argv) > 3 else 10_000
    for i in range(runs):
        lr, seed = 1e-4 * 1.02 ** (i // 5), i % 5
        write(directory / f"sweep-{i:08x}", lr, seed, rows)


def write(run: pathlib.Path, lr: float, seed: int, rows: int) -> None:
    rng = random.Random(f"{lr} {seed}")
    run.mkdir(parents=True, exist_ok=True)
    (run / "recipe.toml").write_text(
        f'name = "sweep"\nseed = {seed}\n\n[model]\nn_layer = 4\n\n[data]\ntrain = ["builtin:lipsum"]\n\n'
        f"[optimizer]\nlr = {lr!r}\n\n[schedule]\nmax_steps = {rows}\n"
    )
    record = {"format_version": 1, "id": run.name, "name": "sweep", "status": "finished", "total_steps": rows}
    (run / "run.json").write_text(json.dumps(record, indent=2))
    floor = 3 + abs(math.log10(lr) + 3) * 0.2 + rng.gauss(0, 0.01)
    train, val, elapsed = [HEADER], ["step,tokens,val_loss"], 0.0
    for step in range(rows):
        loss = floor + 7 * math.exp(-step / rows * 8) + rng.gauss(0, 0.05)
        ms = 100 * rng.lognormvariate(0, 0.05)
        elapsed += ms / 1e3
        rate = 4096 / ms * 1e3
        tokens = (step + 1) * 4096
        train.append(
            f"{step},{tokens},{loss:.7g},{lr * (1 - step / rows)!r},{rng.lognormvariate(0, 0.2)!r},"
            f"{tokens / 462592!r},1,0,{ms!r},{rate!r},{rate * 4.4e7 / 3e11!r},{205817088 + step},{elapsed!r}"
        )
        if step % 250 == 0:
            val.append(f"{step},{step * 4096},{loss:.7g}")
    (run / "train.csv").write_text("\n".join(train) + "\n")
    (run / "val.csv").write_text("\n".join(val) + "\n")


if __name__ == "__main__":
    main()
