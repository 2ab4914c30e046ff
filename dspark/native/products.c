/* Matrix products by a processor's matrix unit (Intel AMX), of fp32 rows with weights whose numbers bf16 holds exactly.

   The unit multiplies bf16 and sums in fp32. Every number of a row is cut into three bf16 pieces that sum up to it
   (8 bits of 24 each), so that the products are those of fp32 and only the order of the sums differs: never by how many
   rows there are. Numbers and pieces below 2^-126 count as zero. Called by address: dspark/native/tiles.py says what the
   arguments are.

   A tile is 1 KiB: of a weight 16 outputs x 32 inputs, pairs of inputs side by side; of a piece 16 rows x 32 inputs. */

#include <stddef.h>
#include <string.h>

#include "vectors.h"

#if defined(__x86_64__) && defined(__gnu_linux__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#define HAVE_TILES 1
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { ROWS = 16, DEEP = 32, TILE = ROWS * DEEP, PIECES = 3, PAIR = 2 * ROWS }; /* TILE in numbers of bf16 */

union number { float value; uint32_t bits; };

static int64_t up(int64_t count, int to) { return (count + to - 1) / to * to; }

/* weight [outs, ins] into tiles [outs / 32, ins / 32, 2], zeros beyond its edges. Bits below bf16 are left out. */
void dspark_tiles_pack(uint16_t *to, const float *weight, int outs, int ins) {
    const int64_t deep = up(ins, DEEP) / DEEP;
    memset(to, 0, (size_t)(up(outs, PAIR) / ROWS * deep) * TILE * sizeof *to);
    for (int64_t n = 0; n < outs; n++) {
        for (int64_t k = 0; k < ins; k++) {
            union number from = { .value = weight[n * ins + k] };
            uint16_t *tile = to + ((n / PAIR * deep + k / DEEP) * 2 + n % PAIR / ROWS) * TILE;
            tile[k % DEEP / 2 * DEEP + n % ROWS * 2 + (k & 1)] = (uint16_t)(from.bits >> 16);
        }
    }
}

#ifdef HAVE_TILES
/* rows [count, ins] into tiles [count / 16, ins / 32, piece], smallest piece first, zeros beyond the inputs. */
WIDEST static void cut(uint16_t *restrict to, const float *restrict rows, int count, int ins) {
    const int64_t deep = up(ins, DEEP) / DEEP;
    for (int t = 0; t < count; t++, rows += ins) {
        uint16_t *row = to + t / ROWS * deep * PIECES * TILE + t % ROWS * DEEP;
        for (int k = 0; k < ins; k += DEEP, row += PIECES * TILE) {
            float some[DEEP] = {0};
            memcpy(some, rows + k, sizeof(float) * (size_t)(ins - k < DEEP ? ins - k : DEEP));
            for (int i = 0; i < DEEP; i++) {
                union number whole = { .value = some[i] }, high = { .bits = whole.bits & 0xffff0000u };
                union number rest = { .value = whole.value - high.value }, middle = { .bits = rest.bits & 0xffff0000u };
                union number low = { .value = rest.value - middle.value };
                row[i] = (uint16_t)(low.bits >> 16);
                row[TILE + i] = (uint16_t)(middle.bits >> 16);
                row[2 * TILE + i] = (uint16_t)(high.bits >> 16);
            }
        }
    }
}

/* Compilers are not told what instructions on tiles read: everything is written before them. */
#define SETTLED(what) __asm__ volatile("" : : "r"(what) : "memory")
#define TILED __attribute__((target("amx-tile,amx-bf16")))
enum { AHEAD = 8, ASK = 0x1023, TILE_DATA = 18 }; /* arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA) */

/* 1 where this processor has the unit and the system lets this process use it. */
int dspark_tiles_ready(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & 1u << 22) || !(d & 1u << 24)) return 0;
    return syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
}

struct shape { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; };

/* Tiles 0 to 3 are sums: upper and lower rows by first and second outputs. 4, 5: pieces of rows. 6, 7: weights. */
TILED static void take_shape(int upper, int lower) {
    struct shape shape = { .palette = 1 };
    const int rows[8] = { upper, upper, lower, lower, upper, lower, ROWS, ROWS };
    for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = (uint8_t)rows[i];
    SETTLED(&shape);
    _tile_loadconfig(&shape);
}

INLINE void fetch(const uint16_t *tiles) {
    for (int line = 0; line < 2 * TILE; line += 32) __builtin_prefetch(tiles + line);
}

