#!/bin/sh
# Replicas of one recipe: the same experiment under several seeds. Their spread is what other differences are held against.
#
#     sh recipes/sweeps/seeds.sh
#     SEEDS='1 2 3 4 5' RECIPE=my.toml sh recipes/sweeps/seeds.sh --set optimizer.lr=1e-3
#
# RUNNER, JOBS, output and exit codes: see each.sh.
set -eu
here=$(dirname "$0")

lines=$(
    for seed in ${SEEDS:-1 2 3}; do
        echo "--set seed=$seed"
    done
)
# in place of this shell, so that a signal to it reaches the sweep
exec sh "$here/each.sh" "${RECIPE:-$here/small.toml}" "$@" <<END
$lines
END
