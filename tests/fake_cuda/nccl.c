/* NCCL between threads of one process: sums on the host, in the order of ranks. Communicators do not block, and are as
   strict as nccl.h and the User Guide allow: a communicator that is not ready takes no calls, all ranks must make the
   same calls in the same order, and recordings must be destroyed before a communicator. Macros choose what is wrong:

     WRONG           a sum of many numbers is off by one in the last
     FAILS           after so many collectives a communicator finds that another process is gone
     OLD             it is of before 2.14
     NEVER_READY     ranks wait for each other forever when they connect */

#include "stream.h"
#include <math.h>
#include <pthread.h>

enum { OK, CUDA_FAILED, SYSTEM, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, REMOTE, IN_PROGRESS };
enum { FLOAT = 7, DOUBLE = 8 };
enum { SUM, SUM_TO, BROADCAST };
#define RANKS 8

typedef struct { char internal[128]; } Id;
typedef struct { size_t size; unsigned magic, version; int blocking; } Config;

/* One collective, and the ranks that have arrived at it. */
typedef struct Meeting {
    struct Meeting *next;
    long number;
    int kind, type, root, come, done;
    size_t count;
    void *at[RANKS];
} Meeting;
typedef struct Universe {
    struct Universe *next;
    Id id;
    int size, joined, broken;
    Meeting *meetings;
} Universe;
typedef struct {
    Universe *universe;
    int rank, busy, status, aborted, finalized, recorded, calls;
    long next;
} Comm;
typedef struct { Comm *comm; int kind, type, root; size_t count; void *at; long number; int here; } Ask;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Universe *universes;
static __thread int depth;             /* of groups */
static __thread Comm *grouped;         /* the communicator of the group */

static void strict(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "fake NCCL: %s\n", what);
        abort();
    }
}

API int ncclGetVersion(int *version) { *version = 22703; return OK; }
API const char *ncclGetErrorString(unsigned status) {
    return status == REMOTE             ? "remote process exited or there was a network error"
           : status == INVALID_ARGUMENT ? "invalid argument"
                                        : "other";
}
API const char *ncclGetLastError(Comm *comm) { (void)comm; return ""; }
API int ncclGetUniqueId(Id *id) {
    static int made;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "meeting place %d", __sync_add_and_fetch(&made, 1));
    memset(id->internal + 100, 0xfe, 28);   /* bytes, not text */
    return OK;
}
API int ncclCommInitRankConfig(Comm **comm, int size, Id id, int rank, Config *config) {
    if (config->size != 24 || config->magic != 0xcafebeef || config->version != 21400 || config->blocking != 0)
        return INVALID_ARGUMENT;
    if (rank < 0 || rank >= size || size > RANKS) return INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    Universe *u = universes;
    while (u && memcmp(&u->id, &id, sizeof id)) u = u->next;
    if (!u) {
        u = calloc(1, sizeof *u);
        *u = (Universe){universes, id, size, 0, 0, NULL};
        universes = u;
    }
    u->joined++;
    pthread_mutex_unlock(&lock);
    strict(u->size == size && u->joined <= size, "ranks disagree about how many they are");
    *comm = calloc(1, sizeof **comm);       /* never freed: aborted work may refer to it */
    **comm = (Comm){.universe = u, .rank = rank, .busy = 3};
    return IN_PROGRESS;
}
API int ncclCommGetAsyncError(Comm *comm, int *state) {
    if (comm->aborted) return INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    int all = comm->universe->joined == comm->universe->size;
#ifdef NEVER_READY
    all = 0;
#endif
    if (!all) *state = IN_PROGRESS;
    else if (comm->busy > 0) { comm->busy--; *state = IN_PROGRESS; }
    else *state = comm->universe->broken ? REMOTE : comm->status;
    pthread_mutex_unlock(&lock);
    return OK;
}

