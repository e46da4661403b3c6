/* One LSTM layer over a training window, forward and backward, with products of bf16 tiles.

   `lstm_training.py` has the formulas; `bfloat16_tiles.h` explains the products. Only the factors of products are rounded:
   cells, sums, clipping and all gradients of weights stay in float32. What the backward pass needs of the activations is
   kept in float16, which has eight times bf16's digits: they are below 1 in magnitude, cells excepted.

   Why not a library's products: in a window of 20 steps most of the time would go to starting them, to packing factors again
   and to writing and reading sums. Here factors are written as tiles when they are computed, the sums of a block of units
   never leave the L2 cache, and the gradient of each weight is one product over all steps.

   Units come in blocks of 32. In the order of gate sums, a block has 32 of i, then of g, f and o. Rows (of the batch), units
   and inputs are padded to multiples of 32 with zeros, which stay zeros wherever gradients are summed. */

#include "bfloat16_tiles.h"

enum { KEPT = 5 }; /* numbers that are kept of each unit and step, besides the cell: i, g, f, o, tanh of the cell */

typedef struct {
    long n_rows, n_steps, input_dim, hidden_dim, projection_dim;
} window_sizes;

#if HAS_BFLOAT16
typedef struct {
    long row_blocks, inputs, units, outputs; /* numbers of blocks */
    /* Kept from the forward to the backward pass. */
    char *backward_weight; /* right: inputs and outputs x gates */
    char *backward_projection; /* right: units x outputs */
    char *unprojected; /* right: units x positions */
    half *kept; /* (steps, units, rows, KEPT, BLOCK) */
    half *cells; /* (1 + steps, units, rows, BLOCK), the first is the initial state */
    char *end;
} kept_memory;

typedef struct {
    char *weight; /* right: gates x inputs and outputs */
    char *projection; /* right: outputs x units */
    char *step_inputs; /* left: rows x inputs and outputs */
    char *step_units; /* left: rows x units */
    float *bias; /* (gates, padded units) */
    float *cell; /* (units, rows, BLOCK) */
    float *sums; /* for each thread (gates, rows, BLOCK) */
    char *end;
} forward_memory;

typedef struct {
    char *step_gates; /* left: rows x gates */
    char *gates; /* right: gates x positions */
    char *step_outputs; /* left: rows x outputs */
    char *outputs; /* left: outputs x positions */
    char *read; /* left: inputs and outputs before each step x positions */
    float *cell; /* (units, rows, BLOCK), gradients */
    float *output; /* (rows, padded outputs), gradients */
    float *bias; /* (units, gates, BLOCK), gradients */
    float *sums; /* for each thread */
    char *end;
} backward_memory;

/* Divide up memory that begins at `at`; with a null pointer, `end` is the number of bytes needed. */
static kept_memory kept_parts(window_sizes s, char *at) {
    kept_memory m = {.row_blocks = blocks(s.n_rows), .inputs = blocks(s.input_dim)};
    m.units = blocks(s.hidden_dim), m.outputs = blocks(s.projection_dim);
    const long inner = m.inputs + m.outputs, rows = m.row_blocks * BLOCK;
    m.backward_weight = take(&at, 2 * TILE_SIZE * inner * GATES * m.units);
    m.backward_projection = take(&at, 2 * TILE_SIZE * m.units * m.outputs);
    m.unprojected = take(&at, 2 * TILE_SIZE * m.units * m.row_blocks * s.n_steps);
    m.kept = take(&at, (long)sizeof(half) * KEPT * s.n_steps * m.units * rows * BLOCK);
    m.cells = take(&at, (long)sizeof(half) * (s.n_steps + 1) * m.units * rows * BLOCK);
    m.end = at;
    return m;
}

