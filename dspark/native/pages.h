/* Keys and values of a sequence in pages, and rows of queries that read them. Strides count floats. */

#pragma once

#include "vectors.h"

struct rows { float *at; int64_t row, head; };            /* of queries, or of outputs */
struct span { int first, last, queries, ratio, window; }; /* keys anybody sees, and who looks at them */
struct pages {
    const float *k, *v;
    int64_t page, slot;
    const int32_t *table;
    int size;
    const float *then; /* what is read after the last value */
};

/* Rows of one page, what comes after them, and where they end. Both pointers are to be moved by the number of a row. */
struct stretch { const float *rows, *next; int stop; };

INLINE struct stretch stretch_of(struct pages at, struct span span, int j, const float *pool, const float *then) {
    int page = j / at.size, stop = (page + 1) * at.size < span.last ? (page + 1) * at.size : span.last;
    int64_t back = (int64_t)page * at.size * at.slot;
    const float *next = stop < span.last ? pool + at.table[page + 1] * at.page : then;
    return (struct stretch){pool + at.table[page] * at.page - back, next - back, stop};
}

/* From key j on; after the last keys come the first values. */
INLINE struct stretch keys_of(struct pages at, struct span span, int j) {
    return stretch_of(at, span, j, at.k, at.v + at.table[span.first / at.size] * at.page);
}

INLINE struct stretch values_of(struct pages at, struct span span, int j) {
    return stretch_of(at, span, j, at.v, at.then);
}

/* What comes next is fetched meanwhile: pages lie anywhere, so no hardware foresees them. */
INLINE void fetch(const float *row, int floats) {
    for (int d = 0; d < floats; d += 16) __builtin_prefetch(row + d);
}
