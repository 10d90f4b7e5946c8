#!/bin/sh
# A grid over learning rates, each with several seeds, so that `runner compare` can say what is real.
#
#     sh recipes/sweeps/lr.sh                                  6 runs of small.toml, minutes each
#     LRS='1e-4 3e-4 1e-3' SEEDS='1 2 3' sh recipes/sweeps/lr.sh
#     RECIPE=my.toml JOBS=2 sh recipes/sweeps/lr.sh --set compute.threads=1
#     runner compare $(sh recipes/sweeps/lr.sh) --plot lr.svg
#
# RUNNER, JOBS, output and exit codes: see each.sh.
set -eu
here=$(dirname "$0")

# seed by seed, so that every learning rate has a first result early
lines=$(
    for seed in ${SEEDS:-1 2}; do
        for lr in ${LRS:-5e-4 1e-3 2e-3}; do
            echo "--set seed=$seed --set optimizer.lr=$lr"
        done
    done
)
# in place of this shell, so that a signal to it reaches the sweep
exec sh "$here/each.sh" "${RECIPE:-$here/small.toml}" "$@" <<END
$lines
END
