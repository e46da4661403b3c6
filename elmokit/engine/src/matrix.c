/* Packing a matrix for the products of each precision. */

#if defined(__linux__)
#define _GNU_SOURCE
#include <sys/mman.h>
#endif
#include <stdlib.h>

#include "matrix.h"
#include "rounded_rows.h"

#if defined(_WIN32)
#include <malloc.h>
#endif

enum { ALIGNMENT = 64, PAGE = 4096 };

void ask_for_large_pages(void *memory, int64_t n_bytes) {
#if defined(MADV_HUGEPAGE)
    /* Weights are read from end to end at every step; with pages of 4 kB, much of that time is address translation. Only
       whole pages inside the block are changed, because its neighbors in memory belong to others. A refused request has no
       effect. */
    const uintptr_t first = ((uintptr_t)memory + PAGE - 1) / PAGE * PAGE;
    const uintptr_t last = ((uintptr_t)memory + (size_t)n_bytes) / PAGE * PAGE;
    if (last > first) madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)memory, (void)n_bytes;
#endif
}

void *take_memory(int64_t n_bytes) {
    const size_t size = ((size_t)n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + ALIGNMENT;
#if defined(_WIN32)
    return _aligned_malloc(size, ALIGNMENT);
#else
    void *memory = aligned_alloc(ALIGNMENT, size);
    if (memory) ask_for_large_pages(memory, (int64_t)size);
    return memory;
#endif
}

void give_memory(void *memory) {
#if defined(_WIN32)
    _aligned_free(memory);
#else
    free(memory);
#endif
}

static const char *const NAMES[] = {
    [FLOAT32] = "float32",
    [BFLOAT16] = "bfloat16",
    [INT8] = "int8",
    [INT7] = "int7",
};

int precision_number(const char *name) {
    const int n = sizeof NAMES / sizeof *NAMES;
    for (int precision = 0; precision < n; precision++)
        if (!strcmp(name, NAMES[precision])) return precision;
    return -1;
}

/* Round to the nearest bf16 number, ties to even; weights are finite. */
static uint32_t to_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* The number that is scaled to 127: the largest of a row or, for INT7, the sum of two that are multiplied together if it is
   larger. After rounding, such a sum is at most 128. So weights have at least 7 bits, and more if large ones are not next to
   each other. */
static float largest_of(int precision, const float *row, int64_t n) {
    float largest = 1e-30f; /* not 0, which would divide 0 by 0 */
    for (int64_t k = 0; k < n; k++) {
        largest = fabsf(row[k]) > largest ? fabsf(row[k]) : largest;
        const float pair = precision == INT7 && k % 2 ? fabsf(row[k - 1] + row[k]) : 0;
        largest = pair > largest ? pair : largest;
    }
    return largest;
}

/* Round a row to integer multiples of a scale, and return the sum of the multiples. */
static int32_t round_row(int precision, const float *row, int64_t n, float *scale, int8_t *rounded) {
    *scale = largest_of(precision, row, n) / 127.0f;
    int32_t sum = 0;
    for (int64_t k = 0; k < n; k++) {
        const int32_t multiple = (int32_t)rintf(row[k] / *scale);
        rounded[k] = (int8_t)multiple;
        sum += multiple;
    }
    return sum;
}

/* Write half of a panel of floats, LANES columns, in squares: if it were written number by number, each write would be in a
   different cache line. NULL columns are zeros. `ahead`: distance of the numbers that are packed later, to prefetch them. */
static void pack_floats(const float *const *columns, int64_t n, int64_t ahead, float *panel) {
    for (int64_t k = 0; k < n; k += LANES) {
        const int64_t n_here = at_most(n - k, LANES);
        ivec square[LANES];
#pragma GCC unroll 16
        for (int column = 0; column < LANES; column++) {
            square[column] = columns[column] ? (ivec)load_some(columns[column] + k, n_here) : (ivec){0};
            __builtin_prefetch(columns[column] + k + ahead, 0, 2);
        }
        transpose(square);
#pragma GCC unroll 16
        for (int row = 0; row < LANES; row++)
            if (row < n_here) store(panel + (k + row) * PANEL, (vec)square[row]);
    }
}

void pack_float_panel(const float *const *columns, int64_t n_given, int64_t n_inputs, int64_t ahead, float *panel) {
    pack_floats(columns, n_given, ahead, panel);
    pack_floats(columns + LANES, n_given, ahead, panel + LANES);
    memset(panel + n_given * PANEL, 0, (n_inputs - n_given) * PANEL * sizeof(float));
}

/* Pack a panel: PANEL columns, each of which is a row of the weights. A byte is a multiple of its column's scale. `rounded`:
   memory for a row of bytes, in whole lanes. */
static void pack_panel(int precision, const float *const *rows, int64_t n_given, int64_t n_inputs, int8_t *rounded,
                       float *panel) {
    float *lanes = panel + panel_header(precision);
    if (precision == FLOAT32) {
        pack_float_panel(rows, n_given, n_inputs, 0, panel);
        return;
    }
    memset(panel, 0, panel_lanes(precision, n_inputs) * sizeof(float));
    for (int column = 0; column < PANEL; column++) {
        const float *row = rows[column];
        if (is_bytes(precision)) {
            panel[column] = 1e-30f / 127.0f;
            if (!row) continue;
            const int32_t sum = round_row(precision, row, n_given, panel + column, rounded);
            memcpy(panel + PANEL + column, &sum, sizeof sum);
            for (int64_t k = n_given; k % 4; k++) rounded[k] = 0;
            /* Four consecutive bytes are a lane. */
            for (int64_t k = 0; k < n_given; k += 4) memcpy(lanes + k / 4 * PANEL + column, rounded + k, 4);
            continue;
        }
        for (int64_t k = 0; row && k < n_given; k++) {
            float *lane = lanes + k / 2 * PANEL + column;
            uint32_t bits;
            memcpy(&bits, lane, sizeof bits);
            bits |= to_bfloat16(row[k]) << 16 * (k % 2);
            memcpy(lane, &bits, sizeof bits);
        }
    }
}

int pack_matrix(int precision, int64_t n_outputs, int64_t n_inputs, const float *const *rows, int64_t n_given,
                matrix *packed) {
    const int64_t n_panels = (n_outputs + PANEL - 1) / PANEL, lanes = panel_lanes(precision, n_inputs);
    *packed = (matrix){precision, n_inputs, n_outputs, take_memory(n_panels * lanes * sizeof(float)), NULL};
    int8_t *rounded = take_memory(n_given + 4);
    const int is_packed = packed->panels && rounded;
    for (int64_t panel = 0; is_packed && panel < n_panels; panel++) {
        const float *of_panel[PANEL] = {0};
        for (int64_t column = 0; column < PANEL && panel * PANEL + column < n_outputs; column++)
            of_panel[column] = rows[panel * PANEL + column];
        pack_panel(precision, of_panel, n_given, n_inputs, rounded, packed->panels + panel * lanes);
    }
    give_memory(rounded);
    return is_packed;
}

int pack_bias(const float *bias, int64_t n, matrix *packed) {
    const int64_t n_padded = (n + PANEL - 1) / PANEL * PANEL;
    packed->bias = take_memory(n_padded * sizeof(float));
    if (!packed->bias) return 0;
    memset(packed->bias, 0, n_padded * sizeof(float));
    memcpy(packed->bias, bias, n * sizeof(float));
    return 1;
}

int widen_matrix(const matrix *packed, matrix *widened) {
    const int64_t n_panels = (packed->n_outputs + PANEL - 1) / PANEL, n = packed->n_inputs;
    *widened = (matrix){FLOAT32, n, packed->n_outputs, take_memory(n_panels * n * PANEL * sizeof(float)), NULL};
    for (int64_t panel = 0; widened->panels && panel < n_panels; panel++)
        for (int64_t k = 0; k < n; k++)
            for (int v = 0; v < 2; v++)
                store(widened->panels + (panel * n + k) * PANEL + v * LANES,
                      widen(BFLOAT16, load(packed->panels + panel * panel_lanes(BFLOAT16, n) + k / 2 * PANEL + v * LANES),
                            (int)(k % 2)));
    return widened->panels != NULL;
}

int64_t matrix_bytes(const matrix *packed) {
    if (!packed->panels) return 0;
    const int64_t n_panels = (packed->n_outputs + PANEL - 1) / PANEL;
    return 4 * n_panels * (panel_lanes(packed->precision, packed->n_inputs) + (packed->bias ? PANEL : 0));
}

void free_matrix(matrix *packed) {
    give_memory(packed->panels);
    give_memory(packed->bias);
    *packed = (matrix){0};
}

static inputs rows_from(inputs from, int64_t row) {
    from.rows = (const char *)from.rows + row * from.row_bytes;
    return from;
}

inputs round_part(const member *me, int precision, int64_t n_rows, const float *rows, int64_t n_inputs, char *rounded) {
    if (!rounds_inputs(precision)) return (inputs){rows, 4 * n_inputs};
    const int64_t row_bytes = rounded_row_bytes(precision, n_inputs), first = first_of(me, n_rows);
    round_rows(precision, last_of(me, n_rows) - first, rows + first * n_inputs, n_inputs, rounded + first * row_bytes);
    return (inputs){rounded, row_bytes};
}

static void multiply_bfloat16(int64_t n_rows, int n_panels, inputs from, const float *weights, int64_t n_inputs,
                              float *sums, int64_t sum_stride, const float *after) {
#if HAS_TILES
    const char *numbers = (const char *)from.rows + ROW_HEADER;
    if (n_rows > 2)
        multiply_tiles(BFLOAT16, n_rows, n_panels, numbers, from.row_bytes, weights, n_inputs, sums, sum_stride, after);
    else
        multiply_pairs(n_rows, n_panels, numbers, from.row_bytes, weights, n_inputs, sums, sum_stride);
#elif HAS_BFLOAT16
    const char *numbers = (const char *)from.rows + ROW_HEADER;
    const target to = {sums, sum_stride, NULL};
    multiply_rounded(BFLOAT16, n_rows, n_panels, numbers, from.row_bytes, weights, n_inputs, to, after);
#else
    multiply_floats(BFLOAT16, n_rows, n_panels, from.rows, from.row_bytes / 4, weights, n_inputs, sums, sum_stride, after);
#endif
}

/* The products of integers, or of inputs with integers, for as many panels as are computed at once. They wait in `raw` for
   their scales. */
INLINE void multiply_bytes_part(int precision, int64_t n, int n_panels, inputs from, const float *weights,
                                int64_t n_inputs, float *sums, int64_t sum_stride, const float *after) {
    float raw[RAW_ROWS * PANEL] __attribute__((aligned(64)));
    const int64_t panel_stride = panel_lanes(precision, n_inputs), stride = n_panels * PANEL;
    for (int v = 0; v < 2 * n_panels; v++) {
        const ivec weight_sum = (ivec)load(weights + v / 2 * panel_stride + PANEL + v % 2 * LANES);
        const int offset = input_offset(multiplies_shorts(precision));
        const vec start = rounds_inputs(precision) ? (vec)(-offset * weight_sum) : (vec){0};
        for (int64_t r = 0; r < n; r++) store(raw + r * stride + v * LANES, start);
    }
#if HAS_DOT
    const char *numbers = (const char *)from.rows + ROW_HEADER;
#if HAS_TILES
    if (n > 2) /* few rows leave tiles nearly empty; the sums of integers are the same either way */
        multiply_tiles(precision, n, n_panels, numbers, from.row_bytes, weights, n_inputs, raw, stride, after);
    else
#endif
        multiply_rounded(precision, n, n_panels, numbers, from.row_bytes, weights, n_inputs, (target){raw, stride, NULL},
                         after);
#else
    multiply_floats(precision, n, n_panels, from.rows, from.row_bytes / 4, weights, n_inputs, raw, stride, after);
#endif
    for (int64_t r = 0; r < n; r++) {
        const float row_scale = rounds_inputs(precision) ? *(const float *)rows_from(from, r).rows : 1.0f / RAISED;
        for (int v = 0; v < 2 * n_panels; v++) {
            const vec raw_sum = load(raw + r * stride + v * LANES);
            const vec sum = rounds_inputs(precision) ? __builtin_convertvector((ivec)raw_sum, vec) : raw_sum;
            const vec column_scale = load(weights + v / 2 * panel_stride + v % 2 * LANES);
            float *to = sums + r * sum_stride + v * LANES;
            store(to, load(to) + sum * (row_scale * column_scale));
        }
    }
}

INLINE void multiply_in_bytes(int precision, int64_t n_rows, int n_panels, inputs from, const float *weights,
                              int64_t n_inputs, target to, const float *after) {
    const int64_t panel_stride = panel_lanes(precision, n_inputs);
#if HAS_DOT
    if (scales_at_once(precision)) {
        const char *numbers = (const char *)from.rows + ROW_HEADER;
        multiply_rounded(precision, n_rows, n_panels, numbers, from.row_bytes, weights, n_inputs, to, after);
        return;
    }
#endif
    for (int64_t row = 0; row < n_rows; row += RAW_ROWS) {
        const int64_t n = at_most(n_rows - row, RAW_ROWS);
        const int at_once = panels_at_once(n, n_panels);
        for (int panel = 0; panel < n_panels; panel += at_once) {
            const float *part = weights + panel * panel_stride, *next = part + at_once * panel_stride;
            multiply_bytes_part(precision, n, at_once, rows_from(from, row), part, n_inputs,
                                to.sums + row * to.stride + panel * PANEL, to.stride,
                                panel + at_once < n_panels ? next : after);
        }
    }
}

/* One function per kind of product, so that every microkernel is compiled once. */
static void multiply_float32(int64_t n_rows, int n_panels, inputs from, const float *weights, int64_t n_inputs,
                             float *sums, int64_t sum_stride, const float *after) {
    multiply_floats(FLOAT32, n_rows, n_panels, from.rows, from.row_bytes / 4, weights, n_inputs, sums, sum_stride, after);
}

static void multiply_int8(int64_t n_rows, int n_panels, inputs from, const float *weights, int64_t n_inputs, target to,
                          const float *after) {
    multiply_in_bytes(INT8, n_rows, n_panels, from, weights, n_inputs, to, after);
}

#if DOT_OF_BYTE_PAIRS
static void multiply_int7(int64_t n_rows, int n_panels, inputs from, const float *weights, int64_t n_inputs, target to,
                          const float *after) {
    multiply_in_bytes(INT7, n_rows, n_panels, from, weights, n_inputs, to, after);
}
#endif

/* Multiply one row by the weights of all gates, which are already in the cache. It is a separate function, called before all
   others: among the microkernels for more rows, the compiler keeps its addresses on the stack, which takes a twelfth of the
   time of an LSTM layer with one row. */
static __attribute__((noinline)) void add_row_of_bytes(inputs from, const float *weights, int64_t n_inputs, target to) {
#if HAS_DOT
    const int precision = DOT_OF_BYTE_PAIRS ? INT7 : INT8; /* the only one whose sums are scaled at once */
    const product_part part = {
        .inputs = (const char *)from.rows + ROW_HEADER,
        .weights = weights + panel_header(precision),
        .panel_stride = panel_lanes(precision, n_inputs),
        .n = n_groups(precision, n_inputs),
        .sums = to.sums,
        .start = to.start ? to.start : to.sums,
    };
    microkernel_rounded(precision, 0, 1, GATES, &part);
#else
    (void)from, (void)weights, (void)n_inputs, (void)to;
#endif
}

void add_product(int precision, int64_t n_rows, int n_panels, inputs from, const float *weights, int64_t n_inputs, target to,
                 const float *after) {
    if (n_rows == 1 && n_panels == GATES && !after && scales_at_once(precision)) {
        add_row_of_bytes(from, weights, n_inputs, to);
        return;
    }
    /* Microkernels that scale complete sums of integers start from `start`; the others find it in the sums. */
    if (to.start && !scales_at_once(precision))
        for (int64_t r = 0; r < n_rows; r++)
            for (int v = 0; v < 2 * n_panels; v++) store(to.sums + r * to.stride + v * LANES, load(to.start + v * LANES));
    if (precision == FLOAT32)
        multiply_float32(n_rows, n_panels, from, weights, n_inputs, to.sums, to.stride, after);
    else if (precision == BFLOAT16)
        multiply_bfloat16(n_rows, n_panels, from, weights, n_inputs, to.sums, to.stride, after);
#if DOT_OF_BYTE_PAIRS
    else if (!multiplies_shorts(precision))
        multiply_int7(n_rows, n_panels, from, weights, n_inputs, to, after);
#endif
    else
        multiply_int8(n_rows, n_panels, from, weights, n_inputs, to, after);
}

void multiply_part(const member *me, const matrix *by, int64_t n_rows, inputs from, float *outputs,
                   int64_t output_stride, float bound) {
    enum { ROW_BLOCK = 16 * ROWS }; /* the sums of a block of rows fit into the L2 cache */
    static const float zeros[GATES * PANEL] = {0};
    float sums[ROW_BLOCK * GATES * PANEL] __attribute__((aligned(64)));
    /* One path for all callers: an infinite bound does not clip anything. */
    const vec bounds = all(bound);
    const int64_t n_panels = (by->n_outputs + PANEL - 1) / PANEL, panel_stride = panel_lanes(by->precision, by->n_inputs);
    const int64_t last = last_of(me, n_panels);
    for (int64_t panel = first_of(me, n_panels); panel < last; panel += GATES) {
        const int n_here = (int)at_most(last - panel, GATES);
        const int64_t column = panel * PANEL, n_columns = at_most(by->n_outputs - column, n_here * PANEL);
        for (int64_t row = 0; row < n_rows; row += ROW_BLOCK) {
            const int64_t n = at_most(n_rows - row, ROW_BLOCK);
            const target with_bias = {sums, GATES * PANEL, by->bias ? by->bias + column : zeros};
            const float *weights = by->panels + panel * panel_stride;
            add_product(by->precision, n, n_here, rows_from(from, row), weights, by->n_inputs, with_bias,
                        weights + n_here * panel_stride);
            for (int64_t r = 0; r < n; r++) {
                float *sum = sums + r * GATES * PANEL, *to = outputs + (row + r) * output_stride + column;
                for (int v = 0; v < 2 * n_here; v++) store(sum + v * LANES, clip(load(sum + v * LANES), bounds));
                /* Padding columns are not copied: `outputs` has n_outputs columns, not whole panels. */
                memcpy(to, sum, n_columns * sizeof(float));
            }
        }
    }
}

void multiply_rows(const member *me, const matrix *by, int64_t n_rows, const float *rows, float *outputs,
                   int64_t output_stride, char *rounded) {
    const inputs from = round_part(me, by->precision, n_rows, rows, by->n_inputs, rounded);
    if (rounds_inputs(by->precision)) meet(me);
    multiply_part(me, by, n_rows, from, outputs, output_stride, INFINITY);
    release_tiles();
    meet(me);
}
