#!/bin/sh
# Trains both recipes beside this file with Muon and with AdamW, at equal tokens and with three seeds each, and compares
# them, with the way to a loss that AdamW reaches with each of these seeds: about ten minutes on a laptop. A finished run
# is found again.
#
#     sh recipes/muon/run.sh
#     SEEDS='1 2 3 4 5' sh recipes/muon/run.sh --set optimizer.muon_lr=1e-2
#
# RUNNER, JOBS and exit codes: see ../sweeps/each.sh. Further arguments go to every run; the tables go to stdout.
set -eu
here=$(dirname "$0")

for pair in shakespeare=2.45 lipsum=2.8; do
    recipe=${pair%=*}
    runs=$(for seed in ${SEEDS:-1 2 3}; do
        for kind in adamw muon; do
            echo "--set seed=$seed --set optimizer.kind=$kind"
        done
    done | sh "$here/../sweeps/each.sh" "$here/$recipe.toml" "$@")
    (
        # one directory per line; a name may hold blanks
        set --
        while IFS= read -r dir; do
            set -- "$@" "$dir"
        done <<EOF
$runs
EOF
        # RUNNER is split into words on purpose
        ${RUNNER:-runner} compare "$@" --target "val_loss=${pair#*=}" --metrics val_loss,step_ms,tokens_per_s \
            --format "${FORMAT:-table}"
    )
done
