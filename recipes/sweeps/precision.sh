#!/bin/sh
# Every precision with every attention: what does each cost in loss, and what does it buy in speed?
#
#     sh recipes/sweeps/precision.sh
#     PRECISIONS='fp32 bf16' ATTENTIONS=flash RECIPE=my.toml sh recipes/sweeps/precision.sh
#     runner compare $(sh recipes/sweeps/precision.sh) --metrics val_loss,tokens_per_s,speedup --sort compute.precision
#
# What the device does not have is emulated by rounding, which gives the loss but not the speed; `runner compare` marks it.
#
# RUNNER, JOBS, output and exit codes: see each.sh.
set -eu
here=$(dirname "$0")

lines=$(
    for precision in ${PRECISIONS:-fp32 tf32 bf16 fp16}; do
        for attention in ${ATTENTIONS:-naive flash}; do
            echo "--set compute.precision=$precision --set compute.attention=$attention"
        done
    done
)
# in place of this shell, so that a signal to it reaches the sweep
exec sh "$here/each.sh" "${RECIPE:-$here/small.toml}" "$@" <<END
$lines
END
