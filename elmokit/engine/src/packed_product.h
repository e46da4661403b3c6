/* The matrix product with packed weights, in all precisions of the weights.

   Weights are stored in panels: PANEL output columns side by side. The innermost functions, microkernels, keep the sums of
   up to ROWS rows and a panel in registers while the panel streams past. Each weight is therefore loaded once per ROWS rows,
   and each sum is stored once.

   A panel is a sequence of 32-bit lanes, (groups, PANEL). A lane contains one input's weight in float32, those of two inputs
   in bf16, or those of four in bytes, with the first input in the lowest bits. This layout serves all processors: plain C
   widens the weights to floats with shifts, and the instructions for bf16 and bytes (`instructions.h`) need pairs and fours.
   A panel of bytes begins with a header: each column's scale and sum of weights.

   Every sum is computed in the same order of inputs, whatever the number of rows, so a sentence gets the same bits in any
   batch. All microkernels keep that order; so must any new one. */

#ifndef ELMOKIT_PACKED_PRODUCT_H
#define ELMOKIT_PACKED_PRODUCT_H

#include "instructions.h"
#include "vectors.h"

/* Precisions of packed weights, in the order of the table in `precision.py`. Those from INT8 on are bytes. */
enum { FLOAT32, BFLOAT16, INT8, INT7 };

/* Rows of a microkernel: ROWS x 2 vectors of sums, 2 of weights and one broadcast input fill the processor's vector
   registers (32 of them with AVX-512 and NEON, 16 with AVX and SSE). */
#if defined(__AVX512F__)
#define ROWS 12
#elif defined(__AVX__)
#define ROWS 6
#elif defined(__aarch64__)
#define ROWS 8
#else
#define ROWS 4
#endif

enum {
    PANEL = 2 * LANES, /* columns of a panel */
    INPUT_CHUNK = 256, /* so many inputs of a panel (32 kB with AVX-512) stay in the L1 cache while all rows pass */
    AHEAD = 512,       /* lanes from a weight to the one prefetched for it, for a single row */
    LINE = 16,         /* lanes of a line of the cache */
    WIDENING_ROWS = 4, /* up to so many rows, weights are widened as they are loaded */
    RAW_ROWS = 64,     /* rows whose sums of bytes are computed together */
    ROW_HEADER = 64,   /* bytes before the numbers of a rounded row: see `rounded_rows.h` */
};

INLINE int64_t at_most(int64_t value, int64_t bound) { return value < bound ? value : bound; }

INLINE int is_bytes(int precision) { return precision >= INT8; }

/* Whether bytes are multiplied as 16-bit numbers. The weights of INT7 are such that products of bytes need no more bits: see
   `largest_of` in `matrix.c`. */
INLINE int multiplies_shorts(int precision) { return DOT_OF_PAIRS && (precision == INT8 || !DOT_OF_BYTE_PAIRS); }

/* The most precise of the precisions that have the same product: INT7 is only faster if bytes are multiplied by pairs. */
INLINE int most_precise(int precision) { return precision == INT7 && !DOT_OF_BYTE_PAIRS ? INT8 : precision; }

/* The number of inputs whose weights share a lane. */
INLINE int group_size(int precision) { return is_bytes(precision) ? 4 : precision == BFLOAT16 ? 2 : 1; }

/* For all rows and panels of a product: the number of inputs, padded to 64 bytes, a row of an AMX tile. */
INLINE int64_t n_groups(int precision, int64_t n_inputs) {
    return precision == FLOAT32 ? n_inputs : (n_inputs * 4 / group_size(precision) + 63) / 64 * 16;
}

INLINE int64_t panel_header(int precision) { return is_bytes(precision) ? 2 * PANEL : 0; }

/* The distance between panels, in lanes. */
INLINE int64_t panel_lanes(int precision, int64_t n_inputs) {
    return panel_header(precision) + n_groups(precision, n_inputs) * PANEL;
}

/* Whether the inputs of a product must be rounded to the weights' precision. Otherwise they are read as floats. */
INLINE int rounds_inputs(int precision) {
    return (is_bytes(precision) && HAS_DOT) || (precision == BFLOAT16 && HAS_BFLOAT16);
}

