/* Parts that the kernels share. Compilers turn their loops into vector instructions; which ones is
   decided when the library is loaded, by what the processor has. */

#pragma once

#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__) && defined(__gnu_linux__)
#if __GNUC__ >= 12 && !defined(__clang__)
#define WIDEST __attribute__((target_clones("avx512f", "arch=x86-64-v3", "default")))
#else
#define WIDEST __attribute__((target_clones("avx512f", "fma", "default")))
#endif
#else
#define WIDEST
#endif
#define INLINE static inline __attribute__((always_inline))

/* exp for x <= 0: 2^n times a polynomial, with a relative error of 2e-7. Inlined so that loops over
   it become vectors. */
INLINE float exp_below(float x) {
    x = x < -87.0f ? -87.0f : x;
    float n = __builtin_floorf(x * 1.44269504f + 0.5f), y = x - n * 0.693147181f;
    float p = 1.9875691500e-4f;
    p = p * y + 1.3981999507e-3f;
    p = p * y + 8.3334519073e-3f;
    p = p * y + 4.1665795894e-2f;
    p = p * y + 1.6666665459e-1f;
    p = p * y + 5.0000001201e-1f;
    union { int32_t bits; float power; } two = { .bits = ((int32_t)n + 127) << 23 };
    return (p * y * y + y + 1.0f) * two.power;
}
