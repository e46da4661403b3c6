/* The functions of `elmokit.h`: packed weights, and running a batch through all layers and directions. */

#include "elmokit.h"

#include <stdlib.h>

#include "lstm.h"
#include "token_layer.h"

/* This file decides which kernel computes a layer: by the layer's size, the instruction set and, only between kernels that
   give the same bits, the number of rows. The measurements are in results/precisions.md.

   - Weights whose products also round the inputs (bytes with dot products of bytes or 16-bit numbers; with AMX or AVX-512
     BF16, also bfloat16) are faster than float32 for every size and number of rows.
   - Weights that are widened to floats as they are loaded only save memory traffic. Plain C is limited by arithmetic, not
     memory, and a layer of fewer than MIN_WIDENED weights stays in the cache (the mini size has 0.5 million, the small one
     1.05 million): both are computed in float32. Other layers are only widened from bfloat16, even if bytes were requested,
     because a byte takes more instructions.
   - For more than MAX_WIDENED_ROWS rows, on average over the steps, widening bfloat16 weights costs more than it saves.
     These rows use a float32 copy of the same rounded weights, created when it is first needed. The same numbers are summed
     in the same order, so a row gets the same bits from both. Weights that come from memory, or are widened 16 at a time,
     pay off for more rows. */
enum { MIN_WIDENED = 800000, MIN_IN_MEMORY = 4000000, MAX_WIDENED_ROWS = 4, MAX_WIDENED_ROWS_IN_CACHE = 1 };

#if defined(__AVX__) || defined(__aarch64__) || defined(EMULATE)
enum { IS_PLAIN = 0 };
#else
enum { IS_PLAIN = 1 };
#endif

/* The maximum size of an LSTM layer's weights, in bytes, at which each thread computes its own direction and rows. Larger
   layers do not stay in a core's cache, so threads share a layer's units instead, with barriers in every step. */
enum { SMALL_LAYER_BYTES = 1 << 23 };

/* Memory up to this size is kept for the next call: new pages cost as much as filling them twice. */
enum { MAX_KEPT = 1 << 26, N_KEPT = 4 };

/* Larger sizes are rejected: no computer has the memory for such matrices, and the size of a matrix in bytes must fit in 64
   bits. */
enum { MAX_SIZE = 1 << 28 };

static int is_size(int64_t n) { return n >= 1 && n <= MAX_SIZE; }

struct elmokit_tokens {
    token_layer layer;
};

struct elmokit_lstm {
    int64_t n_directions, n_layers, dim, hidden_dim, adds_inputs;
    int64_t *reads_backward;
    int precision;
    float cell_clip, output_clip;
    int64_t max_widened_rows; /* rows per step, on average, up to which `layers` is used; beyond that, `widened` */
    lstm_layer *layers;       /* for each direction and layer */
    lstm_layer *widened;         /* NULL until they are needed */
    struct {
        void *memory;
        int64_t n_bytes;
    } kept[N_KEPT];
};

static int is_widened(int64_t precision) { return precision != FLOAT32 && !rounds_inputs((int)precision); }

void elmokit_choose_kernels(int64_t lowest_precision, int64_t n_weights, elmokit_kernels *kernels) {
    /* A token layer usually computes the distinct tokens of a batch. From about 16 tokens on, widened weights are no faster
       than float32; and the number of tokens must not decide, because a token must get the same bits in any batch. */
    const int64_t lowest = most_precise((int)lowest_precision);
    kernels->token_layer = is_widened(lowest) ? FLOAT32 : lowest;
    const int64_t precision = is_widened(lowest) ? BFLOAT16 : lowest;
    kernels->lstm = is_widened(precision) && (IS_PLAIN || n_weights < MIN_WIDENED) ? FLOAT32 : precision;
}

static int are_token_sizes(const elmokit_token_weights *of) {
    int64_t n_inputs = 0;
    if (of->n_words) {
        if (!is_size(of->n_words) || !is_size(of->word_dim)) return 0;
        n_inputs = of->word_dim;
    }
    if (of->n_characters) {
        if (!is_size(of->n_characters) || !is_size(of->character_dim) || !is_size(of->n_convolutions)) return 0;
        if (of->n_highways && !is_size(of->n_highways)) return 0;
        for (int64_t k = 0; k < of->n_convolutions; k++) {
            if (!is_size(of->widths[k]) || !is_size(of->n_filters[k])) return 0;
            n_inputs += of->n_filters[k];
        }
    }
    return is_size(n_inputs) && is_size(of->output_dim) && (of->projection || n_inputs == of->output_dim);
}

