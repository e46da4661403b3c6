/* The char CNN of Kim et al. (2016): convolutions over a token's characters, max pooling, highway layers and a projection.

   The convolutions multiply nothing. There are only a few hundred characters, so what each adds to a filter at each position
   in the filter's window is computed when the weights are packed: a table. The response of a window is the sum of one table
   row per character. That is a sixteenth of the operations in the original model, whose character vectors have 16 numbers.
   Tables are float32 in every precision. */

#include "token_layer.h"

#include <stdlib.h>

enum {
    /* If the tables of all characters would have more numbers than this (128 MiB), tables of each call's characters are
       computed instead. English models have 3.2 million; a model of Chinese characters would need a hundred times as many.
       */
    MAX_TABLE = 1 << 25,
    /* Tokens that pass through the layer together: enough to pay for reading the weights, and few enough for their features
       and sums to stay in the cache. A multiple of the rows that a product computes together (16 * ROWS). */
    TOKENS_AT_ONCE = 192,
    /* The maximum size of the weights of highways and projection, in bytes, at which each thread computes its own tokens.
       Larger weights do not stay in a core's cache, so threads share the columns instead. */
    SMALL_BYTES = 1 << 22,
};

static int64_t panels_of(int64_t n) { return (n + PANEL - 1) / PANEL; }

static int64_t table_size(const convolution *of, int64_t n_rows) {
    return panels_of(of->n_filters) * n_rows * of->width * PANEL;
}

/* Compute what each character adds to the response of each filter, at each place in the filter's window: (panels,
   characters, width, PANEL). `sums`: memory for the products, (characters, filters padded to whole panels). */
static void fill_table(const convolution *of, int64_t n_rows, const float *characters, float *sums, float *table) {
    const int64_t n_panels = panels_of(of->n_filters), n_columns = n_panels * PANEL;
    for (int64_t place = 0; place < of->width; place++) {
        const matrix *weights = of->by_place + place;
        multiply_part(&ALONE, weights, n_rows, (inputs){characters, 4 * weights->n_inputs}, sums, n_columns, INFINITY);
        for (int64_t row = 0; row < n_rows; row++)
            for (int64_t panel = 0; panel < n_panels; panel++)
                memcpy(table + ((panel * n_rows + row) * of->width + place) * PANEL,
                       sums + row * n_columns + panel * PANEL, PANEL * sizeof(float));
    }
}

static void *copy_bytes(const void *from, int64_t n) {
    void *to = take_memory(n);
    if (to) memcpy(to, from, n);
    return to;
}

static float *copy(const float *from, int64_t n) { return copy_bytes(from, n * sizeof(float)); }

/* Pack the filters of a convolution for each place of the window. */
static int pack_filters(const float *filters, int64_t character_dim, convolution *of) {
    const int64_t n_rows = panels_of(of->n_filters) * PANEL;
    float *at_place = calloc(n_rows * character_dim, sizeof *at_place);
    const float **rows = calloc(n_rows, sizeof *rows);
    int is_packed = at_place && rows && (of->by_place = calloc(of->width, sizeof *of->by_place));
    for (int64_t place = 0; is_packed && place < of->width; place++) {
        for (int64_t filter = 0; filter < of->n_filters; filter++)
            for (int64_t k = 0; k < character_dim; k++)
                at_place[filter * character_dim + k] = filters[(filter * character_dim + k) * of->width + place];
        for (int64_t row = 0; row < n_rows; row++) rows[row] = at_place + row * character_dim;
        is_packed = pack_matrix(FLOAT32, n_rows, character_dim, rows, character_dim, of->by_place + place);
    }
    free(at_place);
    free(rows);
    return is_packed;
}

