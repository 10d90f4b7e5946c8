/* cuBLASLt on the host: see fake.c. Products are computed as its documentation defines them, column by column.

   Macros choose what is wrong with epilogues:

     REFUSES_EPILOGUES   algorithms are proposed, and refused when they run
     INVALID_EPILOGUES   the heuristic finds the description invalid
     WRONG_EPILOGUES     biases and their gradients are left out
     REFUSES_SUMS        products with C and D in two places are refused when they run
     WRONG_SUMS          their C is taken from D
     RELEASE             of the library */

#include "stream.h"
#include <math.h>

#define INVALID 7
#define NOT_SUPPORTED 15

typedef struct {
    int compute, scale, transa, transb, epilogue, batch_aux;
    float *bias, *aux;
    int64_t aux_ld, aux_stride;
} Desc;
typedef struct { int type; uint64_t rows, cols; int64_t ld; int count; int64_t stride; } Layout;
typedef struct { size_t workspace; unsigned schemes, alignment[4]; } Preference;
typedef struct { uint64_t words[8]; } Algo;
typedef struct { Algo algo; size_t workspace; unsigned state; float waves; int reserved[4]; } Result;

#ifndef RELEASE
#define RELEASE 130100
#endif
API size_t cublasLtGetVersion(void) { return RELEASE; }
API const char *cublasLtGetStatusString(unsigned e) { return e == NOT_SUPPORTED ? "not supported" : "invalid value"; }
API int cublasLtCreate(int **h) { *h = malloc(sizeof **h); return 0; }
API int cublasLtDestroy(int *h) { free(h); return 0; }
API int cublasLtMatmulDescCreate(Desc **d, int compute, int scale) {
    *d = calloc(1, sizeof **d);
    (*d)->compute = compute;
    (*d)->epilogue = 1;
    return (compute == 68 || compute == 77) && scale == 0 ? 0 : INVALID;
}
API int cublasLtMatmulDescDestroy(Desc *d) { free(d); return 0; }
static int put(void *field, size_t size, const void *value, size_t given) {
    if (size != given) return INVALID;
    memcpy(field, value, size);
    return 0;
}
API int cublasLtMatmulDescSetAttribute(Desc *d, int attribute, const void *v, size_t n) {
    switch (attribute) {
    case 3: return put(&d->transa, 4, v, n);
    case 4: return put(&d->transb, 4, v, n);
    case 7: return put(&d->epilogue, 4, v, n);
    case 8: return put(&d->bias, 8, v, n);
    case 11: return put(&d->aux, 8, v, n);
    case 12: return put(&d->aux_ld, 8, v, n);
    case 13: return put(&d->aux_stride, 8, v, n);
    default: return INVALID;
    }
}
API int cublasLtMatrixLayoutCreate(Layout **l, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    *l = calloc(1, sizeof **l);
    **l = (Layout){type, rows, cols, ld, 1, 0};
    return ld >= (int64_t)rows ? 0 : INVALID;
}
API int cublasLtMatrixLayoutDestroy(Layout *l) { free(l); return 0; }
API int cublasLtMatrixLayoutSetAttribute(Layout *l, int attribute, const void *v, size_t n) {
    return attribute == 5 ? put(&l->count, 4, v, n) : attribute == 6 ? put(&l->stride, 8, v, n) : INVALID;
}
API int cublasLtMatmulPreferenceCreate(Preference **p) { *p = calloc(1, sizeof **p); return 0; }
API int cublasLtMatmulPreferenceDestroy(Preference *p) { free(p); return 0; }
API int cublasLtMatmulPreferenceSetAttribute(Preference *p, int attribute, const void *v, size_t n) {
    switch (attribute) {
    case 1: return put(&p->workspace, 8, v, n);
    case 3: return put(&p->schemes, 4, v, n);
    case 5: case 6: case 7: case 8: return put(&p->alignment[attribute - 5], 4, v, n);
    default: return INVALID;
    }
}

