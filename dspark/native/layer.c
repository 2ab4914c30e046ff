/* What a decoder layer does between its matrix products, in one pass over memory each; all fp32, rows end to end.
   Called by address: layer.py says what the arguments are. */

#include <stdint.h>

#include "vectors.h"

/* To be raised whenever the arguments of a function of this library change. */
int dspark_interface(void) { return 9; }

/* 1 / sqrt(mean of squares + eps) */
INLINE float inverse_size(const float *restrict x, int width, float eps) {
    float sum = 0;
    for (int i = 0; i < width; i++) sum += x[i] * x[i];
    return 1.0f / __builtin_sqrtf(sum / (float)width + eps);
}

/* out = x / rms(x) * weight, over rows of `width`. */
WIDEST void dspark_norm(float *restrict out, const float *restrict x, const float *restrict weight, int rows, int width,
                        float eps) {
    for (int r = 0; r < rows; r++, x += width, out += width) {
        float scale = inverse_size(x, width, eps);
        for (int i = 0; i < width; i++) out[i] = x[i] * scale * weight[i];
    }
}

/* out = silu(gate) * up, where a row of `both` is gate, then up. */
WIDEST void dspark_gate(float *restrict out, const float *restrict both, int rows, int width) {
    for (int r = 0; r < rows; r++, both += 2 * width, out += width) {
        for (int i = 0; i < width; i++) {
            float x = both[i], e = exp_below(x < 0 ? x : -x);
            out[i] = x * (x < 0 ? e : 1.0f) / (1.0f + e) * both[width + i];
        }
    }
}

/* One head, normed where there is a weight, with its pairs (i, i + D/2) turned by their angles; they stay where they
   are, or lie side by side afterwards. */
INLINE void turn(float *restrict out, const float *restrict x, const float *restrict weight, float eps,
                 const float *restrict cos, const float *restrict sin, const int size, const int side_by_side) {
    const int half = size / 2;
    float scale = weight ? inverse_size(x, size, eps) : 1.0f;
    for (int i = 0; i < half; i++) {
        float a = x[i] * scale, b = x[half + i] * scale;
        if (weight) a *= weight[i], b *= weight[half + i];
        out[side_by_side ? 2 * i : i] = a * cos[i] - b * sin[i];
        out[side_by_side ? 2 * i + 1 : half + i] = a * sin[i] + b * cos[i];
    }
}

/* The first heads of each token's row, normed and turned; `angles` are D/2 cosines, then as many sines. */
WIDEST void dspark_turn(float *restrict out, const float *restrict x, const float *restrict weights,
                        const float *restrict angles, int tokens, int heads, int size, int64_t row, float eps) {
    for (int t = 0; t < tokens; t++, x += row, angles += size)
        for (int h = 0; h < heads; h++, out += size)
            turn(out, x + (int64_t)h * size, weights + (int64_t)h * size, eps, angles, angles + size / 2, size, 0);
}

/* Queries, keys and values of each token (rows of heads + 2 * kv_heads heads): the first two normed where there are
   weights, and turned; then queries to `q`, keys and values into their slots, without `slots` one token after the
   other. Pairs come to lie side by side, or stay where they were, as dims[5] says. Returns 0; 1 for a slot that is not
   in the pool, with nothing written. */
WIDEST int dspark_spread(float *restrict q, const float *restrict qkv, const float *weights, const float *cos,
                         const float *sin, float *keys, float *values, const int64_t *slots, const int32_t *dims,
                         const int64_t *strides, float eps) {
    const int tokens = dims[0], heads = dims[1], kv_heads = dims[2], size = dims[3], side_by_side = dims[5];
    for (int t = 0; slots && t < tokens; t++)
        if (slots[t] < 0 || slots[t] >= dims[4]) return 1;
    for (int t = 0; t < tokens; t++, cos += strides[2], sin += strides[3]) {
        const int64_t slot = slots ? slots[t] : t;
        for (int h = 0; h < heads + kv_heads; h++, qkv += size) {
            const float *weight = weights ? weights + (int64_t)h * size : 0;
            float *to = h < heads ? q + ((int64_t)t * heads + h) * size
                                  : keys + slot * strides[0] + (h - heads) * strides[1];
            if (side_by_side) turn(to, qkv, weight, eps, cos, sin, size, 1); /* constants, for compilers */
            else turn(to, qkv, weight, eps, cos, sin, size, 0);
        }
        for (int h = 0; h < kv_heads; h++, qkv += size) {
            float *restrict to = values + slot * strides[0] + h * strides[1];
            for (int i = 0; i < size; i++) to[i] = qkv[i];
        }
    }
    return 0;
}