static int pack_convolutions(const elmokit_token_weights *given, token_layer *layer) {
    matrix bias = {0};
    int64_t total = 0, widest = 0;
    layer->convolutions = calloc(given->n_convolutions, sizeof *layer->convolutions);
    if (!layer->convolutions) return ELMOKIT_NO_MEMORY;
    layer->n_convolutions = given->n_convolutions;
    for (int64_t k = 0; k < given->n_convolutions; k++) {
        convolution *of = layer->convolutions + k;
        of->width = given->widths[k], of->n_filters = given->n_filters[k];
        if (!pack_filters(given->filters[k], given->character_dim, of)) return ELMOKIT_NO_MEMORY;
        if (!pack_bias(given->filter_biases[k], of->n_filters, &bias)) return ELMOKIT_NO_MEMORY;
        of->bias = bias.bias;
        total += table_size(of, given->n_characters);
        widest = of->n_filters > widest ? of->n_filters : widest;
    }
    if (total > MAX_TABLE) return 0;
    float *sums = take_memory(given->n_characters * panels_of(widest) * PANEL * sizeof(float));
    int has_memory = sums != NULL;
    for (int64_t k = 0; has_memory && k < given->n_convolutions; k++) {
        convolution *of = layer->convolutions + k;
        has_memory = (of->table = take_memory(table_size(of, given->n_characters) * sizeof(float))) != NULL;
        if (has_memory) fill_table(of, given->n_characters, given->characters, sums, of->table);
    }
    give_memory(sums);
    return has_memory ? 0 : ELMOKIT_NO_MEMORY;
}

/* A matrix with the rows of up to two matrices, one after the other, and their biases. */
static int pack_linear(int precision, int64_t n_inputs, int64_t n, const float *weight, const float *bias, int64_t n_more,
                       const float *more, const float *more_bias, matrix *packed) {
    const float **rows = malloc((n + n_more) * sizeof *rows);
    float *both = malloc((n + n_more) * sizeof *both);
    int is_packed = rows && both;
    if (is_packed) {
        for (int64_t row = 0; row < n + n_more; row++) {
            rows[row] = row < n ? weight + row * n_inputs : more + (row - n) * n_inputs;
            both[row] = row < n ? bias[row] : more_bias[row - n];
        }
        is_packed = pack_matrix(precision, n + n_more, n_inputs, rows, n_inputs, packed) &&
                    pack_bias(both, n + n_more, packed);
    }
    free(rows);
    free(both);
    return is_packed;
}

int pack_token_layer(const elmokit_token_weights *given, int precision, token_layer *layer) {
    *layer = (token_layer){.uses_tanh = given->uses_tanh != 0, .output_dim = given->output_dim, .precision = precision};
    if (given->n_words) {
        /* Integers stay integers: a small model's table would be larger than the rest of the model, and a text only needs
           some rows. */
        const int64_t n = given->n_words * given->word_dim;
        if (given->words) {
            if (!(layer->words = copy(given->words, n))) return ELMOKIT_NO_MEMORY;
        } else {
            layer->word_integers = copy_bytes(given->word_integers, n);
            layer->word_scales = copy(given->word_scales, given->n_words);
            if (!layer->word_integers || !layer->word_scales) return ELMOKIT_NO_MEMORY;
        }
        layer->n_words = given->n_words, layer->word_dim = given->word_dim;
    }
    if (given->n_characters) {
        layer->n_characters = given->n_characters, layer->character_dim = given->character_dim;
        layer->characters = copy(given->characters, given->n_characters * given->character_dim);
        if (!layer->characters) return ELMOKIT_NO_MEMORY;
        const int failed = pack_convolutions(given, layer);
        if (failed) return failed;
        for (int64_t k = 0; k < layer->n_convolutions; k++) layer->n_features += layer->convolutions[k].n_filters;
        layer->highways = calloc(given->n_highways ? given->n_highways : 1, sizeof *layer->highways);
        if (!layer->highways) return ELMOKIT_NO_MEMORY;
        layer->n_highways = given->n_highways;
    }
    const int64_t n_inputs = layer->word_dim + layer->n_features;
    /* A word table's rows are exact, and so is their projection. */
    if (given->n_words) precision = FLOAT32;
    if (given->projection && !pack_linear(precision, n_inputs, given->output_dim, given->projection,
                                          given->projection_bias, 0, NULL, NULL, &layer->projection))
        return ELMOKIT_NO_MEMORY;
    return 0;
}

