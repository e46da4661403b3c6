/* LSTM inference: a matrix product with packed weights, the elementwise part of a step, and a whole layer. The weights
   are in one of three precisions; sums, cells and outputs are float32 in all of them.

   `native.py` documents every argument; `lstm_inference.py` has the same loop in PyTorch operations. */

#include <sys/mman.h>
#if defined(AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "packed_product.h"
#include "rounded_rows.h"

/* The inputs of a product: floats, or rounded rows where the precision rounds them. */
typedef struct {
    const void *rows;
    long row_bytes;
} matrix;

INLINE matrix rows_from(matrix inputs, long row) {
    inputs.rows = (const char *)inputs.rows + row * inputs.row_bytes;
    return inputs;
}

static void multiply_bfloat16(long n_rows, int n_panels, matrix inputs, const float *weights, long n_inputs, float *sums,
                              long sum_stride, const float *after) {
#if HAS_TILES
    const char *numbers = (const char *)inputs.rows + ROW_HEADER;
    if (n_rows > 2)
        multiply_tiles(BFLOAT16, n_rows, n_panels, numbers, inputs.row_bytes, weights, n_inputs, sums, sum_stride, after);
    else
        multiply_pairs(n_rows, n_panels, numbers, inputs.row_bytes, weights, n_inputs, sums, sum_stride);
#else
    multiply_floats(BFLOAT16, n_rows, n_panels, inputs.rows, inputs.row_bytes / 4, weights, n_inputs, sums, sum_stride,
                    after);
#endif
}

/* The products of integers, or of the inputs with integers, of as many panels as are computed at once. They wait in `raw`
   for their scales. */
static void multiply_int8_part(long n, int n_panels, matrix inputs, const float *weights, long n_inputs, float *sums,
                               long sum_stride, const float *after) {
    float raw[RAW_ROWS * WIDE] __attribute__((aligned(64)));
    const long panel_stride = panel_lanes(INT8, n_inputs), stride = n_panels * WIDE;
    for (int v = 0; v < 2 * n_panels; v++) {
        const ivec weight_sum = (ivec)load(weights + v / 2 * panel_stride + WIDE + v % 2 * LANES);
        const vec start = rounds_inputs(INT8) ? (vec)(-INPUT_OFFSET * weight_sum) : (vec){0};
        for (long r = 0; r < n; r++) store(raw + r * stride + v * LANES, start);
    }
#if HAS_DOT
    const char *numbers = (const char *)inputs.rows + ROW_HEADER;
#if HAS_TILES
    if (n > 2) /* few rows leave tiles nearly empty; the sums of integers are the same either way */
        multiply_tiles(INT8, n, n_panels, numbers, inputs.row_bytes, weights, n_inputs, raw, stride, after);
    else
#endif
        multiply_bytes(n, n_panels, numbers, inputs.row_bytes, weights, n_inputs, (int32_t *)raw, stride, after);
#else
    multiply_floats(INT8, n, n_panels, inputs.rows, inputs.row_bytes / 4, weights, n_inputs, raw, stride, after);
#endif
    for (long r = 0; r < n; r++) {
        const float row_scale = rounds_inputs(INT8) ? *(const float *)rows_from(inputs, r).rows : 1.0f / RAISED;
        for (int v = 0; v < 2 * n_panels; v++) {
            const vec from = load(raw + r * stride + v * LANES);
            const vec sum = rounds_inputs(INT8) ? __builtin_convertvector((ivec)from, vec) : from;
            const vec column_scale = load(weights + v / 2 * panel_stride + v % 2 * LANES);
            float *to = sums + r * sum_stride + v * LANES;
            store(to, load(to) + sum * (row_scale * column_scale));
        }
    }
}

