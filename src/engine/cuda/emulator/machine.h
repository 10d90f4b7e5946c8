// The machine that runs the kernels: one block at a time, each of its threads a fiber, with barriers for the
// block, operations of whole warps, shared memory and asynchronous copies.
//
// It is stricter than a GPU. In every block, shared memory begins as NaN; the destination of a copy is NaN
// until the copy is waited for; it is an error if lanes of a warp meet in different operations, or if threads
// leave while others wait for them. A thread runs until it has to wait, so without a barrier the launch
// chooses the order: results that depend on it are races.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "count.h"
#include "fiber.h"

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

// The statically declared shared arrays are in a section of their own (see language.h); these symbols mark
// its ends.
extern "C" __attribute__((weak, visibility("hidden"))) char __start_emulator_shared[];
extern "C" __attribute__((weak, visibility("hidden"))) char __stop_emulator_shared[];

namespace emulator {

constexpr unsigned warp_size = 32;
constexpr unsigned char poison = 0xff;  // as bytes of any floating-point format: NaN

enum class Order : uint32_t { ascending, descending, shuffled };

// Ends the launch. Thrown through the kernel's frames to the fiber's first one.
struct Failure {};

// What a thread waits for.
enum class Waits { nothing, warp, block, finished };

struct Copy {
    void* shared;
    const void* global;  // null: zeros
    unsigned bytes;
};

struct Thread {
    Fiber fiber;
    uint3 index{};
    unsigned number = 0;
    Waits waits = Waits::nothing;
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> committed;

    unsigned lane() const { return number % warp_size; }
};

// An operation of all lanes. It receives, for each lane, a pointer to what that lane brought, which stays
// alive until it returns.
using Operation = void (*)(void* const* lanes);

struct Warp {
    Operation operation = nullptr;
    const char* name = nullptr;
    void* brought[warp_size] = {};
    unsigned arrived = 0;
};

class Machine {
  public:
    Thread* current = nullptr;
    dim3 grid, block;
    uint3 block_index{};
    unsigned char* dynamic_shared = nullptr;

    // Runs `body(argument)` for every thread of every block. Returns false if it failed; `message` says why.
    bool run(dim3 grid, unsigned threads, unsigned dynamic_bytes, Order order, uint64_t seed, void (*body)(void*),
             void* argument);

    [[noreturn]] __attribute__((format(printf, 2, 3))) void fail(const char* format, ...);

    // Waits for all threads of the block.
    void barrier() { park(Waits::block); }

    // Waits for all lanes of the warp; the last one runs the operation.
    void collective(const char* name, Operation operation, void* mine);

    char message[512] = "";

  private:
    // Poisoned bytes after the dynamic shared memory, and all that is allocated, so that overflows damage
    // nothing else.
    static constexpr unsigned fence_bytes = 4 << 10, spare_bytes = 256 << 10;

    void park(Waits reason) {
        Thread* thread = current;
        thread->waits = reason;
        thread->fiber.give_way();
    }
    static void run_thread(void* thread);
    void run_block();
    bool run_warp(unsigned warp);
    void release_barrier();
    void report_deadlock();
    void check_fence();
    void arrange(std::vector<unsigned>& places, unsigned count);

    std::vector<std::unique_ptr<Thread>> threads;
    std::vector<Warp> warps;
    std::vector<unsigned> warp_order, lane_order;
    std::vector<unsigned char> arena;
    unsigned thread_count = 0, dynamic_bytes = 0;
    Order order = Order::ascending;
    uint64_t random = 0;
    void (*body)(void*) = nullptr;
    void* argument = nullptr;
    bool failed = false;
};

inline Machine machine;

inline void Machine::fail(const char* format, ...) {
    char reason[320];
    va_list values;
    va_start(values, format);
    vsnprintf(reason, sizeof reason, format, values);
    va_end(values);
    char thread[32] = "";
    if (current) snprintf(thread, sizeof thread, ", thread %u", current->number);
    snprintf(message, sizeof message, "block (%u, %u, %u)%s: %s", block_index.x, block_index.y, block_index.z, thread,
             reason);
    failed = true;
    throw Failure{};
}

inline void Machine::collective(const char* name, Operation operation, void* mine) {
    Thread* thread = current;
    Warp& warp = warps[thread->number / warp_size];
    if (warp.arrived == 0) {
        warp.operation = operation;
        warp.name = name;
    } else if (warp.operation != operation) {
        fail("it is at %s while other lanes of its warp wait at %s", name, warp.name);
    }
    warp.brought[thread->lane()] = mine;
    if (++warp.arrived < warp_size) return park(Waits::warp);
    warp.arrived = 0;
    operation(warp.brought);
    unsigned first = thread->number - thread->lane();
    for (unsigned lane = 0; lane < warp_size; lane++) threads[first + lane]->waits = Waits::nothing;
}

inline void Machine::run_thread(void* pointer) {
    Thread* thread = static_cast<Thread*>(pointer);
    // one body per block; the fiber outlives them all
    for (;;) {
        try {
            machine.body(machine.argument);
            bool pending = !thread->open.empty();
            for (auto& group : thread->committed) pending |= !group.empty();
            if (pending) machine.fail("it ended with asynchronous copies that it did not wait for");
        } catch (const Failure&) {
        }
        thread->waits = Waits::finished;
        thread->fiber.give_way();
    }
}

// Fills `places` with 0..count in the launch's order.
inline void Machine::arrange(std::vector<unsigned>& places, unsigned count) {
    places.resize(count);
    for (unsigned i = 0; i < count; i++) places[i] = order == Order::descending ? count - 1 - i : i;
    if (order != Order::shuffled) return;
    for (unsigned i = count; i > 1; i--) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        std::swap(places[i - 1], places[(random >> 33) % i]);
    }
}

