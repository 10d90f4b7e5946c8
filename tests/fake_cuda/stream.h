/* Streams that do nothing before they must: what is asked for waits until somebody waits for it, and of other streams only
   what an event asks for is done before. So an order that nobody asked for is not there by chance.

   The libraries are compiled one by one; each has these functions for itself and shares what they work on. */

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
    int (*run)(Op *);            /* whether it is through; asked again if not */
    void (*told)(Op *, int);     /* that it takes its place in a stream, is kept in a recording, or goes with that */
    Op *next;
    unsigned char data[256];
};

typedef struct Capture Capture;
typedef struct Stream Stream;
struct Stream {
    Op *first, **last;
    long issued, done;
    Capture *capture;            /* while it is recorded */
    int lane;                    /* there */
    Stream *next_of_thread;
};

/* A recording: one lane for each stream that is part of it, the first where it began. */
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

static inline void issue_told(Stream *stream, int (*run)(Op *), void (*told)(Op *, int), const void *data, size_t size) {
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

/* Does what can be done up to a mark; whether that is everything. */
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

/* Waits, as a process does that nobody frees; a test must not take for ever. */
static inline void finish(Stream *stream, long mark) {
    for (int i = 0; !advance(stream, mark); i++) {
        if (i > 400000) {
            fprintf(stderr, "fake CUDA: the host waits for something that does not happen\n");
            abort();
        }
        usleep(50);
    }
}
