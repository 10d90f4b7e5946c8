// What the instrumentation of the thread sanitizer calls; compiled without it.
#include "count.h"

#include <cstring>

#define HIDDEN extern "C" __attribute__((visibility("hidden")))

namespace emulator {

// The two lowest bits of a mark; above them is the phase of the last reading.
static constexpr uint64_t READ = 1, WRITTEN = 2;

Counter counter;

void Counter::watch(const Watched* watched, size_t count) {
    ranges = watched;
    range_count = count;
    touched = Touched{};
    phase = 1;
    for (size_t i = 0; i < count; i++) memset(ranges[i].marks, 0, ranges[i].bytes * sizeof(uint64_t));
}

Touched Counter::counted() const { return touched; }

void Counter::next_phase() { phase++; }

void Counter::access(const void* at, size_t bytes, bool writes) {
    for (size_t i = 0; i < range_count; i++) {
        uint64_t offset = reinterpret_cast<uint64_t>(at) - ranges[i].first;
        // also for addresses before the first
        if (offset >= ranges[i].bytes) continue;
        for (uint64_t byte = offset; byte < offset + bytes && byte < ranges[i].bytes; byte++) {
            count(ranges[i].marks[byte], writes);
        }
    }
}

void Counter::count(uint64_t& mark, bool writes) {
    if (writes) {
        if (!(mark & WRITTEN)) touched.written++;
        mark |= WRITTEN;
    } else if (!(mark & WRITTEN)) {
        if (!(mark & READ)) touched.read++;
        if (mark >> 2 != phase) touched.streamed++;
        mark = phase << 2 | READ;
    }
}

}  // namespace emulator

#define ACCESS(name, bytes, writes) \
    HIDDEN void __tsan_##name(void* at) { emulator::counter.access(at, bytes, writes); }
#define ACCESSES(bytes) \
    ACCESS(read##bytes, bytes, false) \
    ACCESS(write##bytes, bytes, true) \
    ACCESS(unaligned_read##bytes, bytes, false) \
    ACCESS(unaligned_write##bytes, bytes, true) \
    ACCESS(volatile_read##bytes, bytes, false) \
    ACCESS(volatile_write##bytes, bytes, true)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

HIDDEN void __tsan_read_range(void* at, size_t bytes) { emulator::counter.access(at, bytes, false); }
HIDDEN void __tsan_write_range(void* at, size_t bytes) { emulator::counter.access(at, bytes, true); }
HIDDEN void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
    emulator::counter.access(from, bytes, false);
    emulator::counter.access(to, bytes, true);
    return memcpy(to, from, bytes);
}
HIDDEN void* __tsan_memmove(void* to, const void* from, size_t bytes) {
    emulator::counter.access(from, bytes, false);
    emulator::counter.access(to, bytes, true);
    return memmove(to, from, bytes);
}
HIDDEN void* __tsan_memset(void* to, int value, size_t bytes) {
    emulator::counter.access(to, bytes, true);
    return memset(to, value, bytes);
}

// Not about global memory.
HIDDEN void __tsan_init() {}
HIDDEN void __tsan_func_entry(void*) {}
HIDDEN void __tsan_func_exit() {}
HIDDEN void __tsan_vptr_update(void*, void*) {}
HIDDEN void __tsan_vptr_read(void*) {}
