/* The largest numbers of rows, as drafts of a temperature want them. Called by address: ranking.py says what the
   arguments are. */

#include "vectors.h"

union number { float value; uint32_t bits; };

/* A key that sorts larger numbers first, and among equals lower places. */
INLINE uint64_t key_of(float value, uint32_t place) {
    union number from = { .value = value };
    if (from.bits == 0x80000000u) from.bits = 0; /* zeros are equals */
    uint32_t rising = from.bits ^ (from.bits >> 31 ? 0xffffffffu : 0x80000000u);
    return (uint64_t)~rising << 32 | place;
}

static void sort(uint64_t *keys, int count) {
    static const int gaps[] = {29524, 9841, 3280, 1093, 364, 121, 40, 13, 4, 1};
    for (int g = 0; g < (int)(sizeof gaps / sizeof *gaps); g++) {
        for (int i = gaps[g], gap = gaps[g]; i < count; i++) {
            uint64_t key = keys[i];
            int j = i;
            for (; j >= gap && keys[j - gap] > key; j -= gap) keys[j] = keys[j - gap];
            keys[j] = key;
        }
    }
}

/* The `first` smallest of `count` keys to the front, in any order. No two keys are the same. */
static void select_first(uint64_t *keys, int count, int first) {
    int low = 0, high = count - 1;
    while (low < high) {
        uint64_t pivot = keys[low + (high - low) / 2];
        int i = low, j = high;
        while (i <= j) {
            while (keys[i] < pivot) i++;
            while (keys[j] > pivot) j--;
            if (i <= j) {
                uint64_t other = keys[i];
                keys[i++] = keys[j], keys[j--] = other;
            }
        }
        if (first <= j) high = j;
        else if (first > i) low = i;
        else break;
    }
}

/* The largest of each `wide` numbers. */
WIDEST static void peaks_of(float *restrict peaks, const float *restrict row, int width, int wide) {
    for (int from = 0; from < width; from += wide) {
        int stop = from + wide < width ? from + wide : width;
        float most = row[from];
        for (int i = from + 1; i < stop; i++) most = row[i] > most ? row[i] : most;
        *peaks++ = most;
    }
}

/* The k largest of each of `count` rows, largest first, the lower place first among equals. At least k stretches of
   `wide` have a peak that is no less than the k-th largest peak, so what is below it is none of them. `peaks` holds one
   for every stretch, `keys` one for every number of a row. Returns the rows that are done: one in which something is no
   number may come out short. */
int dspark_largest(float *values, int64_t *places, const float *rows, int count, int width, int k, int wide,
                   float *peaks, uint64_t *keys) {
    const int stretches = (width + wide - 1) / wide;
    for (int r = 0; r < count; r++, rows += width, values += k, places += k) {
        peaks_of(peaks, rows, width, wide);
        for (int s = 0; s < stretches; s++) keys[s] = key_of(peaks[s], (uint32_t)s);
        select_first(keys, stretches, k);
        float least = peaks[(uint32_t)keys[0]];
        for (int i = 1; i < k; i++) {
            float peak = peaks[(uint32_t)keys[i]];
            least = peak < least ? peak : least;
        }
        int found = 0;
        for (int s = 0; s < stretches; s++) {
            if (!(peaks[s] >= least)) continue;
            int stop = (s + 1) * wide < width ? (s + 1) * wide : width;
            for (int i = s * wide; i < stop; i++)
                if (rows[i] >= least) keys[found++] = key_of(rows[i], (uint32_t)i);
        }
        if (found < k) return r;
        select_first(keys, found, k); /* equals may be many */
        sort(keys, k);
        for (int i = 0; i < k; i++) {
            places[i] = (int64_t)(uint32_t)keys[i];
            values[i] = rows[places[i]];
        }
    }
    return count;
}