static forward_memory forward_parts(window_sizes s, long n_threads, char *at) {
    const kept_memory k = kept_parts(s, NULL);
    const long inner = k.inputs + k.outputs, rows = k.row_blocks * BLOCK;
    forward_memory m;
    m.weight = take(&at, 2 * TILE_SIZE * GATES * k.units * inner);
    m.projection = take(&at, 2 * TILE_SIZE * k.outputs * k.units);
    m.step_inputs = take(&at, 2 * TILE_SIZE * k.row_blocks * inner);
    m.step_units = take(&at, 2 * TILE_SIZE * k.row_blocks * k.units);
    m.bias = take(&at, (long)sizeof(float) * GATES * k.units * BLOCK);
    m.cell = take(&at, (long)sizeof(float) * k.units * rows * BLOCK);
    m.sums = take(&at, (long)sizeof(float) * n_threads * GATES * rows * BLOCK);
    m.end = at;
    return m;
}

static backward_memory backward_parts(window_sizes s, long n_threads, char *at) {
    const kept_memory k = kept_parts(s, NULL);
    const long inner = k.inputs + k.outputs, rows = k.row_blocks * BLOCK, positions = k.row_blocks * s.n_steps;
    const long widest = inner * GATES > k.row_blocks ? inner * GATES : k.row_blocks; /* blocks of sums of a thread */
    backward_memory m;
    m.step_gates = take(&at, 2 * TILE_SIZE * k.row_blocks * GATES * k.units);
    m.gates = take(&at, 2 * TILE_SIZE * GATES * k.units * positions);
    m.step_outputs = take(&at, 2 * TILE_SIZE * k.row_blocks * k.outputs);
    m.outputs = take(&at, 2 * TILE_SIZE * k.outputs * positions);
    m.read = take(&at, 2 * TILE_SIZE * inner * positions);
    m.cell = take(&at, (long)sizeof(float) * k.units * rows * BLOCK);
    m.output = take(&at, (long)sizeof(float) * rows * k.outputs * BLOCK);
    m.bias = take(&at, (long)sizeof(float) * k.units * GATES * BLOCK);
    m.sums = take(&at, (long)sizeof(float) * n_threads * widest * BLOCK * BLOCK);
    m.end = at;
    return m;
}

/* The elementwise part of a step for 16 units of a row. Return the projection's input. A clipped cell, which passes no
   gradient, is kept as infinity. */
INLINE vec step_forward(const float *sums, long gate_stride, const vec bias[GATES], float *cell, vec bound, half *kept,
                        half *kept_cell) {
    const vec i = quick_sigmoid(load(sums) + bias[0]), g = quick_tangent(load(sums + gate_stride) + bias[1]);
    const vec f = quick_sigmoid(load(sums + 2 * gate_stride) + bias[2]);
    const vec o = quick_sigmoid(load(sums + 3 * gate_stride) + bias[3]);
    const vec unclipped = f * load(cell) + i * g, new_cell = clip(unclipped, bound), squashed = quick_tangent(new_cell);
    store(cell, new_cell);
    store_halves(kept, i);
    store_halves(kept + BLOCK, g);
    store_halves(kept + 2 * BLOCK, f);
    store_halves(kept + 3 * BLOCK, o);
    store_halves(kept + 4 * BLOCK, squashed);
    store_halves(kept_cell, choose(unclipped >= bound, all(INFINITY), choose(unclipped <= -bound, all(-INFINITY), new_cell)));
    return o * squashed;
}

