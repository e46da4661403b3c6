/* One LSTM layer over a training window, forward and backward, with products of bf16 tiles.

   `lstm_training.py` has the formulas; `bfloat16_tiles.h` explains the products. Only the factors of products are rounded:
   cells, sums, clipping and all gradients of weights stay in float32. The activations needed by the backward pass are kept
   in float16, which is eight times as precise as bf16; except for cells, they are below 1 in magnitude.

   A library's products are not used, because in a window of 20 steps, most of the time would be spent on starting them,
   packing factors again, and writing and reading sums. Here, factors are written as tiles when they are computed, the sums
   of a block of units never leave the L2 cache, and the gradient of each weight is one product over all steps.

   Units come in blocks of 32. In the order of gate sums, a block has 32 of i, then of g, f and o. Rows (of the batch), units
   and inputs are padded to multiples of 32 with zeros, which stay zero wherever gradients are summed. */

#include "bfloat16_tiles.h"
#include "threads.h"
#include "training.h"

enum { KEPT = 5 }; /* numbers kept per unit and step, besides the cell: i, g, f, o, tanh of the cell */

typedef struct {
    int64_t n_rows, n_steps, input_dim, hidden_dim, projection_dim;
} window_sizes;

#if HAS_BFLOAT16
typedef struct {
    int64_t row_blocks, inputs, units, outputs; /* numbers of blocks */
    /* Kept from the forward pass for the backward pass. */
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

/* Divide up memory starting at `at`; for a null pointer, `end` is the number of bytes needed. */
static kept_memory kept_parts(window_sizes s, char *at) {
    kept_memory m = {.row_blocks = blocks(s.n_rows), .inputs = blocks(s.input_dim)};
    m.units = blocks(s.hidden_dim), m.outputs = blocks(s.projection_dim);
    const int64_t inner = m.inputs + m.outputs, rows = m.row_blocks * BLOCK;
    m.backward_weight = take(&at, 2 * TILE_SIZE * inner * GATES * m.units);
    m.backward_projection = take(&at, 2 * TILE_SIZE * m.units * m.outputs);
    m.unprojected = take(&at, 2 * TILE_SIZE * m.units * m.row_blocks * s.n_steps);
    m.kept = take(&at, (int64_t)sizeof(half) * KEPT * s.n_steps * m.units * rows * BLOCK);
    m.cells = take(&at, (int64_t)sizeof(half) * (s.n_steps + 1) * m.units * rows * BLOCK);
    m.end = at;
    return m;
}

static forward_memory forward_parts(window_sizes s, int64_t n_threads, char *at) {
    const kept_memory k = kept_parts(s, NULL);
    const int64_t inner = k.inputs + k.outputs, rows = k.row_blocks * BLOCK;
    forward_memory m;
    m.weight = take(&at, 2 * TILE_SIZE * GATES * k.units * inner);
    m.projection = take(&at, 2 * TILE_SIZE * k.outputs * k.units);
    m.step_inputs = take(&at, 2 * TILE_SIZE * k.row_blocks * inner);
    m.step_units = take(&at, 2 * TILE_SIZE * k.row_blocks * k.units);
    m.bias = take(&at, (int64_t)sizeof(float) * GATES * k.units * BLOCK);
    m.cell = take(&at, (int64_t)sizeof(float) * k.units * rows * BLOCK);
    m.sums = take(&at, (int64_t)sizeof(float) * n_threads * GATES * rows * BLOCK);
    m.end = at;
    return m;
}

/* The blocks of sums of a thread: of a step's gate sums, or of the weights of a block of units. */
INLINE int64_t sum_blocks(const kept_memory *k) {
    const int64_t of_weights = (k->inputs + k->outputs) * GATES;
    return of_weights > k->row_blocks ? of_weights : k->row_blocks;
}

static backward_memory backward_parts(window_sizes s, int64_t n_threads, char *at) {
    const kept_memory k = kept_parts(s, NULL);
    const int64_t inner = k.inputs + k.outputs, rows = k.row_blocks * BLOCK, positions = k.row_blocks * s.n_steps;
    backward_memory m;
    m.step_gates = take(&at, 2 * TILE_SIZE * k.row_blocks * GATES * k.units);
    m.gates = take(&at, 2 * TILE_SIZE * GATES * k.units * positions);
    m.step_outputs = take(&at, 2 * TILE_SIZE * k.row_blocks * k.outputs);
    m.outputs = take(&at, 2 * TILE_SIZE * k.outputs * positions);
    m.read = take(&at, 2 * TILE_SIZE * inner * positions);
    m.cell = take(&at, (int64_t)sizeof(float) * k.units * rows * BLOCK);
    m.output = take(&at, (int64_t)sizeof(float) * rows * k.outputs * BLOCK);
    m.bias = take(&at, (int64_t)sizeof(float) * k.units * GATES * BLOCK);
    m.sums = take(&at, (int64_t)sizeof(float) * n_threads * sum_blocks(&k) * BLOCK * BLOCK);
    m.end = at;
    return m;
}

typedef struct {
    window_sizes sizes;
    kept_memory kept;
    forward_memory memory;
    const float *inputs, *weight, *bias, *projection, *hidden;
    float *cell, *outputs;
    float cell_clip, projection_clip;
} forward_pass;

/* The elementwise part of a step for 16 units of a row. Return the projection's input. A clipped cell, which passes on no
   gradient, is stored as infinity. */
INLINE vec step_forward(const float *sums, int64_t gate_stride, const vec bias[GATES], float *cell, vec bound, half *kept,
                        half *kept_cell) {
    const vec i = quick_sigmoid(load(sums) + bias[0]), g = quick_tangent(load(sums + gate_stride) + bias[1]);
    const vec f = quick_sigmoid(load(sums + 2 * gate_stride) + bias[2]);
    const vec o = quick_sigmoid(load(sums + 3 * gate_stride) + bias[3]);
    const vec unclipped = f * load(cell) + i * g, new_cell = clip(unclipped, bound), tanh_cell = quick_tangent(new_cell);
    store(cell, new_cell);
    store_halves(kept, i);
    store_halves(kept + BLOCK, g);
    store_halves(kept + 2 * BLOCK, f);
    store_halves(kept + 3 * BLOCK, o);
    store_halves(kept + 4 * BLOCK, tanh_cell);
    const vec not_above = choose(unclipped <= -bound, all(-INFINITY), new_cell);
    store_halves(kept_cell, choose(unclipped >= bound, all(INFINITY), not_above));
    return o * tanh_cell;
}

/* The gate sums of a block of units for all rows, and the elementwise part. */
static void forward_units(const forward_pass *call, int64_t step, int64_t unit, float *sums) {
    const window_sizes s = call->sizes;
    const kept_memory *k = &call->kept;
    const forward_memory *m = &call->memory;
    const vec bound = all(call->cell_clip);
    const int64_t rows = k->row_blocks * BLOCK, inner = k->inputs + k->outputs;
    for (int64_t gate = 0; gate < GATES; gate++) {
        const char *weight = m->weight + (unit * GATES + gate) * 2 * inner * TILE_SIZE;
        /* The weights of all units may not fit in the L2 cache, so the next ones are prefetched while these are used. */
        for (int64_t block = 0; block < k->row_blocks; block++)
            add_block(0, m->step_inputs + block * 2 * inner * TILE_SIZE, inner * TILE_SIZE, weight, inner * TILE_SIZE, inner,
                      sums + (gate * rows + block * BLOCK) * BLOCK, BLOCK,
                      weight + (2 * inner + block * inner / 2) * TILE_SIZE);
    }
    const int64_t positions = k->row_blocks * s.n_steps, padded = k->units * BLOCK;
    for (int v = 0; v < 2; v++) {
        vec bias[GATES];
        for (int gate = 0; gate < GATES; gate++) bias[gate] = load(m->bias + gate * padded + unit * BLOCK + v * LANES);
        for (int64_t row = 0; row < rows; row += 2) {
            const int64_t at = unit * rows + row;
            vec outputs[2];
            _Pragma("GCC unroll 2") for (int r = 0; r < 2; r++)
                outputs[r] = step_forward(sums + (row + r) * BLOCK + v * LANES, rows * BLOCK, bias,
                                          m->cell + (at + r) * BLOCK + v * LANES, bound,
                                          k->kept + (step * k->units * rows + at + r) * KEPT * BLOCK + v * LANES,
                                          k->cells + ((step + 1) * k->units * rows + at + r) * BLOCK + v * LANES);
            /* Store as the right factor of the projection's gradient, and as the left factor of the projection. */
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
static void round_step(const member *me, const forward_pass *call, const float *from, int64_t row_stride, int64_t dim,
                       int64_t first_block, int64_t n_blocks) {
    const int64_t inner = call->kept.inputs + call->kept.outputs, n_tiles = 2 * call->kept.row_blocks;
    for (int64_t tile = first_of(me, n_tiles); tile < last_of(me, n_tiles); tile++)
        for (int64_t block = 0; block < n_blocks; block++)
            round_tile(LEFT, 1, from + 16 * tile * row_stride + block * BLOCK, row_stride,
                       call->sizes.n_rows - 16 * tile, dim - block * BLOCK,
                       call->memory.step_inputs + (tile * inner + first_block + block) * TILE_SIZE);
}

/* Round the weights into the four factors of the two passes: a thread's part of the blocks of units. */
static void round_weights(const member *me, const forward_pass *call) {
    const window_sizes s = call->sizes;
    const kept_memory *k = &call->kept;
    const forward_memory *m = &call->memory;
    const int64_t inner = k->inputs + k->outputs, width = s.input_dim + s.projection_dim;
    for (int64_t unit = first_of(me, k->units); unit < last_of(me, k->units); unit++) {
        const int64_t left = at_most(s.hidden_dim - unit * BLOCK, BLOCK);
        for (int64_t gate = 0; gate < GATES; gate++) {
            const float *rows = call->weight + (gate * s.hidden_dim + unit * BLOCK) * width;
            float *padded = m->bias + gate * k->units * BLOCK + unit * BLOCK;
            memset(padded, 0, BLOCK * sizeof(float));
            memcpy(padded, call->bias + gate * s.hidden_dim + unit * BLOCK, left * sizeof(float));
            for (int64_t block = 0; block < inner; block++) {
                /* The columns of inputs are padded, then those of outputs. */
                const int64_t first = block < k->inputs ? block * BLOCK : s.input_dim + (block - k->inputs) * BLOCK;
                const int64_t n = (block < k->inputs ? s.input_dim : width) - first;
                for (int v = 0; v < 2; v++) {
                    round_tile(RIGHT, 1, rows + 16 * v * width + first, width, left - 16 * v, n,
                               m->weight + (((unit * GATES + gate) * 2 + v) * inner + block) * TILE_SIZE);
                    round_tile(RIGHT, 0, rows + first + 16 * v, width, n - 16 * v, left,
                               k->backward_weight + ((2 * block + v) * GATES * k->units + unit * GATES + gate) * TILE_SIZE);
                }
            }
        }
        for (int64_t block = 0; block < k->outputs; block++) {
            const float *part = call->projection + block * BLOCK * s.hidden_dim + unit * BLOCK;
            const int64_t n = s.projection_dim - block * BLOCK;
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
INLINE void copy_units(window_sizes s, const kept_memory *k, int64_t unit, int is_padded, const float *from, float *to) {
    const int64_t left = at_most(s.hidden_dim - unit * BLOCK, BLOCK), rows = k->row_blocks * BLOCK;
    for (int64_t row = 0; row < s.n_rows; row++) {
        const int64_t plain = row * s.hidden_dim + unit * BLOCK, padded = (unit * rows + row) * BLOCK;
        memcpy(to + (is_padded ? plain : padded), from + (is_padded ? padded : plain), left * sizeof(float));
    }
}

/* A thread's part of a step's outputs: into `outputs`, and rounded, for the next step. */
static void forward_outputs(const member *me, const forward_pass *call, int64_t step, float *sums) {
    const window_sizes s = call->sizes;
    const kept_memory *k = &call->kept;
    const forward_memory *m = &call->memory;
    const vec bound = all(call->projection_clip);
    const int64_t inner = k->inputs + k->outputs, n_parts = k->outputs * k->row_blocks;
    for (int64_t part = first_of(me, n_parts); part < last_of(me, n_parts); part++) {
        const int64_t block = part / k->row_blocks, row_block = part % k->row_blocks;
        add_block(0, m->step_units + row_block * 2 * k->units * TILE_SIZE, k->units * TILE_SIZE,
                  m->projection + block * 2 * k->units * TILE_SIZE, k->units * TILE_SIZE, k->units, sums, BLOCK, NULL);
        const int64_t n = at_most(s.projection_dim - block * BLOCK, BLOCK);
        for (int64_t r = 0; r < BLOCK; r++) {
            const int64_t row = row_block * BLOCK + r;
            const vec first = clip(load(sums + r * BLOCK), bound), second = clip(load(sums + r * BLOCK + LANES), bound);
            const ivec rounded = round_row(first, second);
            memcpy(m->step_inputs + (row / 16 * inner + k->inputs + block) * TILE_SIZE + row % 16 * TILE_BYTES, &rounded,
                   TILE_BYTES);
            if (row >= s.n_rows) continue;
            float *to = call->outputs + (row * s.n_steps + step) * s.projection_dim + block * BLOCK;
            store_some(to, first, n);
            if (n > LANES) store_some(to + LANES, second, n - LANES);
        }
    }
}

static void run_forward(const member *me, void *context) {
    const forward_pass *call = context;
    const window_sizes s = call->sizes;
    const kept_memory *k = &call->kept;
    const forward_memory *m = &call->memory;
    const int64_t rows = k->row_blocks * BLOCK;
    float *sums = m->sums + me->thread * GATES * rows * BLOCK;
    use_whole_tiles();
    round_weights(me, call);
    for (int64_t unit = first_of(me, k->units); unit < last_of(me, k->units); unit++) {
        float *padded = m->cell + unit * rows * BLOCK;
        memset(padded, 0, rows * BLOCK * sizeof(float));
        copy_units(s, k, unit, 0, call->cell, m->cell);
        for (int64_t at = 0; at < rows * BLOCK; at += LANES)
            store_halves(k->cells + unit * rows * BLOCK + at, load(padded + at));
    }
    round_step(me, call, call->hidden, s.projection_dim, s.projection_dim, k->inputs, k->outputs);
    round_step(me, call, call->inputs, s.n_steps * s.input_dim, s.input_dim, 0, k->inputs);
    for (int64_t step = 0; step < s.n_steps; step++) {
        meet(me);
        for (int64_t unit = first_of(me, k->units); unit < last_of(me, k->units); unit++)
            forward_units(call, step, unit, sums);
        meet(me);
        forward_outputs(me, call, step, sums);
        if (step + 1 < s.n_steps)
            round_step(me, call, call->inputs + (step + 1) * s.input_dim, s.n_steps * s.input_dim, s.input_dim, 0,
                       k->inputs);
    }
    /* A thread copies the units that it computed, so it needs no barrier. */
    for (int64_t unit = first_of(me, k->units); unit < last_of(me, k->units); unit++)
        copy_units(s, k, unit, 1, m->cell, call->cell);
    release_tiles();
}
#endif

void elmokit_window_bytes(int64_t n_threads, int64_t n_rows, int64_t n_steps, int64_t input_dim, int64_t hidden_dim,
                          int64_t projection_dim, int64_t *n_bytes) {
#if HAS_BFLOAT16
    const window_sizes s = {n_rows, n_steps, input_dim, hidden_dim, projection_dim};
    n_bytes[0] = kept_parts(s, NULL).end - (char *)NULL;
    n_bytes[1] = forward_parts(s, n_threads, NULL).end - (char *)NULL;
    n_bytes[2] = backward_parts(s, n_threads, NULL).end - (char *)NULL;
#else
    (void)n_threads, (void)n_rows, (void)n_steps, (void)input_dim, (void)hidden_dim, (void)projection_dim, (void)n_bytes;
#endif
}

void elmokit_window_forward(int64_t n_threads, int64_t n_rows, int64_t n_steps, int64_t input_dim, int64_t hidden_dim,
                            int64_t projection_dim, const float *inputs, const float *weight, const float *bias,
                            const float *projection, const float *hidden, float *cell, float cell_clip,
                            float projection_clip, char *kept, char *memory, float *outputs) {
#if HAS_BFLOAT16
    const window_sizes s = {n_rows, n_steps, input_dim, hidden_dim, projection_dim};
    forward_pass call = {s, kept_parts(s, kept), forward_parts(s, n_threads, memory), inputs, weight, bias, projection,
                         hidden, cell, outputs, cell_clip, projection_clip};
    run_team(n_threads, run_forward, &call);
#else
    (void)n_threads, (void)n_rows, (void)n_steps, (void)input_dim, (void)hidden_dim, (void)projection_dim, (void)inputs;
    (void)weight, (void)bias, (void)projection, (void)hidden, (void)cell, (void)cell_clip, (void)projection_clip;
    (void)kept, (void)memory, (void)outputs;
#endif
}

#if HAS_BFLOAT16
typedef struct {
    window_sizes sizes;
    kept_memory kept;
    backward_memory memory;
    const float *inputs, *hidden, *outputs, *upstream;
    float *input_gradient, *weight, *bias, *projection;
    float cell_clip, projection_clip;
} backward_pass;

/* The gradient of `step_forward`, as in `lstm_training.c`: compute the gradients of the four gate sums from the gradient of
   the projection's input. */
INLINE void step_backward(vec upstream, const half *kept, const half *kept_cell, const half *cell_before, vec bound,
                          float *cell_gradient, vec gradient[GATES]) {
    const vec i = load_halves(kept), g = load_halves(kept + BLOCK), f = load_halves(kept + 2 * BLOCK);
    const vec o = load_halves(kept + 3 * BLOCK), tanh_cell = load_halves(kept + 4 * BLOCK);
    const vec cell = load_halves(kept_cell), largest = all(INFINITY);
    /* A clipped cell was stored as infinity; `clip` restores its bound. */
    const vec before = clip(load_halves(cell_before), bound);
    vec to_cell = upstream * o * (1.0f - tanh_cell * tanh_cell) + load(cell_gradient);
    to_cell = choose((cell == largest) | (cell == -largest), (vec){0}, to_cell);
    gradient[0] = to_cell * g * i * (1.0f - i);
    gradient[1] = to_cell * i * (1.0f - g * g);
    gradient[2] = to_cell * before * f * (1.0f - f);
    gradient[3] = upstream * tanh_cell * o * (1.0f - o);
    store(cell_gradient, to_cell * f);
}

/* For a block of units of a step: compute the gradients of its gate sums, as both factors, and of its cells. */
static void backward_units(const backward_pass *call, int64_t step, int64_t unit, float *sums) {
    const window_sizes s = call->sizes;
    const kept_memory *k = &call->kept;
    const backward_memory *m = &call->memory;
    const vec bound = all(call->cell_clip);
    const int64_t rows = k->row_blocks * BLOCK, positions = k->row_blocks * s.n_steps, n_gates = GATES * k->units;
    for (int64_t block = 0; block < k->row_blocks; block++)
        add_block(0, m->step_outputs + block * 2 * k->outputs * TILE_SIZE, k->outputs * TILE_SIZE,
                  k->backward_projection + unit * 2 * k->outputs * TILE_SIZE, k->outputs * TILE_SIZE, k->outputs,
                  sums + block * BLOCK * BLOCK, BLOCK, NULL);
    for (int v = 0; v < 2; v++) {
        vec bias[GATES];
        for (int gate = 0; gate < GATES; gate++) bias[gate] = load(m->bias + (unit * GATES + gate) * BLOCK + v * LANES);
        for (int64_t row = 0; row < rows; row += 2) {
            vec gradient[2][GATES];
            _Pragma("GCC unroll 2") for (int r = 0; r < 2; r++) {
                const int64_t at = unit * rows + row + r, cell = at * BLOCK + v * LANES;
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

/* The gradients of a block of units' weights: the weight's columns are the left factor, and its rows the right factor, so
   the factor with more outer indices needs no transposition. */
static void weight_gradient(const backward_pass *call, int64_t unit, float *sums) {
    const window_sizes s = call->sizes;
    const kept_memory *k = &call->kept;
    const backward_memory *m = &call->memory;
    const int64_t inner = k->inputs + k->outputs, positions = k->row_blocks * s.n_steps;
    const int64_t width = s.input_dim + s.projection_dim, left = at_most(s.hidden_dim - unit * BLOCK, BLOCK);
    sum_in_chunks(m->read, inner, m->gates + unit * GATES * 2 * positions * TILE_SIZE, GATES, positions, sums);
    for (int64_t block = 0; block < inner; block++) {
        const int64_t first = block < k->inputs ? block * BLOCK : s.input_dim + (block - k->inputs) * BLOCK;
        const int64_t n = at_most((block < k->inputs ? s.input_dim : width) - first, BLOCK);
        for (int64_t gate = 0; gate < GATES; gate++)
            store_transposed(0, sums + (block * GATES + gate) * BLOCK * BLOCK,
                             call->weight + (gate * s.hidden_dim + unit * BLOCK) * width + first, width, left, n);
    }
}

static void projection_gradient(const backward_pass *call, int64_t unit, float *sums) {
    const window_sizes s = call->sizes;
    const kept_memory *k = &call->kept;
    const backward_memory *m = &call->memory;
    const int64_t positions = k->row_blocks * s.n_steps, left = at_most(s.hidden_dim - unit * BLOCK, BLOCK);
    sum_in_chunks(m->outputs, k->outputs, k->unprojected + unit * 2 * positions * TILE_SIZE, 1, positions, sums);
    for (int64_t row = 0; row < s.projection_dim; row++)
        memcpy(call->projection + row * s.hidden_dim + unit * BLOCK, sums + row * BLOCK, left * sizeof(float));
}

/* A thread's part of the gradient of a step's outputs: from the layer above, and from the next step, which left its part in
   `output`. */
static void add_upstream(const member *me, const backward_pass *call, int64_t step) {
    const window_sizes s = call->sizes;
    const kept_memory *k = &call->kept;
    const backward_memory *m = &call->memory;
    const vec bound = all(call->projection_clip);
    const int64_t padded = k->outputs * BLOCK, n_tiles = 2 * k->row_blocks;
    for (int64_t tile = first_of(me, n_tiles); tile < last_of(me, n_tiles); tile++) {
        for (int64_t row = 16 * tile; row < at_most(s.n_rows, 16 * (tile + 1)); row++) {
            const int64_t at = (row * s.n_steps + step) * s.projection_dim;
            for (int64_t unit = 0; unit < s.projection_dim; unit += LANES) {
                const int64_t n = s.projection_dim - unit;
                float *total = m->output + row * padded + unit;
                const vec output = load_some(call->outputs + at + unit, n);
                const vec sum = load(total) + load_some(call->upstream + at + unit, n);
                /* With bounds, a NaN output passes on no gradient; without, zeros beyond the last column do. */
                store(total, choose((output < bound) & (output > -bound), sum, (vec){0}));
            }
        }
        for (int64_t block = 0; block < k->outputs; block++)
            round_tile(LEFT, 1, m->output + 16 * tile * padded + block * BLOCK, padded, 16, BLOCK,
                       m->step_outputs + (tile * k->outputs + block) * TILE_SIZE);
    }
}

/* The same, transposed, for the gradient of the projection; and the inputs that the step has read. */
static void round_transposed(const member *me, const backward_pass *call, int64_t step) {
    const window_sizes s = call->sizes;
    const kept_memory *k = &call->kept;
    const backward_memory *m = &call->memory;
    const int64_t n_tiles = 2 * (k->inputs + k->outputs), positions = k->row_blocks * s.n_steps, padded = k->outputs * BLOCK;
    const float *state = step ? call->outputs + (step - 1) * s.projection_dim : call->hidden;
    const int64_t stride = step ? s.n_steps * s.projection_dim : s.projection_dim;
    for (int64_t tile = first_of(me, n_tiles); tile < last_of(me, n_tiles); tile++)
        for (int64_t block = 0; block < k->row_blocks; block++) {
            const int64_t first = 16 * tile, position = step * k->row_blocks + block, n = s.n_rows - block * BLOCK;
            char *to = m->read + (tile * positions + position) * TILE_SIZE;
            const int64_t output = first - k->inputs * BLOCK;
            if (output < 0)
                round_tile(LEFT, 0, call->inputs + (block * BLOCK * s.n_steps + step) * s.input_dim + first,
                           s.n_steps * s.input_dim, s.input_dim - first, n, to);
            else {
                round_tile(LEFT, 0, state + block * BLOCK * stride + output, stride, s.projection_dim - output, n, to);
                round_tile(LEFT, 0, m->output + block * BLOCK * padded + output, padded, 16, BLOCK,
                           m->outputs + ((tile - 2 * k->inputs) * positions + position) * TILE_SIZE);
            }
        }
}

/* A thread's part of the gradients of a step's inputs. The gradient of the initial state is not needed. */
static void backward_inputs(const member *me, const backward_pass *call, int64_t step, float *sums) {
    const window_sizes s = call->sizes;
    const kept_memory *k = &call->kept;
    const backward_memory *m = &call->memory;
    const int64_t n_gates = GATES * k->units, padded = k->outputs * BLOCK;
    const int64_t n_parts = (step ? k->inputs + k->outputs : k->inputs) * k->row_blocks;
    for (int64_t part = first_of(me, n_parts); part < last_of(me, n_parts); part++) {
        const int64_t block = part / k->row_blocks, row_block = part % k->row_blocks;
        add_block(0, m->step_gates + row_block * 2 * n_gates * TILE_SIZE, n_gates * TILE_SIZE,
                  k->backward_weight + block * 2 * n_gates * TILE_SIZE, n_gates * TILE_SIZE, n_gates, sums, BLOCK,
                  k->backward_weight + (2 * (block + 1) * n_gates + row_block * n_gates / 2) * TILE_SIZE);
        const int64_t output = (block - k->inputs) * BLOCK, n = at_most(s.input_dim - block * BLOCK, BLOCK);
        for (int64_t r = 0; r < BLOCK; r++) {
            const int64_t row = row_block * BLOCK + r;
            if (output >= 0)
                memcpy(m->output + row * padded + output, sums + r * BLOCK, BLOCK * sizeof(float));
            else if (row < s.n_rows)
                memcpy(call->input_gradient + (row * s.n_steps + step) * s.input_dim + block * BLOCK, sums + r * BLOCK,
                       n * sizeof(float));
        }
    }
}

static void run_backward(const member *me, void *context) {
    const backward_pass *call = context;
    const window_sizes s = call->sizes;
    const kept_memory *k = &call->kept;
    const backward_memory *m = &call->memory;
    float *sums = m->sums + me->thread * sum_blocks(k) * BLOCK * BLOCK;
    use_whole_tiles();
    for (int64_t step = s.n_steps - 1; step >= 0; step--) {
        add_upstream(me, call, step);
        meet(me);
        round_transposed(me, call, step);
        for (int64_t unit = first_of(me, k->units); unit < last_of(me, k->units); unit++)
            backward_units(call, step, unit, sums);
        meet(me);
        backward_inputs(me, call, step, sums);
        meet(me);
    }
    for (int64_t unit = first_of(me, k->units); unit < last_of(me, k->units); unit++) {
        const int64_t left = at_most(s.hidden_dim - unit * BLOCK, BLOCK);
        weight_gradient(call, unit, sums);
        projection_gradient(call, unit, sums);
        for (int gate = 0; gate < GATES; gate++)
            memcpy(call->bias + gate * s.hidden_dim + unit * BLOCK, m->bias + (unit * GATES + gate) * BLOCK,
                   left * sizeof(float));
    }
    release_tiles();
}
#endif

void elmokit_window_backward(int64_t n_threads, int64_t n_rows, int64_t n_steps, int64_t input_dim, int64_t hidden_dim,
                             int64_t projection_dim, const float *inputs, const float *hidden, const float *outputs,
                             const float *upstream, float cell_clip, float projection_clip, char *kept, char *memory,
                             float *input_gradient, float *weight, float *bias, float *projection) {
#if HAS_BFLOAT16
    const window_sizes s = {n_rows, n_steps, input_dim, hidden_dim, projection_dim};
    const kept_memory k = kept_parts(s, kept);
    const backward_memory m = backward_parts(s, n_threads, memory);
    backward_pass call = {s, k, m, inputs, hidden, outputs, upstream, input_gradient, weight, bias, projection,
                          cell_clip, projection_clip};
    /* All gradients are sums, which start at zero. */
    memset(m.cell, 0, k.units * k.row_blocks * BLOCK * BLOCK * sizeof(float));
    memset(m.output, 0, k.row_blocks * BLOCK * k.outputs * BLOCK * sizeof(float));
    memset(m.bias, 0, k.units * GATES * BLOCK * sizeof(float));
    run_team(n_threads, run_backward, &call);
#else
    (void)n_threads, (void)n_rows, (void)n_steps, (void)input_dim, (void)hidden_dim, (void)projection_dim, (void)inputs;
    (void)hidden, (void)outputs, (void)upstream, (void)cell_clip, (void)projection_clip, (void)kept, (void)memory;
    (void)input_gradient, (void)weight, (void)bias, (void)projection;
#endif
}