/* Whether a microkernel has complete sums of integers and scales them; otherwise, they wait in memory for the rest. */
INLINE int scales_at_once(int precision) {
    return is_bytes(precision) && HAS_DOT && !HAS_TILES && !HAS_ROW_PAIRS && !multiplies_shorts(precision);
}

INLINE int64_t rounded_row_bytes(int precision, int64_t n_inputs) {
    const int64_t n_bytes = is_bytes(precision) ? group_bytes(multiplies_shorts(precision)) : 4;
    return ROW_HEADER + n_bytes * n_groups(precision, n_inputs);
}

/* The weights of one input in a group, as floats; bytes times RAISED. */
INLINE vec widen(int precision, vec lanes, int part) {
    const ivec bits = (ivec)lanes;
    if (precision == FLOAT32) return lanes;
    /* A bf16 number is the upper half of a float. */
    if (precision == BFLOAT16) return (vec)(part ? bits & (int)0xffff0000 : lower_half(bits));
    return __builtin_convertvector(raised_byte(bits, part), vec);
}

/* The destination of a product: sums[rows][panels * PANEL] += the product. */
typedef struct {
    float *sums;
    int64_t stride;     /* from a row to the next */
    const float *start; /* the initial sums of every row, such as a bias; NULL to use their current values */
} target;

/* A part of a product: what a microkernel multiplies, and where it adds its sums. */
typedef struct {
    const void *inputs;   /* the first row: floats, or rounded numbers */
    int64_t input_stride; /* from a row to the next: in floats, or in bytes */
    const float *weights; /* of the first panel */
    int64_t panel_stride; /* in lanes */
    int64_t n;            /* how many inputs, or groups of rounded ones */
    void *sums;           /* float, or int32_t for products of integers */
    int64_t sum_stride;
    const float *start;   /* if sums are scaled immediately: the values to add them to */
    int64_t start_stride;
    const float *next;    /* weights needed after these, to prefetch */
    int64_t next_step;    /* lanes of them to prefetch for each group */
} product_part;

/* sums[rows][panels * PANEL] += inputs[rows][n] x panels.

   `precision`, `rows` and `panels` are constants wherever this is inlined, so the loops over them unroll completely and
   the array `sum` lives in registers. That is what the unroll pragmas make sure of. */
INLINE void microkernel(int precision, int rows, int panels, const product_part *of) {
    const float *inputs = of->inputs, *next = of->next;
    float *sums = of->sums;
    const int size = group_size(precision);
    vec sum[ROWS * 2];
    _Pragma("GCC unroll 24") for (int i = 0; i < rows * 2 * panels; i++) sum[i] = (vec){0};
    int64_t k = 0;
    for (; k + size <= of->n; k += size) {
        /* Otherwise, a panel would only be loaded from memory when the first rows need it. */
        if (rows > 1) __builtin_prefetch(next), next += of->next_step;
        /* Floats, or many rows: one input of a group after the other. With AVX2, all inputs of four rows need too many
           registers. */
        if (precision == FLOAT32 || rows > 2) {
            _Pragma("GCC unroll 4") for (int part = 0; part < size; part++) {
                vec weight[2 * GATES];
                _Pragma("GCC unroll 8") for (int v = 0; v < 2 * panels; v++) {
                    const float *from = of->weights + (v / 2) * of->panel_stride + k / size * PANEL + (v % 2) * LANES;
                    weight[v] = widen(precision, load(from), part);
                    if (rows == 1) __builtin_prefetch(from + AHEAD);
                }
                _Pragma("GCC unroll 12") for (int r = 0; r < rows; r++)
                    _Pragma("GCC unroll 8") for (int v = 0; v < 2 * panels; v++)
                        sum[r * 2 * panels + v] += inputs[r * of->input_stride + k + part] * weight[v];
            }
            continue;
        }
        /* Few rows: one vector of weights after the other, because those of several panels need too many registers. */
        _Pragma("GCC unroll 8") for (int v = 0; v < 2 * panels; v++) {
            const float *from = of->weights + (v / 2) * of->panel_stride + k / size * PANEL + (v % 2) * LANES;
            const vec lanes = load(from);
            if (rows == 1) __builtin_prefetch(from + AHEAD);
            _Pragma("GCC unroll 4") for (int part = 0; part < size; part++) {
                const vec weight = widen(precision, lanes, part);
                _Pragma("GCC unroll 12") for (int r = 0; r < rows; r++)
                    sum[r * 2 * panels + v] += inputs[r * of->input_stride + k + part] * weight;
            }
        }
    }
    /* The last group may have fewer inputs: the row ends there, and the memory after it must not be read. */
    for (int part = 0; k + part < of->n; part++)
        _Pragma("GCC unroll 8") for (int v = 0; v < 2 * panels; v++) {
            const vec weight =
                widen(precision, load(of->weights + (v / 2) * of->panel_stride + k / size * PANEL + (v % 2) * LANES), part);
            _Pragma("GCC unroll 12") for (int r = 0; r < rows; r++)
                sum[r * 2 * panels + v] += inputs[r * of->input_stride + k + part] * weight;
        }
    _Pragma("GCC unroll 12") for (int r = 0; r < rows; r++)
        _Pragma("GCC unroll 8") for (int v = 0; v < 2 * panels; v++) {
            float *to = sums + r * of->sum_stride + v * LANES;
            store(to, load(to) + sum[r * 2 * panels + v]);
        }
}

