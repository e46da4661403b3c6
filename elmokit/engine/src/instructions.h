/* The few operations that C's vector extensions cannot express: macros for each instruction set, and the same operations in
   plain C with the same memory layout.

   The compiler's flags decide which of them exist (`instruction_sets.py` lists the variants that are built):

   - HAS_DOT: sums of products of four bytes (VNNI, AVX-VNNI, Arm's dot product; with only AVX2, AVX-512 or WebAssembly's
     SIMD, they are composed of sums of products of two 16-bit numbers);
   - HAS_ROW_PAIRS: products of eight bytes of two rows and two columns (Arm's matrix product, i8mm);
   - HAS_TILES: products of whole tiles (AMX);
   - HAS_BFLOAT16: products of bf16 numbers (tiles, or pairs with AVX-512's own instruction).

   With -DEMULATE, all exist in plain C, so the code around them can be tested on machines without them; with -DEMULATE=0,
   all except tiles. */

#ifndef ELMOKIT_INSTRUCTIONS_H
#define ELMOKIT_INSTRUCTIONS_H

#include <stdint.h>

#include "vectors.h"

#if defined(EMULATE)
#define HAS_DOT 1
#define HAS_TILES EMULATE
#elif defined(AMX)
#define HAS_DOT 1
#define HAS_TILES 1
#elif defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define HAS_DOT 1
#define HAS_TILES 0
#elif defined(__ARM_FEATURE_DOTPROD)
#define HAS_DOT 1
#define HAS_TILES 0
#include <arm_neon.h>
#elif defined(__AVX2__)
#define HAS_DOT 1
#define DOT_OF_PAIRS 1
#define DOT_OF_BYTE_PAIRS 1
#define HAS_TILES 0
#elif defined(__wasm_simd128__)
#define HAS_DOT 1
#define DOT_OF_PAIRS 1
#define HAS_TILES 0
#include <wasm_simd128.h>
#else
#define HAS_DOT 0
#define HAS_TILES 0
#endif

/* Whether only products of pairs exist: of two 16-bit numbers or, if DOT_OF_BYTE_PAIRS is also set, of two bytes, with a sum
   that must fit in 16 bits. */
#ifndef DOT_OF_PAIRS
#define DOT_OF_PAIRS 0
#endif
#ifndef DOT_OF_BYTE_PAIRS
#define DOT_OF_BYTE_PAIRS 0
#endif

#if defined(__ARM_FEATURE_MATMUL_INT8) && !defined(EMULATE)
#define HAS_ROW_PAIRS 1
#else
#define HAS_ROW_PAIRS 0
#endif

#if HAS_TILES || defined(__AVX512BF16__) || defined(EMULATE)
#define HAS_BFLOAT16 1
#else
#define HAS_BFLOAT16 0
#endif

/* Products of bytes multiply unsigned by signed bytes, except on Arm and when bytes are multiplied as 16-bit numbers
   (`as_shorts`, see `multiplies_shorts`). Signed inputs are stored with this offset, and the sum of the weights times the
   offset is subtracted again. All of this is exact, so every machine gets the same sums. */
INLINE int input_offset(int as_shorts) {
#if defined(__ARM_FEATURE_DOTPROD) && !defined(EMULATE)
    (void)as_shorts;
    return 0;
#else
    return as_shorts ? 0 : 128;
#endif
}

/* The bytes of a group of four rounded inputs. Products of 16-bit numbers take them in the order 0, 2, 1, 3, because a
   lane's bytes 0 and 2 are widened together. */
INLINE int group_bytes(int as_shorts) { return as_shorts ? 8 : 4; }

/* The number of groups whose products can be summed without overflow. Bytes widened to the upper half of 16 bits are 256
   times as large, and 4 * 128 * 127 * 127 * 256 is just below 2^31. Other numbers have no such limit. */
INLINE int dot_groups(int as_shorts) { return as_shorts ? 128 : INT32_MAX; }
INLINE int dot_shift(int as_shorts) { return as_shorts ? 8 : 0; }

/* Move a byte of every lane to its highest byte, with zeros below: the signed number times RAISED, which needs no shift back
   to extend the sign. */
enum { RAISED = 1 << 24 };

