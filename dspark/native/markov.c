/* The greedy walk of a block's slots under the vanilla sequential head, in one call. Called by address: markov.py says
   what the arguments are. */

#include <string.h>

#include "vectors.h"

typedef void parallel(void (*)(void *), void *, unsigned, unsigned);

void dspark_tiles_multiply(float *, const float *, const uint16_t *, uint16_t *, int, int, int, int, int, parallel *,
                           int);

/* Where base + bias is largest, the first of equals; the sums go to `bias`. */
WIDEST static int largest(const float *restrict base, float *restrict bias, int count) {
    for (int i = 0; i < count; i++) bias[i] += base[i];
    float most = bias[0];
    for (int i = 1; i < count; i++) most = bias[i] > most ? bias[i] : most;
    for (int i = 0; i < count; i++)
        if (bias[i] == most) return i;
    return 0; /* nothing here is a number */
}

/* ids [n, slots]: slot k is where base[n, k] + W2 W1[id before it] is largest, the anchor before the first. `base` has
   rows of `vocab` numbers, slots and sequences apart by strides; w2 is packed for tiles. `space` holds n rows of `rank`
   and n of `vocab`. Returns 0; 1 for an anchor outside the vocabulary. */
int dspark_walk(int64_t *ids, const float *base, int64_t sequence, int64_t slot, const int64_t *anchors,
                const float *w1, const uint16_t *w2, float *space, uint16_t *pieces, const int32_t *dims,
                parallel *sharing, int threads) {
    const int n = dims[0], slots = dims[1], vocab = dims[2], rank = dims[3], most = dims[4];
    float *rows = space, *bias = space + (int64_t)n * rank;
    for (int i = 0; i < n; i++)
        if (anchors[i] < 0 || anchors[i] >= vocab) return 1;
    for (int k = 0; k < slots; k++) {
        for (int i = 0; i < n; i++) {
            int64_t before = k ? ids[(int64_t)i * slots + k - 1] : anchors[i];
            memcpy(rows + (int64_t)i * rank, w1 + before * rank, sizeof(float) * (size_t)rank);
        }
        dspark_tiles_multiply(bias, rows, w2, pieces, n, rank, vocab, most, 0, sharing, threads);
        for (int i = 0; i < n; i++)
            ids[(int64_t)i * slots + k] = largest(base + i * sequence + k * slot, bias + (int64_t)i * vocab, vocab);
    }
    return 0;
}