/* The gate sums of a block of units for all rows, and the elementwise part. */
static void forward_units(window_sizes s, const kept_memory *k, const forward_memory *m, long step, long unit, vec bound,
                          float *sums) {
    const long rows = k->row_blocks * BLOCK, inner = k->inputs + k->outputs;
    for (long gate = 0; gate < GATES; gate++) {
        const char *weight = m->weight + (unit * GATES + gate) * 2 * inner * TILE_SIZE;
        /* The weights of all units may not fit into the L2 cache: the next ones are fetched while these are used. */
        for (long block = 0; block < k->row_blocks; block++)
            add_block(0, m->step_inputs + block * 2 * inner * TILE_SIZE, inner * TILE_SIZE, weight, inner * TILE_SIZE, inner,
                      sums + (gate * rows + block * BLOCK) * BLOCK, BLOCK,
                      weight + (2 * inner + block * inner / 2) * TILE_SIZE);
    }
    const long positions = k->row_blocks * s.n_steps, padded = k->units * BLOCK;
    for (int v = 0; v < 2; v++) {
        vec bias[GATES];
        for (int gate = 0; gate < GATES; gate++) bias[gate] = load(m->bias + gate * padded + unit * BLOCK + v * LANES);
        for (long row = 0; row < rows; row += 2) {
            const long at = unit * rows + row;
            vec outputs[2];
            _Pragma("GCC unroll 2") for (int r = 0; r < 2; r++)
                outputs[r] = step_forward(sums + (row + r) * BLOCK + v * LANES, rows * BLOCK, bias,
                                          m->cell + (at + r) * BLOCK + v * LANES, bound,
                                          k->kept + (step * k->units * rows + at + r) * KEPT * BLOCK + v * LANES,
                                          k->cells + ((step + 1) * k->units * rows + at + r) * BLOCK + v * LANES);
            /* As the right factor of the projection's gradient, and as the left one of the projection. */
            const ivec pairs = round_pairs(outputs[0], outputs[1]);
            char *to = k->unprojected +
                       ((2 * unit + v) * positions + step * k->row_blocks + row / BLOCK) * TILE_SIZE;
            memcpy(to + row % BLOCK / 2 * TILE_BYTES, &pairs, sizeof pairs);
            to = m->step_units + (row / 16 * k->units + unit) * TILE_SIZE + row % 16 * TILE_BYTES + v * 32;
            const ivec both = round_row(outputs[0], outputs[1]);
            memcpy(to, &both, 32);
            memcpy(to + TILE_BYTES, (const char *)&both + 32, 32);
        }
    }
}

/* Round a step's inputs into the left factor: a thread's part of the tiles of 16 rows. */
static void round_step(window_sizes s, const kept_memory *k, const float *from, long row_stride, long dim, long first_block,
                       long n_blocks, long thread, long n_threads, char *to) {
    const long inner = k->inputs + k->outputs, n_tiles = 2 * k->row_blocks;
    for (long tile = n_tiles * thread / n_threads; tile < n_tiles * (thread + 1) / n_threads; tile++)
        for (long block = 0; block < n_blocks; block++)
            round_tile(LEFT, 1, from + 16 * tile * row_stride + block * BLOCK, row_stride, s.n_rows - 16 * tile,
                       dim - block * BLOCK, to + (tile * inner + first_block + block) * TILE_SIZE);
}

/* Round the weights into the four factors of the two passes: a thread's part of the blocks of units. */
static void round_weights(window_sizes s, const kept_memory *k, const forward_memory *m, const float *weight,
                          const float *bias, const float *projection, long thread, long n_threads) {
    const long inner = k->inputs + k->outputs, width = s.input_dim + s.projection_dim;
    for (long unit = k->units * thread / n_threads; unit < k->units * (thread + 1) / n_threads; unit++) {
        const long left = at_most(s.hidden_dim - unit * BLOCK, BLOCK);
        for (long gate = 0; gate < GATES; gate++) {
            const float *rows = weight + (gate * s.hidden_dim + unit * BLOCK) * width;
            float *padded = m->bias + gate * k->units * BLOCK + unit * BLOCK;
            memset(padded, 0, BLOCK * sizeof(float));
            memcpy(padded, bias + gate * s.hidden_dim + unit * BLOCK, left * sizeof(float));
            for (long block = 0; block < inner; block++) {
                /* The columns of inputs are padded, then those of outputs. */
                const long first = block < k->inputs ? block * BLOCK : s.input_dim + (block - k->inputs) * BLOCK;
                const long n = (block < k->inputs ? s.input_dim : width) - first;
                for (int v = 0; v < 2; v++) {
                    round_tile(RIGHT, 1, rows + 16 * v * width + first, width, left - 16 * v, n,
                               m->weight + (((unit * GATES + gate) * 2 + v) * inner + block) * TILE_SIZE);
                    round_tile(RIGHT, 0, rows + first + 16 * v, width, n - 16 * v, left,
                               k->backward_weight + ((2 * block + v) * GATES * k->units + unit * GATES + gate) * TILE_SIZE);
                }
            }
        }
        for (long block = 0; block < k->outputs; block++) {
            const float *part = projection + block * BLOCK * s.hidden_dim + unit * BLOCK;
            const long n = s.projection_dim - block * BLOCK;
            for (int v = 0; v < 2; v++) {
                round_tile(RIGHT, 1, part + 16 * v * s.hidden_dim, s.hidden_dim, n - 16 * v, left,
                           m->projection + ((2 * block + v) * k->units + unit) * TILE_SIZE);
                round_tile(RIGHT, 0, part + 16 * v, s.hidden_dim, left - 16 * v, n,
                           k->backward_projection + ((2 * unit + v) * k->outputs + block) * TILE_SIZE);
            }
        }
    }
}

