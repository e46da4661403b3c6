/* An LSTM layer with the current weights: they are packed for one call, and nothing is kept.

   Packing reads each weight once. It costs about as much as a step of one row, and less than checking whether the weights
   have changed since they were packed. */

#include "lstm.h"
#include "training.h"

/* The number of multiplications in a call that takes at most a few milliseconds. */
enum { SHORT_WORK = 1 << 26 };

typedef struct {
    const elmokit_layer_call *given;
    lstm_layer layer;
    schedule order;
    int64_t *positions;  /* (n_rows, n_steps): positions of each row's tokens */
    int64_t *lengths;    /* (n_rows) */
    int64_t *rows;       /* (n_rows): sorted by descending length */
    int64_t *step_rows;  /* (n_steps) */
    int64_t *starts;     /* (n_steps + 1): the first token of each step */
    float *tokens, *outputs, *state;
    lstm_memory memory;
} call;

/* Lay out a call's memory starting at `at`, and return its end. */
static char *place_call(const elmokit_layer_call *given, char *at, call *to) {
    const int64_t hidden = given->hidden_dim, n_blocks = (hidden + PANEL - 1) / PANEL, n_outputs = n_blocks * GATES * PANEL;
    const int64_t n_rows = given->n_rows, n_steps = given->n_steps, padded = n_blocks * PANEL;
    const int64_t projected = (given->dim + PANEL - 1) / PANEL * PANEL;
    *to = (call){.given = given, .order = {.n_steps = n_steps, .n_rows = n_rows, .n_tokens = n_rows * n_steps}};
    lstm_layer *layer = &to->layer;
    *layer = (lstm_layer){.precision = FLOAT32, .input_dim = given->input_dim, .hidden_dim = hidden, .output_dim = given->dim};
    layer->padded_dim = padded, layer->cell_clip = given->cell_clip, layer->output_clip = given->output_clip;
    layer->from_input = (matrix){.precision = FLOAT32, .n_inputs = given->input_dim, .n_outputs = n_outputs};
    layer->from_output = (matrix){.precision = FLOAT32, .n_inputs = given->dim, .n_outputs = n_outputs};
    layer->from_input.panels = (float *)place(&at, n_outputs * given->input_dim * 4);
    layer->from_input.bias = (float *)place(&at, n_outputs * 4);
    layer->from_output.panels = (float *)place(&at, n_outputs * given->dim * 4);
    if (given->projection) {
        layer->projection = (matrix){.precision = FLOAT32, .n_inputs = padded, .n_outputs = given->dim};
        layer->projection.panels = (float *)place(&at, projected * padded * 4);
    }
    to->positions = (int64_t *)place(&at, n_rows * n_steps * 8);
    to->lengths = (int64_t *)place(&at, n_rows * 8);
    to->rows = (int64_t *)place(&at, n_rows * 8);
    to->step_rows = (int64_t *)place(&at, n_steps * 8);
    to->starts = (int64_t *)place(&at, (n_steps + 1) * 8);
    to->tokens = (float *)place(&at, n_rows * n_steps * given->input_dim * 4);
    to->outputs = (float *)place(&at, n_rows * n_steps * given->dim * 4);
    to->state = (float *)place(&at, n_rows * given->dim * 4);
    return place_lstm_memory(layer, &to->order, at, &to->memory);
}

int64_t elmokit_layer_bytes(const elmokit_layer_call *given) {
    call one;
    return (int64_t)(intptr_t)place_call(given, NULL, &one);
}

/* Find each row's tokens, sort rows by descending length, and list the rows of each step. Rows of equal length keep their
   order. */
