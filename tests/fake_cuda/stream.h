/* Streams that do nothing before they must: work is queued until a call waits for it, and of the other streams only the
   work before an awaited event is done. So an order that the program does not enforce does not occur by chance.

   The libraries are compiled separately: each has its own copy of these functions, and they share the data. */

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum { QUEUED, KEPT, DROPPED };
typedef struct Op Op;
struct Op {
    int (*run)(Op *);            /* whether it is done; called again if not */
    void (*told)(Op *, int);     /* called when queued, recorded, or dropped with a recording */
    Op *next;
    unsigned char data[256];
};

typedef struct Capture Capture;
typedef struct Stream Stream;
struct Stream {
    Op *first, **last;
    long issued, done;
    Capture *capture;            /* the recording under way */
    int lane;                    /* the lane in it */
    Stream *next_of_thread;
};

/* A recording: one lane for each stream in it; the first is the stream where it began. */
#define LANES 4
struct Capture {
    int lanes, active;
    Stream lane[LANES], *of[LANES];
    int unjoined[LANES];
};

static inline void empty(Stream *stream) {
    memset(stream, 0, sizeof *stream);
    stream->last = &stream->first;
}

static inline void append(Stream *stream, Op *op) {
    op->next = NULL;
    *stream->last = op;
    stream->last = &op->next;
    stream->issued++;
}

static inline void issue_told(Stream *stream, int (*run)(Op *), void (*told)(Op *, int), const void *data,
                              size_t size) {
    Op *op = calloc(1, sizeof *op);
    op->run = run;
    op->told = told;
    memcpy(op->data, data, size);
    Capture *capture = stream->capture;
    if (told) told(op, capture ? KEPT : QUEUED);
    append(capture ? &capture->lane[stream->lane] : stream, op);
    if (capture && stream->lane) capture->unjoined[stream->lane] = 1;
}

static inline void issue(Stream *stream, int (*run)(Op *), const void *data, size_t size) {
    issue_told(stream, run, NULL, data, size);
}

/* Does what can be done up to a mark; returns whether that is everything. */
static inline int advance(Stream *stream, long mark) {
    while (stream->done < mark) {
        Op *op = stream->first;
        if (!op->run(op)) return 0;
        stream->first = op->next;
        if (!stream->first) stream->last = &stream->first;
        free(op);
        stream->done++;
    }
    return 1;
}

/* Waits like a process that hangs, but not forever, so that a test ends. */
static inline void finish(Stream *stream, long mark) {
    for (int i = 0; !advance(stream, mark); i++) {
        if (i > 400000) {
            fprintf(stderr, "fake CUDA: the host waits for something that does not happen\n");
            abort();
        }
        usleep(50);
    }
}