/* Copy between (rows, hidden_dim) and the padded (units, rows, BLOCK), a block of units. */
INLINE void copy_units(window_sizes s, const kept_memory *k, long unit, int is_padded, const float *from, float *to) {
    const long left = at_most(s.hidden_dim - unit * BLOCK, BLOCK), rows = k->row_blocks * BLOCK;
    for (long row = 0; row < s.n_rows; row++) {
        const long plain = row * s.hidden_dim + unit * BLOCK, padded = (unit * rows + row) * BLOCK;
        memcpy(to + (is_padded ? plain : padded), from + (is_padded ? padded : plain), left * sizeof(float));
    }
}
#endif

/* Whether bf16 numbers can be multiplied, which all functions of training in bf16 need. */
int elmokit_has_bfloat16(void) { return HAS_BFLOAT16; }

/* The bytes that the passes need: `kept` from the forward to the backward pass, the others during one of them. */
void elmokit_window_bytes(long n_threads, long n_rows, long n_steps, long input_dim, long hidden_dim,
                          long projection_dim, long *n_bytes) {
#if HAS_BFLOAT16
    const window_sizes s = {n_rows, n_steps, input_dim, hidden_dim, projection_dim};
    n_bytes[0] = kept_parts(s, NULL).end - (char *)NULL;
    n_bytes[1] = forward_parts(s, n_threads, NULL).end - (char *)NULL;
    n_bytes[2] = backward_parts(s, n_threads, NULL).end - (char *)NULL;
#else
    (void)n_threads, (void)n_rows, (void)n_steps, (void)input_dim, (void)hidden_dim, (void)projection_dim, (void)n_bytes;
#endif
}

/* Compute outputs (rows, steps, projection_dim) from inputs (rows, steps, input_dim).

   weight: (4 * hidden_dim, input_dim + projection_dim), blocks i, g, f, o; bias: (4 * hidden_dim); projection:
   (projection_dim, hidden_dim). hidden: (rows, projection_dim), the state before the window. cell: (rows, hidden_dim),
   replaced by the cell after it. `kept` and `memory` begin at multiples of 64 bytes. */
