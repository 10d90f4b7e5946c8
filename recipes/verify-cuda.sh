#!/bin/sh
# Everything to run once on a machine with a GPU, to trust this program there and to know how fast it is.
#
#     recipes/verify-cuda.sh [-d DEVICE] [-o REPORT] [-q] [RUNNER]
#
# Takes under ten minutes on one GPU: what is there (`runner doctor --measure`); every precision and attention against the
# reference on several shapes; two runs that must be equal byte by byte; runs that begin on the GPU and end on the CPU and
# the other way round; a rank alone through NCCL, which must change no byte, and two ranks where there are two GPUs; the speed of GPT-2 124M at the micro-batches that fit, beside PyTorch where python3 has it.
#
# RUNNER is the program, by default target/release/runner beside this directory, else `runner` on PATH. Nothing else is
# needed: recipes are written here, data are built in. REPORT (default verify-cuda.md) is written in Markdown.
# -q leaves out the speed. -d checks another device: `-d cuda:1`, or `-d cpu` to try this script without a GPU.
#
# Exit code: 0 everything holds, 1 something does not (listed last), 2 there is no usable device.
set -u

here=$(cd "$(dirname "$0")" && pwd)
device=cuda
report=verify-cuda.md
quick=
while getopts d:o:q option; do
    case $option in
    d) device=$OPTARG ;;
    o) report=$OPTARG ;;
    q) quick=1 ;;
    *) sed -n '4s/^# *//p' "$0" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))

