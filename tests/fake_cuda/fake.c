/* CUDA libraries that run on the host: device memory is memory of the process, and streams do their work as late as
   possible (stream.h).

   For tests of the code that calls them. Built with DRIVER or NVRTC defined; cublaslt.c and nccl.c have the other
   libraries. Further macros choose what is wrong:

     INIT_STATUS     what cuInit returns
     DEVICES         how many devices there are
     NAME            the first device's name
     CAPABILITY      its compute capability, 90 for 9.0
     OLD_FIRST       the first device has 7.5 instead
     MEMORY_CLOCK    in kHz
     DRIVER_VERSION  as cuDriverGetVersion tells it
     MEMORY, TAKEN   bytes of the device, and of them those of another process
     NO_GRAPHS       graphs cannot be instantiated
     ONE_CONTEXT     a primary context can be made once only
     SLOWER          each measured time is longer than the one before, not shorter
     NVRTC_MAJOR     of the compiler
     NO_BUILTINS     the compiler finds its second library missing

   cuLaunchKernel lists the kernels. Declarations follow cuda.h and nvrtc.h as far as these tests need. */

#include "stream.h"

#ifdef DRIVER

#ifndef INIT_STATUS
#define INIT_STATUS 0
#endif
#ifndef DEVICES
#define DEVICES 1
#endif
#ifndef NAME
#define NAME "NVIDIA H200"
#endif
#ifndef CAPABILITY
#define CAPABILITY 90
#endif
#ifdef OLD_FIRST
#define CAPABILITY_OF(d) ((d) ? CAPABILITY : 75)
#else
#define CAPABILITY_OF(d) (CAPABILITY)
#endif
#ifndef MEMORY_CLOCK
#define MEMORY_CLOCK 3201000
#endif
#ifndef DRIVER_VERSION
#define DRIVER_VERSION 13000
#endif
#ifndef MEMORY
#define MEMORY (64 << 20)
#endif
#ifndef TAKEN
#define TAKEN 0
#endif
#define OUT_OF_MEMORY 2
#define INVALID 1
#define ILLEGAL_ADDRESS 700
#define NOT_READY 600
#define RECORDING_UNSUPPORTED 900

static int fault;          /* a failure that is reported later */
static size_t used = TAKEN;   /* bytes allocated */
static __thread Stream *streams;   /* per thread, because each thread is a rank */

/* Freeing memory waits for all work that may use it. */
static void finish_all(void) {
    for (Stream *s = streams; s; s = s->next_of_thread) if (!s->capture) finish(s, s->issued);
}