int64_t elmokit_open_tokens(const elmokit_token_weights *weights, int64_t lowest_precision, elmokit_tokens **tokens) {
    *tokens = NULL;
    if (!are_token_sizes(weights)) return ELMOKIT_BAD_SIZES;
    elmokit_kernels kernels;
    elmokit_choose_kernels(lowest_precision, 0, &kernels);
    elmokit_tokens *opened = calloc(1, sizeof *opened);
    const int failed = opened ? pack_token_layer(weights, (int)kernels.token_layer, &opened->layer) : ELMOKIT_NO_MEMORY;
    if (failed)
        elmokit_close_tokens(opened);
    else
        *tokens = opened;
    return failed;
}

int64_t elmokit_pack_highway(elmokit_tokens *tokens, int64_t highway, const float *transform, const float *transform_bias,
                             const float *gate, const float *gate_bias) {
    return pack_highway(highway, transform, transform_bias, gate, gate_bias, &tokens->layer);
}

void elmokit_close_tokens(elmokit_tokens *tokens) {
    if (tokens) free_token_layer(&tokens->layer);
    free(tokens);
}

int64_t elmokit_tokens_bytes(const elmokit_tokens *tokens) { return token_layer_bytes(&tokens->layer); }

int64_t elmokit_token_vectors(const elmokit_tokens *tokens, int64_t n_threads, int64_t n_tokens, int64_t n_ids,
                              const int64_t *ids, float *vectors) {
    return run_token_layer(&tokens->layer, n_threads, n_tokens, n_ids, ids, vectors);
}

int64_t elmokit_open_lstm(const elmokit_lstm_sizes *sizes, int64_t lowest_precision, elmokit_lstm **lstm) {
    *lstm = NULL;
    if (!is_size(sizes->n_directions) || !is_size(sizes->n_layers) || !is_size(sizes->dim) || !is_size(sizes->hidden_dim))
        return ELMOKIT_BAD_SIZES;
    const int64_t n_weights = 8 * sizes->hidden_dim * sizes->dim;
    elmokit_kernels kernels;
    elmokit_choose_kernels(lowest_precision, n_weights, &kernels);
    elmokit_lstm *opened = calloc(1, sizeof *opened);
    if (!opened) return ELMOKIT_NO_MEMORY;
    opened->n_directions = sizes->n_directions, opened->n_layers = sizes->n_layers;
    opened->dim = sizes->dim, opened->hidden_dim = sizes->hidden_dim, opened->adds_inputs = sizes->adds_inputs;
    opened->precision = (int)kernels.lstm;
    opened->cell_clip = sizes->cell_clip, opened->output_clip = sizes->output_clip;
    opened->max_widened_rows = INT64_MAX;
    if (kernels.lstm == BFLOAT16 && is_widened(BFLOAT16))
        opened->max_widened_rows =
            n_weights >= MIN_IN_MEMORY || PANEL >= 32 ? MAX_WIDENED_ROWS : MAX_WIDENED_ROWS_IN_CACHE;
    opened->reads_backward = calloc(sizes->n_directions, sizeof *opened->reads_backward);
    opened->layers = calloc(sizes->n_directions * sizes->n_layers, sizeof *opened->layers);
    if (!opened->reads_backward || !opened->layers) {
        elmokit_close_lstm(opened);
        return ELMOKIT_NO_MEMORY;
    }
    memcpy(opened->reads_backward, sizes->reads_backward, sizes->n_directions * sizeof *opened->reads_backward);
    *lstm = opened;
    return 0;
}

static int is_packed(const lstm_layer *layer) { return layer->from_input.panels != NULL; }