runner=${1:-$here/../target/release/runner}
if [ $# = 0 ] && [ ! -x "$runner" ]; then
    runner=$(command -v runner) || {
        echo "verify-cuda: no program: build it with cargo build --release, or name its path" >&2
        exit 2
    }
fi
"$runner" --version >/dev/null || {
    echo "verify-cuda: $runner cannot be run" >&2
    exit 2
}

work=$(mktemp -d) || exit 2
child=
trap 'rm -rf "$work"' EXIT
trap '[ -z "$child" ] || kill "$child" 2>/dev/null; exit 130' INT TERM
began=$(date +%s)
# after this many seconds, what remains is left out and said to be
budget=570
# long enough to be interrupted on a fast device
across_steps=400
failures=$work/failures
: >"$failures"
: >"$report" || exit 2

# The first of the paths that a pattern gave, if there is any.
first() {
    [ ! -e "$1" ] || printf '%s\n' "$1"
}

elapsed() { echo $(($(date +%s) - began)); }

# to the report and to the terminal
say() {
    printf '%s\n' "$*"
    printf '%s\n' "$*" >>"$report"
}

# heading TEXT
heading() {
    printf '\n== %s (after %s s)\n' "$1" "$(elapsed)"
    printf '\n## %s\n\n' "$1" >>"$report"
}

# fail TEXT [FILE]: notes a failure, and the end of a command's output
fail() {
    say "- FAILED: $1"
    printf -- '- %s\n' "$1" >>"$failures"
    [ -z "${2:-}" ] || quote "$2"
}

# quote FILE: its last lines, as a block
quote() {
    {
        echo
        echo '```'
        tail -n 30 "$1"
        echo '```'
        echo
    } | tee -a "$report"
}

# within SECONDS COMMAND...: bounded, where the system can
if command -v timeout >/dev/null 2>&1; then
    within() { timeout "$@"; }
else
    within() { shift; "$@"; }
fi

# late WHAT: whether there is no time left for it
late() {
    [ "$(elapsed)" -gt "$budget" ] || return 1
    say "- not done, for lack of time: $1"
}

# number FILE KEY: a number of a JSON file with one value on a line
number() { sed -n "s/^ *\"$2\": *\([-+0-9.eE]*\),\{0,1\}\$/\1/p" "$1" | head -n 1; }

# field FILE KEY: the same of JSON on one line
field() { sed -n "s/.*\"$2\": *\([-+0-9.eE]*\)[,}].*/\1/p" "$1" | head -n 1; }

# recipe NAME LAYERS HEADS WIDTH BLOCK PRECISION ATTENTION STEPS: a small model on built-in Latin
recipe() {
    cat >"$work/$1.toml" <<END
name = "$1"
[model]
n_layer = $2
n_head = $3
n_embd = $4
block_size = $5
vocab_multiple = 128
[compute]
device = "$device"
precision = "$6"
attention = "$7"
[data]
train = "builtin:lipsum"
val = "builtin:lipsum:seed=2,words=20000"
[batch]
total_tokens = $(($5 * 4))
micro_batch = 2
[optimizer]
lr = 1e-3
[schedule]
max_steps = $8
warmup_steps = 5
[eval]
every = 50
batches = 1
[checkpoint]
every = 20
[sample]
every = 0
END
}

check_doctor() {
    heading "What is there"
    if within 120 "$runner" doctor --measure >"$work/doctor" 2>&1; then
        quote "$work/doctor"
    else
        fail "runner doctor --measure ended with exit code $?" "$work/doctor"
    fi
}

# The shapes: heads of 32 with rows that fill no tile, GPT-2's heads of 64, the widest of flash attention, and an odd one.
check_verify() {
    heading "Against the reference"
    for shape in "2 2 64 40" "2 4 256 128" "1 2 256 96" "1 3 120 33"; do
        for precision in fp32 tf32 bf16 fp16; do
            for attention in naive flash; do
                # shellcheck disable=SC2086
                set -- $shape
                what="$precision, $attention attention, $1 layers, $2 heads, width $3, rows of $4"
                late "$what" && continue
                recipe verify "$@" "$precision" "$attention" 20
                if within 120 "$runner" verify "$work/verify.toml" --runs-dir "$work/runs" >"$work/out" 2>&1; then
                    say "- agrees: $what"
                else
                    fail "verify ended with exit code $?: $what" "$work/out"
                fi
            done
        done
    done
}

# train RUNS-DIR LOG RECIPE [OPTIONS]: prints the run's directory
train() {
    runs=$1 log=$2
    shift 2
    within 180 "$runner" "$@" --runs-dir "$runs" 2>"$log"
}

# same RUN RUN WHAT: whether logs and weights after 40 steps are equal byte by byte
same() {
    # the columns that are promised to be deterministic
    cut -d, -f1-8 "$1/train.csv" >"$work/one.csv"
    cut -d, -f1-8 "$2/train.csv" >"$work/two.csv"
    if ! cmp -s "$work/one.csv" "$work/two.csv"; then
        fail "the logs differ: $3"
    elif ! cmp -s "$1"/checkpoints/*40/model.safetensors "$2"/checkpoints/*40/model.safetensors; then
        fail "the weights differ: $3"
    else
        return 0
    fi
    return 1
}

check_determinism() {
    heading "Two runs of the same recipe"
    for precision in fp32 bf16 fp16; do
        late "two runs in $precision" && continue
        recipe "twice-$precision" 2 4 256 128 "$precision" flash 40
        if ! one=$(train "$work/one" "$work/out" "$work/twice-$precision.toml"); then
            fail "training in $precision" "$work/out"
            continue
        fi
        if ! two=$(train "$work/two" "$work/out" "$work/twice-$precision.toml"); then
            fail "training in $precision a second time" "$work/out"
            continue
        fi
        same "$one" "$two" "two runs in $precision" && say "- equal byte by byte after 40 steps: $precision"
    done
}

# across FROM TO: begins a run on one device, interrupts it, ends it on the other, and compares with one that did not move
across() {
    late "from $1 to $2" && return
    recipe "from-$(echo "$1" | tr : -)" 1 2 64 64 fp32 flash "$across_steps"
    file=$work/from-$(echo "$1" | tr : -).toml
    "$runner" "$file" --set "compute.device=$1" --runs-dir "$work/across" >"$work/dir" 2>"$work/out" &
    child=$!
    # interrupted once it has logged some steps
    while kill -0 "$child" 2>/dev/null; do
        rows=$(cat "$work"/across/from-*/train.csv 2>/dev/null | wc -l)
        [ "$rows" -lt 30 ] || { kill -INT "$child" 2>/dev/null; break; }
        sleep 0.1 2>/dev/null || sleep 1
    done
    wait "$child"
    code=$?
    child=
    run=$(first "$work"/across/from-*)
    if [ "$code" != 130 ]; then
        fail "a run on $1 was to be interrupted, and ended with exit code $code" "$work/out"
    elif ! within 240 "$runner" --resume "$run" --set "compute.device=$2" >/dev/null 2>"$work/out"; then
        fail "a run that began on $1 could not go on on $2" "$work/out"
    elif ! whole=$(train "$work/whole" "$work/out" "$file" --set "compute.device=$2"); then
        fail "a run on $2 alone" "$work/out"
    else
        moved=$(tail -n 1 "$run/train.csv" | cut -d, -f3)
        stayed=$(tail -n 1 "$whole/train.csv" | cut -d, -f3)
        steps=$(tail -n 1 "$run/train.csv" | cut -d, -f1)
        if [ "$steps" = $((across_steps - 1)) ] && awk -v a="$moved" -v b="$stayed" 'BEGIN { d = a - b; exit !(d * d < 0.0004 * b * b) }'; then
            say "- from $1 to $2: last loss $moved, and $stayed for a run on $2 alone"
        else
            fail "from $1 to $2: step $steps with loss $moved, and $stayed for a run on $2 alone"
        fi
    fi
    rm -rf "$work/across" "$work/whole"
}

