/* A linear layer without gradients, with the weights as they are: nothing is packed, and nothing is kept.

   Each number of the result is the product of two rows, of inputs and of weights, that follow each other in memory. It is
   summed in LANES sums side by side, always in the same order, so a row has the same bits in any batch. */

#include "matrix.h"
#include "training.h"

enum {
    BLOCK_ROWS = LANES == 16 ? 4 : 2, /* of inputs that are multiplied side by side, ... */
    BLOCK_COLUMNS = 4,                /* ... by rows of weights: BLOCK_ROWS * BLOCK_COLUMNS sums stay in registers */
    N_SUMS = BLOCK_ROWS * BLOCK_COLUMNS,
    BYTES_AT_ONCE = 1 << 19,    /* of inputs: half of the L2 cache of most processors */
};

typedef struct {
    int64_t n_rows, n_inputs, n_outputs;
    const float *inputs, *weight, *bias;
    float *outputs;
} product;

/* Add up the lanes of N_SUMS vectors: numbers, N_SUMS of them. */
INLINE void add_lanes(vec *sums, float *numbers) {
    for (int64_t first = 0; first < N_SUMS; first += LANES) {
        transpose((ivec *)sums + first);
        for (int half = LANES / 2; half; half /= 2)
            for (int lane = 0; lane < half; lane++) sums[first + lane] += sums[first + lane + half];
        store(numbers + first, sums[first]);
    }
}

/* sums += the products of the next LANES inputs, or of the last `n`. */
INLINE void add_products(const float *const *inputs, const float *const *weights, int64_t at, int64_t n, vec *sums) {
    vec from[BLOCK_COLUMNS];
    for (int c = 0; c < BLOCK_COLUMNS; c++) from[c] = load_some(weights[c] + at, n);
    for (int r = 0; r < BLOCK_ROWS; r++) {
        const vec input = load_some(inputs[r] + at, n);
        for (int c = 0; c < BLOCK_COLUMNS; c++) sums[r * BLOCK_COLUMNS + c] += input * from[c];
    }
}

/* The products of BLOCK_ROWS rows by BLOCK_COLUMNS rows of weights. Where there are fewer, the last ones are computed again. */
static void multiply_block(const product *of, int64_t row, int64_t column) {
    const int64_t n_inputs = of->n_inputs, n_rows = of->n_rows - row, n_columns = of->n_outputs - column;
    const float *inputs[BLOCK_ROWS], *weights[BLOCK_COLUMNS];
    for (int64_t r = 0; r < BLOCK_ROWS; r++) inputs[r] = of->inputs + (row + at_most(r, n_rows - 1)) * n_inputs;
    for (int64_t c = 0; c < BLOCK_COLUMNS; c++) weights[c] = of->weight + (column + at_most(c, n_columns - 1)) * n_inputs;
    vec sums[N_SUMS] = {{0}};
    int64_t at = 0;
    for (; at + LANES <= n_inputs; at += LANES) add_products(inputs, weights, at, LANES, sums);
    if (at < n_inputs) add_products(inputs, weights, at, n_inputs - at, sums);
    float numbers[N_SUMS];
    add_lanes(sums, numbers);
    for (int64_t r = 0; r < at_most(BLOCK_ROWS, n_rows); r++)
        for (int64_t c = 0; c < at_most(BLOCK_COLUMNS, n_columns); c++)
            of->outputs[(row + r) * of->n_outputs + column + c] =
                numbers[r * BLOCK_COLUMNS + c] + (of->bias ? of->bias[column + c] : 0);
}

static void multiply(const member *me, void *context) {
    const product *of = context;
    const int64_t n_blocks = (of->n_outputs + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
    const int64_t fitting = BYTES_AT_ONCE / (4 * (of->n_inputs + 1)) / BLOCK_ROWS * BLOCK_ROWS;
    const int64_t n_at_once = fitting ? fitting : BLOCK_ROWS;
    for (int64_t first = 0; first < of->n_rows; first += n_at_once)
        for (int64_t block = first_of(me, n_blocks); block < last_of(me, n_blocks); block++)
            for (int64_t row = first; row < at_most(first + n_at_once, of->n_rows); row += BLOCK_ROWS)
                multiply_block(of, row, block * BLOCK_COLUMNS);
}

void elmokit_linear_rows(int64_t n_threads, int64_t n_rows, int64_t n_inputs, int64_t n_outputs, const float *inputs,
                         const float *weight, const float *bias, float *outputs) {
    product of = {n_rows, n_inputs, n_outputs, inputs, weight, bias, outputs};
    run_team(n_rows * n_inputs * n_outputs < SMALL_WORK ? 1 : n_threads, multiply, &of);
}
