/* Products of bf16 tiles for training and scoring, where both factors are rounded and packed for each product. AMX
   multiplies whole tiles; AVX-512 BF16 multiplies one pair from each of 16 columns by one pair of a row, with the same
   layout.

   A product sums over the *inner* index. A factor is stored as tiles of 1 kB, each with 16 of its outer and 32 of its inner
   indices, ordered (outer / 16, inner / 32). All tiles needed for a sum are contiguous in memory, and so are the 16 rows of
   a tile: rows whose distance is a power of two would compete for a few sets of the L1 cache.

   The left factor has *rows*: a tile's row is one outer index, with 32 numbers. The right factor has *pairs*: a tile's row
   is two inner indices, and each of its 16 lanes holds both numbers of one outer index. As 16 x 16 lanes of 32 bits, one is
   the transpose of the other. A matrix can therefore be either factor, whichever of its indices is contiguous in memory.

   Sizes are padded with zeros to multiples of BLOCK. Products compute BLOCK x BLOCK sums at a time, in float32. */

#ifndef ELMOKIT_BFLOAT16_TILES_H
#define ELMOKIT_BFLOAT16_TILES_H

#include "packed_product.h"
#include "rounded_rows.h"

enum {
    BLOCK = 32, /* outer indices of both factors that are computed together; inner indices of a tile */
    INNER_BLOCKS = 20, /* tiles that a long sum takes from each factor at a time, so both stay in the L2 cache */
    LEFT = 0,   /* a factor with rows */
    RIGHT = 1,  /* a factor with pairs */
};

INLINE int64_t blocks(int64_t size) { return (size + BLOCK - 1) / BLOCK; }

#if HAS_BFLOAT16
enum { TILE_SIZE = TILE_ROWS * TILE_BYTES };

typedef _Float16 half;
typedef half half_vec __attribute__((vector_size(2 * LANES), aligned(2)));

/* Convert 16 float32 numbers to float16, to store what a backward pass needs: activations need digits near 1 more than large
   exponents. */
INLINE void store_halves(half *to, vec value) {
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
    for (int lane = 0; lane < LANES; lane++) to[lane] = (half)value[lane];
#endif
}

INLINE vec load_halves(const half *from) {
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#else
    vec value;
    for (int lane = 0; lane < LANES; lane++) value[lane] = (float)from[lane];
    return value;
#endif
}

