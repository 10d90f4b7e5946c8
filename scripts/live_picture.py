#!/usr/bin/env python3
"""Takes the picture of `runner watch --serve` that the documents show: docs/live.png.

    python3 scripts/live_picture.py PROGRAM [OUT.png]

Trains the quickstart with three learning rates in a directory of its own (some minutes), the last of them while the
picture is taken. Needs Chromium, and pngquant to make the file small.
"""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

RATES = ["5e-4", "1e-3", "2e-3"]
STEPS = 300
# steps of the last run after which the picture is taken
MOMENT = 230
SIZE = (1200, 880)


class Browser:
    """A headless browser that is told what to do over a pipe."""

    def __init__(self, profile):
        name = next(filter(shutil.which, ["chromium", "chromium-browser", "google-chrome"]), None)
        if name is None:
            sys.exit("live_picture: no Chromium or Chrome")
        to_read, self.orders = os.pipe()
        self.answers, to_write = os.pipe()

        def descriptors():
            # the protocol wants 3 and 4
            ours = [os.dup(to_read), os.dup(to_write)]
            os.dup2(ours[0], 3)
            os.dup2(ours[1], 4)

        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        self.process = subprocess.Popen(
            [name, *flags, f"--window-size={SIZE[0]},{SIZE[1]}", f"--user-data-dir={profile}"],
            preexec_fn=descriptors, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.pending, self.number, self.session = b"", 0, None

    def order(self, method, **params):
        self.number += 1
        order = {"id": self.number, "method": method, "params": params}
        if self.session:
            order["sessionId"] = self.session
        os.write(self.orders, json.dumps(order).encode() + b"\0")
        while True:
            while b"\0" not in self.pending:
                piece = os.read(self.answers, 1 << 16)
                if not piece:
                    sys.exit("live_picture: the browser has ended")
                self.pending += piece
            answer, self.pending = self.pending.split(b"\0", 1)
            answer = json.loads(answer)
            if answer.get("id") == self.number:
                return answer["result"]

    def open(self, address):
        target = self.order("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.order("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.order("Page.navigate", url=address)


def rows(work):
    """The steps that all runs together have logged."""
    return sum(len(log.read_text().splitlines()) - 1 for log in pathlib.Path(work).glob("runs/*/train.csv"))


def main():
    program, out = os.path.abspath(sys.argv[1]), os.path.abspath((sys.argv[2:] or ["docs/live.png"])[0])
    processes = []
    with tempfile.TemporaryDirectory() as work:
        environment = {"PATH": os.environ["PATH"], "HOME": work}

        def start(*words, **how):
            return subprocess.Popen([program, *words], cwd=work, env=environment, **how)

        def train(rate):
            return start("builtin:quickstart", f"optimizer.lr={rate}", f"schedule.max_steps={STEPS}", "-q", stdout=subprocess.DEVNULL)

        try:
            for rate in RATES[:-1]:
                if train(rate).wait():
                    sys.exit("live_picture: training failed")
            processes.append(train(RATES[-1]))
            processes.append(start("watch", "--serve", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
            browser = Browser(os.path.join(work, "profile"))
            processes.append(browser.process)
            browser.open(processes[1].stdout.readline().strip())
            while rows(work) < len(RATES[:-1]) * STEPS + MOMENT:
                time.sleep(0.2)
            # the page looks at runs once a second
            time.sleep(3)
            shot = browser.order("Page.captureScreenshot", format="png")["data"]
        finally:
            for process in processes:
                process.terminate()
                process.wait()
    with open(out, "wb") as file:
        file.write(base64.b64decode(shot))
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--ext", ".png", "--strip", "64", out], check=True)
    print(out, os.path.getsize(out))


main()
