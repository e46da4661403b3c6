/* Run one product of the kernels on the numbers of a file, for a processor that this machine emulates.

   main PRECISION ROWS INPUTS OUTPUTS FILE: FILE has the inputs, the panels and the bias; the outputs go to stdout. */

#include <stdio.h>
#include <stdlib.h>

long elmokit_panel_lanes(long precision, long n_inputs);
long elmokit_rounded_row_bytes(long precision, long n_inputs);
int elmokit_wide(void);
void elmokit_product(long n_threads, long precision, long n_rows, const float *inputs, long n_inputs,
                     const float *weights, const float *bias, long n_outputs, float *outputs, char *rounded_inputs);

static float *numbers(FILE *file, long n) {
    float *values = aligned_alloc(64, (n * 4 + 127) / 64 * 64);
    if (!values || fread(values, 4, n, file) != (size_t)n) exit(2);
    return values;
}

int main(int count, char **arguments) {
    if (count != 6) return 1;
    const long precision = atol(arguments[1]), rows = atol(arguments[2]), inputs = atol(arguments[3]);
    const long outputs = atol(arguments[4]), wide = elmokit_wide(), panels = (outputs + wide - 1) / wide;
    FILE *file = fopen(arguments[5], "rb");
    if (!file) return 1;
    float *x = numbers(file, rows * inputs), *weights = numbers(file, panels * elmokit_panel_lanes(precision, inputs));
    float *bias = numbers(file, panels * wide), *y = malloc(rows * outputs * 4);
    char *rounded = aligned_alloc(64, rows * elmokit_rounded_row_bytes(precision, inputs) + 64);
    elmokit_product(1, precision, rows, x, inputs, weights, bias, outputs, y, rounded);
    return fwrite(y, 4, rows * outputs, stdout) != (size_t)(rows * outputs);
}