API int cuInit(unsigned flags) { return flags ? INVALID : INIT_STATUS; }
API int cuDriverGetVersion(int *v) { *v = DRIVER_VERSION; return INIT_STATUS == 34 ? 34 : 0; }
API int cuGetErrorName(unsigned e, const char **s) {
    *s = e == 100   ? "CUDA_ERROR_NO_DEVICE"
         : e == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
         : e == 1   ? "CUDA_ERROR_INVALID_VALUE"
                    : NULL;
    return *s ? 0 : INVALID;
}
API int cuGetErrorString(unsigned e, const char **s) {
    *s = e == 100 ? "no CUDA-capable device is detected" : e == 700 ? "an illegal memory access was encountered" : NULL;
    return *s ? 0 : INVALID;
}
API int cuDeviceGetCount(int *n) { *n = DEVICES; return 0; }
API int cuDeviceGet(int *d, int i) { *d = i; return i < DEVICES ? 0 : 101; }
API int cuDeviceGetName(char *s, int n, int d) { (void)d; snprintf(s, n, "%s", NAME); return 0; }
API int cuDeviceGetPCIBusId(char *s, int n, int d) { snprintf(s, n, "0000:%02x:00.0", d + 1); return 0; }
API int cuDeviceTotalMem_v2(size_t *n, int d) { (void)d; *n = MEMORY; return 0; }
API int cuDeviceGetAttribute(int *v, int attribute, int d) {
    (void)d;
    switch (attribute) {
    case 13: *v = 1980000; return 0;          /* clock, kHz */
    case 16: *v = 132; return 0;              /* multiprocessors */
    case 36: *v = MEMORY_CLOCK; return 0;     /* memory clock, kHz */
    case 37: *v = 6144; return 0;             /* bus, bits */
    case 75: *v = CAPABILITY_OF(d) / 10; return 0;
    case 76: *v = CAPABILITY_OF(d) % 10; return 0;
    case 97: *v = 232448; return 0;           /* shared memory of a block */
    default: return INVALID;
    }
}
#define MOST_DEVICES 16
static int holders[MOST_DEVICES], made[MOST_DEVICES];
API int cuDevicePrimaryCtxRetain(void **c, int d) {
    if (!holders[d]++) made[d]++;
#ifdef ONE_CONTEXT
    if (made[d] > 1) return OUT_OF_MEMORY;
#endif
    *c = (void *)(intptr_t)(d + 1);
    return 0;
}
API int cuDevicePrimaryCtxRelease_v2(int d) { return holders[d]-- > 0 ? 0 : INVALID; }
API int cuCtxSetCurrent(void *c) { return c ? 0 : INVALID; }
API int cuMemGetInfo_v2(size_t *f, size_t *t) { *f = MEMORY - used; *t = MEMORY; return 0; }
/* In a recording of mode "thread local", the thread may not make calls that are unsafe for it, such as allocations. */
static int recording(void) {
    for (Stream *s = streams; s; s = s->next_of_thread) if (s->capture) return 1;
    return 0;
}
API int cuMemAlloc_v2(uint64_t *p, size_t n) {
    if (n == 0) return INVALID;
    if (recording()) return RECORDING_UNSUPPORTED;
    if (n > MEMORY - used) return OUT_OF_MEMORY;
    size_t *at = aligned_alloc(256, 256 + (n + 255) / 256 * 256);
    at[0] = n;
    __sync_fetch_and_add(&used, n);
    memset((char *)at + 256, 0xAB, n);        /* not zeros */
    *p = (uint64_t)(uintptr_t)at + 256;
    return 0;
}
API int cuMemFree_v2(uint64_t p) {
    finish_all();
    size_t *at = (size_t *)(uintptr_t)(p - 256);
    __sync_fetch_and_sub(&used, at[0]);
    free(at);
    return 0;
}
API int cuMemHostAlloc(void **p, size_t n, unsigned flags) {
    return (void)flags, (*p = malloc(n)) ? 0 : OUT_OF_MEMORY;
}
API int cuMemFreeHost(void *p) { finish_all(); free(p); return 0; }

typedef struct { void *to; const void *from; size_t n; } Copy;
static int copy(Op *op) { Copy c; memcpy(&c, op->data, sizeof c); memmove(c.to, c.from, c.n); return 1; }
static int copied(void *to, const void *from, size_t n, Stream *s) {
    if (fault) return fault;
    Copy c = {to, from, n};
    issue(s, copy, &c, sizeof c);
    return 0;
}
API int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, Stream *s) {
    return copied((void *)(uintptr_t)to, from, n, s);
}
/* a copy to pageable memory is synchronous */
API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, Stream *s) {
    int status = copied(to, (void *)(uintptr_t)from, n, s);
    if (!status && !s->capture) finish(s, s->issued);
    return status;
}
API int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, Stream *s) {
    return copied((void *)(uintptr_t)to, (void *)(uintptr_t)from, n, s);
}
typedef struct { void *to; unsigned char byte; size_t n; } Set;
static int set(Op *op) { Set c; memcpy(&c, op->data, sizeof c); memset(c.to, c.byte, c.n); return 1; }
API int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t n, Stream *s) {
    Set c = {(void *)(uintptr_t)to, byte, n};
    issue(s, set, &c, sizeof c);
    return 0;
}

API int cuStreamCreate(Stream **s, unsigned flags) {
    (void)flags;
    *s = malloc(sizeof **s);                  /* never freed: events refer to it */
    empty(*s);
    (*s)->next_of_thread = streams;
    streams = *s;
    return 0;
}
API int cuStreamDestroy_v2(Stream *s) { finish(s, s->issued); return 0; }
API int cuStreamSynchronize(Stream *s) {
    if (s->capture) return RECORDING_UNSUPPORTED;
    finish(s, s->issued);
    return fault;
}
API int cuStreamQuery(Stream *s) {
    if (recording()) return RECORDING_UNSUPPORTED;
    int through = advance(s, s->issued);
    return fault ? fault : through ? 0 : NOT_READY;
}

