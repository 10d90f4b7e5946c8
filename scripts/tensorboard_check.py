#!/usr/bin/env python3
"""Holds event files against TensorBoard. Exit code 0 if everything agrees, 1 if not.

    tensorboard_check.sh                          makes a Python environment where needed and runs this
    python tensorboard_check.py path/to/runner    needs tensorboard

A run with two validation sets and samples is killed behind its checkpoint, resumed and finished. It writes an event file
itself, and `runner export` writes one: once before it is resumed, again while it goes on, and a third time at the end.

1. TensorBoard's EventAccumulator reads both: every value is the one of the CSV files, in fp32, at its step; times never go
   back; the recipe and the samples are those of their files, the hyperparameters those of the recipe.
2. TensorBoard itself, with each of its two readers, is started before the run goes back to its checkpoint and reads on. In
   the end it shows the values of the CSV files too, and the hyperparameters with the last validation loss beside them.
"""

import csv
import html
import json
import math
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

# rows of train.csv before the end, and of val.csv beside them
STEPS, CHECKPOINT, KILLED, EVALUATED = 60, 20, 35, 4
# TensorBoard may take its time on a busy machine.
PATIENCE = 120

RECIPE = f"""
[model]
n_layer = 1
n_head = 2
n_embd = 32
block_size = 32
[data]
tokenizer = "bytes"
train = "train.txt"
val = {{ first = "first.txt", second = "second.txt" }}
val_main = "first"
[batch]
total_tokens = 256
micro_batch = 8
[optimizer]
lr = 1e-3
[schedule]
max_steps = {STEPS}
warmup_steps = 5
[eval]
every = 10
batches = 2
[checkpoint]
every = {CHECKPOINT}
background = false
[sample]
every = 30
tokens = 40
prompt = "So"
[compute]
threads = 1
"""


def fail(message):
    sys.exit(f"tensorboard_check: {message}")


def step(message):
    print(f"tensorboard_check: {message}", flush=True)


def fp32(value):
    """A number as an event file holds it."""
    try:
        return struct.unpack("<f", struct.pack("<f", float(value)))[0]
    except OverflowError:
        return math.copysign(math.inf, float(value))


def logged(run):
    """The points of every column of the logs, by tag: step and value; the last validation loss once more at the end."""
    points = {}
    for log in ["train", "val"]:
        for row in csv.DictReader(open(run / f"{log}.csv")):
            for column, cell in row.items():
                if column == "step" or cell == "":
                    continue
                tag = f"{log}/{column.removeprefix('val_') if log == 'val' else column}"
                points.setdefault(tag, []).append((int(row["step"]), fp32(cell)))
    record = json.loads((run / "run.json").read_text())
    if record["status"] == "finished":
        points["hparam/val_loss"] = [(record["steps_done"], fp32(record["results"]["final_val_loss"]))]
    return points


def differing(expected, found):
    """The first difference between points by tag, as a text; empty if there is none."""
    if set(expected) != set(found):
        return f"tags differ: {sorted(set(expected) ^ set(found))}"
    for tag, points in expected.items():
        if len(points) != len(found[tag]):
            return f"{tag}: {len(found[tag])} points, the log has {len(points)}"
        for want, have in zip(points, found[tag]):
            same = want == have or want[0] == have[0] and math.isnan(want[1]) and math.isnan(have[1])
            if not same:
                return f"{tag}: {have}, the log has {want}"
    return ""


def plain(code):
    """A text that was made code for Markdown."""
    return "".join(line.removeprefix("    ") + "\n" for line in code.removesuffix("\n").split("\n"))


def accumulated(directory, run):
    """Compares an event file with its run, by TensorBoard's own reader."""
    events = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    found = {}
    for tag in events.Tags()["scalars"]:
        points = events.Scalars(tag)
        found[tag] = [(point.step, point.value) for point in points]
        times = [point.wall_time for point in points]
        if times != sorted(times) or not time.time() - 3600 < times[0] <= times[-1] <= time.time() + 1:
            fail(f"{directory}: the times of {tag} are {times}")
    problem = differing(logged(run), found)
    if problem:
        fail(f"{directory}: {problem}")
    # at a restart this reader forgets numbers only, and keeps both texts of a step; TensorBoard itself forgets texts too
    texts = {tag: sorted({event.step: event.tensor_proto.string_val[0].decode() for event in events.Tensors(tag)}.items())
             for tag in ["recipe", "samples"]}
    recipe = (run / "recipe.toml").read_text()
    if [(0, recipe)] != [(at, plain(text)) for at, text in texts["recipe"]]:
        fail(f"{directory}: the recipe is {texts['recipe']}")
    kept = lambda text: re.sub("[^\\n\\x20-\\x7e]", "", text)
    samples = "".join(f"=== step {at} ===\n{plain(text)}\n" for at, text in texts["samples"])
    if kept(samples) != kept((run / "samples.txt").read_text(errors="replace")):
        fail(f"{directory}: the samples are {samples}")
    content = events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    shown = metadata.parse_session_start_info_plugin_data(content).hparams
    table = tomllib.loads(recipe)
    for name, want in {"optimizer.lr": table["optimizer"]["lr"], "model.n_embd": table["model"]["n_embd"]}.items():
        if shown[name].number_value != want:
            fail(f"{directory}: {name} is {shown[name]}")
    metadata.parse_session_end_info_plugin_data(
        events.SummaryMetadata(metadata.SESSION_END_INFO_TAG).plugin_data.content)
    return sum(map(len, found.values()))


