/* Attention on a CPU over KV pages in place: reads the keys of each query once, in fp32.

   out[t, h] = sum_j softmax_j(scale * q[t, h] . k[j, h / ratio]) v[j, h / ratio] over the keys j
   that token t of its sequence sees. Strides count floats. Called by address: attention.py says
   what the arguments are. */

#include <stdint.h>
#include <stdlib.h>

#include "pages.h"
#include "vectors.h"
#include "wide_attention.h"

enum { WIDTH = 32, ROWS = 2 }; /* floats of a value row summed at a time, for ROWS query rows */

/* weights[r, j] = q[r] . k[j] for all query rows r of one key-value head. */
INLINE void score(struct rows q, struct pages at, struct span span, float *weights,
                  const int size) {
    int keys = span.last - span.first;
    for (int j = span.first; j < span.last;) {
        struct stretch here = keys_of(at, span, j);
        for (; j < here.stop; j++) {
            const float *restrict key = here.rows + j * at.slot;
            fetch(here.next + j * at.slot, size);
            float *to = weights + j - span.first;
            for (int i = 0; i < span.queries; i++) {
                for (int h = 0; h < span.ratio; h++, to += keys) {
                    const float *restrict query = q.at + i * q.row + h * q.head;
                    float sum = 0;
                    for (int d = 0; d < size; d++) sum += query[d] * key[d];
                    *to = sum;
                }
            }
        }
    }
}

/* Softmax of the keys each row sees; zero for the others. */
INLINE void normalise(struct span span, float scale, float *weights) {
    int keys = span.last - span.first;
    for (int r = 0; r < span.queries * span.ratio; r++) {
        float *restrict row = weights + (int64_t)r * keys;
        const int start = seen_by(span, r).start, stop = seen_by(span, r).stop;
        float most = row[start], sum = 0;
        for (int j = start; j < stop; j++) most = row[j] > most ? row[j] : most;
        for (int j = start; j < stop; j++) sum += row[j] = exp_below((row[j] - most) * scale);
        for (int j = start; j < stop; j++) row[j] /= sum;
        for (int j = 0; j < start; j++) row[j] = 0;
        for (int j = stop; j < keys; j++) row[j] = 0;
    }
}

/* out[r] = sum_j weights[r, j] v[j] for `count` rows from r on; `weights` are those of row r. */
INLINE void weigh(struct rows out, struct pages at, struct span span,
                  const float *restrict weights, int r, const int count, const int size) {
    const int64_t keys = span.last - span.first;
    for (int from = 0; from < size; from += WIDTH) {
        const int width = size - from < WIDTH ? size - from : WIDTH;
        float sums[ROWS][WIDTH] = {{0}};
        for (int j = span.first; j < span.last;) {
            struct stretch here = values_of(at, span, j);
            for (; j < here.stop; j++) {
                const float *restrict value = here.rows + j * at.slot + from;
                if (r == 0) fetch(here.next + j * at.slot + from, width);
                for (int a = 0; a < count; a++) {
                    float weight = weights[a * keys + j - span.first];
                    for (int d = 0; d < width; d++) sums[a][d] += weight * value[d];
                }
            }
        }
        for (int a = 0; a < count; a++) {
            float *to = out.at + (r + a) / span.ratio * out.row +
                        (r + a) % span.ratio * out.head + from;
            for (int d = 0; d < width; d++) to[d] = sums[a][d];
        }
    }
}

INLINE void attend(struct rows out, struct rows q, struct pages at, struct span span, float scale,
                   float *space, const int size) {
    int rows = span.queries * span.ratio, r = 0, keys = span.last - span.first;
    score(q, at, span, space, size);
    normalise(span, scale, space);
    for (; r + ROWS <= rows; r += ROWS)
        weigh(out, at, span, space + (int64_t)r * keys, r, ROWS, size);
    if (r < rows) weigh(out, at, span, space + (int64_t)r * keys, r, 1, size);
}

struct call {
    float *out, *q;
    const float *k, *v;
    const int32_t *cu_q, *used_k, *blocks, *dims;
    const int64_t *strides;
    float scale;
    int next; /* the next item to take: a sequence and a key-value head */
};