int pack_highway(int64_t number, const float *transform, const float *transform_bias, const float *gate,
                 const float *gate_bias, token_layer *layer) {
    if (number < 0 || number >= layer->n_highways || layer->highways[number].panels) return ELMOKIT_BAD_LAYER;
    const int64_t n = layer->n_features;
    matrix *to = layer->highways + number;
    if (pack_linear(layer->precision, n, n, transform, transform_bias, n, gate, gate_bias, to)) return 0;
    free_matrix(to);
    return ELMOKIT_NO_MEMORY;
}

static int64_t matrices_bytes(const token_layer *layer) {
    int64_t n_bytes = matrix_bytes(&layer->projection);
    for (int64_t k = 0; k < layer->n_highways; k++) n_bytes += matrix_bytes(layer->highways + k);
    return n_bytes;
}

int64_t token_layer_bytes(const token_layer *layer) {
    int64_t n_bytes = matrices_bytes(layer);
    n_bytes += layer->words ? 4 * layer->n_words * layer->word_dim : layer->n_words * (layer->word_dim + 4);
    n_bytes += 4 * layer->n_characters * layer->character_dim;
    for (int64_t k = 0; k < layer->n_convolutions; k++) {
        const convolution *of = layer->convolutions + k;
        n_bytes += of->table ? 4 * table_size(of, layer->n_characters) : 0;
        for (int64_t place = 0; place < of->width; place++) n_bytes += matrix_bytes(of->by_place + place);
    }
    return n_bytes;
}

void free_token_layer(token_layer *layer) {
    for (int64_t k = 0; k < layer->n_convolutions; k++) {
        convolution *of = layer->convolutions + k;
        for (int64_t place = 0; of->by_place && place < of->width; place++) free_matrix(of->by_place + place);
        free(of->by_place);
        give_memory(of->table);
        give_memory(of->bias);
    }
    for (int64_t k = 0; k < layer->n_highways; k++) free_matrix(layer->highways + k);
    free(layer->convolutions);
    free(layer->highways);
    free_matrix(&layer->projection);
    give_memory(layer->words);
    give_memory(layer->word_integers);
    give_memory(layer->word_scales);
    give_memory(layer->characters);
    *layer = (token_layer){0};
}

/* The windows of a token that can change a maximum: those that begin before its padding, and one inside it. A token's ids
   end in padding (equal columns), and all windows inside it give the same response. */
INLINE int64_t count_windows(const int64_t *ids, int64_t n_columns, int64_t width) {
    int64_t n_distinct = n_columns;
    while (n_distinct > 0 && ids[n_distinct - 1] == ids[n_columns - 1]) n_distinct--;
    return at_most(n_distinct + 1, n_columns - width + 1);
}

/* The maximum response over a token's windows, for a panel of filters. A NaN wins every comparison, as in PyTorch. `width`
   is a constant where this is inlined for the usual widths, so the loop over it unrolls. */
INLINE void largest_response(int64_t width, const int64_t *ids, int64_t n_windows, const float *table, vec *best) {
    best[0] = best[1] = all(-INFINITY);
    for (int64_t window = 0; window < n_windows; window++) {
        vec sum[2] = {{0}, {0}};
        for (int64_t place = 0; place < width; place++) {
            const float *row = table + (ids[window + place] * width + place) * PANEL;
            for (int v = 0; v < 2; v++) sum[v] += load(row + v * LANES);
        }
        for (int v = 0; v < 2; v++) best[v] = choose((sum[v] > best[v]) | (sum[v] != sum[v]), sum[v], best[v]);
    }
}

/* The bias is added after the maximum: the result is the same, with one addition instead of one per window. */
void convolve_panel(int64_t n_tokens, const int64_t *char_ids, int64_t n_columns, int64_t width, const float *table,
                    const float *bias, int64_t n_filters, activation after, float *features, int64_t n_features) {
    for (int64_t token = 0; token < n_tokens; token++) {
        const int64_t *ids = char_ids + token * n_columns;
        const int64_t n_windows = count_windows(ids, n_columns, width);
        vec best[2];
        switch (width) {
#define CASE(width)                                                                                                  \
    case width:                                                                                                      \
        largest_response(width, ids, n_windows, table, best);                                                        \
        break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7)
#undef CASE
            default: largest_response(width, ids, n_windows, table, best);
        }
        for (int v = 0; v < 2; v++) {
            const vec value = best[v] + load(bias + v * LANES);
            vec active = value;
            if (after == TANH) active = tangent(value);
            if (after == RELU) active = choose(value < (vec){0}, (vec){0}, value);
            /* The last panel has columns beyond n_filters, which must not be written. */
            if (n_filters > v * LANES) store_some(features + token * n_features + v * LANES, active, n_filters - v * LANES);
        }
    }
}