int64_t elmokit_pack_layer(elmokit_lstm *lstm, int64_t direction, int64_t layer, const float *weight, const float *bias,
                           const float *projection) {
    if (direction < 0 || direction >= lstm->n_directions || layer < 0 || layer >= lstm->n_layers) return ELMOKIT_BAD_LAYER;
    lstm_layer *to = lstm->layers + direction * lstm->n_layers + layer;
    if (is_packed(to)) return ELMOKIT_BAD_LAYER;
    if (!projection && lstm->hidden_dim != lstm->dim) return ELMOKIT_BAD_SIZES;
    if (pack_lstm(lstm->precision, lstm->dim, lstm->hidden_dim, lstm->dim, lstm->cell_clip, lstm->output_clip, weight, bias,
                  projection, to))
        return 0;
    free_lstm(to);
    return ELMOKIT_NO_MEMORY;
}

static void free_layers(const elmokit_lstm *lstm, lstm_layer *layers) {
    for (int64_t k = 0; layers && k < lstm->n_directions * lstm->n_layers; k++) free_lstm(layers + k);
    free(layers);
}

void elmokit_close_lstm(elmokit_lstm *lstm) {
    if (!lstm) return;
    free_layers(lstm, lstm->layers);
    free_layers(lstm, lstm->widened);
    free(lstm->reads_backward);
    for (int k = 0; k < N_KEPT; k++) give_memory(lstm->kept[k].memory);
    free(lstm);
}

int64_t elmokit_lstm_bytes(const elmokit_lstm *lstm) {
    int64_t n_bytes = 0;
    for (int64_t k = 0; k < lstm->n_directions * lstm->n_layers; k++)
        n_bytes += lstm_bytes(lstm->layers + k) + (lstm->widened ? lstm_bytes(lstm->widened + k) : 0);
    return n_bytes;
}

static void *take_kept(elmokit_lstm *lstm, int64_t n_bytes) {
    void *memory = NULL;
    enter();
    for (int k = 0; k < N_KEPT && !memory; k++)
        if (lstm->kept[k].memory && lstm->kept[k].n_bytes >= n_bytes)
            memory = lstm->kept[k].memory, lstm->kept[k].memory = NULL;
    leave();
    return memory ? memory : take_memory(n_bytes);
}

static void keep(elmokit_lstm *lstm, void *memory, int64_t n_bytes) {
    enter();
    for (int k = 0; k < N_KEPT && memory && n_bytes <= MAX_KEPT; k++)
        if (!lstm->kept[k].memory || lstm->kept[k].n_bytes < n_bytes) {
            void *smaller = lstm->kept[k].memory;
            lstm->kept[k].memory = memory, lstm->kept[k].n_bytes = n_bytes;
            memory = smaller, n_bytes = 0;
        }
    leave();
    give_memory(memory);
}

/* The layers to use for an average number of rows per step. */
static int choose_layers(elmokit_lstm *lstm, int64_t n_tokens, int64_t n_steps, const lstm_layer **layers) {
    *layers = lstm->layers;
    if ((n_tokens + n_steps - 1) / n_steps <= lstm->max_widened_rows) return 1;
    enter();
    if (!lstm->widened) {
        const int64_t n = lstm->n_directions * lstm->n_layers;
        lstm_layer *widened = calloc(n, sizeof *widened);
        int has_memory = widened != NULL;
        for (int64_t k = 0; has_memory && k < n; k++) has_memory = widen_lstm(lstm->layers + k, widened + k);
        if (has_memory)
            lstm->widened = widened;
        else
            free_layers(lstm, widened);
    }
    *layers = lstm->widened;
    leave();
    return *layers != NULL;
}

/* Some rows of a batch in one direction. */
typedef struct {
    int64_t direction;
    const int64_t *rows; /* their indices in the batch, longest first */
    schedule order;
    const int64_t *starts; /* (n_steps): the first token of each step */
    const lstm_layer *layers;
    float *tokens, *outputs, *state; /* (n_tokens, dim) twice, and (n_rows, dim) */
    lstm_memory memory;
} task;

typedef struct {
    const elmokit_lstm *lstm;
    const elmokit_batch *batch;
    int64_t n_tasks;
    task *tasks;
    int64_t *next; /* the next task for a free thread */
} run;

static const float *start_of(const elmokit_batch *batch, const float *state, int64_t at, int64_t row, int64_t dim) {
    return state + (at * batch->start_rows + (batch->start_rows == 1 ? 0 : row)) * dim;
}