/* Of the halves, fp16 is left out: one type of two bytes is enough here. */
static float get(const void *at, int type, int64_t i) {
    if (type == 0) return ((const float *)at)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)at)[i] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static void store(void *at, int type, int64_t i, float value) {
    if (type == 0) {
        ((float *)at)[i] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, 4);
    ((uint16_t *)at)[i] = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static int fits(Desc *d, Layout *a, Layout *b, Layout *c) {
    uint64_t m = d->transa ? a->cols : a->rows, k = d->transa ? a->rows : a->cols;
    uint64_t kb = d->transb ? b->cols : b->rows, n = d->transb ? b->rows : b->cols;
    if (m != c->rows || n != c->cols || k != kb || a->count != b->count || a->count != c->count) return 0;
    if (a->type != b->type) return 0;
    if ((d->epilogue == 164 || d->epilogue == 208) && c->type != 0 && (d->aux_ld % 8 || (uintptr_t)d->aux % 16))
        return 0;
    return d->epilogue == 1 || d->epilogue == 4 || d->epilogue == 164 || d->epilogue == 208;
}
API int cublasLtMatmulAlgoGetHeuristic(int *h, Desc *d, Layout *a, Layout *b, Layout *c, Layout *e, Preference *p,
                                       int most, Result *r, int *count) {
    (void)h; (void)e;
    *count = 0;
#ifdef INVALID_EPILOGUES
    if (d->epilogue != 1) return INVALID;
#endif
    if (!fits(d, a, b, c)) return NOT_SUPPORTED;
    if (!p->workspace || p->schemes != 2 || !p->alignment[0] || !p->alignment[3]) return INVALID;
    for (int i = 0; i < most && i < 3; i++, ++*count)
        r[i] = (Result){.algo = {{0xA190, (uint64_t)i}}, .workspace = 64 << i, .waves = 1};
    return 0;
}
API int cublasLtMatmulAlgoCheck(int *h, Desc *d, Layout *a, Layout *b, Layout *c, Layout *e, const Algo *algo,
                                Result *r) {
    (void)h; (void)e;
    if (!fits(d, a, b, c) || algo->words[0] != 0xA190 || algo->words[1] > 2) return INVALID;
    *r = (Result){.algo = *algo, .workspace = 64 << algo->words[1]};
    return 0;
}

typedef struct { Desc d; Layout a, b, c; const void *A, *B, *C; void *D; float alpha, beta; } Product;
static int multiply(Op *op) {
    Product *p = *(Product **)op->data;
    Desc *d = &p->d;
    int64_t k = d->transa ? p->a.rows : p->a.cols;
    int bytes_ab = p->a.type ? 2 : 4, bytes_c = p->c.type ? 2 : 4;
    for (int s = 0; s < p->c.count; s++) {
        const char *A = (const char *)p->A + s * p->a.stride * bytes_ab;
        const char *B = (const char *)p->B + s * p->b.stride * bytes_ab;
        const char *C = (const char *)p->C + s * p->c.stride * bytes_c;
        char *D = (char *)p->D + s * p->c.stride * bytes_c, *aux = (char *)d->aux + s * d->aux_stride * bytes_c;
        float *sums = calloc(p->c.rows, sizeof *sums);
        for (uint64_t col = 0; col < p->c.cols; col++)
            for (uint64_t row = 0; row < p->c.rows; row++) {
                double sum = 0;
                for (int64_t i = 0; i < k; i++)
                    sum += (double)get(A, p->a.type, d->transa ? i + row * p->a.ld : row + i * p->a.ld) *
                           get(B, p->b.type, d->transb ? col + i * p->b.ld : i + col * p->b.ld);
                int64_t at = row + col * p->c.ld, aux_at = row + col * d->aux_ld;
                float value = (float)(p->alpha * sum);
                if (p->beta) value += p->beta * get(C, p->c.type, at);
#ifndef WRONG_EPILOGUES
                if (d->epilogue == 4 || d->epilogue == 164) value += get(d->bias, p->c.type, row);
#endif
                const double root = 0.7978845608028654, cubic = 0.044715;
                if (d->epilogue == 164) {
                    store(aux, p->c.type, aux_at, value);
                    double x = value;
                    value = (float)(0.5 * x * (1 + tanh(root * (x + cubic * x * x * x))));
                }
                if (d->epilogue == 208) {
                    double x = get(aux, p->c.type, aux_at), t = tanh(root * (x + cubic * x * x * x));
                    value *= (float)(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * cubic * x * x));
                }
                store(D, p->c.type, at, value);
                sums[row] += value;
            }
#ifndef WRONG_EPILOGUES
        if (d->epilogue == 208)
            for (uint64_t row = 0; row < p->c.rows; row++) store(d->bias, p->c.type, row, sums[row]);
#endif
        free(sums);
    }
    return 1;
}
API int cublasLtMatmul(int *h, Desc *d, const float *alpha, const void *A, Layout *a, const void *B, Layout *b,
                       const float *beta, const void *C, Layout *c, void *D, Layout *e, const Algo *algo,
                       void *workspace, size_t size, Stream *s) {
    (void)h;
    Result r;
#ifdef REFUSES_SUMS
    if (C != D) return NOT_SUPPORTED;
#endif
#ifdef WRONG_SUMS
    C = D;
#endif
    /* C may lie elsewhere, with the layout of D */
    if (!C || c != e || cublasLtMatmulAlgoCheck(h, d, a, b, c, e, algo, &r) || size < r.workspace || !workspace)
        return INVALID;
#ifdef REFUSES_EPILOGUES
    if (d->epilogue != 1) return NOT_SUPPORTED;
#endif
    /* as strict as the documentation: biases begin at 16 bytes, and epilogues do not add to the result */
    if (d->epilogue != 1 && (!d->bias || (uintptr_t)d->bias % 16)) return INVALID;
    if (d->epilogue != 1 && *beta) return INVALID;
    Product *p = malloc(sizeof *p);           /* never freed: it may be recorded */
    *p = (Product){*d, *a, *b, *c, A, B, C, D, *alpha, *beta};
    issue(s, multiply, &p, sizeof p);
    return 0;
}
