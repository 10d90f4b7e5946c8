#!/usr/bin/env bash
# Checks of the unsafe code and of what threads do together, which take long or need more than a stable toolchain.
#
#   scripts/deep.sh loom        the thread team's gate and the meetings of rank threads, in every order of events
#   scripts/deep.sh miri        unsafe code that Miri can run, for undefined behaviour and data races
#   scripts/deep.sh thread      what threads do, in the CPU engine and elsewhere, under ThreadSanitizer
#   scripts/deep.sh address     the same tests under AddressSanitizer
#   scripts/deep.sh aarch64     compiles for 64-bit ARM, and runs the engine's tests under an emulator where there is one
#
# Loom needs nothing else. Miri needs `rustup toolchain install nightly --component miri,rust-src`; the sanitizers need
# `rustup component add rust-src`; aarch64 needs `rustup target add aarch64-unknown-linux-gnu` and a cross compiler
# (Debian: g++-aarch64-linux-gnu), its emulator is qemu-user-static. Ends with 3 where something is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}/deep
host=$(rustc -vV | sed -n 's/^host: //p')

missing() {
    printf 'deep: not tested: %s\n' "$*" >&2
    exit 3
}

# Everything that threads and unsafe code do on a CPU: all unit tests but those of tokenizers, which are long and know of
# neither, and in `tests/engines` whole training steps beside PyTorch's numbers, ranks that are threads or talk by TCP,
# checkpoints that are written in the background, evaluation and generation.
sanitized() {
    [ -d "$(rustc --print sysroot)/lib/rustlib/src/rust/library" ] ||
        missing "the $1 sanitizer (rustup component add rust-src)"
    # The standard library is built anew, for its locks and channels have to be seen as well. It is the stable compiler
    # that is told to do so: dfdx would use features of a nightly one that have changed since.
    export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=$1" CARGO_TARGET_DIR=$target/$1 TSAN_OPTIONS="halt_on_error=1"
    local test=(cargo test -Zbuild-std --target "$host" --release --locked)
    # AddressSanitizer also counts what is not freed: the imitation of a driver frees little, and a device that does not
    # answer is left alone on purpose
    local skip=()
    [ "$1" = thread ] || skip=(--skip gpu_ranks::)
    "${test[@]}" --lib -- --skip data::tokenizer
    "${test[@]}" --test engines -- golden_fused comm_ threads:: ranks:: recompute run_ watch:: evaluation:: generation:: \
        "${skip[@]}"
}

case ${1:-} in
loom)
    RUSTFLAGS="--cfg loom" CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_TARGET_DIR=$target/loom \
        cargo test --release --locked --lib -- models
    ;;
miri)
    cargo +nightly miri --version >/dev/null 2>&1 ||
        missing "Miri (rustup toolchain install nightly --component miri,rust-src)"
    # dfdx asks the compiler for its version, and would use features of a nightly one that have changed since
    mkdir -p "$target"
    cat >"$target/miri-as-stable" <<'WRAPPER'
#!/bin/sh
miri=$(rustc +nightly --print sysroot)/bin/miri
case "$*" in
*-vV*) "$miri" "$@" | sed 's/-nightly//' ;;
*) exec "$miri" "$@" ;;
esac
WRAPPER
    chmod +x "$target/miri-as-stable"
    MIRI=$(realpath "$target/miri-as-stable")
    export MIRI
    # In the interpreted program the processor has the features that the flags name. Cargo's wrapper repeats the
    # environment of an earlier build, so the level goes by a flag as well; the tests refuse one that is not there.
    level() {
        local features=$2 flags="-Zmiri-disable-isolation -Zmiri-env-set=RUNNER_SIMD=$1"
        shift 2
        MIRIFLAGS="$flags${features:+ -Ctarget-feature=$features}" CARGO_TARGET_DIR=$target/miri \
            cargo +nightly miri test --locked --lib -- "$@"
    }
    level baseline "" engine::cpu::pool engine::cpu::memory engine::cpu::team engine::cpu::matmul comm::threads
    case $host in
    x86_64-*)
        level avx2 +avx2,+fma engine::cpu::matmul
        level avx512 +avx2,+fma,+avx512f,+avx512bw,+avx512dq,+avx512vl engine::cpu::matmul
        ;;
    esac
    ;;
thread | address) sanitized "$1" ;;
aarch64)
    triple=aarch64-unknown-linux-gnu
    rustup target list --installed 2>/dev/null | grep -qx "$triple" || missing "aarch64 (no standard library for it)"
    command -v aarch64-linux-gnu-g++ >/dev/null || missing "aarch64 (no aarch64-linux-gnu-g++)"
    export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc CXX_aarch64_unknown_linux_gnu=aarch64-linux-gnu-g++
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CARGO_TARGET_DIR=$target/aarch64
    cargo build --release --locked --target "$triple"
    command -v qemu-aarch64-static >/dev/null || missing "the aarch64 kernels (no qemu-aarch64-static)"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu"
    cargo test --release --locked --target "$triple" --lib --test engines -- \
        engine::cpu golden_fused verify_engines threads::
    ;;
*)
    sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2
    exit 2
    ;;
esac