/* Write a vector of one layer to where the caller wants it. */
static void write_layer(const run *call, const task *of, int64_t layer, const elmokit_row *row, int64_t position,
                        const float *vector) {
    const elmokit_batch *batch = call->batch;
    const int64_t dim = call->lstm->dim, slot = batch->slots[layer], edge = batch->n_edges;
    if (slot < 0 || position < edge || position >= row->length - edge) return;
    const int64_t place = row->places ? row->places[position] : position - edge;
    memcpy(row->layers + slot * row->layer_stride + place * batch->place_stride + of->direction * dim, vector,
           dim * sizeof(float));
}

/* Compute a task, alone or in a team. */
static void run_task(const member *me, const run *call, const task *of) {
    const elmokit_lstm *lstm = call->lstm;
    const elmokit_batch *batch = call->batch;
    const int64_t dim = lstm->dim, backward = lstm->reads_backward[of->direction];
    const int64_t first = first_of(me, of->order.n_rows), last = last_of(me, of->order.n_rows);
    float *tokens = of->tokens, *outputs = of->outputs;
    for (int64_t r = first; r < last; r++) {
        const elmokit_row *row = batch->rows + of->rows[r];
        for (int64_t step = 0; step < row->length; step++) {
            const int64_t position = backward ? row->length - 1 - step : step;
            const float *vector = batch->vectors + row->words[position] * dim;
            memcpy(tokens + (of->starts[step] + r) * dim, vector, dim * sizeof(float));
            write_layer(call, of, 0, row, position, vector);
        }
    }
    for (int64_t k = 0; k < lstm->n_layers; k++) {
        const int64_t at = of->direction * lstm->n_layers + k, n_rows = batch->n_rows;
        const lstm_layer *layer = of->layers + at;
        for (int64_t r = first; r < last; r++) {
            float *cells = of->memory.cells + r * layer->padded_dim;
            memset(cells, 0, layer->padded_dim * sizeof(float));
            memcpy(cells, start_of(batch, batch->start_cell, at, of->rows[r], lstm->hidden_dim),
                   lstm->hidden_dim * sizeof(float));
            memcpy(of->state + r * dim, start_of(batch, batch->start_hidden, at, of->rows[r], dim), dim * sizeof(float));
        }
        meet(me);
        run_lstm(me, layer, &of->order, tokens, of->state, outputs, &of->memory);
        for (int64_t r = first; r < last; r++) {
            const elmokit_row *row = batch->rows + of->rows[r];
            const int64_t state_row = at * n_rows + of->rows[r];
            if (batch->end_hidden && row->length) {
                /* The state is the layer's own output; the inputs are added after it. */
                memcpy(batch->end_hidden + state_row * dim, outputs + (of->starts[row->length - 1] + r) * dim,
                       dim * sizeof(float));
                memcpy(batch->end_cell + state_row * lstm->hidden_dim, of->memory.cells + r * layer->padded_dim,
                       lstm->hidden_dim * sizeof(float));
            }
            for (int64_t step = 0; step < row->length; step++) {
                float *vector = outputs + (of->starts[step] + r) * dim;
                if (lstm->adds_inputs && k > 0) {
                    const float *input = tokens + (of->starts[step] + r) * dim;
                    for (int64_t i = 0; i < dim; i++) vector[i] += input[i];
                }
                write_layer(call, of, k + 1, row, backward ? row->length - 1 - step : step, vector);
            }
        }
        float *swapped = tokens;
        tokens = outputs, outputs = swapped;
        meet(me);
    }
}

static void run_in_turn(const member *me, void *context) {
    const run *call = context;
    for (int64_t k = 0; k < call->n_tasks; k++) run_task(me, call, call->tasks + k);
}

static void run_apart(const member *me, void *context) {
    const run *call = context;
    (void)me;
    for (int64_t k; (k = __atomic_fetch_add(call->next, 1, __ATOMIC_RELAXED)) < call->n_tasks;)
        run_task(&ALONE, call, call->tasks + k);
}

/* Sort the rows of a batch by descending length; rows of equal length keep their order. `counts` has room for longest + 1.
   */
