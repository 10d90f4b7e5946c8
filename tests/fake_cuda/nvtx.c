/* A profiler's library, as NVTX version 3 loads it: it fills the table of functions and counts ranges. It refuses a
   process that lacks one of the modules which profilers ask for. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define API __attribute__((visibility("default")))

typedef void (*Function)(void);
typedef struct {
    size_t struct_size;
    int (*module_functions)(int module, Function ***table, unsigned *size);
} Callbacks;
typedef struct {
    size_t struct_size;
    uint32_t version, reserved;
    void (*set_injection_version)(uint32_t version);
} VersionInfo;

static int open_ranges, pushed;
static char last[64];

static int push(const char *name) {
    strncpy(last, name, sizeof last - 1);
    pushed++;
    return open_ranges++;
}
static int pop(void) { return --open_ranges; }

API int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t id)) {
    const Callbacks *callbacks = export_table(1);
    const VersionInfo *version = export_table(3);
    if (!callbacks || callbacks->struct_size < sizeof *callbacks || export_table(7)) return 0;
    if (!version || version->version < 3) return 0;
    version->set_injection_version(3);
    for (int module = 1; module <= 5; module += 4) {
        Function **table = NULL;
        unsigned size = 0;
        if (!callbacks->module_functions(module, &table, &size) || !table || size <= 11 || table[0]) return 0;
        for (unsigned id = 1; id < 16; id++) {
            if (!table[id]) return 0;
        }
        if (module != 1) continue;
        *table[9] = (Function)push;
        *table[11] = (Function)pop;
    }
    return !callbacks->module_functions(99, NULL, NULL);
}

API int fake_pushed(void) { return pushed; }
API int fake_open(void) { return open_ranges; }
API const char *fake_last(void) { return last; }