static void multiply_int8(long n_rows, int n_panels, matrix inputs, const float *weights, long n_inputs, float *sums,
                          long sum_stride, const float *after) {
    const long panel_stride = panel_lanes(INT8, n_inputs);
    for (long row = 0; row < n_rows; row += RAW_ROWS) {
        const long n = at_most(n_rows - row, RAW_ROWS);
        const int at_once = panels_at_once(n, n_panels);
        for (int panel = 0; panel < n_panels; panel += at_once) {
            const float *part = weights + panel * panel_stride, *next = part + at_once * panel_stride;
            multiply_int8_part(n, at_once, rows_from(inputs, row), part, n_inputs, sums + row * sum_stride + panel * WIDE,
                               sum_stride, panel + at_once < n_panels ? next : after);
        }
    }
}

/* sums[rows][n_panels * WIDE] += inputs x panels */
static void add_product(int precision, long n_rows, int n_panels, matrix inputs, const float *weights, long n_inputs,
                        float *sums, long sum_stride, const float *after) {
    if (precision == FLOAT32)
        multiply(n_rows, n_panels, inputs.rows, inputs.row_bytes / 4, weights, n_inputs, sums, sum_stride, after);
    else if (precision == BFLOAT16)
        multiply_bfloat16(n_rows, n_panels, inputs, weights, n_inputs, sums, sum_stride, after);
    else
        multiply_int8(n_rows, n_panels, inputs, weights, n_inputs, sums, sum_stride, after);
}

/* outputs[rows][n_outputs] = clip(bias + inputs x panels), for the panels `first` to `last` only: a thread's part. */
static void partial_product(int precision, long first, long last, long n_rows, matrix inputs, long n_inputs,
                            const float *weights, const float *bias, long n_outputs, float *outputs, float bound) {
    enum { ROW_BLOCK = 16 * ROWS }; /* the sums of a block of rows fit into the L2 cache */
    float sums[ROW_BLOCK * GATES * WIDE] __attribute__((aligned(64)));
    /* One path for all callers: an infinite bound clips nothing. */
    const vec wide_bound = all(bound);
    const long panel_stride = panel_lanes(precision, n_inputs);
    for (long panel = first; panel < last; panel += GATES) {
        const int n_panels = (int)at_most(last - panel, GATES);
        const long column = panel * WIDE, n_columns = at_most(n_outputs - column, n_panels * WIDE);
        for (long row = 0; row < n_rows; row += ROW_BLOCK) {
            const long n = at_most(n_rows - row, ROW_BLOCK);
            for (long r = 0; r < n; r++)
                for (int v = 0; v < 2 * n_panels; v++)
                    /* The sums start from the bias: that saves a pass over them. */
                    store(sums + r * GATES * WIDE + v * LANES, bias ? load(bias + column + v * LANES) : (vec){0});
            const float *part = weights + panel * panel_stride;
            add_product(precision, n, n_panels, rows_from(inputs, row), part, n_inputs, sums, GATES * WIDE,
                        part + n_panels * panel_stride);
            for (long r = 0; r < n; r++) {
                float *sum = sums + r * GATES * WIDE, *to = outputs + (row + r) * n_outputs + column;
                for (int v = 0; v < 2 * n_panels; v++) store(sum + v * LANES, clip(load(sum + v * LANES), wide_bound));
                /* Columns of the padding are not copied: `outputs` has n_outputs columns, not whole panels. */
                for (long c = 0; c < n_columns; c++) to[c] = sum[c];
            }
        }
    }
}

int elmokit_wide(void) { return WIDE; }

/* The lanes of a panel, with its header. */
long elmokit_panel_lanes(long precision, long n_inputs) { return panel_lanes((int)precision, n_inputs); }

/* The bytes of a rounded row of inputs; 0 if the products of this precision read floats. */
long elmokit_rounded_row_bytes(long precision, long n_inputs) {
    return rounds_inputs((int)precision) ? rounded_row_bytes((int)precision, n_inputs) : 0;
}

/* Whether this process may use the instructions of this library. Linux hands out AMX's 8 kB of tiles per thread only to
   processes that ask, and may refuse: in a container that filters system calls, or with a small signal stack. */
int elmokit_is_permitted(void) {
#if defined(AMX)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return 1;
#endif
}

/* Ask the system for 2 MB pages for a block of weights, before it is written. Weights are read from end to end at every
   step; with 4 kB pages much of that time goes into address translation. A refused request changes nothing. */
