/* Attention over pages in place, on a CPU: each query's own keys, read once, in the checkpoint's fp32.

   out[t, h] = sum_j softmax_j(scale * q[t, h] . k[j, h / ratio]) v[j, h / ratio] over the keys j that token t of its
   sequence sees. Strides count floats. Called by address: verify_service/cpu_kernel.py says what the arguments are. */

#include <stdint.h>
#include <stdlib.h>

#include "vectors.h"

enum { WIDTH = 32 }; /* floats of a value row that are summed at a time: what registers hold */
/* Where registers hold 16 floats, more than a few query rows lie side by side in them. */
#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_LANES 1
#endif
enum { LANES = 16, KEYS = 4, ROWS = 4, FEW = 6 }; /* rows side by side, keys and rows at a time */

struct rows { float *at; int64_t row, head; };                   /* of queries, or of outputs */
struct pages { const float *k, *v; int64_t page, slot; const int32_t *table; int size; };
struct span { int first, last, queries, ratio, window; };        /* keys anybody sees, and who looks at them */

/* Keys and values that come after these are fetched meanwhile: pages lie anywhere, so no hardware foresees them. */
INLINE void fetch(const float *row, int floats) {
    for (int d = 0; d < floats; d += 16) __builtin_prefetch(row + d);
}

struct stretch { const float *keys, *next; int stop; }; /* keys of one page, what comes after them, and where they end */

/* The page of key j; both pointers are to be moved by the number of a key. After the last keys come the first values. */
INLINE struct stretch stretch_of(struct pages at, struct span span, int j) {
    int page = j / at.size, stop = (page + 1) * at.size < span.last ? (page + 1) * at.size : span.last;
    int64_t back = (int64_t)page * at.size * at.slot;
    const float *next = stop < span.last ? at.k + at.table[page + 1] * at.page
                                         : at.v + at.table[span.first / at.size] * at.page;
    return (struct stretch){at.k + at.table[page] * at.page - back, next - back, stop};
}

