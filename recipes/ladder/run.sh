#!/bin/sh
# Climbs the ladder: one small change per rung, from eager operations to everything switched on, and prints what each
# brought on this machine.
#
#     sh recipes/ladder/run.sh
#     sh recipes/ladder/run.sh --set schedule.max_steps=100
#     FORMAT=markdown sh recipes/ladder/run.sh > ladder.md
#
# The base is small enough for two cores. On a GPU take GPT-2 124M as the tutorials do, from the second rung on:
#
#     RUNGS='2 3 4 5 6 7' sh recipes/ladder/run.sh --set model.n_layer=12 --set model.n_head=12 --set model.n_embd=768 \
#         --set model.block_size=1024 --set batch.micro_batch=16 --set batch.total_tokens=524288
#
# Rungs whose precision this device emulates by rounding are marked: they have its losses, but not its speed.
# Finished rungs are not trained again. A rung that fails is left out, listed last, and gives the exit code.
set -eu
here=$(dirname "$0")
RUNNER=${RUNNER:-runner}
runs_dir=${RUNS_DIR:-runs}

first=0
failed=
set -- "$@" --runs-dir "$runs_dir"
# a directory of its own, in which nobody else can put a link
work=$(mktemp -d)
dirs=$work/finished
trap 'rm -rf "$work"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
for rung in ${RUNGS:-1 2 3 4 5 6 7}; do
    for recipe in "$here/$rung"-*.toml; do
        code=0
        # split into words on purpose
        $RUNNER "$recipe" "$@" >"$work/one" || code=$?
        if [ "$code" -eq 0 ]; then
            cat "$work/one" >>"$dirs"
        else
            failed="$failed  $code $recipe
"
            [ "$first" -ne 0 ] || first=$code
        fi
        case $code in 129 | 130 | 143) exit "$code" ;; esac
    done
done

if [ -s "$dirs" ]; then
    # one directory per line; a name may hold blanks
    set --
    while IFS= read -r dir; do
        set -- "$@" "$dir"
    done <"$dirs"
    $RUNNER compare "$@" --sort given --metrics tokens_per_s,step_ms,gain,speedup,memory_bytes,loss \
        --format "${FORMAT:-table}"
fi
if [ -n "$failed" ]; then
    printf 'failed, with exit codes:\n%s' "$failed" >&2
fi
exit "$first"