void elmokit_window_forward(long n_threads, long n_rows, long n_steps, long input_dim, long hidden_dim,
                            long projection_dim, const float *inputs, const float *weight, const float *bias,
                            const float *projection, const float *hidden, float *cell, float cell_clip,
                            float projection_clip, char *kept, char *memory, float *outputs) {
#if HAS_BFLOAT16
    const window_sizes s = {n_rows, n_steps, input_dim, hidden_dim, projection_dim};
    const kept_memory k = kept_parts(s, kept);
    const forward_memory m = forward_parts(s, n_threads, memory);
    const vec bound = all(cell_clip), output_bound = all(projection_clip);
    const long rows = k.row_blocks * BLOCK, inner = k.inputs + k.outputs;
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        long thread = 0, n_here = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num(), n_here = omp_get_num_threads();
#endif
        use_whole_tiles();
        round_weights(s, &k, &m, weight, bias, projection, thread, n_here);
        for (long unit = k.units * thread / n_here; unit < k.units * (thread + 1) / n_here; unit++) {
            float *padded = m.cell + unit * rows * BLOCK;
            memset(padded, 0, rows * BLOCK * sizeof(float));
            copy_units(s, &k, unit, 0, cell, m.cell);
            for (long at = 0; at < rows * BLOCK; at += LANES)
                store_halves(k.cells + unit * rows * BLOCK + at, load(padded + at));
        }
        round_step(s, &k, hidden, projection_dim, projection_dim, k.inputs, k.outputs, thread, n_here, m.step_inputs);
        round_step(s, &k, inputs, n_steps * input_dim, input_dim, 0, k.inputs, thread, n_here, m.step_inputs);
        float *sums = m.sums + thread * GATES * rows * BLOCK;
        for (long step = 0; step < n_steps; step++) {
#pragma omp barrier
            for (long unit = k.units * thread / n_here; unit < k.units * (thread + 1) / n_here; unit++)
                forward_units(s, &k, &m, step, unit, bound, sums);
#pragma omp barrier
            const long n_parts = k.outputs * k.row_blocks;
            for (long part = n_parts * thread / n_here; part < n_parts * (thread + 1) / n_here; part++) {
                const long block = part / k.row_blocks, row_block = part % k.row_blocks;
                add_block(0, m.step_units + row_block * 2 * k.units * TILE_SIZE, k.units * TILE_SIZE,
                          m.projection + block * 2 * k.units * TILE_SIZE, k.units * TILE_SIZE, k.units, sums, BLOCK, NULL);
                const long n = at_most(projection_dim - block * BLOCK, BLOCK);
                for (long r = 0; r < BLOCK; r++) {
                    const long row = row_block * BLOCK + r;
                    const vec first = clip(load(sums + r * BLOCK), output_bound);
                    const vec second = clip(load(sums + r * BLOCK + LANES), output_bound);
                    const ivec rounded = round_row(first, second);
                    memcpy(m.step_inputs + (row / 16 * inner + k.inputs + block) * TILE_SIZE + row % 16 * TILE_BYTES,
                           &rounded, TILE_BYTES);
                    if (row >= n_rows) continue;
                    float *to = outputs + (row * n_steps + step) * projection_dim + block * BLOCK;
                    store_some(to, first, n);
                    if (n > LANES) store_some(to + LANES, second, n - LANES);
                }
            }
            if (step + 1 < n_steps)
                round_step(s, &k, inputs + (step + 1) * input_dim, n_steps * input_dim, input_dim, 0, k.inputs, thread,
                           n_here, m.step_inputs);
        }
        /* A thread copies the units that it computed, so it needs no barrier. */
        for (long unit = k.units * thread / n_here; unit < k.units * (thread + 1) / n_here; unit++)
            copy_units(s, &k, unit, 1, m.cell, cell);
        release_tiles();
    }
#else
    (void)n_threads, (void)n_rows, (void)n_steps, (void)input_dim, (void)hidden_dim, (void)projection_dim, (void)inputs;
    (void)weight, (void)bias, (void)projection, (void)hidden, (void)cell, (void)cell_clip, (void)projection_clip;
    (void)kept, (void)memory, (void)outputs;
#endif
}

