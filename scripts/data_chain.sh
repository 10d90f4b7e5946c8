#!/usr/bin/env bash
# Takes texts the whole way, with the built program: from a hub through `data fetch`, `data prepare` and `data inspect` to
# a model that has learned something. The hub is scripts/hub.py on the loopback, so nothing leaves the machine.
#
#     bash scripts/data_chain.sh [PATH OF RUNNER]
#
# The texts are the speeches of datasets/tinyshakespeare.txt: as JSON lines that Python writes, and as JSON lines and
# Parquet that pandas and pyarrow write. Those two come from $PYTHON if that is set, else from an environment under target/
# that is made on first use, unless that takes longer than $DATA_CHAIN_INSTALL_SECONDS (default 300). `--install` only
# makes it. What cannot be had leaves a line `data_chain: not tested: ...` on stderr, and the rest is tested.
#
# Exit code: 0 all that was tested holds, 1 something does not.
set -euo pipefail
cd "$(dirname "$0")/.."

untested() { printf 'data_chain: not tested: %s\n' "$*" >&2; }
fail() {
    printf 'data_chain: %s\n' "$*" >&2
    [ ! -s "${log:-}" ] || tail -n 20 "$log" >&2
    exit 1
}

system=$(command -v python3) || {
    untested "the chain from a hub to a model (no python3)"
    exit 0
}
needed='import pandas, pyarrow.parquet'
environment=target/data-python
tables=${PYTHON:-$environment/bin/python}
if ! "$tables" -c "$needed" 2>/dev/null && [ -z "${PYTHON:-}" ]; then
    if "$system" -c "$needed" 2>/dev/null; then
        tables=$system
    elif "$system" -m venv "$environment"; then
        timeout "${DATA_CHAIN_INSTALL_SECONDS:-300}" "$environment/bin/python" \
            -m pip install --quiet --disable-pip-version-check pandas pyarrow || true
    fi
fi
[ "${1:-}" != --install ] || exit 0

runner=${1:-${CARGO_TARGET_DIR:-target}/release/runner}
[ -x "$runner" ] || fail "$runner is no program; build it first: cargo build --release"
runner=$(realpath "$runner")
work=$(mktemp -d)
log=$work/log
hub=
trap '[ -z "$hub" ] || kill "$hub"; rm -rf "$work"' EXIT

step() { printf 'data_chain: %s\n' "$*"; }
# Runs the program, whose messages are shown only if it fails.
runner() { "$runner" "$@" 2>"$log" || fail "runner $1 $2 ended with exit code $?"; }

step "texts, by Python"
mkdir -p "$work/hub/data"
"$system" - "$work/hub/data" <<'PYTHON'
import json, pathlib, sys

text = pathlib.Path("datasets/tinyshakespeare.txt").read_text(encoding="utf-8")
# characters that JSON escapes, and some of more than one byte
speeches = [speech + ["", "\t\"—\"", "\\ é 漢字 🙂"][n % 3] for n, speech in enumerate(text.split("\n\n"))]
with open(pathlib.Path(sys.argv[1]) / "plain.jsonl", "w", encoding="utf-8") as file:
    for n, speech in enumerate(speeches):
        file.write(json.dumps({"id": n, "text": speech}, ensure_ascii=n % 2 == 0) + "\n")
PYTHON
kinds=(plain.jsonl)
if "$tables" -c "$needed" 2>/dev/null; then
    step "tables and JSON lines, by pandas and pyarrow"
    "$tables" - "$work/hub/data" <<'PYTHON'
import pathlib, sys
import pandas, pyarrow, pyarrow.parquet

place = pathlib.Path(sys.argv[1])
frame = pandas.read_json(place / "plain.jsonl", lines=True, dtype=False)
frame.to_json(place / "pandas.jsonl.gz", orient="records", lines=True)
frame.to_parquet(place / "pandas.parquet")
table = pyarrow.Table.from_pandas(frame)
for name, options in {
    "gzip": {"compression": "gzip", "use_dictionary": False, "data_page_version": "2.0"},
    "zstd": {"compression": "zstd", "row_group_size": 1000, "data_page_size": 1 << 14},
}.items():
    pyarrow.parquet.write_table(table, place / f"pyarrow-{name}.parquet", **options)
