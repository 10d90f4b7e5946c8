#!/usr/bin/env python3
"""Makes a llm.c token shard out of a text, a nanoGPT file of 16-bit tokens or a NumPy array.

Needs nothing but Python. Texts are encoded with GPT-2's byte-pair encoding, written here a second time so that it can
be held against the one in the program; its vocabulary is read from the source of the crate tiktoken-rs, which cargo has
downloaded to build the program, or from any other `r50k_base.tiktoken`.
"""

import argparse
import array
import ast
import base64
import functools
import glob
import os
import struct
import sys
import tempfile
import unicodedata

MAGIC, VERSION, HEADER_WORDS = 20240520, 1, 256
# The characters of Unicode's property White_Space, which is what the pattern's \s stands for.
SPACES = set("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(c) for c in range(0x2000, 0x200B)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("input", help="a .txt, .bin (16-bit tokens without header) or .npy file")
    parser.add_argument("output", help="the shard to write")
    parser.add_argument("--vocab", help="r50k_base.tiktoken, if cargo has not downloaded tiktoken-rs")
    args = parser.parse_args()
    with open(args.input, "rb") as file:
        data = file.read()
    if data.startswith(struct.pack("<i", MAGIC)):
        sys.exit(f"{args.input} is a llm.c shard already")
    if data.startswith(b"\x93NUMPY"):
        tokens = from_npy(args.input, data)
    elif args.input.endswith(".txt"):
        tokens = encode(data.decode("utf-8"), read_vocabulary(args.vocab))
    elif args.input.endswith(".bin"):
        if len(data) % 2:
            sys.exit(f"{args.input} has {len(data)} bytes, an odd number: not 16-bit tokens")
        tokens = little_endian("H", data)
    else:
        sys.exit(f"{args.input}: expected a .txt, .bin or .npy file")
    write_shard(args.output, tokens)
    print(f"{args.output}: {len(tokens)} tokens")


def little_endian(code, data):
    values = array.array(code, data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def from_npy(name, data):
    """The tokens of a one-dimensional array of <u2 or <i4."""
    wide = data[6] > 1
    start = 12 if wide else 10
    end = start + struct.unpack_from("<I" if wide else "<H", data, 8)[0]
    header = ast.literal_eval(data[start:end].decode())
    code = {"<u2": "H", "<i4": "i"}.get(header["descr"] if isinstance(header["descr"], str) else None)
    if code is None or len(header["shape"]) != 1:
        sys.exit(f"{name}: expected a one-dimensional array of <u2 or <i4, found {header}")
    tokens = little_endian(code, data[end:])
    if len(tokens) != header["shape"][0]:
        sys.exit(f"{name}: the header declares {header['shape'][0]} tokens, the file holds {len(tokens)}")
    bad = next((i for i, token in enumerate(tokens) if not 0 <= token < 65536), None)
    if bad is not None:
        sys.exit(f"{name}: token {tokens[bad]} at index {bad} does not fit 16 bits")
    return tokens


def write_shard(path, tokens):
    """Writes header and tokens; the file appears whole or not at all."""
    if len(tokens) >= 2**31:
        sys.exit(f"{path}: {len(tokens)} tokens, but the header counts fewer than 2^31; split the input")
    payload = array.array("H", tokens)
    if sys.byteorder == "big":
        payload.byteswap()
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(struct.pack("<3i", MAGIC, VERSION, len(tokens)).ljust(4 * HEADER_WORDS, b"\0"))
            file.write(payload.tobytes())
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_vocabulary(path):
    """Token bytes to id: one base64 string and one number per line. The id is also the merge's rank."""
    if path is None:
        cargo = os.environ.get("CARGO_HOME", os.path.expanduser("~/.cargo"))
        found = sorted(glob.glob(f"{cargo}/registry/src/*/tiktoken-rs-*/assets/r50k_base.tiktoken"))
        if not found:
            sys.exit("no r50k_base.tiktoken found: build the program first or give --vocab")
        path = found[-1]
    with open(path, "rb") as file:
        pairs = (line.split() for line in file if line.strip())
        return {base64.b64decode(token): int(rank) for token, rank in pairs}


def encode(text, ranks):
    """The GPT-2 tokens of a text, special tokens spelled out."""

    @functools.lru_cache(maxsize=1 << 18)
    def merge(piece):
        parts = [bytes([b]) for b in piece.encode("utf-8")]
        while len(parts) > 1:
            joined = [ranks.get(a + b) for a, b in zip(parts, parts[1:])]
            best = min((rank for rank in joined if rank is not None), default=None)
            if best is None:
                break
            at = joined.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [ranks[part] for part in parts]

    return array.array("H", (token for piece in pieces(text) for token in merge(piece)))


@functools.lru_cache(maxsize=None)
def kind(character):
    """S for white space, L for letters, N for numbers, O for others, as the pattern tells them apart."""
    if character in SPACES:
        return "S"
    category = unicodedata.category(character)[0]
    return category if category in "LN" else "O"


def pieces(text):
    r"""Cuts text where '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ does."""
    at = 0
    while at < len(text):
        end = at + 1
        if text[at] == "'" and text.startswith(("s", "d", "m", "t"), end):
            end += 1
        elif text[at] == "'" and text.startswith(("ll", "ve", "re"), end):
            end += 2
        elif kind(text[at]) == "S" and not (text[at] == " " and end < len(text) and kind(text[end]) != "S"):
            while end < len(text) and kind(text[end]) == "S":
                end += 1
            # The last white space before other text belongs to the next piece, if that leaves one here.
            if end < len(text) and end - at > 1:
                end -= 1
        else:
            first = kind(text[at if text[at] != " " else end])
            end = at + 1 if text[at] != " " else at + 2
            while end < len(text) and kind(text[end]) == first:
                end += 1
        yield text[at:end]
        at = end


if __name__ == "__main__":
    try:
        main()
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"make_shard.py: {error}")