// Runs the lanes until all of them wait for the block or have finished. Returns whether any of them ran.
inline bool Machine::run_warp(unsigned warp) {
    bool any = false;
    for (bool ran = true; ran;) {
        ran = false;
        arrange(lane_order, warp_size);
        for (unsigned lane : lane_order) {
            Thread& thread = *threads[warp * warp_size + lane];
            if (thread.waits != Waits::nothing) continue;
            current = &thread;
            thread.fiber.resume();
            current = nullptr;
            if (failed) throw Failure{};
            ran = any = true;
        }
    }
    return any;
}

inline void Machine::release_barrier() {
#ifdef EMULATOR_COUNTS
    counter.next_phase();
#endif
    for (unsigned i = 0; i < thread_count; i++) threads[i]->waits = Waits::nothing;
}

inline void Machine::report_deadlock() {
    unsigned counts[4] = {};
    const char* name = nullptr;
    for (unsigned i = 0; i < thread_count; i++) {
        counts[static_cast<unsigned>(threads[i]->waits)]++;
        if (threads[i]->waits == Waits::warp) name = warps[i / warp_size].name;
    }
    fail("deadlock: %u threads wait at __syncthreads, %u for their warp%s%s, %u are done",
         counts[unsigned(Waits::block)], counts[unsigned(Waits::warp)], name ? " at " : "", name ? name : "",
         counts[unsigned(Waits::finished)]);
}

inline void Machine::check_fence() {
    for (unsigned i = 0; i < fence_bytes; i++) {
        if (dynamic_shared[dynamic_bytes + i] != poison) {
            fail("something wrote %u bytes past the %u bytes of dynamic shared memory", i + 1, dynamic_bytes);
        }
    }
}

inline void Machine::run_block() {
#ifdef EMULATOR_COUNTS
    counter.next_phase();
#endif
    memset(dynamic_shared, poison, dynamic_bytes + fence_bytes);
    if (__start_emulator_shared) {
        memset(__start_emulator_shared, poison, __stop_emulator_shared - __start_emulator_shared);
    }
    for (unsigned i = 0; i < thread_count; i++) {
        threads[i]->waits = Waits::nothing;
        threads[i]->committed.clear();
    }
    for (;;) {
        bool ran = false;
        arrange(warp_order, thread_count / warp_size);
        for (unsigned warp : warp_order) ran |= run_warp(warp);
        unsigned waiting = 0, finished = 0;
        for (unsigned i = 0; i < thread_count; i++) {
            waiting += threads[i]->waits == Waits::block;
            finished += threads[i]->waits == Waits::finished;
        }
        if (finished == thread_count) break;
        if (waiting == thread_count) {
            release_barrier();
        } else if (!ran) {
            report_deadlock();
        }
    }
    check_fence();
}

inline bool Machine::run(dim3 grid, unsigned count, unsigned bytes, Order order, uint64_t seed, void (*body)(void*),
                         void* argument) {
    this->grid = grid;
    this->order = order;
    this->body = body;
    this->argument = argument;
    block = dim3{count, 1, 1};
    block_index = uint3{0, 0, 0};
    thread_count = count;
    dynamic_bytes = bytes;
    random = seed;
    failed = false;
    current = nullptr;
    arena.resize(bytes + spare_bytes);
    dynamic_shared = arena.data() + (1024 - reinterpret_cast<uintptr_t>(arena.data()) % 1024) % 1024;
    try {
        if (count == 0 || count > 1024 || count % warp_size != 0) {
            fail("a block has 32 to 1024 threads, a multiple of 32, not %u", count);
        }
        if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
            fail("a grid of %u x %u x %u blocks is none of 1..2^31-1 x 1..65535 x 1..65535", grid.x, grid.y, grid.z);
        }
        warps.assign(count / warp_size, Warp{});
        while (threads.size() < count) threads.push_back(std::make_unique<Thread>());
        for (unsigned i = 0; i < count; i++) {
            Thread& thread = *threads[i];
            thread.number = i;
            thread.index = uint3{i, 0, 0};
            thread.open.clear();
            thread.fiber.create(run_thread, &thread);
        }
        std::vector<unsigned> blocks;
        arrange(blocks, grid.x * grid.y * grid.z);
        for (unsigned place : blocks) {
            block_index = uint3{place % grid.x, place / grid.x % grid.y, place / (grid.x * grid.y)};
            run_block();
        }
    } catch (const Failure&) {
        return false;
    }
    return true;
}

}  // namespace emulator
