/* Inputs of products in a lower precision: rows rounded to bf16 or to bytes.

   Some products read their inputs as floats (weights are widened as they are loaded); others need them in the weights'
   precision: VNNI, AVX-512 BF16 and AMX. A rounded row is a header of 64 bytes, whose first number is the row's scale,
   followed by its numbers, padded with zeros to a multiple of 64 bytes. The header also keeps the rows of a product in
   different sets of the L1 cache: without it, rows of 4,096 bytes would evict each other. */

#ifndef ELMOKIT_ROUNDED_ROWS_H
#define ELMOKIT_ROUNDED_ROWS_H

#include "packed_product.h"

/* Numbers in bf16, the upper halves of floats, in the lower halves of the lanes. */
INLINE ivec upper_halves(vec value) {
    const ivec bits = (ivec)value;
    /* Round to the nearest, ties to even. A NaN keeps its upper bits, one of which is set explicitly, because the addition
       could turn it into a zero. */
    const ivec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const ivec is_nan = value != value;
    return (is_nan & ((bits >> 16) | 0x40)) | (~is_nan & rounded);
}

INLINE ivec size_bits(vec value) { return (ivec)value & 0x7fffffff; }

INLINE ivec larger_bits(ivec left, ivec right) {
    const ivec where = left > right;
    return (where & left) | (~where & right);
}

/* Round numbers to bytes, in as many bytes as the precision's products read. Only the first n numbers of a row's last vector
   are stored, unless pairs need whole groups. */
INLINE void round_lanes(int as_shorts, vec value, vec factor, char *to, int64_t n) {
    /* As in `exponential`: this addition leaves the nearest integer in the lowest bits; the upper bits do not matter. */
    const vec shifted = value * factor + 12582912.0f;
    const ivec rounded = (ivec)shifted + input_offset(as_shorts);
#if DOT_OF_PAIRS
    if (as_shorts) {
        typedef short half_vec __attribute__((vector_size(2 * LANES), aligned(2)));
        enum { ORDER = 0xd8 }; /* the numbers of a group of four as 0, 2, 1, 3 */
#if defined(__AVX512F__)
        const ivec ordered = (ivec)_mm512_shuffle_epi32((__m512i)rounded, ORDER);
#elif defined(__wasm_simd128__)
        (void)ORDER;
        const ivec ordered = (ivec)wasm_i32x4_shuffle((v128_t)rounded, (v128_t)rounded, 0, 2, 1, 3);
#else
        const ivec ordered = (ivec)_mm256_shuffle_epi32((__m256i)rounded, ORDER);
#endif
        const half_vec halves = __builtin_convertvector(ordered, half_vec);
        memcpy(to, &halves, sizeof halves); /* the inputs beyond the last are zeros */
        return;
    }
#endif
    typedef signed char byte_vec __attribute__((vector_size(LANES), aligned(1)));
    const byte_vec bytes = __builtin_convertvector(rounded, byte_vec);
    if (n < LANES)
        memcpy(to, &bytes, n);
    else
        memcpy(to, &bytes, LANES);
}

/* Round rows of n numbers, `from` to `to`. */
static inline void round_rows(int precision, int64_t n_rows, const float *from, int64_t n, char *to) {
    const int as_shorts = multiplies_shorts(precision);
    const int64_t row_bytes = rounded_row_bytes(precision, n), padding = 16 * group_bytes(as_shorts);
    typedef short half_vec __attribute__((vector_size(2 * LANES), aligned(2)));
    for (int64_t row = 0; row < n_rows; row++, from += n, to += row_bytes) {
        char *numbers = to + ROW_HEADER;
        /* The padding: at most LANES numbers of it are overwritten below. */
        memset(to + row_bytes - padding, 0, padding);
        if (precision == BFLOAT16) {
            for (int64_t at = 0; at < n; at += LANES) {
                const half_vec half = __builtin_convertvector(upper_halves(load_some(from + at, n - at)), half_vec);
                memcpy(numbers + 2 * at, &half, 2 * (n - at < LANES ? n - at : LANES));
            }
            continue;
        }
        /* Without their signs, numbers sort like their bits as integers; a NaN comes after all others and is kept. Two
           vectors are compared at once, because each comparison waits for the previous one. */
        ivec largest[2] = {{0}, {0}};
        int64_t at = 0;
        for (; at + 2 * LANES <= n; at += 2 * LANES)
            for (int v = 0; v < 2; v++) largest[v] = larger_bits(largest[v], size_bits(load(from + at + v * LANES)));
        for (; at < n; at += LANES) largest[0] = larger_bits(largest[0], size_bits(load_some(from + at, n - at)));
        largest[0] = larger_bits(largest[0], largest[1]);
        int32_t most = largest[0][0];
        for (int lane = 1; lane < LANES; lane++) most = largest[0][lane] > most ? largest[0][lane] : most;
        float bound;
        memcpy(&bound, &most, sizeof bound);
        *(float *)to = bound / 127.0f;
        const vec factor = all(bound > 0 ? 127.0f / bound : 0.0f);
        const int64_t bytes = group_bytes(as_shorts) / 4; /* of a number */
        for (at = 0; at + LANES <= n; at += LANES)
            round_lanes(as_shorts, load(from + at), factor, numbers + bytes * at, LANES);
        if (at < n) round_lanes(as_shorts, load_some(from + at, n - at), factor, numbers + bytes * at, n - at);
    }
}

#endif