PYTHON
    kinds+=(pandas.jsonl.gz pandas.parquet pyarrow-gzip.parquet pyarrow-zstd.parquet)
else
    untested "Parquet and JSON lines by pandas and pyarrow (not to be had from PyPI in time)"
fi

step "runner data fetch"
"$system" scripts/hub.py stage/plays "$work/hub" >"$work/address" 2>"$work/asked" &
hub=$!
for _ in $(seq 600); do
    [ ! -s "$work/address" ] || break
    kill -0 "$hub" 2>/dev/null || fail "the hub has ended: $(cat "$work/asked")"
    sleep 0.1
done
# settings of this shell must not lead elsewhere
unset HTTPS_PROXY https_proxy HTTP_PROXY http_proxy ALL_PROXY all_proxy HF_TOKEN
export HF_ENDPOINT
HF_ENDPOINT=$(cat "$work/address")
runner data fetch hf://datasets/stage/plays/data --out "$work/fetched" >"$work/place"
[ "$(cat "$work/place")" = "$work/fetched" ] || fail "data fetch printed $(cat "$work/place")"
diff -r "$work/hub" "$work/fetched" || fail "what was fetched is not what the hub has"
grep -q ' 206 ' "$work/asked" || fail "no download was continued: $(cat "$work/asked")"

step "runner data prepare: ${kinds[*]}"
for kind in "${kinds[@]}"; do
    runner data prepare "$work/fetched/data/$kind" --out "$work/sets/$kind" --shard-tokens 100000 --val-fraction 0.1 \
        >/dev/null
    [ -z "$(find "$work/sets/$kind" -name '.*')" ] || fail "data prepare left hidden files: $(ls -A "$work/sets/$kind")"
    # the same documents, so the same shards; the card names the file
    diff -r --exclude dataset.json "$work/sets/${kinds[0]}" "$work/sets/$kind" || fail "$kind became other tokens"
done
prepared=$work/sets/${kinds[-1]}

step "runner data inspect"
runner data inspect --format json "$prepared" >"$work/seen.json"
"$system" - "$work/seen.json" "$prepared/dataset.json" <<'PYTHON' || fail "data inspect and dataset.json differ"
import json, sys

seen, card = (json.load(open(path)) for path in sys.argv[1:])
assert seen["total"]["tokens"] == card["tokens"] == card["train"]["tokens"] + card["val"]["tokens"], (seen, card)
assert all(file["format"] == "llm.c shard" and file["max"] <= 50256 for file in seen["files"]), seen
text = open("datasets/tinyshakespeare.txt", encoding="utf-8").read()
assert card["documents"] == len(text.split("\n\n")) and card["bytes"] > len(text), card
PYTHON

step "training on its bytes"
runner data prepare "$work/fetched/data/${kinds[-1]}" --out "$work/sets/bytes" --tokenizer bytes --val-fraction 0.1 \
    >/dev/null
cat >"$work/plays.toml" <<'RECIPE'
[model]
n_layer = 1
n_head = 2
n_embd = 32
block_size = 64
[data]
train = "PREPARED/train-*.bin"
val = "PREPARED/val-*.bin"
[batch]
total_tokens = 1024
micro_batch = 16
[optimizer]
lr = 1e-2
[schedule]
max_steps = 150
warmup_steps = 10
[eval]
every = 150
batches = 8
RECIPE
sed -i "s|PREPARED|$work/sets/bytes|" "$work/plays.toml"
run=$("$runner" "$work/plays.toml" --runs-dir "$work/runs" 2>"$log") || fail "training ended with exit code $?"
result() { sed -n "s/^ *\"$1\": \([-0-9.eE]*\),*\$/\1/p" "$run/run.json"; }
loss=$(result final_val_loss)
entropy=$(result val_unigram_entropy)
step "validation loss $loss, unigram entropy $entropy"
awk -v loss="$loss" -v entropy="$entropy" 'BEGIN { exit !(loss > 0 && entropy > 0 && loss < entropy) }' ||
    fail "the validation loss $loss is not below the unigram entropy $entropy"
