/* A layer of TensorFlow 1's LSTM as bilm-tf uses it (Sak et al. 2014, without peepholes). One step from input x and state
   (m, c):

       i, g, f, o = weight [x, m] + bias
       c' = clip(sigmoid(f + 1) c + sigmoid(i) tanh(g))
       m' = clip(projection (sigmoid(o) tanh(c')))

   Weights are in one of the precisions of `packed_product.h`; sums, cells and outputs are float32 in every precision. */

#include "lstm.h"

#include <stdlib.h>

/* Rows whose input products are computed together. Reading the weights once for many rows pays off as long as the gate sums
   of all these rows stay in the cache until they are needed. */
enum { CHUNK_ROWS = 256 };

/* TensorFlow adds it in every step and does not store it. Forget gates that start open let gradients flow further back
   (Jozefowicz et al. 2015). */
static const float FORGET_OFFSET = 1.0f;

float gate_bias(int64_t gate, float bias) { return gate == 2 ? bias + FORGET_OFFSET : bias; }

int pack_lstm(int precision, int64_t input_dim, int64_t hidden_dim, int64_t output_dim, float cell_clip,
              float output_clip, const float *weight, const float *bias, const float *projection, lstm_layer *layer) {
    const int64_t n_blocks = (hidden_dim + PANEL - 1) / PANEL, n_outputs = n_blocks * GATES * PANEL;
    *layer = (lstm_layer){.precision = precision, .input_dim = input_dim, .hidden_dim = hidden_dim};
    layer->output_dim = output_dim, layer->padded_dim = n_blocks * PANEL;
    layer->cell_clip = cell_clip, layer->output_clip = output_clip;
    /* Padded units have zero weights and biases, which give g = tanh(0) = 0, so their cells stay 0 and they add nothing. */
    const float **rows = calloc(n_outputs + output_dim, sizeof *rows);
    float *ordered_bias = calloc(n_outputs, sizeof *ordered_bias);
    int is_packed = rows && ordered_bias;
    if (is_packed) {
        for (int64_t unit = 0; unit < hidden_dim; unit++)
            for (int gate = 0; gate < GATES; gate++) {
                const int64_t to = (unit / PANEL * GATES + gate) * PANEL + unit % PANEL, from = gate * hidden_dim + unit;
                rows[to] = weight + from * (input_dim + output_dim);
                ordered_bias[to] = gate_bias(gate, bias[from]);
            }
        is_packed = pack_matrix(precision, n_outputs, input_dim, rows, input_dim, &layer->from_input) &&
                    pack_bias(ordered_bias, n_outputs, &layer->from_input);
        for (int64_t to = 0; to < n_outputs; to++)
            if (rows[to]) rows[to] += input_dim;
        is_packed = is_packed && pack_matrix(precision, n_outputs, output_dim, rows, output_dim, &layer->from_output);
        for (int64_t output = 0; projection && output < output_dim; output++)
            rows[output] = projection + output * hidden_dim;
        if (projection)
            is_packed = is_packed && pack_matrix(precision, output_dim, layer->padded_dim, rows, hidden_dim,
                                                 &layer->projection);
    }
    free(rows);
    free(ordered_bias);
    return is_packed;
}

int widen_lstm(const lstm_layer *layer, lstm_layer *widened) {
    const matrix *input = &layer->from_input;
    *widened = *layer;
    widened->from_input = widened->from_output = widened->projection = (matrix){0};
    return widen_matrix(input, &widened->from_input) &&
           pack_bias(input->bias, input->n_outputs, &widened->from_input) &&
           widen_matrix(&layer->from_output, &widened->from_output) &&
           (!layer->projection.panels || widen_matrix(&layer->projection, &widened->projection));
}

int64_t lstm_bytes(const lstm_layer *layer) {
    return matrix_bytes(&layer->from_input) + matrix_bytes(&layer->from_output) + matrix_bytes(&layer->projection);
}

void free_lstm(lstm_layer *layer) {
    free_matrix(&layer->from_input);
    free_matrix(&layer->from_output);
    free_matrix(&layer->projection);
}

/* At least one step. */
static int64_t chunk_rows_of(const schedule *order) {
    const int64_t most = order->n_tokens < CHUNK_ROWS ? order->n_tokens : CHUNK_ROWS;
    return most > order->n_rows ? most : order->n_rows;
}

