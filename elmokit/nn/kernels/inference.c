/* LSTM inference in float32: a matrix product with packed weights, the elementwise part of a step, and one layer read
   over all steps. `library.py` says what each argument is; `reader.py` holds the same loop in PyTorch's own operations. */

#include <stdint.h>
#include <sys/mman.h>

#include "panels.h"

/* outputs[rows][n_outputs] = bias + inputs x panels, clipped; panels `first` to `last` of them. */
static void product_part(long first, long last, long n_rows, const float *inputs, long n_inputs, const float *weights,
                         const float *bias, long n_outputs, float *outputs, float bound) {
    enum { AT_ONCE = 16 * ROWS };
    float sums[AT_ONCE * GATES * WIDE];
    const vec wide_bound = all(bound);
    for (long panel = first; panel < last; panel += GATES) {
        const int n_panels = last - panel < GATES ? (int)(last - panel) : GATES;
        const long column = panel * WIDE;
        const long n_columns = n_outputs - column < n_panels * WIDE ? n_outputs - column : n_panels * WIDE;
        for (long row = 0; row < n_rows; row += AT_ONCE) {
            const long n = n_rows - row < AT_ONCE ? n_rows - row : AT_ONCE;
            for (long r = 0; r < n; r++)
                for (int v = 0; v < 2 * n_panels; v++)
                    store(sums + r * GATES * WIDE + v * LANES, bias ? load(bias + column + v * LANES) : (vec){0});
            multiply(n, n_panels, inputs + row * n_inputs, n_inputs, weights + panel * n_inputs * WIDE, n_inputs, sums,
                     GATES * WIDE);
            for (long r = 0; r < n; r++) {
                float *sum = sums + r * GATES * WIDE, *to = outputs + (row + r) * n_outputs + column;
                for (int v = 0; v < 2 * n_panels; v++) store(sum + v * LANES, clip(load(sum + v * LANES), wide_bound));
                for (long c = 0; c < n_columns; c++) to[c] = sum[c];
            }
        }
    }
}

int elmokit_wide(void) { return WIDE; }

/* Ask for large pages before a block of weights is written: they are read from end to end at every step, and with small
   pages much of that time goes into finding the next one. A request that the system does not grant changes nothing. */
void elmokit_large_pages(void *start, size_t n_bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 4096, first = ((uintptr_t)start + page - 1) / page * page;
    const uintptr_t last = ((uintptr_t)start + n_bytes) / page * page;
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
        product_part(n_panels * thread / n_here, n_panels * (thread + 1) / n_here, n_rows, inputs, n_inputs, weights,
                     bias, n_outputs, outputs, INFINITY);
    }
}

/* LANES hidden units of a row: gate sums and old cell to new cell and what goes into the projection. */
INLINE void unit_step(vec i, vec g, vec f, vec o, float *cell, float *squashed, vec cell_clip) {
    vec new_cell = clip(sigmoid(f) * load(cell) + sigmoid(i) * tangent(g), cell_clip);
    store(cell, new_cell);
    store(squashed, sigmoid(o) * tangent(new_cell));
}

/* The elementwise part of a step on its own; gates i, g, f, o are from_input + from_state, hidden_dim of each. */
void elmokit_step(long n_threads, long n_rows, long hidden_dim, const float *from_input, const float *from_state,
                  float *cell, float *squashed, float cell_clip) {
    const vec wide_clip = all(cell_clip);
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
        float rest[6][LANES] = {{0}}; /* fewer units than LANES: through a copy */
        for (long u = 0; u < hidden_dim - unit; u++) {
            for (int gate = 0; gate < GATES; gate++) rest[gate][u] = a[gate * hidden_dim + u] + b[gate * hidden_dim + u];
            rest[4][u] = to_cell[u];
        }
        unit_step(load(rest[0]), load(rest[1]), load(rest[2]), load(rest[3]), rest[4], rest[5], wide_clip);
        for (long u = 0; u < hidden_dim - unit; u++) to_cell[u] = rest[4][u], to[u] = rest[5][u];
    }
}

void elmokit_read_layer(long n_threads, long n_steps, const long *n_active, const float *inputs, long input_dim,
                        const float *input_panels, const float *bias, const float *recurrent_panels,
                        long projection_dim, const float *projection_panels, long hidden_dim, const float *hidden,
                        float *cell, float *outputs, float cell_clip, float projection_clip, long rows_at_once,
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
        long row = 0; /* of the step, among all rows of all steps */
        for (long start = 0, stop; start < n_steps; start = stop) {
            long n_rows = 0; /* of the steps whose input products are taken together */
            for (stop = start; stop < n_steps && (stop == start || n_rows + n_active[stop] <= rows_at_once); stop++)
                n_rows += n_active[stop];
            for (long block = first; block < last; block++) {
                float *sums = gates + block * rows_at_once * GATES * WIDE;
                for (long r = 0; r < n_rows; r++)
                    for (int v = 0; v < 2 * GATES; v++)
                        store(sums + (r * 2 * GATES + v) * LANES, load(bias + (block * 2 * GATES + v) * LANES));
                multiply(n_rows, GATES, inputs + row * input_dim, input_dim, input_panels + block * block_inputs,
                         input_dim, sums, GATES * WIDE);
            }
            for (long step = start, inside = 0; step < stop; inside += n_active[step], step++) {
                const long n = n_active[step];
                /* There and back again: what was read last is still in the cache. */
                const int back = step % 2;
                for (long i = first; i < last; i++) {
                    const long block = back ? last - 1 - (i - first) : i;
                    float *sums = gates + (block * rows_at_once + inside) * GATES * WIDE;
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
                    product_part(n_panels * thread / n_here, n_panels * (thread + 1) / n_here, n, squashed, hidden_dim,
                                 projection_panels, NULL, projection_dim, here, projection_clip);
                } else {
                    for (long r = n * thread / n_here; r < n * (thread + 1) / n_here; r++)
                        for (long c = 0; c < projection_dim; c++)
                            here[r * projection_dim + c] = squashed[r * hidden_dim + c];
                }
#pragma omp barrier
                before = here;
                row += n;
            }
        }
    }
}