static Meeting *meeting(const Ask *a) {
    Meeting **m = &a->comm->universe->meetings;
    while (*m && (*m)->number != a->number) m = &(*m)->next;
    if (!*m) {
        *m = calloc(1, sizeof **m);
        **m = (Meeting){.number = a->number, .kind = a->kind, .type = a->type, .root = a->root, .count = a->count};
    }
    strict((*m)->kind == a->kind && (*m)->type == a->type && (*m)->root == a->root && (*m)->count == a->count,
           "ranks ask for different things");
    return *m;
}
static double get(const Meeting *m, int rank, size_t i) {
    return m->type == FLOAT ? ((float *)m->at[rank])[i] : ((double *)m->at[rank])[i];
}
static void put(const Meeting *m, int rank, size_t i, double value) {
    if (m->type == FLOAT) ((float *)m->at[rank])[i] = (float)value;
    else ((double *)m->at[rank])[i] = value;
}
static void carry_out(Meeting *m, int size) {
    for (size_t i = 0; i < m->count; i++) {
        double sum = 0;
        for (int r = 0; r < size; r++) sum = m->type == FLOAT ? (float)(sum + get(m, r, i)) : sum + get(m, r, i);
#ifdef WRONG
        if (i == m->count - 1) sum += 1;
#endif
        double value = m->kind == BROADCAST ? get(m, m->root, i) : sum;
        for (int r = 0; r < size; r++) put(m, r, i, m->kind == SUM_TO && r != m->root ? NAN : value);
    }
}
static int run(Op *op) {
    Ask a;
    memcpy(&a, op->data, sizeof a);
    pthread_mutex_lock(&lock);
    Meeting *m = meeting(&a);
    int size = a.comm->universe->size;
    if (!a.here) {
        a.here = 1;
        memcpy(op->data, &a, sizeof a);
        m->at[a.comm->rank] = a.at;
        /* a rank that has aborted may have freed its memory */
        if (++m->come == size && !a.comm->universe->broken) {
            carry_out(m, size);
            m->done = 1;
        }
    }
    int through = m->done || a.comm->aborted;
    pthread_mutex_unlock(&lock);
    return through;
}
static void told(Op *op, int what) {
    Ask a;
    memcpy(&a, op->data, sizeof a);
    if (what == KEPT) a.comm->recorded++;
    if (what == DROPPED) a.comm->recorded--;
    if (what == QUEUED) {
        a.number = a.comm->next++;
        memcpy(op->data, &a, sizeof a);
    }
}
static int ask(Comm *comm, int kind, const void *from, void *to, size_t count, int type, int root, Stream *stream) {
    strict(from == to && count > 0 && (type == FLOAT || type == DOUBLE) && stream, "an odd call");
    strict(root >= 0 && root < comm->universe->size, "there is no such rank");
    if (comm->busy || comm->aborted || comm->finalized) return INVALID_ARGUMENT;
    strict(!depth || !grouped || grouped == comm, "two communicators in a group");
    Ask a = {comm, kind, type, root, count, to, 0, 0};
    issue_told(stream, run, told, &a, sizeof a);
#ifdef FAILS
    if (++comm->calls == FAILS) comm->status = REMOTE;
#endif
    if (depth) {
        grouped = comm;
        return OK;
    }
    comm->busy = 2;
    return IN_PROGRESS;
}
API int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, Comm *comm, Stream *stream) {
    strict(op == 0, "not a sum");
    return ask(comm, SUM, from, to, count, type, 0, stream);
}
API int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, Comm *comm, Stream *stream) {
    strict(op == 0, "not a sum");
    return ask(comm, SUM_TO, from, to, count, type, root, stream);
}
API int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Comm *comm, Stream *stream) {
    return ask(comm, BROADCAST, from, to, count, type, root, stream);
}
API int ncclGroupStart(void) { depth++; return OK; }
API int ncclGroupEnd(void) {
    if (!depth) return INVALID_USAGE;
    if (--depth || !grouped) return OK;
    grouped->busy = 2;
    grouped = NULL;
    return IN_PROGRESS;
}
#ifdef OLD
#define ncclCommFinalize nobody_knows
#endif
API int ncclCommFinalize(Comm *comm) {
    if (comm->busy || comm->aborted || comm->finalized) return INVALID_ARGUMENT;
    strict(!comm->recorded, "recordings are still there, and finalizing waits for them");
    comm->finalized = 1;
    comm->busy = 2;
    return IN_PROGRESS;
}
API int ncclCommDestroy(Comm *comm) {
    strict(comm->finalized && !comm->busy && !comm->aborted, "destroyed before it is finalized");
    comm->aborted = 1;
    return OK;
}
API int ncclCommAbort(Comm *comm) {
    strict(!comm->recorded, "recordings are still there, and aborting waits for them");
    pthread_mutex_lock(&lock);
    comm->aborted = comm->universe->broken = 1;
    pthread_mutex_unlock(&lock);
    return OK;
}