#if HAS_BFLOAT16
/* The gradient of `step_forward`, as in `lstm_training.c`: of the four gate sums, from that of the projection's input. */
INLINE void step_backward(vec upstream, const half *kept, const half *kept_cell, const half *cell_before, vec bound,
                          float *cell_gradient, vec gradient[GATES]) {
    const vec i = load_halves(kept), g = load_halves(kept + BLOCK), f = load_halves(kept + 2 * BLOCK);
    const vec o = load_halves(kept + 3 * BLOCK), squashed = load_halves(kept + 4 * BLOCK);
    const vec cell = load_halves(kept_cell), largest = all(INFINITY);
    /* A cell that was clipped before was kept as infinity; `clip` gives back its bound. */
    const vec before = clip(load_halves(cell_before), bound);
    vec to_cell = upstream * o * (1.0f - squashed * squashed) + load(cell_gradient);
    to_cell = choose((cell == largest) | (cell == -largest), (vec){0}, to_cell);
    gradient[0] = to_cell * g * i * (1.0f - i);
    gradient[1] = to_cell * i * (1.0f - g * g);
    gradient[2] = to_cell * before * f * (1.0f - f);
    gradient[3] = upstream * squashed * o * (1.0f - o);
    store(cell_gradient, to_cell * f);
}

/* A block of units of a step: the gradients of its gate sums, as both factors, and those of its cells. */
static void backward_units(window_sizes s, const kept_memory *k, const backward_memory *m, long step, long unit, vec bound,
                           float *sums) {
    const long rows = k->row_blocks * BLOCK, positions = k->row_blocks * s.n_steps, n_gates = GATES * k->units;
    for (long block = 0; block < k->row_blocks; block++)
        add_block(0, m->step_outputs + block * 2 * k->outputs * TILE_SIZE, k->outputs * TILE_SIZE,
                  k->backward_projection + unit * 2 * k->outputs * TILE_SIZE, k->outputs * TILE_SIZE, k->outputs,
                  sums + block * BLOCK * BLOCK, BLOCK, NULL);
    for (int v = 0; v < 2; v++) {
        vec bias[GATES];
        for (int gate = 0; gate < GATES; gate++) bias[gate] = load(m->bias + (unit * GATES + gate) * BLOCK + v * LANES);
        for (long row = 0; row < rows; row += 2) {
            vec gradient[2][GATES];
            _Pragma("GCC unroll 2") for (int r = 0; r < 2; r++) {
                const long at = unit * rows + row + r, cell = at * BLOCK + v * LANES;
                step_backward(load(sums + (row + r) * BLOCK + v * LANES),
                              k->kept + (step * k->units * rows + at) * KEPT * BLOCK + v * LANES,
                              k->cells + (step + 1) * k->units * rows * BLOCK + cell,
                              k->cells + step * k->units * rows * BLOCK + cell, bound, m->cell + cell, gradient[r]);
            }
            _Pragma("GCC unroll 4") for (int gate = 0; gate < GATES; gate++) {
                bias[gate] += gradient[0][gate] + gradient[1][gate];
                const ivec pairs = round_pairs(gradient[0][gate], gradient[1][gate]);
                char *to = m->gates + (((unit * GATES + gate) * 2 + v) * positions + step * k->row_blocks + row / BLOCK) *
                                          TILE_SIZE;
                memcpy(to + row % BLOCK / 2 * TILE_BYTES, &pairs, sizeof pairs);
                to = m->step_gates + (row / 16 * n_gates + unit * GATES + gate) * TILE_SIZE + row % 16 * TILE_BYTES + v * 32;
                const ivec both = round_row(gradient[0][gate], gradient[1][gate]);
                memcpy(to, &both, 32);
                memcpy(to + TILE_BYTES, (const char *)&both + 32, 32);
            }
        }
        for (int gate = 0; gate < GATES; gate++) store(m->bias + (unit * GATES + gate) * BLOCK + v * LANES, bias[gate]);
    }
}

/* The gradients of the weights of a block of units: the columns of the weight are the left factor, and its rows the
   right one, so that the factor with more outer indices needs no transposition. */