/* features = g * relu(t) + (1 - g) * features with g = sigmoid of the gate's sums; a row of `sums` has all t, then the gate.
   Each number is computed separately, so a row's bits do not depend on its position. */
static void gate_rows(int64_t n_rows, int64_t n_features, const float *sums, float *features) {
    for (int64_t row = 0; row < n_rows; row++, sums += 2 * n_features, features += n_features)
        for (int64_t at = 0; at < n_features; at += LANES) {
            const int64_t left = n_features - at;
            const vec transformed = load_some(sums + at, left), before = load_some(features + at, left);
            const vec gate = sigmoid(load_some(sums + n_features + at, left));
            const vec positive = choose(transformed < (vec){0}, (vec){0}, transformed);
            store_some(features + at, gate * positive + (1.0f - gate) * before, left);
        }
}

/* A call: tokens, and the tables of their characters. */
typedef struct {
    const token_layer *layer;
    int64_t n_tokens, n_columns; /* characters of a token */
    const int64_t *word_ids, *char_ids; /* (n_tokens) and (n_tokens, n_columns) */
    int64_t n_rows;                     /* of the tables */
    float *const *tables;               /* of each convolution */
    float *vectors;
    int64_t at_once;                    /* tokens that pass through the layer together */
    int64_t bytes_per_thread;           /* of `memory`, for a thread that works alone */
    char *memory;
    int64_t next; /* the first token that no thread has taken */
} token_call;

static int64_t rounded_bytes(const matrix *by) {
    return by->panels && rounds_inputs(by->precision) ? rounded_row_bytes(by->precision, by->n_inputs) : 0;
}

/* The bytes that `run_tokens` needs for n tokens. */
static int64_t run_bytes(const token_layer *layer, int64_t n) {
    int64_t rounded = rounded_bytes(&layer->projection);
    for (int64_t k = 0; k < layer->n_highways; k++)
        rounded = rounded_bytes(layer->highways + k) > rounded ? rounded_bytes(layer->highways + k) : rounded;
    const int64_t inputs = layer->word_dim + layer->n_features;
    return (n * (4 * (inputs + 3 * layer->n_features) + rounded) + 2 * 64) / 64 * 64;
}

static void read_word(const token_layer *layer, int64_t word, float *to) {
    const int64_t dim = layer->word_dim;
    if (layer->words) {
        memcpy(to, layer->words + word * dim, dim * sizeof(float));
        return;
    }
    for (int64_t k = 0; k < dim; k++) to[k] = layer->word_scales[word] * layer->word_integers[word * dim + k];
}

