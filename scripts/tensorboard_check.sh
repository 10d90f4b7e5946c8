#!/usr/bin/env bash
# Holds event files against TensorBoard: scripts/tensorboard_check.py says what is compared.
#
#     bash scripts/tensorboard_check.sh [PATH OF RUNNER]
#
# TensorBoard comes from $PYTHON if that is set, else from an environment under target/ that is made on first use, unless
# that takes longer than $TENSORBOARD_INSTALL_SECONDS (default 300). `--install` only makes it. What cannot be had leaves a
# line `tensorboard_check: not tested: ...` on stderr.
#
# Exit code: 0 all that was tested holds, 1 something does not.
set -euo pipefail
cd "$(dirname "$0")/.."

untested() {
    printf 'tensorboard_check: not tested: %s\n' "$*" >&2
    exit 0
}

system=$(command -v python3) || untested "event files in TensorBoard (no python3)"
needed='import tensorboard.main, tensorboard.backend.event_processing.event_accumulator'
environment=target/tensorboard-python
if [ -z "${PYTHON:-}" ]; then
    PYTHON=$environment/bin/python
    if ! "$PYTHON" -c "$needed" 2>/dev/null; then
        if "$system" -m venv "$environment"; then
            timeout "${TENSORBOARD_INSTALL_SECONDS:-300}" "$PYTHON" \
                -m pip install --quiet --disable-pip-version-check tensorboard 'setuptools<81' || true
        fi
    fi
fi
"$PYTHON" -c "$needed" 2>/dev/null || untested "event files in TensorBoard (not to be had from PyPI in time)"
[ "${1:-}" != --install ] || exit 0

runner=${1:-${CARGO_TARGET_DIR:-target}/release/runner}
[ -x "$runner" ] || {
    printf 'tensorboard_check: %s is no program; build it first: cargo build --release\n' "$runner" >&2
    exit 1
}
exec "$PYTHON" scripts/tensorboard_check.py "$(realpath "$runner")"