check_resume() {
    heading "From one device to the other"
    across "$device" cpu
    across cpu "$device"
}

# A launcher's variables make a rank of a process that is alone, whose sums then go through NCCL.
check_ranks() {
    heading "Ranks"
    if [ "$device" != cpu ] && ! sed -n '/"name": "NCCL"/{n;p;}' "$work/doctor.json" | grep -q true; then
        say "- not done, for NCCL is not there: ranks"
        return
    fi
    index=${device#*:}
    [ "$index" != "$device" ] || index=0
    for precision in fp32 bf16; do
        late "a rank alone in $precision" && continue
        recipe "alone-$precision" 2 4 256 128 "$precision" flash 40
        if ! one=$(train "$work/one" "$work/out" "$work/alone-$precision.toml"); then
            fail "training in $precision" "$work/out"
        elif ! two=$(
            export RANK=0 WORLD_SIZE=1 LOCAL_RANK="$index" MASTER_ADDR=127.0.0.1 MASTER_PORT=29517
            export NCCL_DEBUG=WARN NCCL_DEBUG_FILE="$work/nccl"
            train "$work/two" "$work/out" "$work/alone-$precision.toml"
        ); then
            fail "training in $precision as rank 0 of 1" "$work/out"
        elif [ "$device" != cpu ] && ! grep -q "NCCL version" "$work/nccl" 2>/dev/null; then
            fail "rank 0 of 1 in $precision has not asked NCCL for anything"
        else
            same "$one" "$two" "without and with NCCL in $precision" && say "- a rank alone changes no byte: $precision"
        fi
    done
    [ "$device" = cuda ] && [ "$(grep -c '"pci_bus_id"' "$work/doctor.json")" -gt 1 ] || return 0
    one=$(first "$work"/one/alone-fp32*)
    for divided in false true; do
        late "two ranks" && continue
        what="two ranks in fp32, moments divided: $divided"
        if ! two=$(train "$work/ranks-$divided" "$work/out" "$work/alone-fp32.toml" --set batch.world_size=2 \
            --set "distributed.shard_optimizer=$divided"); then
            fail "$what" "$work/out"
        elif ! awk -F, 'NR == FNR { loss[$1] = $3; next } FNR > 1 { d = ($3 - loss[$1]) / $3; if (d * d > 1e-10) bad = 1 }
            END { exit bad || FNR < 40 }' "$one/train.csv" "$two/train.csv"; then
            fail "the losses are not those of one rank: $what"
        else
            say "- the losses of one rank, to 1e-5: $what"
        fi
    done
}

check_speed() {
    heading "GPT-2 124M, rows of 1024 tokens"
    cat >"$work/speed.toml" <<END
name = "speed"
[model]
preset = "gpt2-124m"
vocab_multiple = 128
[compute]
device = "$device"
precision = "bf16"
attention = "flash"
[data]
train = "builtin:lipsum"
[batch]
total_tokens = 4096
micro_batch = 4
[optimizer]
lr = 6e-4
[schedule]
max_steps = 100
warmup_steps = 5
END
    say "| engine | precision | micro-batch | tokens/s | ms per step | MFU | peak memory, MiB |"
    say "| --- | --- | --- | --- | --- | --- | --- |"
    largest=
    for size in 4 8 16 32 64; do
        speed bf16 flash "$size" || break
        largest=$size
    done
    [ -n "$largest" ] || fail "bench: no micro-batch could be measured" "$work/out"
    speed tf32 flash 8
    speed fp32 flash 8
    speed bf16 naive 8
    check_torch
    [ -z "$largest" ] || {
        heading "Where the time goes (bf16, flash attention, micro-batch $largest)"
        within 120 "$runner" bench "$work/speed.toml" --set "batch.micro_batch=$largest" \
            --set "batch.total_tokens=$((largest * 1024))" >"$work/out" 2>"$work/err" && quote "$work/out"
    }
}

# speed PRECISION ATTENTION MICRO-BATCH: a row of the table; fails where it does not fit
speed() {
    late "$1, $2 attention, micro-batch $3" && return 1
    if within 120 "$runner" bench "$work/speed.toml" --steps 10 --format json --set "compute.precision=$1" \
        --set "compute.attention=$2" --set "batch.micro_batch=$3" --set "batch.total_tokens=$(($3 * 1024))" \
        >"$work/bench" 2>"$work/out"; then
        row "runner, $2" "$1" "$3" "$(number "$work/bench" tokens_per_s)" "$(number "$work/bench" step_ms)" \
            "$(number "$work/bench" mfu)" "$(number "$work/bench" peak_memory_bytes)"
    else
        code=$?
        # 2: the plan has refused it, which is what plans are for
        if [ "$code" = 2 ]; then
            say "| runner, $2 | $1 | $3 | does not fit | | | |"
        else
            fail "bench in $1, micro-batch $3, ended with exit code $code" "$work/out"
        fi
        return 1
    fi
}

# row ENGINE PRECISION MICRO-BATCH TOKENS/S MS MFU BYTES
row() {
    say "$(awk -v e="$1" -v p="$2" -v b="$3" -v t="$4" -v ms="$5" -v mfu="$6" -v m="$7" 'BEGIN {
        share = mfu == "" ? "" : sprintf("%.1f %%", 100 * mfu)
        printf "| %s | %s | %s | %.0f | %.2f | %s | %.0f |", e, p, b, t, ms, share, m / 1048576 }')"
}