/* Compute n tokens from `first` on, in a team or alone. */
static void run_tokens(const member *me, const token_call *call, int64_t first, int64_t n, char *memory) {
    const token_layer *layer = call->layer;
    const int64_t n_features = layer->n_features, n_inputs = layer->word_dim + n_features, dim = layer->output_dim;
    float *vectors = call->vectors + first * dim, *sums = (float *)memory, *all_inputs = sums + 2 * n * n_features;
    char *rounded = (char *)(((uintptr_t)(all_inputs + n * (n_inputs + n_features)) + 63) / 64 * 64);
    /* Each stage writes where the next one reads; the last one writes the vectors. */
    float *features = layer->word_dim ? all_inputs + n * n_inputs : layer->projection.panels ? all_inputs : vectors;
    /* The outer loop runs over panels, so the table rows of a panel that the batch needs stay in the cache. Convolutions
       differ in cost by their width, so each thread takes every n-th panel. */
    const activation after = layer->uses_tanh ? TANH : RELU;
    int64_t feature = 0, turn = 0;
    for (int64_t k = 0; k < layer->n_convolutions; k++) {
        const convolution *of = layer->convolutions + k;
        for (int64_t panel = 0; panel < panels_of(of->n_filters); panel++, turn++)
            if (turn % me->n_threads == me->thread)
                convolve_panel(n, call->char_ids + first * call->n_columns, call->n_columns, of->width,
                               call->tables[k] + panel * call->n_rows * of->width * PANEL, of->bias + panel * PANEL,
                               of->n_filters - panel * PANEL, after, features + feature + panel * PANEL, n_features);
        feature += of->n_filters;
    }
    meet(me);
    for (int64_t k = 0; k < layer->n_highways; k++) {
        multiply_rows(me, layer->highways + k, n, features, sums, 2 * n_features, rounded);
        const int64_t row = first_of(me, n);
        gate_rows(last_of(me, n) - row, n_features, sums + row * 2 * n_features, features + row * n_features);
        meet(me);
    }
    if (layer->word_dim) {
        float *to = layer->projection.panels ? all_inputs : vectors;
        for (int64_t token = first_of(me, n); token < last_of(me, n); token++) {
            read_word(layer, call->word_ids[first + token], to + token * n_inputs);
            if (n_features)
                memcpy(to + token * n_inputs + layer->word_dim, features + token * n_features, n_features * sizeof(float));
        }
        meet(me);
    }
    if (layer->projection.panels) multiply_rows(me, &layer->projection, n, all_inputs, vectors, dim, rounded);
}

/* All threads share each token's columns. */
static void run_shared(const member *me, void *context) {
    const token_call *call = context;
    for (int64_t first = 0; first < call->n_tokens; first += TOKENS_AT_ONCE) {
        run_tokens(me, call, first, at_most(call->n_tokens - first, TOKENS_AT_ONCE), call->memory);
        meet(me);
    }
}

/* Each thread takes the next tokens until none are left. */
static void run_apart(const member *me, void *context) {
    token_call *call = context;
    for (int64_t first; (first = __atomic_fetch_add(&call->next, call->at_once, __ATOMIC_RELAXED)) < call->n_tokens;)
        run_tokens(&ALONE, call, first, at_most(call->n_tokens - first, call->at_once),
                   call->memory + me->thread * call->bytes_per_thread);
}

/* Number the distinct characters of a call, and replace their ids with the numbers. Return their vectors, one row each. */
static float *number_characters(const token_layer *layer, int64_t n_ids, int64_t *ids, int64_t *n_distinct) {
    int64_t *numbers = calloc(layer->n_characters, sizeof *numbers), n = 0; /* from 1 on; 0 for none yet */
    float *rows = NULL;
    if (numbers) {
        for (int64_t at = 0; at < n_ids; at++) numbers[ids[at]] = numbers[ids[at]] ? numbers[ids[at]] : ++n;
        rows = malloc((n ? n : 1) * layer->character_dim * sizeof *rows);
        for (int64_t at = 0; rows && at < n_ids; at++) {
            const int64_t number = numbers[ids[at]] - 1;
            memcpy(rows + number * layer->character_dim, layer->characters + ids[at] * layer->character_dim,
                   layer->character_dim * sizeof(float));
            ids[at] = number;
        }
    }
    free(numbers);
    *n_distinct = n;
    return rows;
}

/* The tables of a call's characters, for a model with too many characters to keep tables of all. */
static int make_tables(const token_layer *layer, int64_t n_rows, const float *characters, float **tables) {
    int64_t widest = 0;
    for (int64_t k = 0; k < layer->n_convolutions; k++)
        widest = layer->convolutions[k].n_filters > widest ? layer->convolutions[k].n_filters : widest;
    float *sums = take_memory(n_rows * panels_of(widest) * PANEL * sizeof(float));
    int has_memory = sums != NULL;
    for (int64_t k = 0; has_memory && k < layer->n_convolutions; k++) {
        const convolution *of = layer->convolutions + k;
        has_memory = (tables[k] = take_memory(table_size(of, n_rows) * sizeof(float))) != NULL;
        if (has_memory) fill_table(of, n_rows, characters, sums, tables[k]);
    }
    give_memory(sums);
    return has_memory;
}