static void plan(call *of) {
    const elmokit_layer_call *given = of->given;
    const int64_t n_rows = given->n_rows, n_steps = given->n_steps;
    int64_t *places = of->starts; /* at first, of the rows of each length */
    memset(places, 0, (n_steps + 1) * sizeof *places);
    for (int64_t row = 0; row < n_rows; row++) {
        int64_t n = 0, *positions = of->positions + row * n_steps;
        for (int64_t step = 0; step < n_steps; step++)
            if (!given->mask || given->mask[row * n_steps + step]) positions[n++] = step;
        of->lengths[row] = n;
        places[n]++;
    }
    for (int64_t length = n_steps, total = 0; length >= 0; length--) {
        const int64_t n = places[length];
        places[length] = total, total += n;
    }
    for (int64_t row = 0; row < n_rows; row++) of->rows[places[of->lengths[row]]++] = row;
    int64_t n = n_rows;
    while (n > 0 && !of->lengths[of->rows[n - 1]]) n--;
    of->order = (schedule){.n_rows = n, .step_rows = of->step_rows};
    for (int64_t step = 0; step < n_steps; step++) {
        while (n > 0 && of->lengths[of->rows[n - 1]] <= step) n--;
        if (!n) break;
        of->step_rows[step] = n, of->starts[step] = of->order.n_tokens;
        of->order.n_tokens += n, of->order.n_steps++;
    }
}

/* Pack the weights of a block of units; `from_input` receives those of the inputs. */
static void pack_units(const call *of, int64_t block, const matrix *from_input) {
    const elmokit_layer_call *given = of->given;
    const lstm_layer *layer = &of->layer;
    const int64_t n_inputs = given->input_dim;
    for (int64_t gate = 0; gate < GATES; gate++) {
        const float *of_inputs[PANEL] = {0}, *of_state[PANEL] = {0};
        const int64_t panel = block * GATES + gate;
        const int64_t place = given->swaps_gates && (gate == 1 || gate == 2) ? 3 - gate : gate;
        for (int64_t column = 0; column < PANEL; column++) {
            const int64_t unit = block * PANEL + column, row = place * given->hidden_dim + unit;
            const int is_unit = unit < given->hidden_dim;
            if (is_unit) of_inputs[column] = given->input_weight + row * given->input_stride;
            if (is_unit) of_state[column] = given->state_weight + row * given->state_stride;
            const float bias = is_unit ? gate_bias(gate, given->bias[gate * given->hidden_dim + unit]) : 0;
            from_input->bias[gate * PANEL + column] = bias;
        }
        pack_float_panel(of_inputs, n_inputs, n_inputs, PANEL * given->input_stride,
                         from_input->panels + gate * n_inputs * PANEL);
        pack_float_panel(of_state, given->dim, given->dim, PANEL * given->state_stride,
                         layer->from_output.panels + panel * given->dim * PANEL);
    }
}

static void pack_outputs(const call *of, int64_t panel) {
    const elmokit_layer_call *given = of->given;
    const float *columns[PANEL] = {0};
    for (int64_t column = 0; column < PANEL && panel * PANEL + column < given->dim; column++)
        columns[column] = given->projection + (panel * PANEL + column) * given->hidden_dim;
    const int64_t n = of->layer.padded_dim;
    pack_float_panel(columns, given->hidden_dim, n, PANEL * given->hidden_dim,
                     of->layer.projection.panels + panel * n * PANEL);
}

static int64_t position_of(const call *of, int64_t row, int64_t step) {
    const int64_t token = of->given->reverse ? of->lengths[row] - 1 - step : step;
    return row * of->given->n_steps + of->positions[row * of->given->n_steps + token];
}