/* weights[r, j] = q[r] . k[j] for all query rows r of one key-value head. */
INLINE void score(struct rows q, struct pages at, struct span span, float *weights, const int size) {
    int keys = span.last - span.first;
    for (int j = span.first; j < span.last;) {
        struct stretch here = stretch_of(at, span, j);
        for (; j < here.stop; j++) {
            const float *restrict key = here.keys + j * at.slot;
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
        int stop = keys - span.queries + r / span.ratio + 1;
        int start = span.window > 0 && stop > span.window ? stop - span.window : 0;
        float most = row[start], sum = 0;
        for (int j = start; j < stop; j++) most = row[j] > most ? row[j] : most;
        for (int j = start; j < stop; j++) sum += row[j] = exp_below((row[j] - most) * scale);
        for (int j = start; j < stop; j++) row[j] /= sum;
        for (int j = 0; j < start; j++) row[j] = 0;
        for (int j = stop; j < keys; j++) row[j] = 0;
    }
}

/* out[r] = sum_j weights[r, j] v[j] for `count` rows from r on; `weights` are those of row r. */
INLINE void weigh(struct rows out, struct pages at, struct span span, const float *restrict weights, int64_t row_step,
                  const int key_step, int r, const int count, const int size) {
    for (int from = 0; from < size; from += WIDTH) {
        const int width = size - from < WIDTH ? size - from : WIDTH;
        float sums[ROWS][WIDTH] = {{0}};
        for (int j = span.first; j < span.last;) {
            int page = j / at.size, stop = (page + 1) * at.size < span.last ? (page + 1) * at.size : span.last;
            int64_t back = (int64_t)page * at.size * at.slot - from;
            const float *here = at.v + at.table[page] * at.page - back;
            const float *next = stop < span.last ? at.v + at.table[page + 1] * at.page - back : here;
            for (; j < stop; j++) {
                const float *restrict value = here + j * at.slot;
                if (r == 0) fetch(next + j * at.slot, width);
                for (int a = 0; a < count; a++) {
                    float weight = weights[a * row_step + (int64_t)(j - span.first) * key_step];
                    for (int d = 0; d < width; d++) sums[a][d] += weight * value[d];
                }
            }
        }
        for (int a = 0; a < count; a++) {
            float *to = out.at + (r + a) / span.ratio * out.row + (r + a) % span.ratio * out.head + from;
            for (int d = 0; d < width; d++) to[d] = sums[a][d];
        }
    }
}

#ifdef HAVE_LANES
#include <immintrin.h>
#define LANED __attribute__((target("avx512f")))
typedef __m512 lanes;

/* `exp_below` of each lane. */
LANED INLINE lanes exp_lanes(lanes x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
    lanes n = _mm512_floor_ps(x * 1.44269504f + 0.5f), y = x - n * 0.693147181f;
    lanes p = y * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * y + 8.3334519073e-3f;
    p = p * y + 4.1665795894e-2f;
    p = p * y + 1.6666665459e-1f;
    p = p * y + 5.0000001201e-1f;
    return _mm512_scalef_ps(p * y * y + y + 1.0f, n);
}

/* sums[i] = turned . key i, for KEYS keys, `slot` floats apart. Variables of their own, because arrays would lie in
   memory and sums wait for each other. */
LANED INLINE void score_lanes(lanes *sums, const float *turned, const float *key, int64_t slot, const int size) {
    const float *key1 = key + slot, *key2 = key1 + slot, *key3 = key2 + slot;
    lanes a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (int d = 0; d + 1 < size; d += 2) {
        lanes even = _mm512_loadu_ps(turned + d * LANES), odd = _mm512_loadu_ps(turned + (d + 1) * LANES);
        a0 += even * key[d], a1 += even * key1[d], a2 += even * key2[d], a3 += even * key3[d];
        b0 += odd * key[d + 1], b1 += odd * key1[d + 1], b2 += odd * key2[d + 1], b3 += odd * key3[d + 1];
    }
    sums[0] = a0 + b0, sums[1] = a1 + b1, sums[2] = a2 + b2, sums[3] = a3 + b3;
}

LANED INLINE void score_one(lanes *sums, const float *turned, const float *key, const int size) {
    lanes even = _mm512_setzero_ps(), odd = even;
    for (int d = 0; d + 1 < size; d += 2) {
        even += _mm512_loadu_ps(turned + d * LANES) * key[d];
        odd += _mm512_loadu_ps(turned + (d + 1) * LANES) * key[d + 1];
    }
    sums[0] = even + odd;
}

/* Up to LANES query rows from `first` on, one to a lane: a score needs no sum across lanes then. `space` holds LANES
   floats for every dimension and key. */
LANED INLINE void attend_lanes(struct rows out, struct rows q, struct pages at, struct span span, float scale,
                               float *space, int first, int count, const int size) {
    float *weights = space + (int64_t)size * LANES, starts[LANES], stops[LANES];
    const int keys = span.last - span.first;
    for (int a = 0; a < LANES; a++) {
        int r = first + (a < count ? a : 0);
        const float *row = q.at + r / span.ratio * q.row + r % span.ratio * q.head;
        for (int d = 0; d < size; d++) space[d * LANES + a] = a < count ? row[d] : 0.0f;
        stops[a] = (float)(keys - span.queries + r / span.ratio + 1);
        starts[a] = span.window > 0 ? stops[a] - (float)span.window : 0.0f;
    }
    const lanes none = _mm512_set1_ps(-3e38f), start = _mm512_loadu_ps(starts), stop = _mm512_loadu_ps(stops);
    lanes most = none, sum = _mm512_setzero_ps(); /* of the keys from start to stop, which a row sees */
    for (int j = span.first; j < span.last;) {
        struct stretch here = stretch_of(at, span, j);
        while (j < here.stop) {
            lanes sums[KEYS];
            int some = j + KEYS <= here.stop ? KEYS : 1;
            for (int i = 0; i < some; i++) fetch(here.next + (j + i) * at.slot, size);
            if (some == KEYS) score_lanes(sums, space, here.keys + j * at.slot, at.slot, size);
            else score_one(sums, space, here.keys + j * at.slot, size);
            for (int i = 0; i < some; i++, j++) {
                lanes key = _mm512_set1_ps((float)(j - span.first));
                __mmask16 seen = _mm512_cmp_ps_mask(key, stop, _CMP_LT_OS) & _mm512_cmp_ps_mask(key, start, _CMP_GE_OS);
                lanes score = _mm512_mask_blend_ps(seen, none, sums[i]);
                most = _mm512_max_ps(most, score);
                _mm512_storeu_ps(weights + (int64_t)(j - span.first) * LANES, score);
            }
        }
    }
    for (float *row = weights; row < weights + (int64_t)keys * LANES; row += LANES) {
        lanes score = _mm512_loadu_ps(row), weight = exp_lanes((score - most) * scale);
        weight = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(score, none, _CMP_GT_OS), weight);
        sum += weight;
        _mm512_storeu_ps(row, weight);
    }
    sum = 1.0f / sum;
    for (float *row = weights; row < weights + (int64_t)keys * LANES; row += LANES)
        _mm512_storeu_ps(row, _mm512_loadu_ps(row) * sum);
    int a = 0;
    for (; a + ROWS <= count; a += ROWS) weigh(out, at, span, weights + a, 1, LANES, first + a, ROWS, size);
    for (; a + 2 <= count; a += 2) weigh(out, at, span, weights + a, 1, LANES, first + a, 2, size);
    if (a < count) weigh(out, at, span, weights + a, 1, LANES, first + a, 1, size);
}

/* All rows of one key-value head. */
LANED static void attend_wide(struct rows out, struct rows q, struct pages at, struct span span, float scale,
                              float *space, int size) {
    for (int rows = span.queries * span.ratio, r = 0; r < rows; r += LANES) {
        int count = rows - r < LANES ? rows - r : LANES;
        if (size == 64) attend_lanes(out, q, at, span, scale, space, r, count, 64);
        else if (size == 128) attend_lanes(out, q, at, span, scale, space, r, count, 128);
        else attend_lanes(out, q, at, span, scale, space, r, count, size);
    }
}