char *place_lstm_memory(const lstm_layer *layer, const schedule *order, char *at, lstm_memory *memory) {
    const int64_t chunk = chunk_rows_of(order), n = order->n_rows;
    const int precision = layer->from_input.precision;
    const int64_t is_rounded = rounds_inputs(precision);
    memory->gates = (float *)place(&at, chunk * GATES * layer->padded_dim * 4);
    /* For a single step: the projection reads it before the next step overwrites it. */
    memory->units = (float *)place(&at, n * layer->padded_dim * 4);
    memory->cells = (float *)place(&at, n * layer->padded_dim * 4);
    memory->rounded_inputs = place(&at, is_rounded * chunk * rounded_row_bytes(precision, layer->input_dim));
    memory->rounded_state = place(&at, is_rounded * n * rounded_row_bytes(precision, layer->output_dim));
    memory->rounded_units = place(&at, is_rounded * n * rounded_row_bytes(precision, layer->padded_dim));
    return at;
}

/* For LANES hidden units of a row: compute the new cell and the unit's output from the gate sums and the old cell. */
INLINE void step_units(vec i, vec g, vec f, vec o, float *cell, float *unit, vec cell_clip) {
    vec new_cell = clip(sigmoid(f) * load(cell) + sigmoid(i) * tangent(g), cell_clip);
    store(cell, new_cell);
    store(unit, sigmoid(o) * tangent(new_cell));
}

/* The same for weights of a lower precision, whose rounding errors far exceed those made here: a common denominator saves
   three of five divisions, and tanh(x) = (e^2x - 1) / (e^2x + 1) loses digits near zero. The bound in `quick_power` keeps
   the products of three finite. */
INLINE void step_units_quickly(vec i, vec g, vec f, vec o, float *cell, float *unit, vec cell_clip) {
    const float log2_e = 1.44269504f;
    const vec input = 1.0f + quick_power(-log2_e * i), forget = 1.0f + quick_power(-log2_e * f);
    const vec candidate = quick_power(2 * log2_e * g), common = (candidate + 1.0f) * input;
    const vec new_cell = clip((load(cell) * common + (candidate - 1.0f) * forget) / (common * forget), cell_clip);
    store(cell, new_cell);
    const vec squared = quick_power(2 * log2_e * new_cell), output = 1.0f + quick_power(-log2_e * o);
    store(unit, (squared - 1.0f) / ((squared + 1.0f) * output));
}

/* The gates of all rows of a step, for the units of one block. */
static void step_block(int is_exact, int64_t n_rows, const float *sums, int64_t padded_dim, float *cells, float *units,
                       float cell_clip) {
    const vec bound = all(cell_clip);
    for (int64_t row = 0; row < n_rows; row++, sums += GATES * PANEL, cells += padded_dim, units += padded_dim)
        for (int v = 0; v < PANEL; v += LANES) {
            const vec i = load(sums + v), g = load(sums + PANEL + v), f = load(sums + 2 * PANEL + v);
            const vec o = load(sums + 3 * PANEL + v);
            if (is_exact)
                step_units(i, g, f, o, cells + v, units + v, bound);
            else
                step_units_quickly(i, g, f, o, cells + v, units + v, bound);
        }
}

/* The weights of a block of units. */
static const float *block_of(const matrix *weights, int64_t block) {
    return weights->panels + block * GATES * panel_lanes(weights->precision, weights->n_inputs);
}

void add_input_product(const matrix *weights, int64_t block, int64_t n_rows, inputs from, float *sums, const float *after) {
    const target with_bias = {sums, GATES * PANEL, weights->bias + block * GATES * PANEL};
    add_product(weights->precision, n_rows, GATES, from, block_of(weights, block), weights->n_inputs, with_bias, after);
}

/* A step with at least 1/8 as many rows as the layer has inputs is its own chunk: with that many rows, writing the sums of
   several steps and reading them again costs more than reading the input weights in every step (measured for 128, 256 and
   512 inputs). */
enum { FUSED_INPUTS = 8 };

int has_one_chunk(const lstm_layer *layer, const schedule *order) {
    return order->n_steps > 1 && order->n_tokens <= CHUNK_ROWS && order->step_rows[0] < layer->input_dim / FUSED_INPUTS;
}

/* The maximum size of a step's weights that stay in a core's L2 cache from step to step (many current processors have 1 MB
   or more). Prefetching them would only take time: 6 % of a sentence with the included model. */
enum { CACHED_BYTES = 1 << 20 };

