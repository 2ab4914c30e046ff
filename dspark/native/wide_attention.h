/* Attention where registers hold 16 floats (AVX-512): sums of a few query rows by a few keys, or
   values, at a time, as many as registers hold. Each is a variable of its own, because compilers
   leave arrays of them in memory. */

#pragma once

#include "pages.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define WIDE __attribute__((target("avx512f")))
typedef __m512 wide;

enum { LANES = 16, ROW_BLOCK = 4, KEY_BLOCK = 8 };

INLINE int round_up(int count, int to) { return (count + to - 1) / to * to; }

/* Floats for `rows` query rows and their weights of `keys` keys. */
INLINE int64_t wide_space(int rows, int keys, int size) {
    return (int64_t)round_up(rows, ROW_BLOCK) * (round_up(keys, LANES) + LANES + size);
}

INLINE __mmask16 lanes_below(int count) {
    return (__mmask16)(count >= LANES ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}

/* `exp_below` of each lane. */
WIDE INLINE wide exp_wide(wide x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
    wide n = _mm512_floor_ps(x * 1.44269504f + 0.5f), y = x - n * 0.693147181f;
    wide p = y * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * y + 8.3334519073e-3f;
    p = p * y + 4.1665795894e-2f;
    p = p * y + 1.6666665459e-1f;
    p = p * y + 5.0000001201e-1f;
    return _mm512_scalef_ps(p * y * y + y + 1.0f, n);
}

/* The sum of each argument's lanes, in the lane of its place: by halves, and halves of halves. */
WIDE INLINE wide two_of(wide a, wide b) {
    return _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b);
}

WIDE INLINE wide four_of(wide a, wide b, wide c, wide d) {
    __m512d ab = _mm512_castps_pd(two_of(a, b)), cd = _mm512_castps_pd(two_of(c, d));
    return _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)) +
           _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
}

WIDE INLINE wide quarters(wide a, wide b) {
    return _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd);
}

WIDE INLINE wide sums_of(wide a, wide b, wide c, wide d) {
    return quarters(quarters(a, b), quarters(c, d));
}

WIDE INLINE wide part(const float *row, __mmask16 there) {
    return __builtin_constant_p(there) && there == 0xffff ? _mm512_loadu_ps(row)
                                                          : _mm512_maskz_loadu_ps(there, row);
}

/* q . k of four rows, `size` floats apart, by four keys, in the lanes row by row. */
WIDE INLINE wide score_4_by_4(const float *q, const float *const *key, const int size) {
    wide a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    wide c0 = a0, c1 = a0, c2 = a0, c3 = a0, d0 = a0, d1 = a0, d2 = a0, d3 = a0;
    for (int d = 0; d < size; d += LANES) {
        __mmask16 there = size % LANES ? lanes_below(size - d) : 0xffff;
        wide k0 = part(key[0] + d, there), k1 = part(key[1] + d, there);
        wide k2 = part(key[2] + d, there), k3 = part(key[3] + d, there);
        wide row = part(q + d, there);
        a0 += row * k0, a1 += row * k1, a2 += row * k2, a3 += row * k3;
        row = part(q + size + d, there);
        b0 += row * k0, b1 += row * k1, b2 += row * k2, b3 += row * k3;
        row = part(q + 2 * size + d, there);
        c0 += row * k0, c1 += row * k1, c2 += row * k2, c3 += row * k3;
        row = part(q + 3 * size + d, there);
        d0 += row * k0, d1 += row * k1, d2 += row * k2, d3 += row * k3;
    }
    return sums_of(four_of(a0, a1, a2, a3), four_of(b0, b1, b2, b3), four_of(c0, c1, c2, c3),
                   four_of(d0, d1, d2, d3));
}

