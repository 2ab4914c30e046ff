/* A whole decoder layer in one call: the functions of the other files, one after the other, on buffers of their own.
   Of the target's tokens, which go into slots, or of a drafter's blocks, which are seen and not kept.
   Called by address: decoder_layer.py says what the arguments are, and keeps the structures in step with these. */

#include <stdint.h>
#include <string.h>

typedef void parallel(void (*)(void *), void *, unsigned, unsigned);

void dspark_norm(float *, const float *, const float *, int, int, float);
void dspark_gate(float *, const float *, int, int);
int dspark_spread(float *, const float *, const float *, const float *, const float *, float *, float *,
                  const int64_t *, const int32_t *, const int64_t *, float);
int dspark_attend(float *, float *, const float *, const float *, const float *, const float *, const int32_t *,
                  const int32_t *, const int32_t *, const int32_t *, const int64_t *, float, parallel *, int);
void dspark_tiles_multiply(float *, const float *, const uint16_t *, uint16_t *, int, int, int, int, int, parallel *,
                           int);

enum { ALONE = 1 << 16 }; /* numbers of a weight up to which one thread is faster than waking others */

struct layer {
    const float *first, *second, *heads_norm;      /* of the norms before attention and mlp, and of heads or none */
    const uint16_t *qkv, *out, *gate_up, *down;    /* packed for tiles */
    int32_t width, heads, kv_heads, size, wide, window;
    float first_eps, second_eps, heads_eps, scale;
};

struct pool { /* of one layer: keys and values by slot and head */
    float *keys, *values;
    int64_t slot, head;
    int32_t slots;
};

struct pass {
    const float *cos, *sin;
    const int64_t *at;                             /* slots of the tokens; or none, and all of a sequence see them all */
    const int32_t *cu_q, *used_k, *blocks;
    float *space;                                  /* of every token: width, qkv twice, the queries, three times wide */
    uint16_t *pieces;                              /* of `most` rows of the widest input */
    parallel *sharing;
    int64_t cos_row, sin_row;
    int32_t tokens, sequences, pages, page_size, max_q, max_k, most, threads;
};

static void product(const struct pass *p, float *out, const float *rows, const uint16_t *weight, int ins, int outs,
                    int adds) {
    int threads = (int64_t)ins * outs > ALONE ? p->threads : 1;
    dspark_tiles_multiply(out, rows, weight, p->pieces, p->tokens, ins, outs, p->most, adds,
                          threads > 1 ? p->sharing : 0, threads);
}

/* x and out [tokens, width]. Returns 0; 1 without memory, 2 for tables that name what is not there, 3 for a slot that
   is not in the pool: then `out` says nothing. */
int dspark_layer(float *out, const float *x, const struct layer *l, const struct pool *pool, const struct pass *p) {
    const int64_t tokens = p->tokens, queries = (int64_t)l->heads * l->size;
    const int joined = (l->heads + 2 * l->kv_heads) * l->size;
    const int64_t row = (int64_t)l->kv_heads * l->size; /* of keys, or values, that have no slot */
    float *normed = p->space, *qkv = normed + tokens * l->width, *q = qkv + tokens * joined;
    float *own_k = q + tokens * queries, *own_v = own_k + tokens * row, *mixed = own_v + tokens * row;
    float *both = mixed + tokens * queries, *gated = both + tokens * 2 * l->wide;
    float *keys = pool->keys, *values = pool->values;
    int64_t rows[] = {pool->slot, pool->head, p->cos_row, p->sin_row};
    if (p->at) own_k = own_v = 0;
    else keys = own_k, values = own_v, rows[0] = row, rows[1] = l->size;

    dspark_norm(normed, x, l->first, p->tokens, l->width, l->first_eps);
    product(p, qkv, normed, l->qkv, l->width, joined, 0);
    const int32_t shape[] = {p->tokens, l->heads, l->kv_heads, l->size, pool->slots, p->at != 0};
    if (dspark_spread(q, qkv, l->heads_norm, p->cos, p->sin, keys, values, p->at, shape, rows, l->heads_eps)) return 3;
    const int32_t dims[] = {p->sequences, p->pages, p->page_size, l->heads, l->kv_heads, l->size, l->window,
                            p->max_q, p->max_k, pool->slots / p->page_size, p->tokens};
    const int64_t strides[] = {queries, l->size, pool->slot * p->page_size, pool->slot, pool->head, row, l->size};
    int failed = dspark_attend(mixed, q, pool->keys, pool->values, own_k, own_v, p->cu_q, p->used_k, p->blocks, dims,
                               strides, l->scale, p->sharing, p->threads);
    if (failed) return failed;
    memcpy(out, x, sizeof(float) * (size_t)(tokens * l->width));
    product(p, out, mixed, l->out, (int)queries, l->width, 1);

    dspark_norm(normed, out, l->second, p->tokens, l->width, l->second_eps);
    product(p, both, normed, l->gate_up, l->width, 2 * l->wide, 0);
    dspark_gate(gated, both, p->tokens, l->wide);
    product(p, out, gated, l->down, l->wide, l->width, 1);
    return 0;
}