/* One or two rows have too few sums to hide the latency of a multiply-add (4 cycles, 2 per cycle: at least 8 independent
   sums), so several panels are computed at once. */
INLINE int panels_at_once(int64_t n_rows, int n_panels) {
    return n_rows == 1 && n_panels == GATES ? GATES : n_rows <= 2 && n_panels % 2 == 0 ? 2 : 1;
}

/* Run the microkernel for a number of rows: up to ROWS in float32, otherwise up to WIDENING_ROWS. There is one switch for
   all of them: with a second one inside, the compiler keeps addresses on the stack in the innermost loops. */
INLINE void run_microkernel(int precision, int64_t rows, int panels, const product_part *of) {
    switch (rows) {
        case 1:
            if (panels == GATES)
                microkernel(precision, 1, GATES, of);
            else if (panels == 2)
                microkernel(precision, 1, 2, of);
            else
                microkernel(precision, 1, 1, of);
            break;
        case 2:
            if (panels == 2)
                microkernel(precision, 2, 2, of);
            else
                microkernel(precision, 2, 1, of);
            break;
        case 3: microkernel(precision, 3, 1, of); break;
        case 4: microkernel(precision, 4, 1, of); break;
#if ROWS >= 6
        case 5: if (precision == FLOAT32) microkernel(FLOAT32, 5, 1, of); break;
        case 6: if (precision == FLOAT32) microkernel(FLOAT32, 6, 1, of); break;
#endif
#if ROWS >= 8
        case 7: if (precision == FLOAT32) microkernel(FLOAT32, 7, 1, of); break;
        case 8: if (precision == FLOAT32) microkernel(FLOAT32, 8, 1, of); break;
#endif
#if ROWS >= 12
        case 9: if (precision == FLOAT32) microkernel(FLOAT32, 9, 1, of); break;
        case 10: if (precision == FLOAT32) microkernel(FLOAT32, 10, 1, of); break;
        case 11: if (precision == FLOAT32) microkernel(FLOAT32, 11, 1, of); break;
        case 12: if (precision == FLOAT32) microkernel(FLOAT32, 12, 1, of); break;
#endif
    }
}

/* The same for any number of rows, and for 1 to GATES panels. The outer loop runs over chunks of inputs, so all rows use a
   chunk of weights while it is in the cache; meanwhile, partial sums are in `sums`. `after`: the weights that the caller
   needs next. */
