/* Run the token layer of the kernels on the numbers of a file, for a processor that this machine emulates.

   main FILE: FILE has 7 counts in 64 bits: those of the precision, tokens, columns, rows of the tables, convolutions,
   highways and outputs; then the widths and filters of the convolutions and the char ids, in 64 bits; then six arrays
   (tables, their bias, highways, their bias, projection, its bias), each after its length in 64 bits. The vectors go to
   stdout. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

long elmokit_rounded_row_bytes(long precision, long n_inputs);
void elmokit_token_layer(long n_threads, long n_tokens, const int64_t *char_ids, long n_columns, long n_rows,
                         long n_convolutions, const int64_t *widths, const int64_t *n_filters, const float *tables,
                         const float *filter_bias, long is_tanh, long n_highways, long highway_precision,
                         const float *highways, const float *highway_bias, long projection_precision,
                         const float *projection, const float *projection_bias, long output_dim, long at_once,
                         float *features, float *sums, char *rounded, float *outputs);

static void *read_numbers(FILE *file, long n, long size) {
    void *values = aligned_alloc(64, (n * size + 127) / 64 * 64);
    if (!values || fread(values, size, n, file) != (size_t)n) exit(2);
    return values;
}

int main(int count, char **arguments) {
    FILE *file = count == 2 ? fopen(arguments[1], "rb") : NULL;
    if (!file) return 1;
    const int64_t *counts = read_numbers(file, 7, 8);
    const long precision = counts[0], tokens = counts[1], columns = counts[2], rows = counts[3], convolutions = counts[4];
    const long highways = counts[5], outputs = counts[6];
    const int64_t *widths = read_numbers(file, convolutions, 8), *filters = read_numbers(file, convolutions, 8);
    const int64_t *ids = read_numbers(file, tokens * columns, 8);
    const float *arrays[6];
    for (int i = 0; i < 6; i++) arrays[i] = read_numbers(file, *(int64_t *)read_numbers(file, 1, 8), 4);
    long n_features = 0;
    for (long k = 0; k < convolutions; k++) n_features += filters[k];
    float *features = malloc(tokens * n_features * 4), *sums = malloc(tokens * n_features * 8);
    float *vectors = malloc(tokens * outputs * 4);
    char *rounded = aligned_alloc(64, tokens * elmokit_rounded_row_bytes(precision, n_features) + 64);
    elmokit_token_layer(1, tokens, ids, columns, rows, convolutions, widths, filters, arrays[0], arrays[1], 0, highways,
                        precision, arrays[2], arrays[3], precision, arrays[4], arrays[5], outputs, tokens, features, sums,
                        rounded, vectors);
    return fwrite(vectors, 4, tokens * outputs, stdout) != (size_t)(tokens * outputs);
}
