#!/usr/bin/env bash
# Makes a wheel of the program and tries it as a user of it would: in an environment of its own, from an empty directory.
#
#     bash scripts/wheel.sh [--portable] [DIR FOR THE WHEEL]       default: target/wheels
#
# Without an option, the wheel is for this system and those with a newer C library, made from what `cargo build --release`
# has left. `--portable` links it with zig against the C library of 2014 (manylinux2014, glibc 2.17), from nothing.
# maturin, and zig, come from an environment under target/ that is made on first use, unless that takes longer than
# $WHEEL_INSTALL_SECONDS (default 300). `--install` only makes it. What cannot be had leaves a line `wheel: not tested: ...`
# on stderr, and the rest is tested.
#
# Exit code: 0 all that was tested holds, 1 something does not.
set -euo pipefail
cd "$(dirname "$0")/.."

untested() { printf 'wheel: not tested: %s\n' "$*" >&2; }
fail() {
    printf 'wheel: %s\n' "$*" >&2
    exit 1
}
step() { printf 'wheel: %s\n' "$*"; }

portable=
install_only=
out=target/wheels
for word in "$@"; do
    case $word in
    --portable) portable=1 ;;
    --install) install_only=1 ;;
    -*) fail "there is no option $word" ;;
    *) out=$word ;;
    esac
done

python=$(command -v python3) || {
    untested "the wheel (no python3)"
    exit 0
}
environment=target/wheel-python
needed=(maturin nvidia-cuda-nvrtc)
[ -z "$portable" ] || needed+=(ziglang)
pip() { timeout "${WHEEL_INSTALL_SECONDS:-300}" "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
[ -x "$environment/bin/python" ] || "$python" -m venv "$environment" || {
    untested "the wheel (python3 makes no environment: is python3-venv installed?)"
    exit 0
}
for package in "${needed[@]}"; do
    pip "$package" || true
done
[ -z "$install_only" ] || exit 0
[ -x "$environment/bin/maturin" ] || {
    untested "the wheel (maturin was not to be had from PyPI in time)"
    exit 0
}

step "building"
mkdir -p "$out"
how=(--compatibility linux)
[ -z "$portable" ] || how=(--zig --compatibility manylinux2014)
# maturin finds zig as a module of the Python that is first on the path
PATH=$PWD/$environment/bin:$PATH "$environment/bin/maturin" build --release --locked "${how[@]}" --out "$out" --quiet
wheel=$(find "$out" -name '*.whl' -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2-)
[ -f "$wheel" ] || fail "maturin left no wheel in $out"
wheel=$(realpath "$wheel")
step "$(basename "$wheel"), $(stat -c %s "$wheel") bytes"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/env"
"$work/env/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps "$wheel"
if [ -n "$portable" ] && command -v objdump >/dev/null; then
    newest=$(objdump -T "$work/env/bin/runner" | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -n 1)
    [ "$(printf '%s\n' "$newest" GLIBC_2.17 | sort -V | tail -n 1)" = GLIBC_2.17 ] || fail "it needs $newest"
    step "the newest symbol of the C library that it needs is of $newest"
fi
mkdir "$work/home" "$work/empty"
# a user of whom nothing is known, with the environment active
user() { env -i HOME="$work/home" PATH="$work/env/bin:/usr/bin:/bin" VIRTUAL_ENV="$work/env" "$@"; }

step "a first run from an empty directory"
(
    cd "$work/empty"
    user runner init quickstart
    run=$(user runner quickstart.toml schedule.max_steps=3 schedule.warmup_steps=1 eval.every=3 eval.batches=1 sample.every=0 -q)
    [ -f "$run/run.json" ] || fail "no run: $run"
    user runner compare runs/* >/dev/null
    [ "$run" = "$(user runner builtin:quickstart schedule.max_steps=3 schedule.warmup_steps=1 eval.every=3 eval.batches=1 \
        sample.every=0 -q)" ] || fail "builtin:quickstart is another run"
)

step "CUDA's libraries in the environment"
found=$(find "$environment"/lib/python3*/site-packages/nvidia -maxdepth 0 2>/dev/null | head -n 1)
if [ -n "$found" ]; then
    packages=$(echo "$work"/env/lib/python3*/site-packages)
    cp -r "$found" "$packages/nvidia"
    # from inside, and from outside, by its path alone
    for way in "user runner" "env -i HOME=$work/home PATH=/usr/bin:/bin $work/env/bin/runner"; do
        $way doctor --format json >"$work/doctor.json"
        "$python" - "$work/doctor.json" "$packages" <<'PYTHON' || fail "the program did not find them: $way"
import json, sys

cuda = json.load(open(sys.argv[1]))["cuda"]
nvrtc = next(library for library in cuda["libraries"] if "nvrtc" in library["name"].lower())
if not (nvrtc["path"] or "").startswith(sys.argv[2]):
    sys.exit(f"NVRTC was taken from {nvrtc}; searched: {cuda['searched']}")
PYTHON
    done
else
    untested "CUDA's libraries in the environment of a wheel (NVRTC was not to be had from PyPI in time)"
fi
step "it holds"
