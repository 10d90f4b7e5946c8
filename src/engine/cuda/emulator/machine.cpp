// What machine.h declares.
#include "machine.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "fiber.h"
#ifdef EMULATOR_COUNTS
#include "count.h"
#endif

// The statically declared shared arrays are in a section of their own (see language.h); these symbols mark
// its ends.
extern "C" __attribute__((weak, visibility("hidden"))) char __start_emulator_shared[];
extern "C" __attribute__((weak, visibility("hidden"))) char __stop_emulator_shared[];

namespace emulator {

Machine machine;

namespace {

constexpr unsigned char poison = 0xff;  // as bytes of any floating-point format: NaN
// Poisoned bytes after the dynamic shared memory, and all that is allocated, so that overflows damage
// nothing else.
constexpr unsigned fence_bytes = 4 << 10, spare_bytes = 256 << 10;

// What a thread waits for.
enum class Waits { nothing, warp, block, finished };

struct Copy {
    void* shared;
    const void* global;  // null: zeros
    unsigned bytes;
};

struct Thread : Place {
    Fiber fiber;
    Waits waits = Waits::nothing;
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> committed;
};

struct Warp {
    Operation operation = nullptr;
    const char* name = nullptr;
    void* brought[warp_size] = {};
    unsigned arrived = 0;
};

// The threads of a launch, which run block after block.
class Scheduler {
  public:
    void run(dim3 grid, unsigned count, unsigned bytes, Order order, uint64_t seed, void (*body)(void*),
             void* argument);

    void collective(const char* name, Operation operation, void* mine);

    static Thread& current() { return *static_cast<Thread*>(machine.current); }

    void park(Waits reason) {
        current().waits = reason;
        current().fiber.give_way();
    }

    bool failed = false;

