/* Compute with the engine on the numbers of a file, for a system or a processor that this machine emulates.

   main WHAT PRECISION FILE: WHAT is "product", "tokens" or "lstm". FILE has counts in 64 bits, then arrays, each after its
   length in bytes in 64 bits. The outputs, in float32, go to stdout. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#endif

#include "elmokit.h"

enum { N_THREADS = 3, MOST = 64 };

static FILE *file;

static int64_t count(void) {
    int64_t value;
    if (fread(&value, 8, 1, file) != 1) exit(2);
    return value;
}

static void *array(void) {
    const int64_t n_bytes = count();
    char *values = malloc(n_bytes + 1);
    if (!values || fread(values, 1, n_bytes, file) != (size_t)n_bytes) exit(2);
    return values;
}

static void check(int64_t failed) {
    if (failed) exit(10 + (int)failed);
}

static int write_floats(const float *values, int64_t n) { return fwrite(values, 4, n, stdout) != (size_t)n; }

static int product(int64_t precision) {
    const int64_t rows = count(), inputs = count(), outputs = count();
    const float *x = array(), *weight = array();
    float *y = malloc(rows * outputs * 4);
    elmokit_matrix *packed;
    check(elmokit_open_matrix(precision, outputs, inputs, weight, NULL, &packed));
    check(elmokit_multiply(packed, N_THREADS, rows, x, y));
    elmokit_close_matrix(packed);
    return write_floats(y, rows * outputs);
}

static int tokens(int64_t precision) {
    const float *filters[MOST], *biases[MOST], *highways[MOST];
    elmokit_token_weights weights = {0};
    const int64_t n_tokens = count(), n_columns = count();
    weights.n_characters = count(), weights.character_dim = count();
    weights.n_convolutions = count(), weights.n_highways = count(), weights.output_dim = count();
    weights.widths = array(), weights.n_filters = array(), weights.characters = array();
    for (int64_t k = 0; k < weights.n_convolutions; k++) filters[k] = array(), biases[k] = array();
    for (int64_t k = 0; k < 4 * weights.n_highways; k++) highways[k] = array();
    weights.filters = filters, weights.filter_biases = biases;
    weights.projection = array(), weights.projection_bias = array();
    elmokit_tokens *packed;
    check(elmokit_open_tokens(&weights, precision, &packed));
    for (int64_t k = 0; k < weights.n_highways; k++) {
        const float **of = highways + 4 * k;
        check(elmokit_pack_highway(packed, k, of[0], of[1], of[2], of[3]));
    }
    const int64_t *ids = array();
    float *vectors = malloc(n_tokens * weights.output_dim * 4);
    check(elmokit_token_vectors(packed, N_THREADS, n_tokens, n_columns, ids, vectors));
    elmokit_close_tokens(packed);
    return write_floats(vectors, n_tokens * weights.output_dim);
}

static int lstm(int64_t precision) {
    elmokit_lstm_sizes sizes = {.cell_clip = 3.0f, .output_clip = 3.0f, .adds_inputs = 1};
    const int64_t n_words = count();
    sizes.n_directions = count(), sizes.n_layers = count(), sizes.dim = count(), sizes.hidden_dim = count();
    sizes.reads_backward = array();
    elmokit_lstm *packed;
    check(elmokit_open_lstm(&sizes, precision, &packed));
    for (int64_t k = 0; k < sizes.n_directions * sizes.n_layers; k++) {
        const float *weight = array(), *bias = array(), *projection = array();
        check(elmokit_pack_layer(packed, k / sizes.n_layers, k % sizes.n_layers, weight, bias, projection));
    }
    const int64_t stride = sizes.n_directions * sizes.dim, n = (sizes.n_layers + 1) * n_words * stride;
    const int64_t *words = array(), *slots = array();
    float *layers = malloc(n * 4);
    const elmokit_row row = {.length = n_words, .words = words, .layers = layers, .layer_stride = n_words * stride};
    elmokit_batch batch = {.n_rows = 1, .rows = &row, .slots = slots, .place_stride = stride, .start_rows = 1};
    batch.vectors = array(), batch.last_direction = sizes.n_directions;
    batch.start_hidden = array(), batch.start_cell = array();
    check(elmokit_layers(packed, N_THREADS, &batch));
    elmokit_close_lstm(packed);
    return write_floats(layers, n);
}

int main(int n_arguments, char **arguments) {
#if defined(_WIN32)
    _setmode(_fileno(stdout), _O_BINARY); /* else a byte 10 becomes two */
#endif
    if (n_arguments == 2 && !strcmp(arguments[1], "permitted")) return !elmokit_is_permitted();
    if (n_arguments != 4 || !(file = fopen(arguments[3], "rb"))) return 1;
    const int64_t precision = atol(arguments[2]);
    if (!strcmp(arguments[1], "product")) return product(precision);
    return !strcmp(arguments[1], "tokens") ? tokens(precision) : lstm(precision);
}