class Server:
    """TensorBoard itself, on a port of this machine."""

    def __init__(self, directory, fast):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.name = f"tensorboard --load_fast={fast}"
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(directory), "--host", "127.0.0.1",
                   "--port", str(self.port), f"--load_fast={fast}", "--reload_interval", "1",
                   "--samples_per_plugin", "scalars=9999,text=99"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        start_new_session=True)

    def ask(self, path, body=None, **query):
        query = "?" + urllib.parse.urlencode(query) if query else ""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/data/{path}{query}",
                                         data=body and json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"} if body else {})
        # a proxy of this shell must not be asked
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            return json.load(answer)

    def scalars(self, run):
        tags = self.ask("plugin/scalars/tags").get(run, {})
        points = {tag: self.ask("plugin/scalars/scalars", tag=tag, run=run) for tag in tags}
        return {tag: [(at, float(value)) for _, at, value in of_tag] for tag, of_tag in points.items()}

    def wait(self, what, holds):
        """Waits until `holds` returns an empty text."""
        begin, problem = time.time(), "it does not answer"
        while time.time() - begin < PATIENCE:
            if self.process.poll() is not None:
                fail(f"{self.name} has ended with {self.process.returncode}")
            try:
                problem = holds()
                if not problem:
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
                problem = str(error)
            time.sleep(0.3)
        fail(f"{self.name}: {what}: {problem}")

    def end(self):
        # with the process that reads its data
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()


def main():
    runner = sys.argv[1]
    with tempfile.TemporaryDirectory() as work:
        check(runner, Path(work))


def check(runner, work):
    text = "So she sang, and so did he; then they sang of it all, and so it ended.\n"
    (work / "train.txt").write_text(text * 100)
    (work / "first.txt").write_text((text * 20)[7:])
    (work / "second.txt").write_text(text.upper() * 20)
    (work / "plays.toml").write_text(RECIPE)

    def run(*args, code=0, **environment):
        ended = subprocess.run([runner, *args], cwd=work, env={**os.environ, **environment}, text=True,
                               capture_output=True)
        if ended.returncode != code:
            fail(f"runner {' '.join(args)} ended with {ended.returncode}: {ended.stderr}")
        return ended.stdout.strip()

    step("a run that is killed behind its checkpoint")
    train = ("plays.toml", "log.tensorboard=true")
    name = run(*train, code=-signal.SIGABRT, RUNNER_FAULT=f"csv.before_row:{KILLED + EVALUATED + 1}")
    place, exported = work / name, work / "exported"
    name = place.name
    export = ("export", name, "--tensorboard", "exported")
    run(*export)
    at_first = logged(place)
    if len(at_first["train/loss"]) != KILLED:
        fail(f"the log has {len(at_first['train/loss'])} rows")
    servers = [Server(exported, fast) for fast in ["true", "false"]]
    try:
        for server in servers:
            server.wait("the steps before the end", lambda: differing(at_first, server.scalars(name)))

        step("goes back to it, and on to its end")
        process = subprocess.Popen([runner, *train], cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        run(*export, "--follow")
        if process.wait() != 0:
            fail(f"the resumed run ended with {process.returncode}")
        run(*export)
        whole = (exported / name).iterdir().__next__().read_bytes()
        run(*export)
        if whole != (exported / name).iterdir().__next__().read_bytes():
            fail("a second export has changed something")

        numbers = accumulated(exported / name, place)
        step(f"EventAccumulator reads {numbers} numbers of an export as the logs have them")
        accumulated(place, place)
        step("and so it does of the event file that the run has written")

        last = logged(place)["val/loss"][-1][1]
        for server in servers:
            server.wait("the steps after the resumption", lambda: differing(logged(place), server.scalars(name)))
            asked = {"allowedStatuses": ["STATUS_SUCCESS"], "startIndex": 0, "sliceSize": 9,
                     "colParams": [{"hparam": "optimizer.lr"}, {"metric": {"group": "", "tag": "hparam/val_loss"}}]}
            groups = server.ask("plugin/hparams/session_groups", body=asked)["sessionGroups"]
            metric = [value["value"] for value in groups[0]["metricValues"] if value["name"]["tag"] == "hparam/val_loss"]
            if groups[0]["hparams"]["optimizer.lr"] != 1e-3 or metric != [last]:
                fail(f"{server.name}: hyperparameters {groups}")
            texts = server.ask("plugin/text/text", tag="samples", run=name)
            # Markdown, made HTML
            sample = html.unescape(texts[-1]["text"])
            if [point["step"] for point in texts] != [0, 30, 60] or not sample.startswith("<pre><code>So"):
                fail(f"{server.name}: texts {texts}")
            step(f"{server.name} shows the same, read while it grew and went back")
    finally:
        for server in servers:
            server.end()


if __name__ == "__main__":
    main()