/* Takes one item after the other until none is left; several threads do so at the same time. */
WIDEST static void attend_some(void *arg) {
    struct call *c = arg;
    const int sequences = c->dims[0], pages = c->dims[1], page_size = c->dims[2];
    const int heads = c->dims[3], kv_heads = c->dims[4], size = c->dims[5], window = c->dims[6];
    const int ratio = heads / kv_heads;
    const int64_t *strides = c->strides;
    const int wide = has_wide();
    float *space = malloc(sizeof(float) * (size_t)wide_space(c->dims[7] * ratio, c->dims[8], size));
    if (!space) return;
    for (int item;
         (item = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < sequences * kv_heads;) {
        int n = item / kv_heads, h = item % kv_heads;
        int queries = c->cu_q[n + 1] - c->cu_q[n], last = c->used_k[n];
        int first = window > 0 && last - queries + 1 > window ? last - queries + 1 - window : 0;
        int after = item + 1 < sequences * kv_heads ? item + 1 : item;
        int64_t begin = (int64_t)c->cu_q[n] * heads * size + h * ratio * size;
        struct span span = {first, last, queries, ratio, window};
        struct rows to = {c->out + begin, (int64_t)heads * size, size};
        struct rows from = {c->q + c->cu_q[n] * strides[0] + h * ratio * strides[1], strides[0],
                            strides[1]};
        struct pages at = {
            .k = c->k + h * strides[4], .v = c->v + h * strides[4],
            .page = strides[2], .slot = strides[3],
            .table = c->blocks + (int64_t)n * pages, .size = page_size,
            .then = c->k + c->blocks[after / kv_heads * (int64_t)pages] * strides[2] +
                    after % kv_heads * strides[4],
        };
        if (wide) attend_wide(to, from, at, span, c->scale, space, size);
        else if (size == 64) attend(to, from, at, span, c->scale, space, 64);
        else if (size == 128) attend(to, from, at, span, c->scale, space, 128);
        else attend(to, from, at, span, c->scale, space, size);
    }
    free(space);
}

/* Raise it whenever the arguments of a function of this library change. */
int dspark_interface(void) { return 10; }

/* Up to how many queries of a sequence this is faster than gathering pages for a matrix product. */
int dspark_attend_most(void) { return has_wide() ? 16 : 8; }

/* Queries read the keys of their sequence up to their own, which are the last.

   Returns 0; 1 without memory for the weights of one head; 2 for tables that name pages or keys
   that do not exist. `parallel`, of the OpenMP runtime that torch uses, runs the work on `threads`
   threads; without it, or for little work, one thread does it. */
int dspark_attend(float *out, float *q, const float *k, const float *v, const int32_t *cu_q,
                  const int32_t *used_k, const int32_t *blocks, const int32_t *dims,
                  const int64_t *strides, float scale,
                  void (*parallel)(void (*)(void *), void *, unsigned, unsigned), int threads) {
    const int sequences = dims[0], pages = dims[1], page_size = dims[2];
    const int max_q = dims[7], max_k = dims[8];
    if (pages < 1 || cu_q[0] != 0 || cu_q[sequences] != dims[10]) return 2;
    for (int n = 0; n < sequences; n++) {
        int queries = cu_q[n + 1] - cu_q[n];
        if (queries < 0 || queries > max_q || queries > used_k[n]) return 2;
        if (used_k[n] > max_k || used_k[n] > (int64_t)pages * page_size) return 2;
        for (int p = 0; p * page_size < used_k[n]; p++)
            if (blocks[(int64_t)n * pages + p] < 0 || blocks[(int64_t)n * pages + p] >= dims[9])
                return 2;
    }
    struct call call = {out, q, k, v, cu_q, used_k, blocks, dims, strides, scale, 0};
    if (parallel && threads > 1 && sequences * dims[4] > 1)
        parallel(attend_some, &call, (unsigned)threads, 0);
    else attend_some(&call);
    /* threads that found memory did the work of those that did not */
    return call.next < sequences * dims[4];
}
