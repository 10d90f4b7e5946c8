#!/usr/bin/env bash
# Trains with two ranks on two hosts that are network namespaces of this machine, then pulls the cable between them.
#
#     bash scripts/two_hosts.sh [PATH OF RUNNER]
#
# The run over the network must end with the bytes of two ranks on one host; ranks whose homes have different secrets must
# part with a message; after the cable is cut both must name the other one and end in time, and --resume must go on from the
# last checkpoint to the same bytes. The network loses one packet in a hundred and delays each by 20 ms, by netem or else by
# scripts/slow_cable.py. Needs root. What cannot be had leaves a line `two_hosts: not tested: ...` on stderr.
#
# Exit code: 0 all that was tested holds, 1 something does not.
set -euo pipefail
cd "$(dirname "$0")/.."

untested() {
    printf 'two_hosts: not tested: %s\n' "$*" >&2
}

runner=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/release/runner}")
[ -x "$runner" ] || {
    printf 'two_hosts: %s is no program; build it first: cargo build --release\n' "$runner" >&2
    exit 1
}

work=$(mktemp -d)
hosts=("runner-a-$$" "runner-b-$$")
carrier=
cleanup() {
    [ -z "$carrier" ] || kill "$carrier" 2>/dev/null || true
    # what still runs there, if a test has failed
    for host in "${hosts[@]}"; do
        for process in $(ip netns pids "$host" 2>/dev/null); do
            kill -KILL "$process" 2>/dev/null || true
        done
        ip netns del "$host" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap cleanup EXIT

fail() {
    printf 'two_hosts: FAILED: %s\n' "$*" >&2
    for log in "$work"/*.log; do
        printf -- '--- %s\n' "${log##*/}" >&2
        tail -n 20 "$log" >&2
    done
    exit 1
}

command -v ip >/dev/null || {
    untested "ranks on two hosts (no ip of iproute2)"
    exit 0
}
{ ip netns add "${hosts[0]}" && ip netns add "${hosts[1]}"; } 2>"$work/network" || {
    untested "ranks on two hosts (no right to make network namespaces: $(head -n 1 "$work/network"))"
    exit 0
}

# addresses of a network that exists between the two alone
zero=10.77.0.1
one=10.77.0.2

# A pair of interfaces; packets are delayed and lost by the kernel.
kernel_cable() {
    ip link add name cable netns "${hosts[0]}" type veth peer name cable netns "${hosts[1]}" || return 1
    for host in "${hosts[@]}"; do
        ip netns exec "$host" tc qdisc add dev cable root netem delay 20ms loss 1% || return 1
    done
}

# The same by a program, for kernels that cannot do that.
own_cable() {
    ip -n "${hosts[0]}" link del cable 2>/dev/null || true
    python3 scripts/slow_cable.py "${hosts[@]}" --delay 0.02 --loss 0.01 >"$work/cable.log" 2>&1 &
    carrier=$!
    for _ in $(seq 100); do
        ! grep -q ready "$work/cable.log" || return 0
        kill -0 "$carrier" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}
kernel_cable 2>"$work/netem" || own_cable || {
    untested "ranks on two hosts (neither netem nor /dev/net/tun: $(tail -n 1 "$work/netem" "$work/cable.log" | tr '\n' ' '))"
    exit 0
}
ip -n "${hosts[0]}" address add "$zero" peer "$one" dev cable
ip -n "${hosts[1]}" address add "$one" peer "$zero" dev cable
for host in "${hosts[@]}"; do
    ip -n "$host" link set lo up
    ip -n "$host" link set cable up
done

timeout_s=5
cat >"$work/two.toml" <<RECIPE
name = "two"
[model]
n_layer = 2
n_head = 2
n_embd = 32
block_size = 32
vocab_size = 256
[data]
train = "train.bin"
[batch]
total_tokens = 256
micro_batch = 2
world_size = 2
[schedule]
max_steps = 40
[checkpoint]
every = 10
keep = 0
background = false
[compute]
threads = 1
[distributed]
timeout_s = $timeout_s
RECIPE
# headerless 16-bit tokens below 256
awk 'BEGIN { srand(1); for (i = 0; i < 4000; i++) printf "%c%c", 1 + int(rand() * 127), 0 }' >"$work/train.bin"