/* The same of two rows by eight keys. */
WIDE INLINE wide score_2_by_8(const float *q, const float *const *key, const int size) {
    wide a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;
    wide b0 = a0, b1 = a0, b2 = a0, b3 = a0, b4 = a0, b5 = a0, b6 = a0, b7 = a0;
    for (int d = 0; d < size; d += LANES) {
        __mmask16 there = size % LANES ? lanes_below(size - d) : 0xffff;
        wide first = part(q + d, there), second = part(q + size + d, there), k;
        k = part(key[0] + d, there), a0 += first * k, b0 += second * k;
        k = part(key[1] + d, there), a1 += first * k, b1 += second * k;
        k = part(key[2] + d, there), a2 += first * k, b2 += second * k;
        k = part(key[3] + d, there), a3 += first * k, b3 += second * k;
        k = part(key[4] + d, there), a4 += first * k, b4 += second * k;
        k = part(key[5] + d, there), a5 += first * k, b5 += second * k;
        k = part(key[6] + d, there), a6 += first * k, b6 += second * k;
        k = part(key[7] + d, there), a7 += first * k, b7 += second * k;
    }
    return sums_of(four_of(a0, a1, a2, a3), four_of(a4, a5, a6, a7), four_of(b0, b1, b2, b3),
                   four_of(b4, b5, b6, b7));
}

/* weights[r, j] = q[r] . k[j] for all rows; rows and keys beyond the last repeat other ones. */
WIDE INLINE void score_wide(const float *q, struct pages at, struct span span, float *weights,
                            int64_t step, const int size) {
    const int rows = span.queries * span.ratio;
    for (int j = span.first; j < span.last;) {
        struct stretch here = keys_of(at, span, j);
        for (int stop = here.stop; j < stop; j += KEY_BLOCK) {
            const float *key[KEY_BLOCK];
            for (int i = 0; i < KEY_BLOCK; i++) {
                int row = j + i < stop ? j + i : stop - 1;
                key[i] = here.rows + row * at.slot;
                fetch(here.next + row * at.slot, size);
            }
            float *to = weights + j - span.first;
            int r = 0;
            for (; r + 2 < rows; r += ROW_BLOCK, to += ROW_BLOCK * step) {
                for (int half = 0; half < KEY_BLOCK; half += 4) {
                    wide sums = score_4_by_4(q + (int64_t)r * size, key + half, size);
                    _mm_storeu_ps(to + half, _mm512_castps512_ps128(sums));
                    _mm_storeu_ps(to + half + step, _mm512_extractf32x4_ps(sums, 1));
                    _mm_storeu_ps(to + half + 2 * step, _mm512_extractf32x4_ps(sums, 2));
                    _mm_storeu_ps(to + half + 3 * step, _mm512_extractf32x4_ps(sums, 3));
                }
            }
            if (r < rows) {
                __m512d sums = _mm512_castps_pd(score_2_by_8(q + (int64_t)r * size, key, size));
                _mm256_storeu_pd((double *)to, _mm512_castpd512_pd256(sums));
                _mm256_storeu_pd((double *)(to + step), _mm512_extractf64x4_pd(sums, 1));
            }
        }
        j = here.stop;
    }
}

/* Softmax of the keys that the row sees; zero for the others. */
WIDE INLINE void normalise_wide(float *row, int keys, struct seen by) {
    wide most = _mm512_set1_ps(-3e38f), sum = _mm512_setzero_ps();
    for (int j = 0; j < keys; j += LANES) {
        __mmask16 seen = lanes_below(by.stop - j) & (__mmask16)~lanes_below(by.start - j);
        most = _mm512_mask_max_ps(most, seen, most, _mm512_loadu_ps(row + j));
    }
    most = _mm512_set1_ps(_mm512_reduce_max_ps(most));
    for (int j = 0; j < keys; j += LANES) {
        __mmask16 seen = lanes_below(by.stop - j) & (__mmask16)~lanes_below(by.start - j);
        wide weight = _mm512_maskz_mov_ps(seen, exp_wide(_mm512_loadu_ps(row + j) - most));
        _mm512_storeu_ps(row + j, weight);
        sum += weight;
    }
    sum = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(sum));
    for (int j = 0; j < keys; j += LANES) _mm512_storeu_ps(row + j, _mm512_loadu_ps(row + j) * sum);
}

struct quad { wide a, b, c, d; }; /* 64 floats of a row */

WIDE INLINE struct quad quad_zero(void) {
    wide zero = _mm512_setzero_ps();
    return (struct quad){zero, zero, zero, zero};
}