  private:
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
};

Scheduler scheduler;

void Scheduler::collective(const char* name, Operation operation, void* mine) {
    Thread* thread = &current();
    Warp& warp = warps[thread->number / warp_size];
    if (warp.arrived == 0) {
        warp.operation = operation;
        warp.name = name;
    } else if (warp.operation != operation) {
        machine.fail("it is at %s while other lanes of its warp wait at %s", name, warp.name);
    }
    warp.brought[thread->lane()] = mine;
    if (++warp.arrived < warp_size) return park(Waits::warp);
    warp.arrived = 0;
    operation(warp.brought);
    unsigned first = thread->number - thread->lane();
    for (unsigned lane = 0; lane < warp_size; lane++) threads[first + lane]->waits = Waits::nothing;
}

void Scheduler::run_thread(void* pointer) {
    Thread* thread = static_cast<Thread*>(pointer);
    // one body per block
    for (;;) {
        try {
            scheduler.body(scheduler.argument);
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
void Scheduler::arrange(std::vector<unsigned>& places, unsigned count) {
    places.resize(count);
    for (unsigned i = 0; i < count; i++) places[i] = order == Order::descending ? count - 1 - i : i;
    if (order != Order::shuffled) return;
    for (unsigned i = count; i > 1; i--) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        std::swap(places[i - 1], places[(random >> 33) % i]);
    }
}

// Runs the lanes until all of them wait for the block or have finished. Returns whether any of them ran.
bool Scheduler::run_warp(unsigned warp) {
    bool any = false;
    for (bool ran = true; ran;) {
        ran = false;
        arrange(lane_order, warp_size);
        for (unsigned lane : lane_order) {
            Thread& thread = *threads[warp * warp_size + lane];
            if (thread.waits != Waits::nothing) continue;
            machine.current = &thread;
            thread.fiber.resume();
            machine.current = nullptr;
            if (failed) throw Failure{};
            ran = any = true;
        }
    }
    return any;
}

void Scheduler::release_barrier() {
#ifdef EMULATOR_COUNTS
    counter.next_phase();
#endif
    for (unsigned i = 0; i < thread_count; i++) threads[i]->waits = Waits::nothing;
}

void Scheduler::report_deadlock() {
    unsigned counts[4] = {};
    const char* name = nullptr;
    for (unsigned i = 0; i < thread_count; i++) {
        counts[static_cast<unsigned>(threads[i]->waits)]++;
        if (threads[i]->waits == Waits::warp) name = warps[i / warp_size].name;
    }
    machine.fail("deadlock: %u threads wait at __syncthreads, %u for their warp%s%s, %u are done",
                 counts[unsigned(Waits::block)], counts[unsigned(Waits::warp)], name ? " at " : "", name ? name : "",
                 counts[unsigned(Waits::finished)]);
}

void Scheduler::check_fence() {
    for (unsigned i = 0; i < fence_bytes; i++) {
        if (machine.dynamic_shared[dynamic_bytes + i] != poison) {
            machine.fail("something wrote %u bytes past the %u bytes of dynamic shared memory", i + 1, dynamic_bytes);
        }
    }
}

void Scheduler::run_block() {
#ifdef EMULATOR_COUNTS
    counter.next_phase();
#endif
    memset(machine.dynamic_shared, poison, dynamic_bytes + fence_bytes);
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

void Scheduler::run(dim3 grid, unsigned count, unsigned bytes, Order order, uint64_t seed, void (*body)(void*),
                  void* argument) {
    machine.grid = grid;
    this->order = order;
    this->body = body;
    this->argument = argument;
    machine.block = dim3{count, 1, 1};
    machine.block_index = uint3{0, 0, 0};
    thread_count = count;
    dynamic_bytes = bytes;
    random = seed;
    failed = false;
    machine.current = nullptr;
    arena.resize(bytes + spare_bytes);
    machine.dynamic_shared = arena.data() + (1024 - reinterpret_cast<uintptr_t>(arena.data()) % 1024) % 1024;
    if (count == 0 || count > 1024 || count % warp_size != 0) {
        machine.fail("a block has 32 to 1024 threads, a multiple of 32, not %u", count);
    }
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
        machine.fail("a grid of %u x %u x %u blocks is none of 1..2^31-1 x 1..65535 x 1..65535", grid.x, grid.y,
                     grid.z);
    }
    warps.assign(count / warp_size, Warp{});
    while (threads.size() < count) threads.push_back(std::make_unique<Thread>());
    for (unsigned i = 0; i < count; i++) {
        Thread& thread = *threads[i];
        thread.number = i;
        thread.index = uint3{i, 0, 0};
        thread.open.clear();
        // one that has come to its end goes on with the next block, whichever launch that is of
        if (thread.waits != Waits::finished) thread.fiber.create(run_thread, &thread);
    }
    std::vector<unsigned> blocks;
    arrange(blocks, grid.x * grid.y * grid.z);
    for (unsigned place : blocks) {
        machine.block_index = uint3{place % grid.x, place / grid.x % grid.y, place / (grid.x * grid.y)};
        run_block();
    }
}

}  // namespace

void Machine::fail(const char* format, ...) {
    char reason[320];
    va_list values;
    va_start(values, format);
    vsnprintf(reason, sizeof reason, format, values);
    va_end(values);
    char thread[32] = "";
    if (current) snprintf(thread, sizeof thread, ", thread %u", current->number);
    snprintf(message, sizeof message, "block (%u, %u, %u)%s: %s", block_index.x, block_index.y, block_index.z, thread,
             reason);
    scheduler.failed = true;
    throw Failure{};
}

bool Machine::run(dim3 grid, unsigned count, unsigned bytes, Order order, uint64_t seed, void (*body)(void*),
                  void* argument) {
    try {
        scheduler.run(grid, count, bytes, order, seed, body, argument);
    } catch (const Failure&) {
        return false;
    }
    return true;
}

void Machine::barrier() { scheduler.park(Waits::block); }

void Machine::collective(const char* name, Operation operation, void* mine) {
    scheduler.collective(name, operation, mine);
}

// Nothing arrives before it is waited for: until then the destination holds NaN.
void Machine::start_copy(void* shared, const void* global, unsigned bytes) {
    memset(shared, poison, bytes);
#ifdef EMULATOR_COUNTS
    if (global) counter.access(global, bytes, false);
#endif
    Scheduler::current().open.push_back({shared, global, bytes});
}

void Machine::commit_copies() {
    Thread& thread = Scheduler::current();
    thread.committed.push_back(std::move(thread.open));
    thread.open.clear();
}

void Machine::wait_for_copies(unsigned pending) {
    auto& groups = Scheduler::current().committed;
    for (; groups.size() > pending; groups.pop_front()) {
        for (const Copy& copy : groups.front()) {
            if (copy.global) {
                memcpy(copy.shared, copy.global, copy.bytes);
            } else {
                memset(copy.shared, 0, copy.bytes);
            }
        }
    }
}

}  // namespace emulator
