#!/bin/sh
# Trains a recipe once for every line of standard input.
#
#     printf '%s\n' '--set seed=1' '--set seed=2' | sh recipes/sweeps/each.sh RECIPE [OPTIONS]
#
# The words of a line, and OPTIONS for all of them, are given to `runner`. The other scripts here only write such lines.
#
#   stdout     the directory of every run, one line each, as runs start (or are found finished)
#   stderr     what the runs say, each line with the run's id if there are several at once; at the very end what failed,
#              with its exit code
#   exit code  0 if all runs are finished, else that of the first failure in the list; 2 if there are no lines
#
#   RUNNER     how to call the program: "runner", or "cargo run --release --quiet --"
#   JOBS       how many runs at once, 1 unless set; several on one machine want --set compute.threads=N
#
# A signal, to this shell or to its process group as Ctrl-C and `timeout` send it, ends the sweep: the runs at hand save
# their checkpoints and no other begins.
#
# Running it again skips what is finished and resumes what was interrupted. Several at once, on one machine or on many
# with a common file system, share the work: a run has one writer, and whoever finds it taken goes on (exit code 3).
set -eu

recipe=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
signalled=0
# shellcheck disable=SC2329 # the traps call it
stop() {
    signalled=$1
    : >"$work/stopped"
    for run in "$work"/run-*; do
        [ ! -f "$run" ] || kill -TERM "$(cat "$run")" 2>/dev/null || true
    done
}
trap 'stop 129' HUP
trap 'stop 130' INT
trap 'stop 131' QUIT
trap 'stop 143' TERM
RUNNER=${RUNNER:-runner}
export RUNNER
# runs that share a terminal have to say who speaks, which events do in any case
case "${JOBS:-1} $* " in
"1 "* | *" --log-format json "* | *" --log-format=json "*) ;;
*) set -- "$@" --named ;;
esac

# For xargs a line that ends in a blank goes on in the next one.
lines=$(sed 's/[[:blank:]]*$//; /^$/d')
if [ -z "$lines" ]; then
    echo "each.sh: standard input has no lines: write one per run, such as --set seed=1" >&2
    exit 2
fi

# A failure is written down and does not keep the others from being trained; only a signal ends them all (255 stops
# xargs). A run leaves its process id while it trains. RUNNER is split into words on purpose. The shell heeds a signal at
# once only while it waits for what runs beside it.
# shellcheck disable=SC2016 # the inner shell expands these
printf '%s\n' "$lines" | xargs -P "${JOBS:-1}" -L 1 sh -c '
    trap : HUP INT QUIT TERM
    work=$1
    shift
    code=0
    begin="echo \$\$ >\"\$0\"; [ -e \"\$1\" ] && exit 143; shift; exec \"\$@\""
    sh -c "$begin" "$work/run-$$" "$work/stopped" $RUNNER "$@" </dev/null || code=$?
    rm -f "$work/run-$$"
    [ ! -e "$work/stopped" ] || exit 255
    [ "$code" -eq 0 ] || printf "%s %s\n" "$code" "$*" >>"$work/failed"
    case $code in 129 | 130 | 143) exit 255 ;; esac
' sh "$work" "$recipe" "$@" &
sweep=$!
ended=0
wait "$sweep" || ended=$?
# a wait that a signal ended is not the end of the sweep
while kill -0 "$sweep" 2>/dev/null; do
    ended=0
    wait "$sweep" || ended=$?
done
# a signal to the group has ended xargs before its runs
for run in "$work"/run-*; do
    while [ -f "$run" ] && kill -0 "$(cat "$run")" 2>/dev/null; do
        sleep 1
    done
done
[ "$signalled" -eq 0 ] || exit "$signalled"

# xargs itself fails where a line has an open quotation mark
[ -s "$work/failed" ] || exit "$ended"
{
    echo "failed, with exit codes:"
    sed 's/^/  /' "$work/failed"
    echo "the same command tries these again"
} >&2
read -r code _ <"$work/failed"
exit "$code"