void elmokit_large_pages(void *start, size_t n_bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 4096, first = ((uintptr_t)start + page - 1) / page * page;
    const uintptr_t last = ((uintptr_t)start + n_bytes) / page * page;
    /* Only whole pages inside the block: its neighbours in memory belong to others. */
    if (last > first) madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)start, (void)n_bytes;
#endif
}

/* A thread's part of some rows, rounded for a product if its precision rounds. The caller puts a barrier behind it. */
static matrix rounded_part(int precision, long thread, long n_threads, long n_rows, const float *rows, long n_inputs,
                           char *rounded) {
    if (!rounds_inputs(precision)) return (matrix){rows, 4 * n_inputs};
    const long row_bytes = rounded_row_bytes(precision, n_inputs), first = n_rows * thread / n_threads;
    round_rows(precision, n_rows * (thread + 1) / n_threads - first, rows + first * n_inputs, n_inputs,
               rounded + first * row_bytes);
    return (matrix){rounded, row_bytes};
}

void elmokit_product(long n_threads, long precision, long n_rows, const float *inputs, long n_inputs,
                     const float *weights, const float *bias, long n_outputs, float *outputs, char *rounded_inputs) {
    const long n_panels = (n_outputs + WIDE - 1) / WIDE;
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        long thread = 0, n_here = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num(), n_here = omp_get_num_threads();
#endif
        const matrix rows = rounded_part((int)precision, thread, n_here, n_rows, inputs, n_inputs, rounded_inputs);
        if (rounds_inputs((int)precision)) {
#pragma omp barrier
        }
        partial_product((int)precision, n_panels * thread / n_here, n_panels * (thread + 1) / n_here, n_rows, rows,
                        n_inputs, weights, bias, n_outputs, outputs, INFINITY);
        release_tiles();
    }
}

/* For LANES hidden units of a row: from the gate sums and the old cell to the new cell and the projection's input. */
INLINE void unit_step(vec i, vec g, vec f, vec o, float *cell, float *squashed, vec cell_clip) {
    vec new_cell = clip(sigmoid(f) * load(cell) + sigmoid(i) * tangent(g), cell_clip);
    store(cell, new_cell);
    store(squashed, sigmoid(o) * tangent(new_cell));
}

/* The same for weights of a lower precision, whose rounding is far above these errors: three of five divisions are saved
   by a common denominator, and tanh(x) = (e^2x - 1) / (e^2x + 1) loses digits near zero. The bound of `quick_power` keeps
   the products of three finite. */
INLINE void quick_unit_step(vec i, vec g, vec f, vec o, float *cell, float *squashed, vec cell_clip) {
    const float log2_e = 1.44269504f;
    const vec input = 1.0f + quick_power(-log2_e * i), forget = 1.0f + quick_power(-log2_e * f);
    const vec candidate = quick_power(2 * log2_e * g), common = (candidate + 1.0f) * input;
    const vec new_cell = clip((load(cell) * common + (candidate - 1.0f) * forget) / (common * forget), cell_clip);
    store(cell, new_cell);
    const vec wide = quick_power(2 * log2_e * new_cell), output = 1.0f + quick_power(-log2_e * o);
    store(squashed, (wide - 1.0f) / ((wide + 1.0f) * output));
}

/* The elementwise part of a step alone, for backends whose products come from PyTorch. The gates i, g, f, o,
   `hidden_dim` numbers each, are the sum of from_input and from_state. */
