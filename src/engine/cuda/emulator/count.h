// What a kernel touches in global memory, byte by byte, if the kernels are compiled with EMULATOR_COUNTS.
//
// They are then instrumented as for the compiler's thread sanitizer, whose functions count.cpp defines: each access is
// reported here. Only watched memory counts. Counted are, per launch, the bytes that are read before the launch has
// written them, the bytes that are written, and the bytes that each block reads between two of its barriers: what a
// block reads after a barrier again counts again.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

// Touched and Watched have the layout of the structs in count.rs beside this file.
struct Touched {
    uint64_t read, written, streamed;
};

// Memory from an address on, with a number for each byte that only the counter uses.
struct Watched {
    uint64_t first, bytes;
    uint64_t* marks;
};

// All functions are in count.cpp: an inline one would also be compiled with instrumentation, and call itself.
class Counter {
  public:
    // Watches this memory from now on, and begins to count.
    void watch(const Watched* watched, size_t count);

    Touched counted() const;

    // A block begins, or passes a barrier.
    void next_phase();

    void access(const void* at, size_t bytes, bool writes);

  private:
    void count(uint64_t& mark, bool writes);

    const Watched* ranges = nullptr;
    size_t range_count = 0;
    uint64_t phase = 1;
    Touched touched{};
};

// Only the launch that runs uses it; see launcher.cpp.
extern __attribute__((visibility("hidden"))) Counter counter;

}  // namespace emulator