INLINE ivec raised_byte(ivec lanes, int part) {
#if (defined(__AVX512BW__) || defined(__AVX2__)) && !defined(EMULATE)
    /* One instruction instead of two: each byte of the result selects one of its 128 bits' bytes; 0x80 gives 0. */
    ivec select;
    for (int lane = 0; lane < LANES; lane++) select[lane] = 0x808080 | (4 * (lane % 4) + part) << 24;
#if defined(__AVX512BW__)
    return (ivec)_mm512_shuffle_epi8((__m512i)lanes, (__m512i)select);
#else
    return (ivec)_mm256_shuffle_epi8((__m256i)lanes, (__m256i)select);
#endif
#else
    return (lanes << (24 - 8 * part)) & (int)0xff000000;
#endif
}

/* The lower half of every lane as its upper half. */
INLINE ivec lower_half(ivec lanes) {
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(EMULATE)
    /* A shift would occupy one of the two units that multiply floats; moving bytes uses another. */
    ivec select;
    for (int lane = 0; lane < LANES; lane++) select[lane] = 0x8080 | (4 * (lane % 4)) << 16 | (4 * (lane % 4) + 1) << 24;
    return (ivec)_mm256_shuffle_epi8((__m256i)lanes, (__m256i)select);
#else
    return lanes << 16;
#endif
}

/* sum += the products of a lane's pairs of bf16 numbers. AVX-512 BF16 adds the second product first, and treats denormal
   numbers as zeros. The plain version is compiled only once, because the sign of a NaN depends on the order in which the
   compiler adds. */
#if defined(__AVX512BF16__) && !defined(EMULATE)
INLINE vec dot_bfloat16(vec sum, ivec inputs, ivec weights) {
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)inputs, (__m512bh)weights);
}
#else
static __attribute__((noinline, unused)) vec dot_bfloat16(vec sum, ivec inputs, ivec weights) {
    sum += (vec)(inputs & (int)0xffff0000) * (vec)(weights & (int)0xffff0000);
    return sum + (vec)lower_half(inputs) * (vec)lower_half(weights);
}
#endif

#if HAS_DOT
/* The terms of a group's sum: products of 16-bit numbers take two inputs at a time. */
INLINE int dot_terms(int as_shorts) { return as_shorts ? 2 : 1; }

/* The weights of a lane as a term needs them. */
INLINE ivec dot_weights(int as_shorts, ivec lanes, int term) {
    if (!as_shorts) return lanes;
#if !DOT_OF_PAIRS
    (void)term;
    return lanes;
#elif defined(__AVX512BW__)
    return term ? lanes & (int)0xff00ff00 : (ivec)_mm512_slli_epi16((__m512i)lanes, 8);
#elif defined(__wasm_simd128__)
    return term ? lanes & (int)0xff00ff00 : (ivec)wasm_i16x8_shl((v128_t)lanes, 8);
#else
    return term ? lanes & (int)0xff00ff00 : (ivec)_mm256_slli_epi16((__m256i)lanes, 8);
#endif
}

/* sum += the products of a lane's inputs and weights in one term; 2^dot_shift times as much. Products of bytes by pairs
   (DOT_OF_BYTE_PAIRS) are correct for pairs of weights whose sum is at most 128, because 128 * 255 fits in 16 bits. */
INLINE ivec dot(int as_shorts, ivec sum, ivec inputs, ivec weights) {
    (void)as_shorts;
#if defined(EMULATE)
    const unsigned char *input = (const unsigned char *)&inputs;
    const signed char *weight = (const signed char *)&weights;
    for (int at = 0; at < 4 * LANES; at++) sum[at / 4] += input[at] * weight[at];
    return sum;
#elif defined(__AVX512VNNI__)
    return (ivec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)inputs, (__m512i)weights);
#elif defined(__AVXVNNI__)
    return (ivec)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)inputs, (__m256i)weights);
#elif defined(__AVX512BW__)
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)inputs, (__m512i)weights), ones = _mm512_set1_epi16(1);
    return sum + (ivec)(as_shorts ? _mm512_madd_epi16((__m512i)inputs, (__m512i)weights) : _mm512_madd_epi16(pairs, ones));
#elif defined(__AVX2__)
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)inputs, (__m256i)weights), ones = _mm256_set1_epi16(1);
    return sum + (ivec)(as_shorts ? _mm256_madd_epi16((__m256i)inputs, (__m256i)weights) : _mm256_madd_epi16(pairs, ones));
#elif defined(__wasm_simd128__)
    return sum + (ivec)wasm_i32x4_dot_i16x8((v128_t)inputs, (v128_t)weights); /* always 16-bit numbers */
#else
    return (ivec)vdotq_s32((int32x4_t)sum, (int8x16_t)inputs, (int8x16_t)weights);
#endif
}
#endif