/* A mark in a stream, or in the lane of a recording. */
typedef struct { Stream *stream; long mark; Capture *capture; int lane; } Event;
typedef struct { Stream *stream; long mark; } Wait;
static int waited(Op *op) { Wait w; memcpy(&w, op->data, sizeof w); return advance(w.stream, w.mark); }
API int cuEventCreate(Event **e, unsigned flags) { (void)flags; *e = calloc(1, sizeof **e); return 0; }
API int cuEventDestroy_v2(Event *e) { free(e); return 0; }
API int cuEventRecord(Event *e, Stream *s) {
    Stream *in = s->capture ? &s->capture->lane[s->lane] : s;
    *e = (Event){in, in->issued, s->capture, s->lane};
    return 0;
}
API int cuEventSynchronize(Event *e) {
    if (e->capture) return INVALID;
    if (e->stream) finish(e->stream, e->mark);
    return fault;
}
API int cuEventQuery(Event *e) {
    if (e->capture) return INVALID;
    if (recording()) return RECORDING_UNSUPPORTED;
    int passed = !e->stream || advance(e->stream, e->mark);
    return fault ? fault : passed ? 0 : NOT_READY;
}
API int cuStreamWaitEvent(Stream *s, Event *e, unsigned flags) {
    (void)flags;
    Capture *c = e->capture;
    if (c && !c->active) return INVALID;
    if (s->capture && s->capture != c) return 905;
    if (!e->stream) return 0;
    if (c && !s->capture) {                   /* becomes part of the recording */
        if (c->lanes == LANES) return INVALID;
        s->capture = c;
        s->lane = c->lanes++;
        empty(&c->lane[s->lane]);
        c->of[s->lane] = s;
    }
    Wait w = {e->stream, e->mark};
    issue(s, waited, &w, sizeof w);
    if (c && !s->lane && e->mark == c->lane[e->lane].issued) c->unjoined[e->lane] = 0;
    return 0;
}
API int cuStreamBeginCapture_v2(Stream *s, int mode) {
    if (s->capture || mode != 1) return INVALID;
    Capture *c = s->capture = calloc(1, sizeof *c);   /* never freed: events refer to it */
    c->lanes = c->active = 1;
    c->of[0] = s;
    s->lane = 0;
    empty(&c->lane[0]);
    return 0;
}
static void forget(Capture *c) {
    for (int i = 0; i < c->lanes; i++)
        for (Op *op = c->lane[i].first, *next; op; op = next) {
            next = op->next;
            if (op->told) op->told(op, DROPPED);
            free(op);
        }
}
API int cuStreamEndCapture(Stream *s, Capture **graph) {
    Capture *c = s->capture;
    if (!c || s->lane) return INVALID;
    c->active = 0;
    *graph = c;
    for (int i = 0; i < c->lanes; i++) {
        c->of[i]->capture = NULL;
        if (c->unjoined[i]) *graph = NULL;
    }
    if (!*graph) forget(c);
    return *graph ? 0 : 904;
}
API int cuGraphInstantiateWithFlags(Capture **exec, Capture *graph, uint64_t flags) {
    (void)flags;
#ifdef NO_GRAPHS
    *exec = NULL;
    return 801;
#endif
    *exec = graph;
    return 0;
}
API int cuGraphDestroy(Capture *graph) { (void)graph; return 0; }
API int cuGraphExecDestroy(Capture *exec) { forget(exec); return 0; }
/* Plays each lane again in a stream of its own; done when the first lane is, with what that waits for. */
static int play(Op *op) {
    Stream *first;
    memcpy(&first, op->data, sizeof first);
    return advance(first, first->issued);
}
API int cuGraphLaunch(Capture *c, Stream *s) {
    if (s->capture) return INVALID;
    Stream *lanes = malloc(LANES * sizeof *lanes);
    for (int i = 0; i < c->lanes; i++) empty(&lanes[i]);
    for (int i = 0; i < c->lanes; i++)
        for (Op *op = c->lane[i].first; op; op = op->next) {
            Op *again = malloc(sizeof *again);
            *again = *op;
            if (op->run == waited) {
                Wait w;
                memcpy(&w, op->data, sizeof w);
                w.stream = &lanes[w.stream - c->lane];
                memcpy(again->data, &w, sizeof w);
            }
            if (again->told) again->told(again, QUEUED);
            append(&lanes[i], again);
        }
    issue(s, play, &lanes, sizeof lanes);
    return fault;
}

/* each time is shorter than the one before, so that the last of several is the fastest */
#ifdef SLOWER
#define CHANGE 1.1f
#else
#define CHANGE 0.9f
#endif
API int cuEventElapsedTime(float *ms, Event *a, Event *b) {
    static float time = 1e3f;
    if (!a->stream || !b->stream || b->stream->done < b->mark) return INVALID;
    *ms = time *= CHANGE;
    return 0;
}

