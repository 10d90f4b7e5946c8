#!/usr/bin/env bash
# Trains on a file system that fills up, then on one that is read-only, and checks that every failure has a reason and an exit
# code, that no checkpoint is lost, and that the run ends with the same bytes once there is room. Needs root (it mounts a
# small tmpfs) and a built target/release/runner.
set -euo pipefail
cd "$(dirname "$0")/.."
runner=$PWD/target/release/runner
[ -x "$runner" ] || { echo "build it first: cargo build --release"; exit 2; }
work=$(mktemp -d)
disk=$work/disk
mkdir "$disk"
mount -t tmpfs -o size=2m tmpfs "$disk"
trap 'umount "$disk"; rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

cat >"$work/r.toml" <<'RECIPE'
name = "full"
[model]
n_layer = 2
n_head = 2
n_embd = 32
block_size = 32
vocab_size = 256
[data]
train = "bytes/train-*.bin"
[batch]
total_tokens = 256
micro_batch = 4
[schedule]
max_steps = 40
[checkpoint]
every = 2
keep = 2
[compute]
threads = 1
RECIPE
# text whose tokens are bytes: each checkpoint holds its tokenizer, and GPT-2's alone would nearly fill the disk
awk 'BEGIN { srand(1); for (i = 0; i < 4000; i++) printf "%c", 32 + int(rand() * 95) }' >"$work/text.txt"
"$runner" data prepare "$work/text.txt" --out "$work/bytes" --tokenizer bytes >/dev/null 2>"$work/log" ||
    fail "$(cat "$work/log")"

"$runner" "$work/r.toml" --runs-dir "$work/whole" 2>"$work/log" >"$work/whole.txt" || fail "$(cat "$work/log")"
whole=$(cat "$work/whole.txt")
run=$disk/runs/$(basename "$whole")
tensors() { (cd "$1/checkpoints" && sha256sum step-*/*.safetensors); }

# less and less room for the same run, each time from where the disk was full
for filler in 1900 1700 1500 1300 1000; do
    rm -f "$disk/filler"
    head -c "${filler}K" /dev/zero >"$disk/filler" || true
    code=0
    "$runner" "$work/r.toml" --runs-dir "$disk/runs" >/dev/null 2>"$work/log" || code=$?
    newest=$(find "$run/checkpoints" -maxdepth 1 -name 'step-*' 2>/dev/null | wc -l || true)
    echo "room $((2048 - filler)) KiB: exit $code, $newest checkpoints: $(grep -h error "$work/log" | head -1)"
    case $code in
        0) ;;
        1) grep -q "No space left on device" "$work/log" || fail "no reason given: $(cat "$work/log")" ;;
        2) grep -q "cannot write runs" "$work/log" || fail "no reason given: $(cat "$work/log")" ;;
        *) fail "exit code $code: $(cat "$work/log")" ;;
    esac
    ! grep -q panicked "$work/log" || fail "$(cat "$work/log")"
    ! grep -q "cannot be used" "$work/log" || fail "a full disk has damaged a checkpoint: $(cat "$work/log")"
done

mount -o remount,ro "$disk"
code=0
"$runner" "$work/r.toml" --runs-dir "$disk/runs" --fresh >/dev/null 2>"$work/log" || code=$?
echo "read-only: exit $code: $(grep -h error "$work/log" | head -1)"
[ "$code" = 2 ] || fail "a read-only directory of runs should be exit 2: $(cat "$work/log")"
mount -o remount,rw "$disk"

rm -f "$disk/filler"
"$runner" "$work/r.toml" --runs-dir "$disk/runs" >/dev/null 2>"$work/log" || fail "$(cat "$work/log")"
[ "$(tensors "$run")" = "$(tensors "$whole")" ] || fail "other tensors than the undisturbed run"
[ "$(cut -d, -f1-8 "$run/train.csv")" = "$(cut -d, -f1-8 "$whole/train.csv")" ] || fail "another log"
echo "with room again: the same bytes as the undisturbed run"