/* A tile has up to 16 rows of 64 bytes. */
enum { TILE_ROWS = 16, TILE_BYTES = 64 };

#if HAS_TILES
/* Tiles 0 to 3 hold sums: rows of inputs by 16 columns of weights. Tiles 4 and 5 hold inputs, 6 and 7 weights: a row of
   these has the 64 bytes of four (int8) or two (bf16) inputs of 16 columns. */

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* AMX treats denormal numbers as zeros, so vector instructions with the same bits must, too. */
#if defined(EMULATE)
#define FLUSH_DENORMALS() 0
#define RESTORE_MODE(mode) ((void)(mode))
#else
enum { FLUSH = 0x8040 };
INLINE unsigned flush_denormals(void) {
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | FLUSH);
    return mode;
}
#define FLUSH_DENORMALS() flush_denormals()
#define RESTORE_MODE(mode) _mm_setcsr(mode)
#endif

#if defined(EMULATE)
static _Thread_local tile_config tile_shape;
static _Thread_local char tile_data[8][TILE_ROWS][TILE_BYTES];

#define TILE_CONFIGURE(config) (tile_shape = *(config))
#define TILE_LOAD(tile, from, stride)                                                                                \
    for (int row_ = 0; row_ < tile_shape.rows[tile]; row_++)                                                         \
    memcpy(tile_data[tile][row_], (const char *)(from) + row_ * (stride), TILE_BYTES)
#define TILE_STORE(tile, to, stride)                                                                                 \
    for (int row_ = 0; row_ < tile_shape.rows[tile]; row_++)                                                         \
    memcpy((char *)(to) + row_ * (stride), tile_data[tile][row_], TILE_BYTES)
#define TILE_ZERO(tile) memset(tile_data[tile], 0, sizeof tile_data[tile])
#define TILE_RELEASE()
#define TILE_DOT_BYTES(sums, inputs, weights) emulated_dot(0, sums, inputs, weights)
#define TILE_DOT_BFLOAT16(sums, inputs, weights) emulated_dot(1, sums, inputs, weights)

INLINE float from_bfloat16(uint16_t bits) {
    const uint32_t raised = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &raised, sizeof value);
    return value;
}

/* In the processor's order: the first and second inputs of the pairs are summed separately, then together. */
static void emulated_dot(int is_bfloat16, int sums, int inputs, int weights) {
    for (int row = 0; row < tile_shape.rows[sums]; row++)
        for (int column = 0; column < 16; column++) {
            if (is_bfloat16) {
                const uint16_t *x = (const uint16_t *)tile_data[inputs][row];
                float *sum = (float *)tile_data[sums][row] + column, partial[2] = {0};
                for (int k = 0; k < 32; k++)
                    partial[k % 2] = fmaf(
                        from_bfloat16(x[k]),
                        from_bfloat16(((const uint16_t *)tile_data[weights][k / 2])[2 * column + k % 2]), partial[k % 2]);
                *sum += partial[0] + partial[1];
            } else {
                const uint8_t *x = (const uint8_t *)tile_data[inputs][row];
                int32_t *sum = (int32_t *)tile_data[sums][row] + column;
                for (int k = 0; k < 64; k++)
                    *sum += x[k] * ((const int8_t *)tile_data[weights][k / 4])[4 * column + k % 4];
            }
        }
}
#else
/* The compiler's intrinsics are not used: GCC 12 does not know that they read and write memory, so it may drop stores before
   a tile is loaded, or move them behind it. */
#define TILE_CONFIGURE(config) __asm__ volatile("ldtilecfg %0" ::"m"(*(config)) : "memory")
#define TILE_LOAD(tile, from, stride)                                                                                \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(tile, to, stride)                                                                                 \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"((int64_t)(stride)) : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile ::: "memory")
#define TILE_RELEASE() __asm__ volatile("tilerelease" ::: "memory")
#define TILE_DOT_BYTES(sums, inputs, weights)                                                                        \
    __asm__ volatile("tdpbusd %%tmm" #weights ", %%tmm" #inputs ", %%tmm" #sums ::: "memory")
#define TILE_DOT_BFLOAT16(sums, inputs, weights)                                                                     \
    __asm__ volatile("tdpbf16ps %%tmm" #weights ", %%tmm" #inputs ", %%tmm" #sums ::: "memory")
#endif
#endif

/* The larger numbers of two vectors; those of `b` where either is a NaN. */
INLINE vec larger(vec a, vec b) {
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__) && !defined(EMULATE)
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return choose(a > b, a, b);
#endif
}

#endif