/* Lane j of the result: bf16 of first[j] in the lower half, of second[j] in the upper half. */
INLINE ivec round_pairs(vec first, vec second) {
#if defined(__AVX512BF16__)
    static const short order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                    8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (ivec)_mm512_permutexvar_epi16(_mm512_loadu_si512(order),
                                          (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
#else
    return (upper_halves(first) & 0xffff) | upper_halves(second) << 16;
#endif
}

/* 32 numbers in bf16: those of `first`, then those of `second`. */
INLINE ivec round_row(vec first, vec second) {
#if defined(__AVX512BF16__)
    return (ivec)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
#else
    short numbers[2 * LANES];
    const ivec low = upper_halves(first), high = upper_halves(second);
    for (int lane = 0; lane < LANES; lane++) numbers[lane] = (short)low[lane], numbers[LANES + lane] = (short)high[lane];
    ivec result;
    memcpy(&result, numbers, sizeof result);
    return result;
#endif
}

/* Round one tile. The number at outer index o and inner index i is from[o * stride + i] if the inner index is contiguous,
   and from[i * stride + o] otherwise. Numbers beyond n_outer and n_inner, which may be 0 or less, are zeros. */
INLINE void round_tile(int side, int inner_is_contiguous, const float *from, int64_t stride, int64_t n_outer, int64_t n_inner,
                       char *to) {
    ivec row[16];
    if (n_outer <= 0 || n_inner <= 0) {
        memset(to, 0, TILE_SIZE);
        return;
    }
    const int is_whole = n_outer >= 16 && n_inner >= BLOCK;
    for (int r = 0; r < 16; r++) {
        vec first = {0}, second = {0};
        if (inner_is_contiguous) {
            const float *numbers = from + r * stride;
            if (is_whole)
                first = load(numbers), second = load(numbers + LANES);
            else if (r < n_outer) {
                first = load_some(numbers, at_most(n_inner, LANES)); /* else GCC 12 warns of an overflow */
                if (n_inner > LANES) second = load_some(numbers + LANES, n_inner - LANES);
            }
            row[r] = round_row(first, second);
        } else {
            const float *numbers = from + 2 * r * stride;
            if (is_whole)
                first = load(numbers), second = load(numbers + stride);
            else {
                if (2 * r < n_inner) first = load_some(numbers, n_outer);
                if (2 * r + 1 < n_inner) second = load_some(numbers + stride, n_outer);
            }
            row[r] = round_pairs(first, second);
        }
    }
    if ((side == LEFT) != inner_is_contiguous) transpose(row);
    memcpy(to, row, TILE_SIZE);
}

/* Round a whole factor, or a thread's part of it. Outer indices are padded to a multiple of BLOCK. */
INLINE void round_factor(int side, int inner_is_contiguous, const float *from, int64_t stride, int64_t n_outer, int64_t n_inner,
                         int64_t thread, int64_t n_threads, char *to) {
    const int64_t n_inner_blocks = blocks(n_inner), first = 2 * blocks(n_outer) * thread / n_threads;
    const int64_t n_tiles = 2 * blocks(n_outer) * (thread + 1) / n_threads - first;
    for (int64_t index = 0; index < n_tiles * n_inner_blocks; index++) {
        /* In memory order: in a matrix with long rows, each number of a column is on a different page. */
        const int64_t tile = first + (inner_is_contiguous ? index / n_inner_blocks : index % n_tiles);
        const int64_t block = inner_is_contiguous ? index % n_inner_blocks : index / n_tiles;
        const int64_t outer = 16 * tile, inner = BLOCK * block;
        const float *at = from + (inner_is_contiguous ? outer * stride + inner : inner * stride + outer);
        round_tile(side, inner_is_contiguous, at, stride, n_outer - outer, n_inner - inner,
                   to + (tile * n_inner_blocks + block) * TILE_SIZE);
    }
}

/* Must be called before any function below, once per thread, and followed by release_tiles. */
static inline void use_whole_tiles(void) {
#if HAS_TILES
    configure_tiles(TILE_ROWS, TILE_ROWS);
#endif
}

/* sums[BLOCK][BLOCK] = or += left x right over n_inner tiles. The second half of a factor's outer indices begins left_step
   or right_step bytes after the first. `sum_stride` is in floats. With every product, half a tile of the data read later,
   from `ahead` on, is prefetched to the L2 cache; this is enough if a factor is used for 4 blocks. */
#if HAS_TILES
INLINE void add_block(int adds, const char *left, int64_t left_step, const char *right, int64_t right_step, int64_t n_inner,
                      float *sums, int64_t sum_stride, const char *ahead) {
    float *lower = sums + TILE_ROWS * sum_stride;
    const int64_t stride = sizeof(float) * sum_stride;
    if (adds) {
        TILE_LOAD(0, sums, stride);
        TILE_LOAD(1, sums + 16, stride);
        TILE_LOAD(2, lower, stride);
        TILE_LOAD(3, lower + 16, stride);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t inner = 0; inner < n_inner; inner++, left += TILE_SIZE, right += TILE_SIZE) {
        TILE_LOAD(4, left, TILE_BYTES);
        TILE_LOAD(6, right, TILE_BYTES);
        TILE_LOAD(7, right + right_step, TILE_BYTES);
        TILE_LOAD(5, left + left_step, TILE_BYTES);
        if (ahead)
            for (int line = 0; line < 8; line++, ahead += 64) __builtin_prefetch(ahead, 0, 2);
        TILE_DOT_BFLOAT16(0, 4, 6);
        TILE_DOT_BFLOAT16(1, 4, 7);
        TILE_DOT_BFLOAT16(2, 5, 6);
        TILE_DOT_BFLOAT16(3, 5, 7);
    }
    TILE_STORE(0, sums, stride);
    TILE_STORE(1, sums + 16, stride);
    TILE_STORE(2, lower, stride);
    TILE_STORE(3, lower + 16, stride);
}
#else
/* Rows of the left factor at a time: with both vectors of the right factor's columns, their sums fill 16 registers, enough
   to hide the latency of a product. */
enum { LEFT_ROWS = 8 };

/* Not inlined, because in a large function the compiler would pass addresses through vector registers. */
static __attribute__((noinline)) void add_block(int adds, const char *left, int64_t left_step, const char *right,
                                                int64_t right_step, int64_t n_inner, float *sums, int64_t sum_stride,
                                                const char *ahead) {
    for (int first = 0; first < BLOCK; first += LEFT_ROWS) {
        const char *rows = left + first / TILE_ROWS * left_step + first % TILE_ROWS * TILE_BYTES;
        float *to = sums + first * sum_stride;
        vec sum[LEFT_ROWS][2];
        _Pragma("GCC unroll 8") for (int r = 0; r < LEFT_ROWS; r++)
            for (int v = 0; v < 2; v++) sum[r][v] = adds ? load(to + r * sum_stride + v * LANES) : (vec){0};
        for (int64_t tile = 0; tile < n_inner; tile++) {
            const char *inputs = rows + tile * TILE_SIZE, *columns = right + tile * TILE_SIZE;
            if (ahead)
                for (int line = 0; line < 8 * LEFT_ROWS / BLOCK; line++, ahead += 64) __builtin_prefetch(ahead, 0, 2);
            for (int pair = 0; pair < 16; pair++) {
                ivec column[2];
                memcpy(column, columns + pair * TILE_BYTES, sizeof column[0]);
                memcpy(column + 1, columns + right_step + pair * TILE_BYTES, sizeof column[1]);
                _Pragma("GCC unroll 8") for (int r = 0; r < LEFT_ROWS; r++) {
                    int32_t both;
                    memcpy(&both, inputs + r * TILE_BYTES + 4 * pair, sizeof both);
                    for (int v = 0; v < 2; v++) sum[r][v] = dot_bfloat16(sum[r][v], both - (ivec){0}, column[v]);
                }
            }
        }
        _Pragma("GCC unroll 8") for (int r = 0; r < LEFT_ROWS; r++)
            for (int v = 0; v < 2; v++) store(to + r * sum_stride + v * LANES, sum[r][v]);
    }
}
#endif

/* sums[left blocks][right blocks][BLOCK][BLOCK] = left x right over many inner tiles, in chunks that fit in the cache. */
static inline void sum_in_chunks(const char *left, int64_t n_left, const char *right, int64_t n_right, int64_t n_inner,
                                 float *sums) {
    for (int64_t first = 0; first < n_inner; first += INNER_BLOCKS) {
        const int64_t n = at_most(n_inner - first, INNER_BLOCKS);
        for (int64_t l = 0; l < n_left; l++)
            for (int64_t r = 0; r < n_right; r++)
                add_block(first > 0, left + (2 * l * n_inner + first) * TILE_SIZE, n_inner * TILE_SIZE,
                          right + (2 * r * n_inner + first) * TILE_SIZE, n_inner * TILE_SIZE, n,
                          sums + (l * n_right + r) * BLOCK * BLOCK, BLOCK, NULL);
    }
}

/* Write the transpose of a block of sums: its column c becomes row c of `to`, which has n_rows rows of n_columns numbers. */
INLINE void store_transposed(int adds, const float *sums, float *to, int64_t stride, int64_t n_rows, int64_t n_columns) {
    for (int part = 0; part < 4; part++) {
        const int64_t row = part % 2 * 16, column = part / 2 * 16;
        if (row >= n_rows || column >= n_columns) continue;
        ivec lanes[16];
        for (int r = 0; r < 16; r++) lanes[r] = (ivec)load(sums + (column + r) * BLOCK + row);
        transpose(lanes);
        for (int r = 0; r < at_most(n_rows - row, 16); r++) {
            float *at = to + (row + r) * stride + column;
            const vec value = (vec)lanes[r];
            store_some(at, adds ? value + load_some(at, n_columns - column) : value, n_columns - column);
        }
    }
}

/* The next n_bytes of a block of memory. */
INLINE void *take(char **at, int64_t n_bytes) {
    char *start = *at;
    *at += (n_bytes + 63) / 64 * 64;
    return start;
}

/* 1 / x, accurate except in the last digits: an estimate with 14 bits and one step of Newton's method, in a third of the
   time of a division. */
INLINE vec reciprocal(vec x) {
#if defined(__AVX512F__)
    const vec estimate = (vec)_mm512_rcp14_ps((__m512)x);
    return estimate * (2.0f - x * estimate);
#else
    return 1.0f / x;
#endif
}

INLINE vec quick_sigmoid(vec x) { return reciprocal(1.0f + quick_power(-1.44269504f * x)); }
INLINE vec quick_tangent(vec x) { return 1.0f - 2.0f * reciprocal(1.0f + quick_power(2.88539008f * x)); }
#endif

#endif
