#!/usr/bin/env python3
"""A small stand-in for the Hugging Face hub on the loopback, for trying `runner data fetch`.

    python3 scripts/hub.py OWNER/REPO DIR > address

serves the files below DIR as the data set OWNER/REPO, prints its address, and runs until it is ended. It lists files
with their sizes and SHA-256 as the hub does, redirects to where they lie, answers to Range, and breaks the first answer
for each file off in the middle.
"""

import hashlib
import http.server
import json
import pathlib
import re
import sys
import urllib.parse

repo, root = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
files = {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
begun = set()


class Hub(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body, headers=(), sent=None):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:sent])

    def do_GET(self):
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if path.startswith(f"/api/datasets/{repo}/tree/"):
            listed = [
                {
                    "type": "file",
                    "path": name,
                    "size": len(body),
                    "oid": hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest(),
                    "lfs": {"oid": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 130},
                }
                for name, body in files.items()
            ]
            return self.answer(200, json.dumps(listed).encode(), [("Content-Type", "application/json")])
        resolved = re.fullmatch(rf"/datasets/{re.escape(repo)}/resolve/[^/]+/(.+)", path)
        if resolved and resolved[1] in files:
            return self.answer(302, b"", [("Location", "/cdn/" + urllib.parse.quote(resolved[1]))])
        name = path.removeprefix("/cdn/")
        if path.startswith("/cdn/") and name in files:
            return self.file(name, files[name])
        return self.answer(404, b"Entry not found")

    do_HEAD = do_GET

    def file(self, name, body):
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = int(asked[1]) if asked else 0
        if first > 0 and first >= len(body):
            return self.answer(416, b"", [("Content-Range", f"bytes */{len(body)}")])
        headers = [("Accept-Ranges", "bytes")]
        if asked:
            headers.append(("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}"))
        sent = None
        if self.command == "GET" and name not in begun:
            begun.add(name)
            sent = (len(body) - first) // 2
        return self.answer(206 if asked else 200, body[first:], headers, sent)

    def log_message(self, form, *values):
        print(form % values, file=sys.stderr)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
