// The function that tests call; compiled once for all kernels.
#include "launcher.h"

#include <cstdio>
#include <cstring>
#include <mutex>

#include "count.h"

// Runs one launch; other launches wait for it. Returns zero on success; otherwise `message` says why it
// failed.
extern "C" __attribute__((visibility("default"))) int emulator_launch(const emulator::Request* request, char* message,
                                                                      size_t capacity) {
    using namespace emulator;
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    machine.current = nullptr;
    machine.block_index = uint3{0, 0, 0};
    for (size_t i = 0; i < kernel_count; i++) {
        if (strcmp(kernels[i].name, request->kernel) != 0) continue;
#ifdef EMULATOR_COUNTS
        counter.watch(request->watched, request->watched_count);
        bool done = kernels[i].run(*request);
        *request->touched = counter.counted();
        counter.watch(nullptr, 0);
#else
        bool done = kernels[i].run(*request);
#endif
        if (done) return 0;
        snprintf(message, capacity, "%s", machine.message);
        return 1;
    }
    snprintf(message, capacity, "there is no such kernel");
    return 1;
}