WIDE INLINE struct quad quad_load(const float *row, int left) {
    return (struct quad){part(row, lanes_below(left)), part(row + 16, lanes_below(left - 16)),
                         part(row + 32, lanes_below(left - 32)),
                         part(row + 48, lanes_below(left - 48))};
}

WIDE INLINE void quad_store(float *row, struct quad from, int left) {
    _mm512_mask_storeu_ps(row, lanes_below(left), from.a);
    _mm512_mask_storeu_ps(row + 16, lanes_below(left - 16), from.b);
    _mm512_mask_storeu_ps(row + 32, lanes_below(left - 32), from.c);
    _mm512_mask_storeu_ps(row + 48, lanes_below(left - 48), from.d);
}

WIDE INLINE struct quad quad_add(struct quad sum, float weight, struct quad value) {
    return (struct quad){sum.a + weight * value.a, sum.b + weight * value.b,
                         sum.c + weight * value.c, sum.d + weight * value.d};
}

/* out[r] = sum_j weights[r, j] v[j] for two or four rows from r on, as far as there are any. */
WIDE INLINE void weigh_wide(struct rows out, struct pages at, struct span span,
                            const float *weights, int64_t step, int r, const int count,
                            const int size) {
    const int rows = span.queries * span.ratio;
    for (int from = 0; from < size; from += 64) {
        struct quad w = quad_zero(), x = w, y = w, z = w;
        for (int j = span.first; j < span.last;) {
            struct stretch here = values_of(at, span, j);
            const float *weight = weights - span.first;
            for (; j < here.stop; j++) {
                struct quad value = quad_load(here.rows + j * at.slot + from,
                                              size % 64 ? size - from : 64);
                if (r == 0)
                    fetch(here.next + j * at.slot + from, size - from < 64 ? size - from : 64);
                w = quad_add(w, weight[j], value);
                x = quad_add(x, weight[step + j], value);
                if (count == 2) continue;
                y = quad_add(y, weight[2 * step + j], value);
                z = quad_add(z, weight[3 * step + j], value);
            }
        }
        struct quad sums[ROW_BLOCK] = {w, x, y, z};
        for (int a = 0; a < count && r + a < rows; a++)
            quad_store(out.at + (r + a) / span.ratio * out.row +
                           (r + a) % span.ratio * out.head + from,
                       sums[a], size - from);
    }
}

/* All rows of one key-value head. */
WIDE INLINE void attend_rows(struct rows out, struct rows q, struct pages at, struct span span,
                             float scale, float *space, const int size) {
    const int rows = span.queries * span.ratio, all = round_up(rows, ROW_BLOCK);
    const int keys = span.last - span.first;
    const int64_t step = round_up(keys, LANES) + LANES;
    float *weights = space + (int64_t)all * size;
    for (int r = 0; r < all; r++) {
        const float *from =
            q.at + (r < rows ? r / span.ratio * q.row + r % span.ratio * q.head : 0);
        for (int d = 0; d < size; d++) space[(int64_t)r * size + d] = from[d] * scale;
    }
    score_wide(space, at, span, weights, step, size);
    for (int r = 0; r < rows; r++) normalise_wide(weights + r * step, keys, seen_by(span, r));
    int r = 0;
    for (; r + 2 < rows; r += ROW_BLOCK)
        weigh_wide(out, at, span, weights + r * step, step, r, 4, size);
    if (r < rows) weigh_wide(out, at, span, weights + r * step, step, r, 2, size);
}

WIDE static void attend_wide(struct rows out, struct rows q, struct pages at, struct span span,
                             float scale, float *space, int size) {
    if (size == 64) attend_rows(out, q, at, span, scale, space, 64);
    else if (size == 128) attend_rows(out, q, at, span, scale, space, 128);
    else attend_rows(out, q, at, span, scale, space, size);
}

static int has_wide(void) { return __builtin_cpu_supports("avx512f"); }
#else
INLINE int64_t wide_space(int rows, int keys, int size) { return (int64_t)rows * (keys + size); }

static void attend_wide(struct rows out, struct rows q, struct pages at, struct span span,
                        float scale, float *space, int size) {
    (void)out, (void)q, (void)at, (void)span, (void)scale, (void)space, (void)size;
}

static int has_wide(void) { return 0; }
#endif