INLINE void multiply_floats(int precision, int64_t n_rows, int n_panels, const float *inputs, int64_t input_stride,
                            const float *weights, int64_t n_inputs, float *sums, int64_t sum_stride, const float *after) {
    const int size = group_size(precision), at_once = panels_at_once(n_rows, n_panels);
    const int64_t panel_stride = panel_lanes(precision, n_inputs), n_passes = (n_rows + ROWS - 1) / ROWS;
    /* Few rows wait for memory anyway, so their weights are widened as they are loaded. For more rows, a chunk is widened
       once for all passes. */
    const int is_widened = precision != FLOAT32 && n_rows > WIDENING_ROWS;
    float widened[precision == FLOAT32 ? 1 : INPUT_CHUNK * PANEL] __attribute__((aligned(64)));
    /* Every pass prefetches its part of the next chunk: a fixed number of lanes for each group of inputs. A single row
       prefetches within its own chunk, because the processor's prefetching stops at the end of every page. */
    const int64_t step = ((is_widened ? PANEL / size : PANEL) + n_passes - 1) / n_passes;
    for (int panel = 0; panel < n_panels; panel += at_once) {
        for (int64_t first = 0; first < n_inputs; first += INPUT_CHUNK) {
            const int64_t n = at_most(n_inputs - first, INPUT_CHUNK);
            const float *chunk = weights + panel_header(precision) + panel * panel_stride + first / size * PANEL;
            const int is_last = panel + at_once >= n_panels && first + n >= n_inputs;
            const float *next = is_last ? after : chunk + n / size * PANEL, *from = chunk;
            if (is_widened) {
                for (int64_t k = 0; k < n; k += size)
                    for (int v = 0; v < 2; v++) {
                        const vec lanes = load(chunk + k / size * PANEL + v * LANES);
                        _Pragma("GCC unroll 4") for (int i = 0; i < size; i++)
                            store(widened + (k + i) * PANEL + v * LANES, widen(precision, lanes, i));
                    }
                from = widened;
            }
            for (int64_t pass = 0; pass < n_passes; pass++) {
                /* Rows are divided evenly: a last pass of few rows would wait for memory and for its own sums. */
                const int64_t row = n_rows * pass / n_passes, rows = n_rows * (pass + 1) / n_passes - row;
                const product_part part = {
                    .inputs = inputs + row * input_stride + first,
                    .input_stride = input_stride,
                    .weights = from,
                    .panel_stride = panel_stride,
                    .n = n,
                    .sums = sums + row * sum_stride + panel * PANEL,
                    .sum_stride = sum_stride,
                    .next = next + pass * n / (is_widened ? 1 : size) * step,
                    .next_step = step,
                };
                if (precision == FLOAT32)
                    run_microkernel(FLOAT32, rows, at_once, &part);
                else if (is_widened)
                    run_microkernel(FLOAT32, rows, 1, &part);
                else
                    run_microkernel(precision, rows, at_once, &part);
            }
        }
    }
}

#if HAS_DOT
#if HAS_ROW_PAIRS
/* Like `microkernel_rounded`, for two or more rows, with an instruction that computes twice as many products: of eight bytes
   of two rows and two columns. A vector of weights has four bytes of four columns, so two vectors are interleaved. */
