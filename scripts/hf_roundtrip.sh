#!/usr/bin/env bash
# Holds the release binary against Hugging Face's GPT-2, both ways; see hf_roundtrip.py.
#
# Runs in $PYTHON if that is set, else in an environment of its own under target/, which it makes and fills with torch and
# transformers on first use. That is a large download: if it takes longer than $HF_INSTALL_SECONDS (default 600) or fails,
# the comparison is skipped with a line that says so. With HF_REQUIRED=1 that is a failure instead.
#
# `hf_roundtrip.sh --install` only makes that environment.
#
# Exit code: 0 agreed or skipped, 1 something differs, 2 required but not installable.
set -euo pipefail
cd "$(dirname "$0")/.."

needed='import numpy, safetensors, torch, transformers'

skip() {
    echo "hf_roundtrip: skipped: $1" >&2
    [ "${HF_REQUIRED:-0}" = 1 ] && exit 2
    exit 0
}

install() {
    echo "hf_roundtrip: installing torch and transformers under $1" >&2
    "$2" -m venv "$1" || return 1
    timeout "${HF_INSTALL_SECONDS:-600}" "$1/bin/python" -m pip install --quiet --disable-pip-version-check \
        torch transformers safetensors numpy
}

if [ -n "${PYTHON:-}" ]; then
    "$PYTHON" -c "$needed" || { echo "hf_roundtrip: \$PYTHON lacks one of numpy, safetensors, torch, transformers" >&2; exit 2; }
else
    system=$(command -v python3) || skip "there is no python3"
    environment=target/hf-python
    PYTHON=$environment/bin/python
    "$PYTHON" -c "$needed" 2>/dev/null || install "$environment" "$system" || skip "torch and transformers could not be installed in time"
fi

[ "${1:-}" != --install ] || exit 0
cargo build --release --locked --quiet
# no hub, no telemetry: everything is local
HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TRANSFORMERS_VERBOSITY=error exec "$PYTHON" scripts/hf_roundtrip.py "${CARGO_TARGET_DIR:-target}/release/runner"
