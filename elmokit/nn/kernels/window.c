/* The elementwise parts of training an LSTM on a window, one step of all rows; `nn/kernels.py` has the same in PyTorch's
   own operations, and the products between. Gates stand in a row as i, g, f, o, hidden_dim of each. */

#include "vectors.h"

enum { WORTH_SHARING = 4096 }; /* numbers below which a second thread costs more than it takes off */

/* Gate sums become activations in place; of them and the cell before, the cell after, its tanh, and what the projection
   reads. */
void elmokit_window_step(long n_threads, long n_rows, long hidden_dim, float *gates, const float *cell_before,
                         float *cell_after, float *squashed, float *outputs, float cell_clip) {
    const vec bound = all(cell_clip);
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1 && n_rows * hidden_dim > WORTH_SHARING)
    for (long row = 0; row < n_rows; row++) {
        float *gate = gates + row * GATES * hidden_dim;
        for (long unit = 0; unit < hidden_dim; unit += LANES) {
            const long n = hidden_dim - unit, at = row * hidden_dim + unit;
            float *to = gate + unit;
            const vec i = sigmoid(load_some(to, n)), g = tangent(load_some(to + hidden_dim, n));
            const vec f = sigmoid(load_some(to + 2 * hidden_dim, n)), o = sigmoid(load_some(to + 3 * hidden_dim, n));
            const vec cell = clip(f * load_some(cell_before + at, n) + i * g, bound), tanh_cell = tangent(cell);
            store_some(to, i, n);
            store_some(to + hidden_dim, g, n);
            store_some(to + 2 * hidden_dim, f, n);
            store_some(to + 3 * hidden_dim, o, n);
            store_some(cell_after + at, cell, n);
            store_some(squashed + at, tanh_cell, n);
            store_some(outputs + at, o * tanh_cell, n);
        }
    }
}

/* From the gradient of what the projection read to that of the gate sums; `later_cell`, the gradient that reaches the
   cell from the steps after, becomes the one that reaches the cell before. A cell at its bound passes nothing on. */
void elmokit_window_step_back(long n_threads, long n_rows, long hidden_dim, const float *gradient, const float *gates,
                              const float *cell_before, const float *cell_after, const float *squashed,
                              float *later_cell, float *to_gates, float cell_clip) {
    const vec bound = all(cell_clip), one = all(1.0f);
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1 && n_rows * hidden_dim > WORTH_SHARING)
    for (long row = 0; row < n_rows; row++) {
        for (long unit = 0; unit < hidden_dim; unit += LANES) {
            const long n = hidden_dim - unit, at = row * hidden_dim + unit, gate = row * GATES * hidden_dim + unit;
            const float *of = gates + gate;
            float *to = to_gates + gate;
            const vec i = load_some(of, n), g = load_some(of + hidden_dim, n);
            const vec f = load_some(of + 2 * hidden_dim, n), o = load_some(of + 3 * hidden_dim, n);
            const vec upstream = load_some(gradient + at, n), tanh_cell = load_some(squashed + at, n);
            const vec cell = load_some(cell_after + at, n);
            vec to_cell = upstream * o * (1.0f - tanh_cell * tanh_cell) + load_some(later_cell + at, n);
            to_cell *= choose((cell < bound) & (cell > -bound), one, (vec){0}); /* a NaN stays one */
            store_some(to, to_cell * g * i * (1.0f - i), n);
            store_some(to + hidden_dim, to_cell * i * (1.0f - g * g), n);
            store_some(to + 2 * hidden_dim, to_cell * load_some(cell_before + at, n) * f * (1.0f - f), n);
            store_some(to + 3 * hidden_dim, upstream * tanh_cell * o * (1.0f - o), n);
            store_some(later_cell + at, to_cell * f, n);
        }
    }
}