check_torch() {
    script=$here/../benches/torch_step.py
    kind=${device%%:*}
    if [ ! -f "$script" ] || ! command -v python3 >/dev/null 2>&1 || ! python3 -c 'import torch' 2>/dev/null; then
        printf '\nPyTorch is not there to be compared with.\n' >>"$report"
        echo "(PyTorch is not there to be compared with)"
        return
    fi
    for compiled in --compile ""; do
        for size in 16 ${largest:-}; do
            late "PyTorch, micro-batch $size" && continue
            # shellcheck disable=SC2086
            if within 180 python3 "$script" --device "$kind" --precision bf16 $compiled --micro-batch "$size" \
                >"$work/torch" 2>"$work/out"; then
                row "PyTorch ${compiled:-eager}, SDPA" bf16 "$size" "$(field "$work/torch" tokens_per_s)" \
                    "$(field "$work/torch" step_ms)" "" "$(field "$work/torch" peak_memory_bytes)"
            else
                say "| PyTorch ${compiled:-eager}, SDPA | bf16 | $size | failed: $(tail -n 1 "$work/out" | tr '|' '/') | | | |"
            fi
        done
    done
}

printf '# %s on %s, %s\n' "$("$runner" --version)" "$(uname -n)" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >"$report"
if [ "$device" != cpu ]; then
    "$runner" doctor --format json >"$work/doctor.json" || exit 2
    # the first of this name is of CUDA as a whole
    if ! grep -q '^    "usable": true' "$work/doctor.json"; then
        "$runner" doctor | tee -a "$report"
        echo "verify-cuda: there is no CUDA device that could be used" >&2
        exit 2
    fi
fi

check_doctor
check_verify
check_determinism
check_resume
check_ranks
[ -n "$quick" ] || check_speed

heading "Result"
if [ -s "$failures" ]; then
    say "$(wc -l <"$failures" | tr -d ' ') checks failed, after $(elapsed) s:"
    say "$(cat "$failures")"
    echo "the report is $report"
    exit 1
fi
say "Everything holds, after $(elapsed) s."
echo "the report is $report"