# `rank NUMBER HOST ADDRESS CACHE ARGUMENTS...`: one rank, which must end by itself. Its exit code is in a file.
rank() {
    local number=$1 host=$2 address=$3 cache=$4 code=0
    shift 4
    ip netns exec "$host" env RANK="$number" WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR="$address" MASTER_PORT=29511 \
        XDG_CACHE_HOME="$work/$cache" CUDA_VISIBLE_DEVICES= \
        timeout -k 5 180 "$runner" "$@" >"$work/$number.out" 2>"$work/$number.log" || code=$?
    echo "$code" >"$work/$number.code"
}

# `both ADDRESS HOST0 HOST1 CACHE0 CACHE1 ARGUMENTS...`: both ranks, to their end.
both() {
    local address=$1 first=$2 second=$3 cache0=$4 cache1=$5
    shift 5
    rank 0 "$first" "$address" "$cache0" "$@" &
    rank 1 "$second" "$address" "$cache1" "$@"
    wait $!
}

# `ended CODE WHAT`: both ranks must have ended with this exit code.
ended() {
    local codes
    codes=$(cat "$work/0.code") && codes="$codes $(cat "$work/1.code")"
    [ "$codes" = "$1 $1" ] || fail "$2 ended with $codes"
}

# What of a run must be the same: tensors, and what of its log is no measurement.
results() {
    (cd "$1/checkpoints" && sha256sum step-00000040/*.safetensors)
    cut -d, -f1-8 "$1/train.csv"
}

both 127.0.0.1 "${hosts[0]}" "${hosts[0]}" home home "$work/two.toml" --runs-dir "$work/one-host"
ended 0 "two ranks on one host"
expected=$(results "$work"/one-host/two-*)

both "$zero" "${hosts[@]}" home home "$work/two.toml" --runs-dir "$work/two-hosts"
ended 0 "two ranks on two hosts"
[ "$(results "$work"/two-hosts/two-*)" = "$expected" ] || fail "two hosts gave other bytes than one"
echo "two_hosts: two hosts give the bytes of one"

# each has made a secret of its own
export RUNNER_JOIN_TIMEOUT_S=5
both "$zero" "${hosts[@]}" home another-home "$work/two.toml" --runs-dir "$work/strangers"
unset RUNNER_JOIN_TIMEOUT_S
ended 1 "ranks with different secrets"
for number in 0 1; do
    grep -q "RUNNER_SECRET_FILE or RUNNER_SECRET" "$work/$number.log" || fail "rank $number does not say what to set"
done
[ ! -e "$work/strangers" ] || [ -z "$(ls "$work/strangers")" ] || fail "ranks with different secrets made a run"
echo "two_hosts: ranks with different secrets part"

# rank 0 is held before it writes a row, so that the cable is cut in the middle
: >"$work/gate"
export RUNNER_FAULT=pause:csv.before_row:25 RUNNER_FAULT_WHILE=$work/gate
both "$zero" "${hosts[@]}" home home "$work/two.toml" --runs-dir "$work/cut" &
cut=$!
for _ in $(seq 600); do
    [ ! -s "$work/gate" ] || break
    sleep 0.1
done
[ -s "$work/gate" ] || fail "the run did not get to step 25"
ip -n "${hosts[0]}" link set cable down
since=$SECONDS
rm "$work/gate"
wait "$cut"
took=$((SECONDS - since))
unset RUNNER_FAULT RUNNER_FAULT_WHILE
ended 1 "ranks whose cable was cut"
for number in 0 1; do
    grep -q "^error: rank $((1 - number)) of 2 did not answer for $timeout_s s" "$work/$number.log" ||
        fail "rank $number does not name the other one"
done
# the others wait five seconds longer for rank 0 than it waits for them
[ "$took" -le $((timeout_s + 5 + 20)) ] || fail "the ranks took $took s to end, distributed.timeout_s is $timeout_s"
run=$(echo "$work"/cut/two-*)
grep -q '"status": "failed"' "$run/run.json" || fail "the record does not say that the run failed"
[ -d "$run/checkpoints/step-00000020" ] || fail "the checkpoint of step 20 is gone: $(ls "$run/checkpoints")"
echo "two_hosts: both ranks named the other one $took s after the cable was cut"

ip -n "${hosts[0]}" link set cable up
both "$zero" "${hosts[@]}" home home --resume "$run"
ended 0 "the resumed ranks"
[ "$(results "$run")" = "$expected" ] || fail "the run that was cut off gave other bytes"
echo "two_hosts: with the cable back, --resume ends with the bytes of one host"