/* Up to 32 rows by 32 outputs: out [rows, 32] of stride `wide` becomes the products, plus what was there if it `adds`;
   `both`: more than 16 rows. */
TILED INLINE void block(float *out, int64_t wide, const uint16_t *rows, const uint16_t *weight, int64_t deep, int adds,
                        int both) {
    const uint16_t *below = rows + deep * PIECES * TILE;
    const int64_t stride = wide * (int64_t)sizeof(float);
    SETTLED(out);
    if (adds) {
        _tile_loadd(0, out, stride);
        _tile_loadd(1, out + ROWS, stride);
        if (both) _tile_loadd(2, out + ROWS * wide, stride);
        if (both) _tile_loadd(3, out + ROWS * wide + ROWS, stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < deep; k++, weight += 2 * TILE) {
        fetch(weight + AHEAD * TILE);
        _tile_loadd(6, weight, 64);
        _tile_loadd(7, weight + TILE, 64);
        for (int piece = 0; piece < PIECES; piece++, rows += TILE, below += TILE) {
            _tile_loadd(4, rows, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (both) {
                _tile_loadd(5, below, 64);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    }
    _tile_stored(0, out, stride);
    _tile_stored(1, out + ROWS, stride);
    if (both) {
        _tile_stored(2, out + ROWS * wide, stride);
        _tile_stored(3, out + ROWS * wide + ROWS, stride);
    }
}

struct call {
    float *out;
    const uint16_t *rows, *weight;
    int64_t count, outs, deep;
    int adds, next; /* the 32 outputs whose turn it is */
};

/* Takes 32 outputs after the other, of all rows, until none is left; several threads do so at a time. */
TILED static void multiply_some(void *arg) {
    struct call *c = arg;
    int upper = 0, lower = 0;
    for (int64_t n; (n = (int64_t)__atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED) * PAIR) < c->outs;) {
        const uint16_t *weight = c->weight + n / ROWS * c->deep * TILE;
        for (int64_t t = 0; t < c->count; t += PAIR) {
            int rows = (int)(c->count - t < PAIR ? c->count - t : PAIR), first = rows < ROWS ? rows : ROWS;
            int second = rows > ROWS ? rows - ROWS : ROWS, whole = n + PAIR <= c->outs;
            if (first != upper || second != lower) take_shape(upper = first, lower = second);
            const uint16_t *from = c->rows + t / ROWS * c->deep * PIECES * TILE;
            float *to = c->out + t * c->outs + n, edge[PAIR * PAIR];
            size_t left = sizeof(float) * (size_t)(c->outs - n);
            if (!whole) memset(edge, 0, sizeof edge);
            for (int i = 0; i < rows && !whole; i++) memcpy(edge + i * PAIR, to + i * c->outs, left);
            float *here = whole ? to : edge;
            int64_t wide = whole ? c->outs : PAIR;
            if (rows > ROWS) block(here, wide, from, weight, c->deep, c->adds, 1);
            else block(here, wide, from, weight, c->deep, c->adds, 0);
            for (int i = 0; i < rows && !whole; i++) memcpy(to + i * c->outs, edge + i * PAIR, left);
        }
    }
    if (upper) _tile_release();
}

/* rows [count, ins] by a packed weight into out [count, outs], or added to what is there. `space` holds `most` rows in
   pieces; more are taken by turns. `parallel`, of the OpenMP runtime that torch uses, has so many threads do the work;
   without it one does. */
void dspark_tiles_multiply(float *out, const float *rows, const uint16_t *weight, uint16_t *space, int count, int ins,
                           int outs, int most, int adds,
                           void (*parallel)(void (*)(void *), void *, unsigned, unsigned), int threads) {
    for (int t = 0; t < count; t += most) {
        int now = count - t < most ? count - t : most;
        cut(space, rows + (int64_t)t * ins, now, ins);
        struct call call = {out + (int64_t)t * outs, space, weight, now, outs, up(ins, DEEP) / DEEP, adds, 0};
        if (parallel && threads > 1) parallel(multiply_some, &call, (unsigned)threads, 0);
        else multiply_some(&call);
    }
}
#else
int dspark_tiles_ready(void) { return 0; }
void dspark_tiles_multiply(float *out, const float *rows, const uint16_t *weight, uint16_t *space, int count, int ins,
                           int outs, int most, int adds,
                           void (*parallel)(void (*)(void *), void *, unsigned, unsigned), int threads) {
    (void)out, (void)rows, (void)weight, (void)space, (void)count, (void)ins, (void)outs, (void)most, (void)adds;
    (void)parallel, (void)threads;
}
#endif