INLINE void microkernel_row_pairs(int rows, int panels, const product_part *of) {
    const char *inputs = of->inputs;
    const float *next = of->next;
    int32_t *sums = of->sums;
    /* Of two rows: for each vector of four columns, the sums of the first two and of the last two. */
    int32x4_t sum[(ROWS + 1) / 2 * 4];
    const int pairs = (rows + 1) / 2, n_sums = 4 * panels; /* without a second row, the last one is used twice */
    _Pragma("GCC unroll 16") for (int i = 0; i < pairs * n_sums; i++) sum[i] = vdupq_n_s32(0);
    for (int64_t k = 0; k < of->n; k += 2) { /* groups are padded to a multiple of 16 */
        int32x4_t weight[4 * 2];
        __builtin_prefetch(next), __builtin_prefetch(next + of->next_step), next += 2 * of->next_step;
        _Pragma("GCC unroll 4") for (int v = 0; v < 2 * panels; v++) {
            const float *from = of->weights + (v / 2) * of->panel_stride + k * PANEL + (v % 2) * LANES;
            const int32x4_t first = (int32x4_t)load(from), second = (int32x4_t)load(from + PANEL);
            weight[2 * v] = vzip1q_s32(first, second), weight[2 * v + 1] = vzip2q_s32(first, second);
        }
        _Pragma("GCC unroll 4") for (int pair = 0; pair < pairs; pair++) {
            const int second = 2 * pair + 1 < rows ? 2 * pair + 1 : 2 * pair;
            const int8_t *upper = (const int8_t *)inputs + 2 * pair * of->input_stride + 4 * k;
            const int8_t *lower = (const int8_t *)inputs + second * of->input_stride + 4 * k;
            const int8x16_t both = vcombine_s8(vld1_s8(upper), vld1_s8(lower));
            _Pragma("GCC unroll 8") for (int i = 0; i < n_sums; i++)
                sum[pair * n_sums + i] = vmmlaq_s32(sum[pair * n_sums + i], both, (int8x16_t)weight[i]);
        }
    }
    _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)
        _Pragma("GCC unroll 4") for (int v = 0; v < 2 * panels; v++) {
            const int32x4_t first = sum[r / 2 * n_sums + 2 * v], second = sum[r / 2 * n_sums + 2 * v + 1];
            int32_t *to = sums + r * of->sum_stride + v * LANES;
            const int32x4_t row = r % 2 ? vcombine_s32(vget_high_s32(first), vget_high_s32(second))
                                        : vcombine_s32(vget_low_s32(first), vget_low_s32(second));
            vst1q_s32(to, vaddq_s32(vld1q_s32(to), row));
        }
}
#endif

/* Like `microkernel`, for rounded rows: exact sums of integers, or sums of bf16 numbers in float32. `ahead`: lanes from a
   weight to the one prefetched with it, for a single row; 0 for none. */
INLINE void microkernel_rounded(int precision, int ahead, int rows, int panels, const product_part *of) {
    const int as_shorts = multiplies_shorts(precision);
#if HAS_ROW_PAIRS
    if (rows > 1) {
        microkernel_row_pairs(rows, panels, of);
        return;
    }
#endif
    const char *inputs = of->inputs;
    const float *next = of->next;
    float *sums = of->sums;
    /* Two arrays, only one of which is used: a cast in the innermost loop makes the compiler copy every sum. */
    ivec sum[ROWS * 2];
    vec float_sum[ROWS * 2];
    _Pragma("GCC unroll 8") for (int v = 0; v < 2 * panels; v++) {
        const float *header = of->weights - panel_header(precision) + (v / 2) * of->panel_stride + (v % 2) * LANES;
        ivec first = {0};
        if (scales_at_once(precision)) first = -input_offset(as_shorts) * (ivec)load(header + PANEL);
        _Pragma("GCC unroll 12") for (int r = 0; r < rows; r++)
            sum[r * 2 * panels + v] = first, float_sum[r * 2 * panels + v] = (vec){0};
    }
    for (int64_t k = 0; k < of->n; k++) {
        ivec weight[2 * GATES];
        if (rows > 1) __builtin_prefetch(next), next += of->next_step;
        _Pragma("GCC unroll 2") for (int term = 0; term < dot_terms(as_shorts); term++) {
            _Pragma("GCC unroll 8") for (int v = 0; v < 2 * panels; v++) {
                const float *from = of->weights + (v / 2) * of->panel_stride + k * PANEL + (v % 2) * LANES;
                /* Once for every line of the cache, which is two vectors of AVX2. */
                if (ahead && !term && v * LANES % LINE == 0) __builtin_prefetch(from + ahead);
                weight[v] = dot_weights(as_shorts, (ivec)load(from), term);
            }
            _Pragma("GCC unroll 12") for (int r = 0; r < rows; r++) {
                int32_t lane;
                memcpy(&lane, inputs + r * of->input_stride + group_bytes(as_shorts) * k + 4 * term, 4);
                _Pragma("GCC unroll 8") for (int v = 0; v < 2 * panels; v++) {
                    const int at = r * 2 * panels + v;
                    if (precision == BFLOAT16)
                        float_sum[at] = dot_bfloat16(float_sum[at], lane - (ivec){0}, weight[v]);
                    else
                        sum[at] = dot(as_shorts, sum[at], lane - (ivec){0}, weight[v]);
                }
            }
        }
    }
    _Pragma("GCC unroll 12") for (int r = 0; r < rows; r++)
        _Pragma("GCC unroll 8") for (int v = 0; v < 2 * panels; v++) {
            float *to = sums + r * of->sum_stride + v * LANES;
            const int at = r * 2 * panels + v;
            if (precision == BFLOAT16) {
                store(to, load(to) + float_sum[at]);
            } else if (scales_at_once(precision)) {
                const float *header = of->weights - panel_header(precision) + (v / 2) * of->panel_stride + (v % 2) * LANES;
                const float row_scale = *(const float *)(inputs + r * of->input_stride - ROW_HEADER);
                const vec before = load(of->start + r * of->start_stride + v * LANES);
                store(to, before + __builtin_convertvector(sum[at], vec) * (row_scale * load(header)));
            } else {
                store(to, (vec)((ivec)load(to) + (sum[at] >> dot_shift(as_shorts))));
            }
        }
}