static void weight_gradient(window_sizes s, const kept_memory *k, const backward_memory *m, long unit, float *sums,
                            float *weight) {
    const long inner = k->inputs + k->outputs, positions = k->row_blocks * s.n_steps;
    const long width = s.input_dim + s.projection_dim, left = at_most(s.hidden_dim - unit * BLOCK, BLOCK);
    sum_in_chunks(m->read, inner, m->gates + unit * GATES * 2 * positions * TILE_SIZE, GATES, positions, sums);
    for (long block = 0; block < inner; block++) {
        const long first = block < k->inputs ? block * BLOCK : s.input_dim + (block - k->inputs) * BLOCK;
        const long n = at_most((block < k->inputs ? s.input_dim : width) - first, BLOCK);
        for (long gate = 0; gate < GATES; gate++)
            store_transposed(0, sums + (block * GATES + gate) * BLOCK * BLOCK,
                             weight + (gate * s.hidden_dim + unit * BLOCK) * width + first, width, left, n);
    }
}

static void projection_gradient(window_sizes s, const kept_memory *k, const backward_memory *m, long unit, float *sums,
                                float *projection) {
    const long positions = k->row_blocks * s.n_steps, left = at_most(s.hidden_dim - unit * BLOCK, BLOCK);
    sum_in_chunks(m->outputs, k->outputs, k->unprojected + unit * 2 * positions * TILE_SIZE, 1, positions, sums);
    for (long row = 0; row < s.projection_dim; row++)
        memcpy(projection + row * s.hidden_dim + unit * BLOCK, sums + row * BLOCK, left * sizeof(float));
}
#endif

/* Compute the gradients from those of the outputs, `upstream` (rows, steps, projection_dim).

   `kept` is what the forward pass left. All gradients are written, not added. That of the initial state is left out:
   windows are where backpropagation is cut. */