/* Copy the inputs in step order, and write the outputs on padding. */
static void read_inputs(const member *me, const call *of) {
    const elmokit_layer_call *given = of->given;
    const int64_t n_inputs = given->input_dim, dim = given->dim, hidden = given->hidden_dim, padded = of->layer.padded_dim;
    for (int64_t r = first_of(me, given->n_rows); r < last_of(me, given->n_rows); r++) {
        const int64_t row = of->rows[r], length = of->lengths[row];
        if (length < given->n_steps)
            memset(given->outputs + row * given->n_steps * dim, 0, given->n_steps * dim * sizeof(float));
        if (!length) {
            memcpy(given->hidden_after + row * dim, given->hidden + row * dim, dim * sizeof(float));
            memcpy(given->cell_after + row * hidden, given->cell + row * hidden, hidden * sizeof(float));
            continue;
        }
        for (int64_t step = 0; step < length; step++)
            memcpy(of->tokens + (of->starts[step] + r) * n_inputs, given->inputs + position_of(of, row, step) * n_inputs,
                   n_inputs * sizeof(float));
        memcpy(of->state + r * dim, given->hidden + row * dim, dim * sizeof(float));
        float *cells = of->memory.cells + r * padded;
        memcpy(cells, given->cell + row * hidden, hidden * sizeof(float));
        memset(cells + hidden, 0, (padded - hidden) * sizeof(float));
    }
}

/* Pack a thread's part of the weights. If the products with all inputs are computed at once, each block's weights are used
   as soon as they are packed, and then replaced by the next block's in the cache. */
static void pack(const member *me, const call *of, int multiplies) {
    const elmokit_layer_call *given = of->given;
    const int64_t n_blocks = of->layer.padded_dim / PANEL, n_panels = (given->dim + PANEL - 1) / PANEL;
    const int64_t first = first_of(me, n_blocks), last = last_of(me, n_blocks), n_tokens = of->order.n_tokens;
    for (int64_t block = first; block < last; block++) {
        matrix from_input = of->layer.from_input;
        from_input.panels += (multiplies ? first : block) * GATES * PANEL * given->input_dim;
        from_input.bias += block * GATES * PANEL;
        pack_units(of, block, &from_input);
        if (multiplies)
            add_input_product(&from_input, 0, n_tokens, (inputs){of->tokens, 4 * given->input_dim},
                              of->memory.gates + block * n_tokens * GATES * PANEL, from_input.panels);
    }
    for (int64_t panel = first_of(me, n_panels); given->projection && panel < last_of(me, n_panels); panel++)
        pack_outputs(of, panel);
}

static void write_outputs(const member *me, const call *of) {
    const elmokit_layer_call *given = of->given;
    const int64_t dim = given->dim, hidden = given->hidden_dim;
    for (int64_t r = first_of(me, of->order.n_rows); r < last_of(me, of->order.n_rows); r++) {
        const int64_t row = of->rows[r], length = of->lengths[row];
        for (int64_t step = 0; step < length; step++) {
            const int64_t position = position_of(of, row, step);
            const float *output = of->outputs + (of->starts[step] + r) * dim, *input = given->inputs + position * dim;
            float *to = given->outputs + position * dim;
            if (given->adds_inputs)
                for (int64_t i = 0; i < dim; i++) to[i] = output[i] + input[i];
            else
                memcpy(to, output, dim * sizeof(float));
        }
        memcpy(given->hidden_after + row * dim, of->outputs + (of->starts[length - 1] + r) * dim, dim * sizeof(float));
        memcpy(given->cell_after + row * hidden, of->memory.cells + r * of->layer.padded_dim, hidden * sizeof(float));
    }
}

static void run_call(const member *me, void *context) {
    const call *of = context;
    read_inputs(me, of);
    if (!of->order.n_steps) return;
    lstm_layer layer = of->layer;
    const int multiplies = has_one_chunk(&layer, &of->order);
    meet(me);
    pack(me, of, multiplies);
    if (multiplies) layer.from_input.panels = NULL;
    meet(me);
    run_lstm(me, &layer, &of->order, of->tokens, of->state, of->outputs, &of->memory);
    write_outputs(me, of);
}

void elmokit_run_layer(int64_t n_threads, const elmokit_layer_call *given, char *memory) {
    call one;
    place_call(given, memory, &one);
    plan(&one);
    const int64_t work = given->n_rows * given->n_steps * 4 * given->hidden_dim * (given->input_dim + given->dim);
    if (work < SHORT_WORK)
        run_short_team(work < SMALL_WORK ? 1 : n_threads, run_call, &one);
    else
        run_team(n_threads, run_call, &one);
}