int run_token_layer(const token_layer *layer, int64_t n_threads, int64_t n_tokens, int64_t n_ids, const int64_t *ids,
                    float *vectors) {
    const int64_t has_words = layer->n_words > 0, n_columns = n_ids - has_words;
    for (int64_t k = 0; k < layer->n_highways; k++)
        if (!layer->highways[k].panels) return ELMOKIT_BAD_LAYER;
    if (n_columns < 0 || (!layer->n_characters && n_columns)) return ELMOKIT_BAD_SIZES;
    for (int64_t k = 0; k < layer->n_convolutions; k++)
        if (layer->convolutions[k].width > n_columns) return ELMOKIT_BAD_SIZES;
    for (int64_t token = 0; token < n_tokens; token++)
        for (int64_t at = 0; at < n_ids; at++) {
            const int64_t id = ids[token * n_ids + at], bound = has_words && !at ? layer->n_words : layer->n_characters;
            if (id < 0 || id >= bound) return ELMOKIT_BAD_IDS;
        }
    const int keeps_tables = !layer->n_convolutions || layer->convolutions[0].table;
    int64_t *apart = NULL, n_rows = layer->n_characters; /* word ids, then char ids */
    float **tables = calloc(layer->n_convolutions ? layer->n_convolutions : 1, sizeof *tables), *characters = NULL;
    if (!tables) return ELMOKIT_NO_MEMORY;
    int has_memory = 1;
    const int64_t *word_ids = ids, *char_ids = ids;
    if (n_columns && (has_words || !keeps_tables)) {
        has_memory = (apart = malloc((n_tokens ? n_tokens : 1) * n_ids * sizeof *apart)) != NULL;
        for (int64_t token = 0; has_memory && token < n_tokens; token++) {
            if (has_words) apart[token] = ids[token * n_ids];
            memcpy(apart + has_words * n_tokens + token * n_columns, ids + token * n_ids + has_words,
                   n_columns * sizeof *apart);
        }
        word_ids = apart, char_ids = apart + has_words * n_tokens;
    }
    if (has_memory && !keeps_tables) {
        characters = number_characters(layer, n_tokens * n_columns, apart + has_words * n_tokens, &n_rows);
        has_memory = characters && make_tables(layer, n_rows, characters, tables);
    } else
        for (int64_t k = 0; has_memory && k < layer->n_convolutions; k++) tables[k] = layer->convolutions[k].table;
    const int is_small = matrices_bytes(layer) <= SMALL_BYTES;
    int64_t n_weights = layer->projection.n_inputs * layer->projection.n_outputs;
    for (int64_t k = 0; k < layer->n_highways; k++) n_weights += 2 * layer->n_features * layer->n_features;
    if (n_threads > n_tokens && is_small) n_threads = n_tokens;
    if (n_threads < 1 || n_tokens * n_weights < 4 * SMALL_WORK) n_threads = 1;
    /* Small parts, so that a thread that starts late still finds some. */
    const int64_t part = (n_tokens + 2 * n_threads - 1) / (2 * n_threads);
    const int64_t at_once = at_most(is_small && n_threads > 1 ? part : n_tokens, TOKENS_AT_ONCE);
    token_call call = {layer, n_tokens, n_columns, word_ids, char_ids, n_rows, tables, vectors,
                       at_once, run_bytes(layer, at_once), NULL, 0};
    if (has_memory) has_memory = (call.memory = take_memory(call.bytes_per_thread * (is_small ? n_threads : 1))) != NULL;
    if (has_memory && is_small) share_work(n_threads, run_apart, &call);
    if (has_memory && !is_small) run_team(n_threads, run_shared, &call);
    give_memory(call.memory);
    for (int64_t k = 0; !keeps_tables && k < layer->n_convolutions; k++) give_memory(tables[k]);
    free(tables);
    free(characters);
    free(apart);
    return has_memory ? 0 : ELMOKIT_NO_MEMORY;
}
