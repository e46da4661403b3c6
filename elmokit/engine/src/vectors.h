/* Vectors of floats and the two activation functions of an LSTM, used by all kernels.

   This is plain C with the vector extensions of GCC and Clang, so the same source serves AVX-512, AVX and NEON. It includes
   no headers of Python or PyTorch, so the library does not depend on their versions. */

#ifndef ELMOKIT_VECTORS_H
#define ELMOKIT_VECTORS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__) || defined(EMULATE) /* tiles need panels of 32 columns */
enum { LANES = 16 };
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

enum { GATES = 4 }; /* i, g, f, o, in the order of the published files */

/* Aligned to 4 bytes only, because rows may have any size. Unaligned loads cost little on these processors. */
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int ivec __attribute__((vector_size(4 * LANES), aligned(4)));

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec value) { *(vec *)to = value; }

/* Load or store the first n numbers of a vector: the end of a row may have fewer than LANES. */
INLINE vec load_some(const float *from, int64_t n) {
    if (n >= LANES) return load(from);
    vec value = {0};
    memcpy(&value, from, n * sizeof(float));
    return value;
}
INLINE void store_some(float *to, vec value, int64_t n) {
    if (n >= LANES)
        store(to, value);
    else
        memcpy(to, &value, n * sizeof(float));
}

/* Interleave the numbers of two vectors: of their first or second halves. */
#if defined(__AVX512F__) || defined(EMULATE)
#define FIRST_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SECOND_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX__)
#define FIRST_HALVES 0, 8, 1, 9, 2, 10, 3, 11
#define SECOND_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#else
#define FIRST_HALVES 0, 4, 1, 5
#define SECOND_HALVES 2, 6, 3, 7
#endif
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif

INLINE void shuffle_square(const ivec *from, ivec *to) {
#pragma GCC unroll 8
    for (int k = 0; k < LANES / 2; k++) {
        to[2 * k] = SHUFFLE(from[k], from[k + LANES / 2], FIRST_HALVES);
        to[2 * k + 1] = SHUFFLE(from[k], from[k + LANES / 2], SECOND_HALVES);
    }
}

/* Transpose a square of LANES vectors in place. A shuffle moves the highest bit of each number's index to the lowest; the
   upper half of these bits is the row. */
INLINE void transpose(ivec *square) {
    ivec other[LANES];
    shuffle_square(square, other);
    shuffle_square(other, square);
    if (LANES == 8) {
        shuffle_square(square, other);
        memcpy(square, other, sizeof other);
    }
    if (LANES == 16) {
        shuffle_square(square, other);
        shuffle_square(other, square);
    }
}

INLINE vec all(float value) { return value - (vec){0}; }
INLINE vec choose(ivec where, vec yes, vec no) { return (vec)((where & (ivec)yes) | (~where & (ivec)no)); }

/* A NaN fails both comparisons and stays NaN, so broken inputs are not hidden. If one of two numbers is NaN, the processor's
   instructions return the second. */
INLINE vec clip(vec value, vec bound) {
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)-bound, _mm512_min_ps((__m512)bound, (__m512)value));
#elif defined(__AVX2__)
    return (vec)_mm256_max_ps((__m256)-bound, _mm256_min_ps((__m256)bound, (__m256)value));
#else
    value = choose(value > bound, bound, value);
    return choose(value < -bound, -bound, value);
#endif
}

/* e^x with a relative error of 1e-7 (the method of the Cephes library): write x = n ln 2 + r, evaluate a polynomial in r,
   and put n into the exponent bits. ln 2 is split in two so that n * ln 2 is exact. */
INLINE vec exponential(vec x) {
    x = choose(x > all(88.0f), all(88.0f), x);   /* beyond this the result is infinite */
    x = choose(x < all(-87.0f), all(-87.0f), x); /* below this it is not a normal number */
    /* Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, because numbers of that size have no fraction bits.
       */
    vec n = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (vec)((__builtin_convertvector(n, ivec) + 127) << 23);
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }

/* tanh. Near zero a polynomial (Cephes), because 1 - 2 / (e^2x + 1) would cancel there. Both are computed for every
   lane: a branch per lane is slower than the polynomial. */
INLINE vec tangent(vec x) {
    vec far = 1.0f - 2.0f / (exponential(x + x) + 1.0f);
    vec z = x * x;
    vec near = all(-5.70498872745e-3f);
    near = near * z + 2.06390887954e-2f;
    near = near * z - 5.37397155531e-2f;
    near = near * z + 1.33314422036e-1f;
    near = near * z - 3.33332819422e-1f;
    near = near * z * x + x;
    return choose(z < all(0.625f * 0.625f), near, far);
}

/* 2^x for |x| up to 40, clipped beyond, with a relative error of 2e-7 for small x: a polynomial for the fraction (fitted for
   the smallest relative error), and the integer part in the exponent bits. */
INLINE vec quick_power(vec x) {
    x = clip(x, all(40.0f));
    const vec shifted = x + 12582912.0f; /* as in `exponential`: the whole number is in the lowest bits */
    const vec r = x - (shifted - 12582912.0f);
    vec p = all(1.3276476e-3f);
    p = p * r + 9.6755413e-3f;
    p = p * r + 5.5507133e-2f;
    p = p * r + 2.4022120e-1f;
    p = p * r + 6.9314697e-1f;
    p = p * r + 1.0f;
    /* A product instead of an integer addition, so that a NaN stays NaN. */
    return p * (vec)(((ivec)shifted << 23) + (127 << 23));
}

#endif