/* Run the microkernel for a number of rows. `is_cached`: the weights of a single row are already in the cache. */
INLINE void run_microkernel_rounded(int precision, int is_cached, int64_t rows, int panels, const product_part *of) {
    switch (rows) {
        case 1:
            if (panels == GATES && is_cached)
                microkernel_rounded(precision, 0, 1, GATES, of);
            else if (panels == GATES)
                microkernel_rounded(precision, AHEAD, 1, GATES, of);
            else if (panels == 2)
                microkernel_rounded(precision, AHEAD, 1, 2, of);
            else
                microkernel_rounded(precision, AHEAD, 1, 1, of);
            break;
        case 2:
            if (panels == 2)
                microkernel_rounded(precision, 0, 2, 2, of);
            else
                microkernel_rounded(precision, 0, 2, 1, of);
            break;
        case 3: microkernel_rounded(precision, 0, 3, 1, of); break;
        case 4: microkernel_rounded(precision, 0, 4, 1, of); break;
#if ROWS >= 6
        case 5: microkernel_rounded(precision, 0, 5, 1, of); break;
        case 6: microkernel_rounded(precision, 0, 6, 1, of); break;
#endif
#if ROWS >= 8
        case 7: microkernel_rounded(precision, 0, 7, 1, of); break;
        case 8: microkernel_rounded(precision, 0, 8, 1, of); break;
#endif
#if ROWS >= 12
        case 9: microkernel_rounded(precision, 0, 9, 1, of); break;
        case 10: microkernel_rounded(precision, 0, 10, 1, of); break;
        case 11: microkernel_rounded(precision, 0, 11, 1, of); break;
        case 12: microkernel_rounded(precision, 0, 12, 1, of); break;
#endif
    }
}

/* The same for any number of rows, and for 1 to GATES panels: sums of floats, or of integers if they wait for their scales. */
INLINE void multiply_rounded(int precision, int64_t n_rows, int n_panels, const char *inputs, int64_t input_stride,
                             const float *weights, int64_t n_inputs, target to, const float *after) {
    const int as_shorts = multiplies_shorts(precision);
    const int64_t panel_stride = panel_lanes(precision, n_inputs), n_passes = (n_rows + ROWS - 1) / ROWS;
    const int64_t n_all = n_groups(precision, n_inputs), step = (PANEL + n_passes - 1) / n_passes;
    const int at_once = panels_at_once(n_rows, n_panels);
    for (int panel = 0; panel < n_panels; panel += at_once) {
        for (int64_t first = 0; first < n_all; first += dot_groups(as_shorts)) {
            const int64_t n = at_most(n_all - first, dot_groups(as_shorts));
            const float *chunk = weights + panel_header(precision) + panel * panel_stride + first * PANEL;
            const int is_last = panel + at_once >= n_panels && first + n >= n_all;
            const float *next = is_last ? after : chunk + n * PANEL;
            for (int64_t pass = 0; pass < n_passes; pass++) {
                const int64_t row = n_rows * pass / n_passes, rows = n_rows * (pass + 1) / n_passes - row;
                float *sums = to.sums + row * to.stride + panel * PANEL;
                const product_part part = {
                    .inputs = inputs + row * input_stride + group_bytes(as_shorts) * first,
                    .input_stride = input_stride,
                    .weights = chunk,
                    .panel_stride = panel_stride,
                    .n = n,
                    .sums = sums,
                    .sum_stride = to.stride,
                    .start = to.start ? to.start + panel * PANEL : sums,
                    .start_stride = to.start ? 0 : to.stride,
                    .next = next + pass * n * step,
                    .next_step = step,
                };
                run_microkernel_rounded(precision, !after, rows, at_once, &part);
            }
        }
    }
}
#endif