static int wide_enough(struct span span, int size) {
    return span.queries * span.ratio > FEW && size % 2 == 0 && __builtin_cpu_supports("avx512f");
}

/* Up to how many queries of a sequence this is faster than gathering pages for a matrix product. */
int dspark_attend_most(void) { return __builtin_cpu_supports("avx512f") ? 16 : 8; }
#else
static void attend_wide(struct rows out, struct rows q, struct pages at, struct span span, float scale, float *space,
                        int size) {
    (void)out, (void)q, (void)at, (void)span, (void)scale, (void)space, (void)size;
}

static int wide_enough(struct span span, int size) { return (void)span, (void)size, 0; }

int dspark_attend_most(void) { return 8; }
#endif

INLINE void attend(struct rows out, struct rows q, struct pages at, struct span span, float scale, float *space,
                   const int size) {
    int rows = span.queries * span.ratio, r = 0, keys = span.last - span.first;
    score(q, at, span, space, size);
    normalise(span, scale, space);
    for (; r + 2 <= rows; r += 2) weigh(out, at, span, space + (int64_t)r * keys, keys, 1, r, 2, size);
    if (r < rows) weigh(out, at, span, space + (int64_t)r * keys, keys, 1, r, 1, size);
}

struct call {
    float *out, *q;
    const float *k, *v;
    const int32_t *cu_q, *used_k, *blocks, *dims;
    const int64_t *strides;
    float scale;
    int next; /* the item whose turn it is: a sequence and a key-value head */
};

/* Takes one item after the other until none is left; several threads do so at a time. */
WIDEST static void attend_some(void *arg) {
    struct call *c = arg;
    const int sequences = c->dims[0], pages = c->dims[1], page_size = c->dims[2], heads = c->dims[3];
    const int kv_heads = c->dims[4], size = c->dims[5], window = c->dims[6], ratio = heads / kv_heads;
    const int64_t *strides = c->strides;
    const int wide = c->dims[7] * ratio > LANES ? c->dims[7] * ratio : LANES;
    float *space = malloc(sizeof(float) * (size_t)wide * ((size_t)c->dims[8] + (size_t)size));
    if (!space) return;
    for (int item; (item = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < sequences * kv_heads;) {
        int n = item / kv_heads, h = item % kv_heads;
        int queries = c->cu_q[n + 1] - c->cu_q[n], last = c->used_k[n];
        int first = window > 0 && last - queries + 1 > window ? last - queries + 1 - window : 0;
        struct span span = {first, last, queries, ratio, window};
        int64_t begin = (int64_t)c->cu_q[n] * heads * size + h * ratio * size;
        struct rows to = {c->out + begin, (int64_t)heads * size, size};
        struct rows from = {c->q + c->cu_q[n] * strides[0] + h * ratio * strides[1], strides[0], strides[1]};
        struct pages at = {c->k + h * strides[4], c->v + h * strides[4], strides[2], strides[3],
                           c->blocks + (int64_t)n * pages, page_size};
        if (wide_enough(span, size)) attend_wide(to, from, at, span, c->scale, space, size);
        else if (size == 64) attend(to, from, at, span, c->scale, space, 64);
        else if (size == 128) attend(to, from, at, span, c->scale, space, 128);
        else attend(to, from, at, span, c->scale, space, size);
    }
    free(space);
}

/* Returns 0; 1 without memory for the weights of one head; 2 for tables that name what is not there. `parallel`, of
   the OpenMP runtime that torch uses, has so many threads do the work; without it, or for little work, one does. */
int dspark_attend(float *out, float *q, const float *k, const float *v, const int32_t *cu_q, const int32_t *used_k,
                  const int32_t *blocks, const int32_t *dims, const int64_t *strides, float scale,
                  void (*parallel)(void (*)(void *), void *, unsigned, unsigned), int threads) {
    const int sequences = dims[0], pages = dims[1], page_size = dims[2], max_q = dims[7], max_k = dims[8];
    for (int n = 0; n < sequences; n++) {
        int queries = cu_q[n + 1] - cu_q[n];
        if (queries < 0 || queries > max_q || queries > used_k[n]) return 2;
        if (used_k[n] > max_k || used_k[n] > (int64_t)pages * page_size) return 2;
        for (int p = 0; p * page_size < used_k[n]; p++)
            if (blocks[(int64_t)n * pages + p] < 0 || blocks[(int64_t)n * pages + p] >= dims[9]) return 2;
    }
    struct call call = {out, q, k, v, cu_q, used_k, blocks, dims, strides, scale, 0};
    if (parallel && threads > 1 && sequences * dims[4] > 1) parallel(attend_some, &call, (unsigned)threads, 0);
    else attend_some(&call);
    return call.next < sequences * dims[4]; /* whoever found memory did the work of those who did not */
}
