/* Compute with the engine on the numbers of a file, for a processor that this machine emulates.

   main WHAT PRECISION FILE: WHAT is "product", "tokens" or "lstm". FILE has counts in 64 bits, then arrays, each after its
   length in bytes in 64 bits. The outputs, in float32, go to stdout. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "elmokit.h"

enum { N_THREADS = 2, MOST = 64 };

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
    weights.filters = filters, weights.filter_biases = biases, weights.highways = highways;
    weights.projection = array(), weights.projection_bias = array();
    const int64_t *ids = array();
    float *vectors = malloc(n_tokens * weights.output_dim * 4);
    elmokit_tokens *packed;
    check(elmokit_open_tokens(&weights, precision, &packed));
    check(elmokit_token_vectors(packed, N_THREADS, n_tokens, n_columns, ids, vectors));
    elmokit_close_tokens(packed);
    return write_floats(vectors, n_tokens * weights.output_dim);
}

static int lstm(int64_t precision) {
    const float *matrices[MOST], *biases[MOST], *projections[MOST];
    elmokit_lstm_weights weights = {.cell_clip = 3.0f, .output_clip = 3.0f, .adds_inputs = 1};
    const int64_t n_words = count();
    weights.n_directions = count(), weights.n_layers = count(), weights.dim = count(), weights.hidden_dim = count();
    weights.reads_backward = array();
    for (int64_t k = 0; k < weights.n_directions * weights.n_layers; k++)
        matrices[k] = array(), biases[k] = array(), projections[k] = array();
    weights.weights = matrices, weights.biases = biases, weights.projections = projections;
    const int64_t stride = weights.n_directions * weights.dim, n = (weights.n_layers + 1) * n_words * stride;
    const int64_t *words = array(), *slots = array();
    float *layers = malloc(n * 4);
    const elmokit_row row = {.length = n_words, .words = words, .layers = layers, .layer_stride = n_words * stride};
    elmokit_batch batch = {.n_rows = 1, .rows = &row, .slots = slots, .place_stride = stride, .start_rows = 1};
    batch.vectors = array(), batch.last_direction = weights.n_directions;
    batch.start_hidden = array(), batch.start_cell = array();
    elmokit_lstm *packed;
    check(elmokit_open_lstm(&weights, precision, &packed));
    check(elmokit_layers(packed, N_THREADS, &batch));
    elmokit_close_lstm(packed);
    return write_floats(layers, n);
}

int main(int n_arguments, char **arguments) {
    if (n_arguments != 4 || !(file = fopen(arguments[3], "rb"))) return 1;
    const int64_t precision = atol(arguments[2]);
    if (!strcmp(arguments[1], "product")) return product(precision);
    return !strcmp(arguments[1], "tokens") ? tokens(precision) : lstm(precision);
}
