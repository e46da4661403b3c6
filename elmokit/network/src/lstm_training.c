/* The elementwise part of one LSTM training step, forward and backward, for all rows of a batch.

   PyTorch's library computes the matrix products around it; `lstm_training.py` has the same two functions in PyTorch
   operations. There, a step takes about 15 operations, each of which reads and writes memory and starts and joins threads.
   Here, it is one pass over the data. A row of gates contains i, g, f, o, with `hidden_dim` numbers each. */

#include "threads.h"
#include "training.h"
#include "vectors.h"

enum { MIN_PARALLEL_SIZE = 4096 }; /* for fewer numbers, starting a second thread costs more than it saves */

typedef struct {
    int64_t n_rows, hidden_dim;
    float *gates;
    const float *cell_before;
    float *cell_after, *tanh_cells, *outputs;
    float cell_clip;
} step;

static void compute_step(const member *me, void *context) {
    const step call = *(const step *)context;
    const int64_t hidden_dim = call.hidden_dim;
    const vec bound = all(call.cell_clip);
    for (int64_t row = first_of(me, call.n_rows); row < last_of(me, call.n_rows); row++) {
        float *gate = call.gates + row * GATES * hidden_dim;
        for (int64_t unit = 0; unit < hidden_dim; unit += LANES) {
            const int64_t n = hidden_dim - unit, at = row * hidden_dim + unit;
            float *to = gate + unit;
            const vec i = sigmoid(load_some(to, n)), g = tangent(load_some(to + hidden_dim, n));
            const vec f = sigmoid(load_some(to + 2 * hidden_dim, n)), o = sigmoid(load_some(to + 3 * hidden_dim, n));
            const vec cell = clip(f * load_some(call.cell_before + at, n) + i * g, bound), tanh_cell = tangent(cell);
            /* The backward pass needs all of these, so they are stored. */
            store_some(to, i, n);
            store_some(to + hidden_dim, g, n);
            store_some(to + 2 * hidden_dim, f, n);
            store_some(to + 3 * hidden_dim, o, n);
            store_some(call.cell_after + at, cell, n);
            store_some(call.tanh_cells + at, tanh_cell, n);
            store_some(call.outputs + at, o * tanh_cell, n);
        }
    }
}

void elmokit_training_step(int64_t n_threads, int64_t n_rows, int64_t hidden_dim, float *gates, const float *cell_before,
                           float *cell_after, float *tanh_cells, float *outputs, float cell_clip) {
    step call = {n_rows, hidden_dim, gates, cell_before, cell_after, tanh_cells, outputs, cell_clip};
    run_team(n_rows * hidden_dim > MIN_PARALLEL_SIZE ? n_threads : 1, compute_step, &call);
}

typedef struct {
    int64_t n_rows, hidden_dim;
    const float *gradient, *gates, *cell_before, *cell_after, *tanh_cells;
    float *cell_gradient, *gate_gradient;
    float cell_clip;
} step_gradient;

/* Derivatives use the stored activations: s' = s (1 - s) for a sigmoid, 1 - t^2 for a tanh. A clipped cell passes on no
   gradient, as with `torch.clamp`; neither does a cell exactly at its bound, unlike with clamp. */
static void compute_step_backward(const member *me, void *context) {
    const step_gradient call = *(const step_gradient *)context;
    const int64_t hidden_dim = call.hidden_dim;
    const vec bound = all(call.cell_clip), one = all(1.0f);
    for (int64_t row = first_of(me, call.n_rows); row < last_of(me, call.n_rows); row++) {
        for (int64_t unit = 0; unit < hidden_dim; unit += LANES) {
            const int64_t n = hidden_dim - unit, at = row * hidden_dim + unit, gate = row * GATES * hidden_dim + unit;
            const float *of = call.gates + gate;
            float *to = call.gate_gradient + gate;
            /* The forward pass stored the activations, so no exponential is computed again. */
            const vec i = load_some(of, n), g = load_some(of + hidden_dim, n);
            const vec f = load_some(of + 2 * hidden_dim, n), o = load_some(of + 3 * hidden_dim, n);
            const vec upstream = load_some(call.gradient + at, n), tanh_cell = load_some(call.tanh_cells + at, n);
            const vec cell = load_some(call.cell_after + at, n);
            vec own = upstream * o * (1.0f - tanh_cell * tanh_cell);
#if defined(__AVX512F__)
            /* Rounded before the sum, not fused with it, so that training is reproducible bit for bit, also when a run
               started by an earlier build is continued. */
            __asm__("" : "+v"(own));
#endif
            vec to_cell = own + load_some(call.cell_gradient + at, n);
            to_cell *= choose((cell < bound) & (cell > -bound), one, (vec){0}); /* a NaN stays one */
            store_some(to, to_cell * g * i * (1.0f - i), n);
            store_some(to + hidden_dim, to_cell * i * (1.0f - g * g), n);
            store_some(to + 2 * hidden_dim, to_cell * load_some(call.cell_before + at, n) * f * (1.0f - f), n);
            store_some(to + 3 * hidden_dim, upstream * tanh_cell * o * (1.0f - o), n);
            /* From cell to cell: c = f * c_before + i * g, so its gradient is multiplied by f. */
            store_some(call.cell_gradient + at, to_cell * f, n);
        }
    }
}

void elmokit_training_step_backward(int64_t n_threads, int64_t n_rows, int64_t hidden_dim, const float *gradient,
                                    const float *gates, const float *cell_before, const float *cell_after,
                                    const float *tanh_cells, float *cell_gradient, float *gate_gradient,
                                    float cell_clip) {
    step_gradient call = {n_rows,     hidden_dim, gradient,      gates,         cell_before,
                          cell_after, tanh_cells,   cell_gradient, gate_gradient, cell_clip};
    run_team(n_rows * hidden_dim > MIN_PARALLEL_SIZE ? n_threads : 1, compute_step_backward, &call);
}
