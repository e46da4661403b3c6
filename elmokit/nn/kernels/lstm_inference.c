/* LSTM inference in float32: a matrix product with packed weights, the elementwise part of a step, and a whole layer.

   `native.py` documents every argument; `lstm_inference.py` has the same loop in PyTorch operations. */

#include <stdint.h>
#include <sys/mman.h>

#include "packed_product.h"

/* outputs[rows][n_outputs] = clip(bias + inputs x panels), for the panels `first` to `last` only: a thread's part. */
static void partial_product(long first, long last, long n_rows, const float *inputs, long n_inputs,
                            const float *weights, const float *bias, long n_outputs, float *outputs, float bound) {
    enum { ROW_BLOCK = 16 * ROWS }; /* the sums of a block of rows fit into the L2 cache */
    float sums[ROW_BLOCK * GATES * WIDE];
    /* One path for all callers: an infinite bound clips nothing. */
    const vec wide_bound = all(bound);
    for (long panel = first; panel < last; panel += GATES) {
        const int n_panels = last - panel < GATES ? (int)(last - panel) : GATES;
        const long column = panel * WIDE;
        const long n_columns = n_outputs - column < n_panels * WIDE ? n_outputs - column : n_panels * WIDE;
        for (long row = 0; row < n_rows; row += ROW_BLOCK) {
            const long n = n_rows - row < ROW_BLOCK ? n_rows - row : ROW_BLOCK;
            for (long r = 0; r < n; r++)
                for (int v = 0; v < 2 * n_panels; v++)
                    /* The sums start from the bias: that saves a pass over them. */
                    store(sums + r * GATES * WIDE + v * LANES, bias ? load(bias + column + v * LANES) : (vec){0});
            multiply(n, n_panels, inputs + row * n_inputs, n_inputs, weights + panel * n_inputs * WIDE, n_inputs, sums,
                     GATES * WIDE);
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

void elmokit_product(long n_threads, long n_rows, const float *inputs, long n_inputs, const float *weights,
                     const float *bias, long n_outputs, float *outputs) {
    const long n_panels = (n_outputs + WIDE - 1) / WIDE;
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        long thread = 0, n_here = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num(), n_here = omp_get_num_threads();
#endif
        partial_product(n_panels * thread / n_here, n_panels * (thread + 1) / n_here, n_rows, inputs, n_inputs, weights,
                     bias, n_outputs, outputs, INFINITY);
    }
}

/* For LANES hidden units of a row: from the gate sums and the old cell to the new cell and the projection's input. */
INLINE void unit_step(vec i, vec g, vec f, vec o, float *cell, float *squashed, vec cell_clip) {
    vec new_cell = clip(sigmoid(f) * load(cell) + sigmoid(i) * tangent(g), cell_clip);
    store(cell, new_cell);
    store(squashed, sigmoid(o) * tangent(new_cell));
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

/* Run one layer over all steps.

   The input products of several steps are computed together (a chunk of up to `chunk_rows` rows), as they do not
   depend on the state: the weights are then read once for many rows. What is left for each step is the recurrent
   product, the gates and the projection.

   Threads share the hidden units, not the rows: each thread keeps its part of the weights in its own cache from step
   to step. Every step has two barriers. The projection needs the hidden units of all threads (the first), and the next
   step needs all outputs (the second). The sums of a unit stay with its thread, so no barrier is needed between the
   input products and the steps.

   Units come in blocks of WIDE; `gates` holds, for every block, the sums of a chunk: (blocks, chunk_rows, 4 * WIDE). */
void elmokit_run_layer(long n_threads, long n_steps, const long *batch_sizes, const float *inputs, long input_dim,
                        const float *input_panels, const float *bias, const float *recurrent_panels,
                        long projection_dim, const float *projection_panels, long hidden_dim, const float *hidden,
                        float *cell, float *outputs, float cell_clip, float projection_clip, long chunk_rows,
                        float *gates, float *squashed) {
    const long n_blocks = hidden_dim / WIDE;
    const long n_panels = (projection_dim + WIDE - 1) / WIDE;
    const long block_inputs = GATES * WIDE * input_dim, block_recurrent = GATES * WIDE * projection_dim;
    const vec wide_clip = all(cell_clip);
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        long thread = 0, n_here = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num(), n_here = omp_get_num_threads();
#endif
        const long first = n_blocks * thread / n_here, last = n_blocks * (thread + 1) / n_here;
        const float *before = hidden;
        long row = 0; /* the step's first row among the rows of all steps */
        /* These loop bounds are the same in every thread, so that all of them meet at the same barriers. */
        for (long start = 0, stop; start < n_steps; start = stop) {
            long n_rows = 0; /* of the steps `start` to `stop`, the chunk */
            for (stop = start; stop < n_steps && (stop == start || n_rows + batch_sizes[stop] <= chunk_rows); stop++)
                n_rows += batch_sizes[stop];
            for (long block = first; block < last; block++) {
                float *sums = gates + block * chunk_rows * GATES * WIDE;
                for (long r = 0; r < n_rows; r++)
                    for (int v = 0; v < 2 * GATES; v++)
                        /* The bias of this block: WIDE numbers each for i, g, f and o, the order that `_pack_native`
                           gives the weights. */
                        store(sums + (r * 2 * GATES + v) * LANES, load(bias + (block * 2 * GATES + v) * LANES));
                multiply(n_rows, GATES, inputs + row * input_dim, input_dim, input_panels + block * block_inputs,
                         input_dim, sums, GATES * WIDE);
            }
            for (long step = start, inside = 0; step < stop; inside += batch_sizes[step], step++) {
                const long n = batch_sizes[step];
                /* Alternate the direction in which blocks are visited: the weights read last are still in the cache
                   when the next step begins with them. */
                const int back = step % 2;
                for (long i = first; i < last; i++) {
                    const long block = back ? last - 1 - (i - first) : i;
                    float *sums = gates + (block * chunk_rows + inside) * GATES * WIDE;
                    multiply(n, GATES, before, projection_dim, recurrent_panels + block * block_recurrent,
                             projection_dim, sums, GATES * WIDE);
                    for (long r = 0; r < n; r++) {
                        const long unit = r * hidden_dim + block * WIDE;
                        const float *of = sums + r * GATES * WIDE;
                        for (int v = 0; v < WIDE; v += LANES)
                            unit_step(load(of + v), load(of + WIDE + v), load(of + 2 * WIDE + v), load(of + 3 * WIDE + v),
                                      cell + unit + v, squashed + unit + v, wide_clip);
                    }
                }
#pragma omp barrier
                float *here = outputs + row * projection_dim;
                if (projection_panels) {
                    /* No bias: the projection has none. The panels of the outputs are divided among threads like the
                       units before. */
                    partial_product(n_panels * thread / n_here, n_panels * (thread + 1) / n_here, n, squashed, hidden_dim,
                                 projection_panels, NULL, projection_dim, here, projection_clip);
                } else {
                    for (long r = n * thread / n_here; r < n * (thread + 1) / n_here; r++)
                        for (long c = 0; c < projection_dim; c++)
                            here[r * projection_dim + c] = squashed[r * hidden_dim + c];
                }
#pragma omp barrier
                /* The state of the next step is this step's output, read where it was written. The next step may
                   have fewer rows; they are the first ones. */
                before = here;
                row += n;
            }
        }
    }
}