void elmokit_window_backward(long n_threads, long n_rows, long n_steps, long input_dim, long hidden_dim,
                             long projection_dim, const float *inputs, const float *hidden, const float *outputs,
                             const float *upstream, float cell_clip, float projection_clip, char *kept, char *memory,
                             float *input_gradient, float *weight, float *bias, float *projection) {
#if HAS_BFLOAT16
    const window_sizes s = {n_rows, n_steps, input_dim, hidden_dim, projection_dim};
    const kept_memory k = kept_parts(s, kept);
    const backward_memory m = backward_parts(s, n_threads, memory);
    const vec bound = all(cell_clip), output_bound = all(projection_clip);
    const long rows = k.row_blocks * BLOCK, inner = k.inputs + k.outputs, padded = k.outputs * BLOCK;
    const long positions = k.row_blocks * n_steps, n_gates = GATES * k.units;
    const long n_sums = (inner * GATES > k.row_blocks ? inner * GATES : k.row_blocks) * BLOCK * BLOCK;
    memset(m.cell, 0, rows * k.units * BLOCK * sizeof(float));
    memset(m.output, 0, rows * padded * sizeof(float));
    memset(m.bias, 0, n_gates * BLOCK * sizeof(float));
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        long thread = 0, n_here = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num(), n_here = omp_get_num_threads();
#endif
        float *sums = m.sums + thread * n_sums;
        use_whole_tiles();
        for (long step = n_steps - 1; step >= 0; step--) {
            /* The gradient of a step's outputs has two parts: from the layer above, and from the next step. */
            for (long tile = 2 * k.row_blocks * thread / n_here; tile < 2 * k.row_blocks * (thread + 1) / n_here; tile++) {
                for (long row = 16 * tile; row < at_most(n_rows, 16 * (tile + 1)); row++) {
                    const long at = (row * n_steps + step) * projection_dim;
                    for (long unit = 0; unit < projection_dim; unit += LANES) {
                        const long n = projection_dim - unit;
                        float *total = m.output + row * padded + unit;
                        const vec output = load_some(outputs + at + unit, n);
                        const vec sum = load(total) + load_some(upstream + at + unit, n);
                        /* With bounds, a NaN of the output passes none; without, zeros beyond the last column pass. */
                        store(total, choose((output < output_bound) & (output > -output_bound), sum, (vec){0}));
                    }
                }
                for (long block = 0; block < k.outputs; block++)
                    round_tile(LEFT, 1, m.output + 16 * tile * padded + block * BLOCK, padded, 16, BLOCK,
                               m.step_outputs + (tile * k.outputs + block) * TILE_SIZE);
            }
#pragma omp barrier
            /* The same, transposed, for the gradient of the projection; and what the step has read. */
            for (long tile = 2 * inner * thread / n_here; tile < 2 * inner * (thread + 1) / n_here; tile++)
                for (long block = 0; block < k.row_blocks; block++) {
                    const long first = 16 * tile, position = step * k.row_blocks + block, n = n_rows - block * BLOCK;
                    char *to = m.read + (tile * positions + position) * TILE_SIZE;
                    const float *state = step ? outputs + (step - 1) * projection_dim : hidden;
                    const long stride = step ? n_steps * projection_dim : projection_dim;
                    const long output = first - k.inputs * BLOCK;
                    if (output < 0)
                        round_tile(LEFT, 0, inputs + (block * BLOCK * n_steps + step) * input_dim + first,
                                   n_steps * input_dim, input_dim - first, n, to);
                    else {
                        round_tile(LEFT, 0, state + block * BLOCK * stride + output, stride, projection_dim - output, n, to);
                        round_tile(LEFT, 0, m.output + block * BLOCK * padded + output, padded, 16, BLOCK,
                                   m.outputs + ((tile - 2 * k.inputs) * positions + position) * TILE_SIZE);
                    }
                }
            for (long unit = k.units * thread / n_here; unit < k.units * (thread + 1) / n_here; unit++)
                backward_units(s, &k, &m, step, unit, bound, sums);
#pragma omp barrier
            /* The gradients of what the step has read. That of the initial state is not needed. */
            const long n_parts = (step ? inner : k.inputs) * k.row_blocks;
            for (long part = n_parts * thread / n_here; part < n_parts * (thread + 1) / n_here; part++) {
                const long block = part / k.row_blocks, row_block = part % k.row_blocks;
                add_block(0, m.step_gates + row_block * 2 * n_gates * TILE_SIZE, n_gates * TILE_SIZE,
                          k.backward_weight + block * 2 * n_gates * TILE_SIZE, n_gates * TILE_SIZE, n_gates, sums, BLOCK,
                          k.backward_weight + (2 * (block + 1) * n_gates + row_block * n_gates / 2) * TILE_SIZE);
                const long output = (block - k.inputs) * BLOCK, n = at_most(input_dim - block * BLOCK, BLOCK);
                for (long r = 0; r < BLOCK; r++) {
                    const long row = row_block * BLOCK + r;
                    if (output >= 0)
                        memcpy(m.output + row * padded + output, sums + r * BLOCK, BLOCK * sizeof(float));
                    else if (row < n_rows)
                        memcpy(input_gradient + (row * n_steps + step) * input_dim + block * BLOCK, sums + r * BLOCK,
                               n * sizeof(float));
                }
            }
#pragma omp barrier
        }
        for (long unit = k.units * thread / n_here; unit < k.units * (thread + 1) / n_here; unit++) {
            const long left = at_most(hidden_dim - unit * BLOCK, BLOCK);
            weight_gradient(s, &k, &m, unit, sums, weight);
            projection_gradient(s, &k, &m, unit, sums, projection);
            for (int gate = 0; gate < GATES; gate++)
                memcpy(bias + gate * hidden_dim + unit * BLOCK, m.bias + (unit * GATES + gate) * BLOCK, left * sizeof(float));
        }
        release_tiles();
    }
#else
    (void)n_threads, (void)n_rows, (void)n_steps, (void)input_dim, (void)hidden_dim, (void)projection_dim, (void)inputs;
    (void)hidden, (void)outputs, (void)upstream, (void)cell_clip, (void)projection_clip, (void)kept, (void)memory;
    (void)input_gradient, (void)weight, (void)bias, (void)projection;
#endif
}