#if HAS_TILES
/* Like `microkernel`, for one or two rows of bf16, with the same bits as `multiply_tiles`: a tile's product sums the first
   and second inputs of 16 pairs separately, then adds both. `n` is a multiple of 16. The product of two bf16 numbers is
   exact, so multiplication and addition may be one instruction or two. */
INLINE void microkernel_pairs(int rows, int panels, const product_part *of) {
    const char *inputs = of->inputs;
    float *sums = of->sums;
    for (int64_t block = 0; block < of->n / 16; block++) {
        vec sum[2][2 * GATES];
        _Pragma("GCC unroll 16") for (int i = 0; i < rows * 2 * panels; i++) sum[0][i] = sum[1][i] = (vec){0};
        for (int64_t k = 16 * block; k < 16 * (block + 1); k++) {
            vec input[2][2];
            _Pragma("GCC unroll 2") for (int r = 0; r < rows; r++) {
                int32_t pair;
                memcpy(&pair, inputs + r * of->input_stride + 4 * k, 4);
                for (int i = 0; i < 2; i++) input[r][i] = widen(BFLOAT16, (vec)(pair - (ivec){0}), i);
            }
            _Pragma("GCC unroll 8") for (int v = 0; v < 2 * panels; v++) {
                const float *from = of->weights + (v / 2) * of->panel_stride + k * PANEL + (v % 2) * LANES;
                __builtin_prefetch(from + AHEAD);
                const vec lanes = load(from);
                _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++) {
                    const vec weight = widen(BFLOAT16, lanes, i);
                    _Pragma("GCC unroll 2") for (int r = 0; r < rows; r++)
                        sum[i][r * 2 * panels + v] += input[r][i] * weight;
                }
            }
        }
        _Pragma("GCC unroll 2") for (int r = 0; r < rows; r++)
            _Pragma("GCC unroll 8") for (int v = 0; v < 2 * panels; v++) {
                float *to = sums + r * of->sum_stride + v * LANES;
                store(to, load(to) + (sum[0][r * 2 * panels + v] + sum[1][r * 2 * panels + v]));
            }
    }
}

static inline void multiply_pairs(int64_t n_rows, int n_panels, const char *inputs, int64_t input_stride,
                                  const float *weights, int64_t n_inputs, float *sums, int64_t sum_stride) {
    product_part part = {.inputs = inputs, .input_stride = input_stride, .sum_stride = sum_stride};
    part.panel_stride = panel_lanes(BFLOAT16, n_inputs), part.n = n_groups(BFLOAT16, n_inputs);
    const int at_once = panels_at_once(n_rows, n_panels);
    const unsigned mode = FLUSH_DENORMALS();
    for (int panel = 0; panel < n_panels; panel += at_once) {
        part.weights = weights + panel * part.panel_stride, part.sums = sums + panel * PANEL;
        if (n_rows == 1 && at_once == GATES)
            microkernel_pairs(1, GATES, &part);
        else if (n_rows == 1 && at_once == 2)
            microkernel_pairs(1, 2, &part);
        else if (n_rows == 1)
            microkernel_pairs(1, 1, &part);
        else if (at_once == 2)
            microkernel_pairs(2, 2, &part);
        else
            microkernel_pairs(2, 1, &part);
    }
    RESTORE_MODE(mode);
}