/* The input products of several steps (a chunk) are computed together, because they do not depend on the state: the weights
   are then read once for many rows. Each step is left with the recurrent product, the gates and the projection. In a chunk
   of one step, both products of a block of units are computed one after the other, while the block's sums are in the cache.

   The threads of a team share the hidden units, not the rows: each thread keeps its part of the weights in its own cache
   from step to step. Every step has two barriers. The projection needs the hidden units of all threads (the first), and the
   next step needs all outputs (the second). A unit's sums stay with its thread, so no barrier is needed between the input
   products and the steps. If inputs are rounded, each rounding needs another barrier, because a row's scale depends on all
   of its numbers.

   `gates` holds the sums of a chunk for every block of units: (blocks, chunk rows, GATES * PANEL). */
void run_lstm(const member *me, const lstm_layer *layer, const schedule *order, const float *rows, const float *state,
              float *outputs, const lstm_memory *memory) {
    const matrix *from_input = &layer->from_input, *from_output = &layer->from_output;
    const int precision = from_input->precision, is_exact = layer->precision == FLOAT32;
    const int rounds = rounds_inputs(precision);
    const int is_cached = matrix_bytes(from_output) + matrix_bytes(&layer->projection) <= CACHED_BYTES;
    const int64_t n_blocks = layer->padded_dim / PANEL, chunk_rows = chunk_rows_of(order);
    const int64_t first = first_of(me, n_blocks), last = last_of(me, n_blocks);
    inputs before = round_part(me, precision, order->step_rows[0], state, layer->output_dim, memory->rounded_state);
    int64_t row = 0; /* the step's first row among the rows of all steps */
    /* These loop bounds are the same in every thread, so all threads meet at the same barriers. */
    for (int64_t start = 0, stop; start < order->n_steps; start = stop) {
        int64_t n_rows = 0; /* of the steps `start` to `stop`, the chunk */
        const int64_t bound = order->step_rows[start] < layer->input_dim / FUSED_INPUTS ? chunk_rows : 0;
        for (stop = start; stop < order->n_steps && (stop == start || n_rows + order->step_rows[stop] <= bound); stop++)
            n_rows += order->step_rows[stop];
        const int is_fused = stop == start + 1;
        const inputs chunk = round_part(me, precision, n_rows, rows + row * layer->input_dim, layer->input_dim,
                                        memory->rounded_inputs);
        if (rounds) meet(me);
        for (int64_t block = first; block < last && !is_fused && from_input->panels; block++)
            add_input_product(from_input, block, n_rows, chunk, memory->gates + block * chunk_rows * GATES * PANEL,
                              block_of(from_input, block + 1));
        for (int64_t step = start, inside = 0; step < stop; inside += order->step_rows[step], step++) {
            const int64_t n = order->step_rows[step];
            /* Alternate the direction in which blocks are visited: the weights read last are still in the cache when the
               next step begins with them. */
            const int back = step % 2;
            for (int64_t at = first; at < last; at++) {
                const int64_t block = back ? last - 1 - (at - first) : at, next = block + (back ? -1 : 1);
                float *sums = memory->gates + (block * chunk_rows + inside) * GATES * PANEL;
                if (is_fused) add_input_product(from_input, block, n, chunk, sums, block_of(from_output, block));
                const float *after = block_of(is_fused ? from_input : from_output, next < 0 ? 0 : next);
                add_product(precision, n, GATES, before, block_of(from_output, block), layer->output_dim,
                            (target){sums, GATES * PANEL, NULL}, n == 1 && is_cached ? NULL : after);
                step_block(is_exact, n, sums, layer->padded_dim, memory->cells + block * PANEL,
                           memory->units + block * PANEL, layer->cell_clip);
            }
            meet(me);
            float *here = outputs + row * layer->output_dim;
            if (layer->projection.panels) {
                const inputs units = round_part(me, precision, n, memory->units, layer->padded_dim, memory->rounded_units);
                if (rounds) meet(me);
                multiply_part(me, &layer->projection, n, units, here, layer->output_dim, layer->output_clip);
            } else {
                for (int64_t r = first_of(me, n); r < last_of(me, n); r++)
                    memcpy(here + r * layer->output_dim, memory->units + r * layer->padded_dim, layer->output_dim * 4);
            }
            meet(me);
            /* The next step's state is this step's output, read where it was written. The next step may have fewer rows;
               they are the first ones. */
            before = round_part(me, precision, n, here, layer->output_dim, memory->rounded_state);
            if (rounds) meet(me);
            row += n;
        }
    }
    release_tiles();
}