void elmokit_inference_step(long n_threads, long n_rows, long hidden_dim, const float *from_input,
                            const float *from_state, float *cell, float *squashed, float cell_clip) {
    const vec wide_clip = all(cell_clip);
    /* The loop runs over pieces of LANES units, not over rows: a batch may have fewer rows than there are threads. */
    const long whole = hidden_dim / LANES * LANES, n_pieces = (hidden_dim + LANES - 1) / LANES;
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1 && n_rows * hidden_dim > 4096)
    for (long piece = 0; piece < n_rows * n_pieces; piece++) {
        const long row = piece / n_pieces, unit = piece % n_pieces * LANES;
        const float *a = from_input + row * GATES * hidden_dim + unit, *b = from_state + row * GATES * hidden_dim + unit;
        float *to_cell = cell + row * hidden_dim + unit, *to = squashed + row * hidden_dim + unit;
        if (unit < whole) {
            unit_step(load(a) + load(b), load(a + hidden_dim) + load(b + hidden_dim),
                      load(a + 2 * hidden_dim) + load(b + 2 * hidden_dim),
                      load(a + 3 * hidden_dim) + load(b + 3 * hidden_dim), to_cell, to, wide_clip);
            continue;
        }
        float rest[6][LANES] = {{0}}; /* the last units, fewer than LANES: computed in a padded copy */
        for (long u = 0; u < hidden_dim - unit; u++) {
            for (int gate = 0; gate < GATES; gate++) rest[gate][u] = a[gate * hidden_dim + u] + b[gate * hidden_dim + u];
            rest[4][u] = to_cell[u];
        }
        unit_step(load(rest[0]), load(rest[1]), load(rest[2]), load(rest[3]), rest[4], rest[5], wide_clip);
        for (long u = 0; u < hidden_dim - unit; u++) to_cell[u] = rest[4][u], to[u] = rest[5][u];
    }
}

/* The bias of a block of units, and the product with the layer's inputs. The bias has WIDE numbers each for i, g, f and o,
   the order that `pack_native_layer` gives the weights. */
static void add_input_product(int precision, long n_rows, matrix inputs, const float *weights, long input_dim,
                              const float *bias, float *sums, const float *after) {
    for (long r = 0; r < n_rows; r++)
        for (int v = 0; v < 2 * GATES; v++) store(sums + (r * 2 * GATES + v) * LANES, load(bias + v * LANES));
    add_product(precision, n_rows, GATES, inputs, weights, input_dim, sums, GATES * WIDE, after);
}

/* A step with at least 1/8 as many rows as the layer has inputs is a chunk of its own: with that many rows, writing the
   sums of several steps and reading them again costs more than reading the input weights in every step (measured for
   128, 256 and 512 inputs). */
enum { FUSED_INPUTS = 8 };

/* Run one layer over all steps.

   The input products of several steps are computed together (a chunk of up to `chunk_rows` rows), as they do not
   depend on the state: the weights are then read once for many rows. What is left for each step is the recurrent
   product, the gates and the projection. A chunk of one step takes both products of a block of units in turn, while
   the block's sums are in the cache.

   Threads share the hidden units, not the rows: each thread keeps its part of the weights in its own cache from step
   to step. Every step has two barriers. The projection needs the hidden units of all threads (the first), and the next
   step needs all outputs (the second). The sums of a unit stay with its thread, so no barrier is needed between the
   input products and the steps. Where inputs are rounded, each rounding needs another barrier: a row's scale depends on
   all of its numbers.

   Units come in blocks of WIDE; `gates` holds, for every block, the sums of a chunk: (blocks, chunk_rows, 4 * WIDE). */
