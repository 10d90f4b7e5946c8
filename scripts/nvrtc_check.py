#!/usr/bin/env python3
"""Compiles the CUDA kernels as the program does, for several devices, and looks for what does not fit into registers.

Needs no GPU and nothing but Python and NVRTC, for instance from `pip install nvidia-cuda-nvrtc`; give it the directory
that holds `libnvrtc.so.*`. Exits with 1 when a kernel is refused, or keeps more bytes per thread in local memory than
allowed: spilled registers, or arrays that are indexed by what is not known when it is compiled.
"""

import argparse
import concurrent.futures
import ctypes
import glob
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src", "engine", "cuda", "kernels")
PRECISIONS = ["BF16", "FP16", "TF32", "FP32"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", help="the directory of libnvrtc.so.*")
    parser.add_argument("--archs", default="80,89,90,100", help="compute capabilities (default %(default)s)")
    parser.add_argument("--heads", default="32,64,80,96,128", help="head sizes (default %(default)s)")
    parser.add_argument("--precisions", default=",".join(PRECISIONS).lower(), help="(default %(default)s)")
    parser.add_argument("--dropout", default="0,1", help="without dropout, and with it (default %(default)s)")
    parser.add_argument("--local", type=int, default=0, help="bytes of local memory allowed (default %(default)s)")
    parser.add_argument("--only", default="", help="show kernels whose name contains this")
    args = parser.parse_args()
    nvrtc = Nvrtc(args.libraries)
    options = constant_strings("NVRTC_OPTIONS") + sizes()
    headers, sources = listed("HEADERS"), listed("SOURCES")
    print(f"NVRTC {nvrtc.version()}, options {' '.join(options)}")
    configurations = [
        (arch, precision.upper(), int(head), int(dropout))
        for precision in args.precisions.split(",")
        for head in args.heads.split(",")
        for arch in args.archs.split(",")
        for dropout in args.dropout.split(",")
    ]

    def compile_one(configuration):
        arch, precision, head, dropout = configuration
        tiles = flash_tiles(precision, head)
        absent = ("flash_attention/",) * (not tiles) + ("halves/",) * (precision != "BF16")
        names = [name for name in sources if not name.startswith(absent)]
        unit = "".join(f'#include "{name}"\n' for name in names)
        flags = [f"--gpu-architecture=sm_{arch}", f"-DOPERAND_{precision}", f"-DHEAD_SIZE={head}"]
        flags += [f"-DDROPOUT={dropout}", *tiles, *options]
        return nvrtc.compile(unit, {name: read(name) for name in headers + sources}, flags)

    failures = {}  # what, and where
    print(f"{'kernel':<34} {'device':<7} {'operand':<8} {'head':>4} {'dropout':>7} ", end="")
    print(f"{'registers':>9} {'local':>6} {'spills':>6} {'shared':>7}")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for configuration, (ok, log) in zip(configurations, pool.map(compile_one, configurations)):
            arch, precision, head, dropout = configuration
            where = f"sm_{arch}, {precision}, head size {head}{', dropout' if dropout else ''}"
            if not ok:
                failures.setdefault(f"refused:\n{log}", []).append(where)
                continue
            found = list(usage(log))
            if not found:
                failures.setdefault(f"nothing about registers in NVRTC's log:\n{log}", []).append(where)
            for kernel, registers, local, spills, shared in found:
                if args.only in kernel:
                    place = f"sm_{arch:<4} {precision:<8} {head:>4} {dropout:>7}"
                    print(f"{kernel:<34} {place} {registers:>9} {local:>6} {spills:>6} {shared:>7}")
                if max(local, spills) > args.local:
                    failures.setdefault(f"{kernel} uses {local} bytes of local memory", []).append(where)
    for failure, places in failures.items():
        print(f"{'; '.join(places)}: {failure}", file=sys.stderr)
    print(f"{len(configurations)} configurations, {len(failures)} kinds of failures")
    sys.exit(1 if failures else 0)


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def constant(name):
    """The value of a constant in the module that lists the kernels, as text."""
    return re.search(rf"pub const {name}:[^=]*=\s*&\[(.*?)\];", read("mod.rs"), re.S)[1]


def constant_strings(name):
    return re.findall(r'"([^"]*)"', constant(name))


def listed(name):
    """The files of HEADERS or SOURCES."""
    return re.findall(r'include_str!\("([^"]*)"\)', constant(name))


def sizes():
    """The macros for the sizes that sources and launches share, from the DEFINES beside the launches."""
    options = []
    for module in re.findall(r"(\w+)::DEFINES", read("mod.rs")):
        text = read(f"{module}/mod.rs")
        constants = dict(re.findall(r"const (\w+): \w+ = (\d+);", text))
        listed = re.search(r"const DEFINES:[^=]*=\s*&\[(.*?)\];", text, re.S)[1]
        options += [f"-D{name}={constants[value]}" for name, value in re.findall(r'\("(\w+)", (\w+)', listed)]
    return options


def flash_tiles(precision, head):
    """The macros with the tiles of flash attention, from the table in its geometry.rs; none for heads that are too
    wide."""
    table = re.search(r"const TILES:.*?= \[(.*?)\n\];", read("flash_attention/geometry.rs"), re.S)[1]
    for row in re.findall(r"Tiles \{(.*?)\}", table, re.S):
        fields = {name: int(value) for name, value in re.findall(r"(\w+): (\d+)", row)}
        if fields.pop("operand") == (2 if precision in ("BF16", "FP16") else 4) and head <= fields.pop("widest"):
            return [f"-DFLASH_{name.upper()}={value}" for name, value in fields.items()]
    return []


def usage(log):
    """Per thread of each kernel: registers, bytes of local memory, bytes of spill stores and loads; and static shared
    bytes. From what ptxas says with --verbose."""
    kernel = frame = None
    for line in log.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = found[1]
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            frame = [int(bytes) for bytes in found.groups()]
        elif kernel and frame and (found := re.search(r"Used (\d+) registers", line)):
            shared = re.search(r"(\d+) bytes smem", line)
            yield kernel, int(found[1]), frame[0], frame[1] + frame[2], int(shared[1]) if shared else 0
            kernel = frame = None


class Nvrtc:
    """NVRTC, as far as it is needed here."""

    def __init__(self, directory):
        # its other half, which it looks for by name only
        for path in sorted(glob.glob(os.path.join(directory, "libnvrtc-builtins.so*"))):
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        found = [p for p in sorted(glob.glob(os.path.join(directory, "libnvrtc.so*"))) if "alt" not in p]
        if not found:
            sys.exit(f"{directory}: there is no libnvrtc.so.* here")
        self.library = ctypes.CDLL(found[-1], mode=ctypes.RTLD_GLOBAL)
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def check(self, code):
        if code:
            sys.exit(f"NVRTC: {self.library.nvrtcGetErrorString(code).decode()}")

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.check(self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return f"{major.value}.{minor.value}"

    def compile(self, unit, headers, options):
        """Whether it compiled, and the log."""

        def strings(values):
            return (ctypes.c_char_p * len(values))(*[value.encode() for value in values])

        program = ctypes.c_void_p()
        self.check(
            self.library.nvrtcCreateProgram(
                ctypes.byref(program), unit.encode(), b"kernels.cu", len(headers), strings(list(headers.values())),
                strings(list(headers.keys())),
            )
        )
        options = [*options, "--ptxas-options=--verbose"]
        code = self.library.nvrtcCompileProgram(program, len(options), strings(options))
        size = ctypes.c_size_t()
        self.check(self.library.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        self.check(self.library.nvrtcGetProgramLog(program, log))
        self.check(self.library.nvrtcDestroyProgram(ctypes.byref(program)))
        return code == 0, log.value.decode()


if __name__ == "__main__":
    main()
