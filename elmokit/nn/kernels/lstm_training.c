/* The elementwise part of one LSTM training step, forward and backward, for all rows of a batch.

   The matrix products around it stay with PyTorch's library; see `lstm_training.py`, which has the same two functions
   in PyTorch operations. Done there, one step is some 15 operations, each of which reads and writes memory and starts
   and joins threads; here it is one pass over the data. A row of gates holds i, g, f, o, `hidden_dim` numbers each. */

#include "vectors.h"

enum { MIN_PARALLEL_SIZE = 4096 }; /* below so many numbers, starting a second thread costs more than it saves */

/* Replace the gate sums by their activations, and compute the new cell, its tanh, and the projection's input. The
   backward pass needs all of them, so all are stored. */
void elmokit_training_step(long n_threads, long n_rows, long hidden_dim, float *gates, const float *cell_before,
                         float *cell_after, float *squashed, float *outputs, float cell_clip) {
    const vec bound = all(cell_clip);
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1 && n_rows * hidden_dim > MIN_PARALLEL_SIZE)
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

/* Compute the gradient of the gate sums from that of the projection's input.

   `cell_gradient` comes in as the gradient that later steps send to the new cell, and leaves as the gradient of the
   old one. Derivatives use the stored activations: s' = s (1 - s) for a sigmoid, 1 - t^2 for a tanh. A cell that was
   clipped passes no gradient on, as with `torch.clamp`; exactly at its bound neither, which clamp would pass. */
void elmokit_training_step_backward(long n_threads, long n_rows, long hidden_dim, const float *gradient,
                                    const float *gates, const float *cell_before, const float *cell_after,
                                    const float *squashed, float *cell_gradient, float *gate_gradient,
                                    float cell_clip) {
    const vec bound = all(cell_clip), one = all(1.0f);
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1 && n_rows * hidden_dim > MIN_PARALLEL_SIZE)
    for (long row = 0; row < n_rows; row++) {
        for (long unit = 0; unit < hidden_dim; unit += LANES) {
            const long n = hidden_dim - unit, at = row * hidden_dim + unit, gate = row * GATES * hidden_dim + unit;
            const float *of = gates + gate;
            float *to = gate_gradient + gate;
            /* The forward pass stored the activations, so no exponential is computed again. */
            const vec i = load_some(of, n), g = load_some(of + hidden_dim, n);
            const vec f = load_some(of + 2 * hidden_dim, n), o = load_some(of + 3 * hidden_dim, n);
            const vec upstream = load_some(gradient + at, n), tanh_cell = load_some(squashed + at, n);
            const vec cell = load_some(cell_after + at, n);
            vec to_cell = upstream * o * (1.0f - tanh_cell * tanh_cell) + load_some(cell_gradient + at, n);
            to_cell *= choose((cell < bound) & (cell > -bound), one, (vec){0}); /* a NaN stays one */
            store_some(to, to_cell * g * i * (1.0f - i), n);
            store_some(to + hidden_dim, to_cell * i * (1.0f - g * g), n);
            store_some(to + 2 * hidden_dim, to_cell * load_some(cell_before + at, n) * f * (1.0f - f), n);
            store_some(to + 3 * hidden_dim, upstream * tanh_cell * o * (1.0f - o), n);
            /* The path from cell to cell: c = f * c_before + i * g, so its gradient is multiplied by f. */
            store_some(cell_gradient + at, to_cell * f, n);
        }
    }
}