/* Configure the tiles for one or two tiles of rows. */
static void configure_tiles(int first_rows, int second_rows) {
    tile_config config = {.palette = 1};
    const int rows[8] = {first_rows, first_rows, second_rows, second_rows, first_rows, second_rows, 16, 16};
    for (int i = 0; i < 8; i++)
        /* A tile of 0 rows may not be used, but it must have a valid shape. */
        if (rows[i]) config.rows[i] = (uint8_t)rows[i], config.row_bytes[i] = TILE_BYTES;
    TILE_CONFIGURE(&config);
}

/* Every function that used tiles calls this before it returns. Otherwise, the system would save 8 kB of tiles at each switch
   between threads. */
static inline void release_tiles(void) { TILE_RELEASE(); }

/* sums[rows][n_panels * PANEL] += inputs x panels with tiles, for rounded rows. Sums are int32 or float. Two tiles of rows
   and two of columns are computed at once, so each tile of inputs and of weights is loaded for two products. */
INLINE void multiply_tiles(int precision, int64_t n_rows, int n_panels, const char *inputs, int64_t input_stride,
                           const float *weights, int64_t n_inputs, void *sums, int64_t sum_stride, const float *after) {
    const int64_t panel_stride = panel_lanes(precision, n_inputs), n_blocks = n_groups(precision, n_inputs) / 16;
    const int64_t n_passes = (n_rows + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS);
    const int64_t line_step = (16 + n_passes - 1) / n_passes, stride = 4 * sum_stride;
    int configured = -1;
    for (int panel = 0; panel < n_panels; panel++) {
        const char *panel_weights = (const char *)(weights + panel_header(precision) + panel * panel_stride);
        const char *next = (const char *)(panel + 1 < n_panels ? weights + (panel + 1) * panel_stride : after);
        for (int64_t pass = 0; pass < n_passes; pass++) {
            const int64_t row = pass * 2 * TILE_ROWS, rows = at_most(n_rows - row, 2 * TILE_ROWS);
            const int first_rows = (int)at_most(rows, TILE_ROWS), second_rows = (int)rows - first_rows;
            if (configured != rows) configure_tiles(first_rows, second_rows), configured = (int)rows;
            const char *x = inputs + row * input_stride, *y = x + TILE_ROWS * input_stride, *w = panel_weights;
            float *left = (float *)sums + row * sum_stride + panel * PANEL, *right = left + 16;
            float *lower_left = left + TILE_ROWS * sum_stride, *lower_right = right + TILE_ROWS * sum_stride;
            TILE_LOAD(0, left, stride);
            TILE_LOAD(1, right, stride);
            if (second_rows) {
                TILE_LOAD(2, lower_left, stride);
                TILE_LOAD(3, lower_right, stride);
            }
            const char *ahead = next + pass * n_blocks * line_step * 2 * 64;
            for (int64_t block = 0; block < n_blocks; block++, x += TILE_BYTES, y += TILE_BYTES, w += 16 * 4 * PANEL) {
                TILE_LOAD(4, x, input_stride);
                TILE_LOAD(6, w, 4 * PANEL);
                TILE_LOAD(7, w + TILE_BYTES, 4 * PANEL);
                for (int64_t line = 0; line < line_step; line++, ahead += 2 * 64)
                    __builtin_prefetch(ahead), __builtin_prefetch(ahead + 64);
                if (is_bytes(precision)) {
                    TILE_DOT_BYTES(0, 4, 6);
                    TILE_DOT_BYTES(1, 4, 7);
                } else {
                    TILE_DOT_BFLOAT16(0, 4, 6);
                    TILE_DOT_BFLOAT16(1, 4, 7);
                }
                if (!second_rows) continue;
                TILE_LOAD(5, y, input_stride);
                if (is_bytes(precision)) {
                    TILE_DOT_BYTES(2, 5, 6);
                    TILE_DOT_BYTES(3, 5, 7);
                } else {
                    TILE_DOT_BFLOAT16(2, 5, 6);
                    TILE_DOT_BFLOAT16(3, 5, 7);
                }
            }
            TILE_STORE(0, left, stride);
            TILE_STORE(1, right, stride);
            if (second_rows) {
                TILE_STORE(2, lower_left, stride);
                TILE_STORE(3, lower_right, stride);
            }
        }
    }
}
#else
static inline void release_tiles(void) {}
#endif

#endif