API int cuModuleLoadData(void **m, const char *image) {
    if (memcmp(image, "\177ELF", 4)) return 200;
    *m = (void *)image;
    return 0;
}
API int cuModuleUnload(void *m) { (void)m; return 0; }
typedef struct { char name[32]; int shared; } Function;
API int cuModuleGetFunction(Function **f, void *m, const char *name) {
    (void)m;
    if (strcmp(name, "axpy") && strcmp(name, "crash")) return 500;
    *f = calloc(1, sizeof **f);               /* never freed, like a module's functions */
    strcpy((*f)->name, name);
    (*f)->shared = 40 << 10;                  /* as if it had 8 KiB of static shared memory */
    return 0;
}
API int cuFuncGetAttribute(int *v, int attribute, Function *f) { (void)f; *v = attribute == 4 ? 32 : 0; return 0; }
API int cuFuncSetAttribute(Function *f, int attribute, int value) {
    if (attribute != 8 || value > 232448) return INVALID;
    f->shared = value;
    return 0;
}
/* axpy(float *y, int n, double a, const float *x, float b): y[i] += a x[i] + b, by as many threads as are launched */
typedef struct { float *y; int n; double a; const float *x; float b; } Axpy;
typedef struct { Axpy arguments; unsigned threads; } AxpyLaunch;
static int axpy(Op *op) {
    AxpyLaunch l;
    memcpy(&l, op->data, sizeof l);
    for (int i = 0; i < l.arguments.n && i < (int)l.threads; i++)
        l.arguments.y[i] += (float)(l.arguments.a * l.arguments.x[i] + l.arguments.b);
    return 1;
}
static int crash(Op *op) { (void)op; fault = ILLEGAL_ADDRESS; return 1; }
API int cuLaunchKernel(Function *f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared, Stream *s, void **params, void **extra) {
    if (fault) return fault;
    if (params || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4]) return INVALID;
    if ((int)shared > f->shared || by != 1 || bz != 1 || bx > 1024) return INVALID;
    if (!strcmp(f->name, "crash")) {
        issue(s, crash, "", 1);
        return 0;
    }
    /* up to the end of the last parameter, without the padding of the struct */
    if (*(size_t *)extra[3] != offsetof(Axpy, b) + sizeof(float)) return INVALID;
    AxpyLaunch l = {.threads = x * y * z * bx};
    memcpy(&l.arguments, extra[1], offsetof(Axpy, b) + sizeof(float));
    issue(s, axpy, &l, sizeof l);
    return 0;
}

#endif
#ifdef NVRTC

#ifndef NVRTC_MAJOR
#define NVRTC_MAJOR 13
#endif
typedef struct { int failed; char log[512]; } Program;
API const char *nvrtcGetErrorString(unsigned e) {
    return e == 6 ? "NVRTC_ERROR_COMPILATION" : e ? "NVRTC_ERROR_OTHER" : "NVRTC_SUCCESS";
}
API int nvrtcVersion(int *major, int *minor) { *major = NVRTC_MAJOR; *minor = 1; return 0; }
API int nvrtcGetNumSupportedArchs(int *n) { *n = 3; return 0; }
API int nvrtcGetSupportedArchs(int *a) { a[0] = 80; a[1] = 90; a[2] = 100; return 0; }
API int nvrtcCreateProgram(Program **p, const char *text, const char *name, int n, const char *const *bodies,
                           const char *const *names) {
    (void)name;
    *p = calloc(1, sizeof **p);
    for (int i = 0; i < n; i++)
        if (!strncmp(bodies[i], "#error", 6)) {
            (*p)->failed = 1;
            snprintf((*p)->log, sizeof (*p)->log, "%s(1): error: #error directive", names[i]);
        }
    (void)text;
    return 0;
}
API int nvrtcCompileProgram(Program *p, int n, const char *const *options) {
    (void)n; (void)options;
#ifdef NO_BUILTINS
    strcpy(p->log, "nvrtc: error: failed to open libnvrtc-builtins.so.13.1.\n"
                   "  Make sure that it is installed correctly.");
    return 7;
#endif
    return p->failed ? 6 : 0;
}
API int nvrtcGetProgramLogSize(Program *p, size_t *n) { *n = strlen(p->log) + 1; return 0; }
API int nvrtcGetProgramLog(Program *p, char *s) { strcpy(s, p->log); return 0; }
API int nvrtcGetCUBINSize(Program *p, size_t *n) { (void)p; *n = 64; return 0; }
API int nvrtcGetCUBIN(Program *p, char *s) { (void)p; memset(s, 0, 64); memcpy(s, "\177ELF", 4); return 0; }
API int nvrtcDestroyProgram(Program **p) { free(*p); *p = NULL; return 0; }

#endif