static void sort_rows(const elmokit_batch *batch, int64_t longest, int64_t *rows, int64_t *counts) {
    int64_t total = 0;
    memset(counts, 0, (longest + 1) * sizeof *counts);
    for (int64_t row = 0; row < batch->n_rows; row++) counts[batch->rows[row].length]++;
    for (int64_t length = longest; length >= 0; length--) {
        const int64_t n = counts[length];
        counts[length] = total, total += n;
    }
    for (int64_t row = 0; row < batch->n_rows; row++) rows[counts[batch->rows[row].length]++] = row;
}

/* Lay out a task's memory starting at `at`, and return its end. */
static char *place_task(const elmokit_lstm *lstm, task *of, char *at) {
    of->tokens = (float *)place(&at, of->order.n_tokens * lstm->dim * 4);
    of->outputs = (float *)place(&at, of->order.n_tokens * lstm->dim * 4);
    of->state = (float *)place(&at, of->order.n_rows * lstm->dim * 4);
    return place_lstm_memory(of->layers, &of->order, at, &of->memory);
}

/* Divide a batch into tasks, assigning every n_groups-th of the sorted rows to a group, and run them. `numbers` has room for
   the rows, and for two numbers per step of every group. */
static int run_groups(elmokit_lstm *lstm, const elmokit_batch *batch, int64_t n_threads, int64_t n_groups, int is_small,
                      const int64_t *sorted, int64_t longest, int64_t *numbers, task *tasks) {
    int64_t n_tasks = 0, next = 0;
    for (int64_t group = 0; group < n_groups; group++) {
        task one = {.rows = numbers};
        for (int64_t row = group; row < batch->n_rows; row += n_groups)
            if (batch->rows[sorted[row]].length) numbers[one.order.n_rows++] = sorted[row];
        int64_t *step_rows = numbers + one.order.n_rows, *starts = step_rows + longest, n = one.order.n_rows;
        for (int64_t step = 0; n > 0; step++, one.order.n_steps++) {
            while (n > 0 && batch->rows[one.rows[n - 1]].length <= step) n--;
            if (!n) break;
            step_rows[step] = n, starts[step] = one.order.n_tokens, one.order.n_tokens += n;
        }
        one.order.step_rows = step_rows, one.starts = starts, numbers = starts + longest;
        if (!one.order.n_steps) continue;
        if (!choose_layers(lstm, one.order.n_tokens, one.order.n_steps, &one.layers)) return ELMOKIT_NO_MEMORY;
        for (one.direction = batch->first_direction; one.direction < batch->last_direction; one.direction++)
            tasks[n_tasks++] = one;
    }
    if (!n_tasks) return 0;
    int64_t n_bytes = 0;
    for (int64_t k = 0; k < n_tasks; k++) {
        const int64_t of_task = (int64_t)(intptr_t)place_task(lstm, tasks + k, NULL);
        n_bytes = is_small ? n_bytes + of_task : of_task > n_bytes ? of_task : n_bytes;
    }
    char *memory = take_kept(lstm, n_bytes), *at = memory;
    if (!memory) return ELMOKIT_NO_MEMORY;
    for (int64_t k = 0; k < n_tasks; k++) {
        char *end = place_task(lstm, tasks + k, at);
        if (is_small) at = end;
    }
    run call = {lstm, batch, n_tasks, tasks, &next};
    if (is_small)
        share_work(at_most(n_threads, n_tasks), run_apart, &call);
    else
        run_team(n_threads, run_in_turn, &call);
    keep(lstm, memory, n_bytes);
    return 0;
}

