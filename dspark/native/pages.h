/* Keys and values of a sequence in pages, and the query rows that read them. Strides count
   floats. */

#pragma once

#include "vectors.h"

struct rows { float *at; int64_t row, head; };            /* of queries, or of outputs */
/* Keys that any query sees, and the queries, which are the last of them: each sees those up to its
   own. */
struct span { int first, last, queries, ratio, window; };
struct pages {
    const float *k, *v;
    int64_t page, slot;
    const int32_t *table;
    int size;
    const float *then; /* the row that is read after the last value */
};

/* Rows of one page, the rows after them, and where they end. Row j is at `rows + j * slot` of the
   pages. */
struct stretch { const float *rows, *next; int stop; };

INLINE struct stretch stretch_of(struct pages at, struct span span, int j, const float *pool,
                                 const float *then) {
    int page = j / at.size;
    int stop = (page + 1) * at.size < span.last ? (page + 1) * at.size : span.last;
    int64_t back = (int64_t)page * at.size * at.slot;
    const float *next = stop < span.last ? pool + at.table[page + 1] * at.page : then;
    return (struct stretch){pool + at.table[page] * at.page - back, next - back, stop};
}

/* Rows from key j on; the first values are read after the last keys. */
INLINE struct stretch keys_of(struct pages at, struct span span, int j) {
    return stretch_of(at, span, j, at.k, at.v + at.table[span.first / at.size] * at.page);
}

INLINE struct stretch values_of(struct pages at, struct span span, int j) {
    return stretch_of(at, span, j, at.v, at.then);
}

/* The keys from start to stop, counted from the first, are those that row r sees. */
struct seen { int start, stop; };

INLINE struct seen seen_by(struct span span, int r) {
    int stop = span.last - span.first - span.queries + r / span.ratio + 1;
    return (struct seen){span.window > 0 && stop > span.window ? stop - span.window : 0, stop};
}

/* Prefetches a row that is read later: pages lie anywhere, so the hardware cannot foresee them. */
INLINE void fetch(const float *row, int floats) {
    for (int d = 0; d < floats; d += 16) __builtin_prefetch(row + d);
}