void elmokit_run_layer(long n_threads, long layer_precision, long is_exact, long n_steps, const long *batch_sizes,
                       const float *inputs, long input_dim, const float *input_panels, const float *bias,
                       const float *recurrent_panels, long projection_dim, const float *projection_panels,
                       long hidden_dim, const float *hidden, float *cell, float *outputs, float cell_clip,
                       float projection_clip, long chunk_rows, float *gates, float *squashed, char *rounded_inputs,
                       char *rounded_hidden, char *rounded_squashed) {
    const int precision = (int)layer_precision, rounds = rounds_inputs(precision);
    const long n_blocks = hidden_dim / WIDE;
    const long n_panels = (projection_dim + WIDE - 1) / WIDE;
    const long block_inputs = GATES * panel_lanes(precision, input_dim);
    const long block_recurrent = GATES * panel_lanes(precision, projection_dim);
    const vec wide_clip = all(cell_clip);
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        long thread = 0, n_here = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num(), n_here = omp_get_num_threads();
#endif
        const long first = n_blocks * thread / n_here, last = n_blocks * (thread + 1) / n_here;
        matrix before =
            rounded_part(precision, thread, n_here, batch_sizes[0], hidden, projection_dim, rounded_hidden);
        long row = 0; /* the step's first row among the rows of all steps */
        /* These loop bounds are the same in every thread, so that all of them meet at the same barriers. */
        for (long start = 0, stop; start < n_steps; start = stop) {
            long n_rows = 0; /* of the steps `start` to `stop`, the chunk */
            const long bound = batch_sizes[start] < input_dim / FUSED_INPUTS ? chunk_rows : 0;
            for (stop = start; stop < n_steps && (stop == start || n_rows + batch_sizes[stop] <= bound); stop++)
                n_rows += batch_sizes[stop];
            const int is_fused = stop == start + 1;
            const matrix chunk =
                rounded_part(precision, thread, n_here, n_rows, inputs + row * input_dim, input_dim, rounded_inputs);
            if (rounds) {
#pragma omp barrier
            }
            for (long step = start, inside = 0; step < stop; inside += batch_sizes[step], step++) {
                const long n = batch_sizes[step];
                /* The input products: of the whole chunk before its first step, or of each block in turn. */
                for (long block = first; block < last && step == start && !is_fused; block++)
                    add_input_product(precision, n_rows, chunk, input_panels + block * block_inputs, input_dim,
                                      bias + block * GATES * WIDE, gates + block * chunk_rows * GATES * WIDE,
                                      input_panels + (block + 1) * block_inputs);
                /* Alternate the direction in which blocks are visited: the weights read last are still in the cache
                   when the next step begins with them. */
                const int back = step % 2;
                for (long at = first; at < last; at++) {
                    const long block = back ? last - 1 - (at - first) : at, next = block + (back ? -1 : 1);
                    const float *weights = recurrent_panels + block * block_recurrent;
                    float *sums = gates + (block * chunk_rows + inside) * GATES * WIDE;
                    if (is_fused)
                        add_input_product(precision, n, chunk, input_panels + block * block_inputs, input_dim,
                                          bias + block * GATES * WIDE, sums, weights);
                    add_product(precision, n, GATES, before, weights, projection_dim, sums, GATES * WIDE,
                                is_fused ? input_panels + next * block_inputs
                                         : recurrent_panels + next * block_recurrent);
                    for (long r = 0; r < n; r++) {
                        const long unit = r * hidden_dim + block * WIDE;
                        const float *of = sums + r * GATES * WIDE;
                        for (int v = 0; v < WIDE; v += LANES) {
                            const vec i = load(of + v), g = load(of + WIDE + v), f = load(of + 2 * WIDE + v);
                            const vec o = load(of + 3 * WIDE + v);
                            if (is_exact)
                                unit_step(i, g, f, o, cell + unit + v, squashed + unit + v, wide_clip);
                            else
                                quick_unit_step(i, g, f, o, cell + unit + v, squashed + unit + v, wide_clip);
                        }
                    }
                }
#pragma omp barrier
                float *here = outputs + row * projection_dim;
                if (projection_panels) {
                    const matrix units =
                        rounded_part(precision, thread, n_here, n, squashed, hidden_dim, rounded_squashed);
                    if (rounds) {
#pragma omp barrier
                    }
                    /* No bias: the projection has none. The panels of the outputs are divided among threads like the
                       units before. */
                    partial_product(precision, n_panels * thread / n_here, n_panels * (thread + 1) / n_here, n, units,
                                    hidden_dim, projection_panels, NULL, projection_dim, here, projection_clip);
                } else {
                    for (long r = n * thread / n_here; r < n * (thread + 1) / n_here; r++)
                        for (long c = 0; c < projection_dim; c++)
                            here[r * projection_dim + c] = squashed[r * hidden_dim + c];
                }
#pragma omp barrier
                /* The state of the next step is this step's output, read where it was written. The next step may
                   have fewer rows; they are the first ones. */
                before = rounded_part(precision, thread, n_here, n, here, projection_dim, rounded_hidden);
                if (rounds) {
#pragma omp barrier
                }
                row += n;
            }
        }
        release_tiles();
    }
}