int64_t elmokit_layers(elmokit_lstm *lstm, int64_t n_threads, const elmokit_batch *batch) {
    const int64_t n_directions = batch->last_direction - batch->first_direction;
    for (int64_t k = 0; k < lstm->n_directions * lstm->n_layers; k++)
        if (!is_packed(lstm->layers + k)) return ELMOKIT_BAD_LAYER;
    const int is_small = lstm_bytes(lstm->layers) <= SMALL_LAYER_BYTES;
    if (batch->n_rows < 1 || n_directions < 1) return 0;
    int64_t n_tokens = 0;
    for (int64_t row = 0; row < batch->n_rows; row++) {
        if (batch->rows[row].length < 0) return ELMOKIT_BAD_SIZES;
        n_tokens += batch->rows[row].length;
    }
    if (n_tokens * n_directions * lstm->n_layers * 9 * lstm->hidden_dim * lstm->dim < SMALL_WORK) n_threads = 1;
    int64_t n_groups = is_small && n_threads > 1 ? (n_threads + n_directions - 1) / n_directions : 1, longest = 0;
    n_groups = n_groups < batch->n_rows ? n_groups : batch->n_rows;
    for (int64_t row = 0; row < batch->n_rows; row++)
        longest = batch->rows[row].length > longest ? batch->rows[row].length : longest;
    int64_t *sorted = malloc((batch->n_rows + longest + 1) * sizeof *sorted);
    int64_t *numbers = malloc((batch->n_rows + 2 * n_groups * longest + 1) * sizeof *numbers);
    task *tasks = malloc(n_groups * n_directions * sizeof *tasks);
    int failed = ELMOKIT_NO_MEMORY;
    if (sorted && numbers && tasks) {
        /* A row without positions keeps its state. */
        for (int64_t row = 0; row < batch->n_rows && batch->end_hidden; row++)
            for (int64_t k = batch->first_direction * lstm->n_layers;
                 k < batch->last_direction * lstm->n_layers && !batch->rows[row].length; k++) {
                memcpy(batch->end_hidden + (k * batch->n_rows + row) * lstm->dim,
                       start_of(batch, batch->start_hidden, k, row, lstm->dim), lstm->dim * sizeof(float));
                memcpy(batch->end_cell + (k * batch->n_rows + row) * lstm->hidden_dim,
                       start_of(batch, batch->start_cell, k, row, lstm->hidden_dim), lstm->hidden_dim * sizeof(float));
            }
        sort_rows(batch, longest, sorted, sorted + batch->n_rows);
        failed = run_groups(lstm, batch, n_threads, n_groups, is_small, sorted, longest, numbers, tasks);
    }
    free(sorted);
    free(numbers);
    free(tasks);
    return failed;
}

struct elmokit_matrix {
    matrix packed;
};

int64_t elmokit_open_matrix(int64_t precision, int64_t n_outputs, int64_t n_inputs, const float *weight,
                            const float *bias, elmokit_matrix **packed) {
    *packed = NULL;
    if (!is_size(n_outputs) || !is_size(n_inputs)) return ELMOKIT_BAD_SIZES;
    elmokit_matrix *made = calloc(1, sizeof *made);
    const float **rows = malloc(n_outputs * sizeof *rows);
    int has_memory = made && rows;
    if (has_memory) {
        for (int64_t row = 0; row < n_outputs; row++) rows[row] = weight + row * n_inputs;
        has_memory = pack_matrix((int)precision, n_outputs, n_inputs, rows, n_inputs, &made->packed) &&
                     (!bias || pack_bias(bias, n_outputs, &made->packed));
    }
    free(rows);
    if (has_memory)
        *packed = made;
    else
        elmokit_close_matrix(made);
    return has_memory ? 0 : ELMOKIT_NO_MEMORY;
}

void elmokit_close_matrix(elmokit_matrix *packed) {
    if (packed) free_matrix(&packed->packed);
    free(packed);
}

typedef struct {
    const matrix *by;
    int64_t n_rows;
    const float *rows;
    char *rounded;
    float *outputs;
} product_call;

static void run_product(const member *me, void *context) {
    const product_call *call = context;
    multiply_rows(me, call->by, call->n_rows, call->rows, call->outputs, call->by->n_outputs, call->rounded);
}

int64_t elmokit_multiply(const elmokit_matrix *packed, int64_t n_threads, int64_t n_rows, const float *inputs,
                         float *outputs) {
    const matrix *by = &packed->packed;
    const int64_t is_rounded = rounds_inputs(by->precision);
    char *rounded = take_memory(is_rounded * n_rows * rounded_row_bytes(by->precision, by->n_inputs));
    product_call call = {by, n_rows, inputs, rounded, outputs};
    if (rounded) run_team(n_threads, run_product, &call);
    give_memory(rounded);
    return rounded ? 0 : ELMOKIT_NO_MEMORY;
}

int64_t elmokit_precision(const char *name) { return precision_number(name); }

int64_t elmokit_panel_width(void) { return PANEL; }

int64_t elmokit_has_bfloat16(void) { return HAS_BFLOAT16; }
