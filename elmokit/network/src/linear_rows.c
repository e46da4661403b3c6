/* A linear layer without gradients, with the current weights: each panel is packed, used for all rows, and discarded.

   Packing a panel takes as long as multiplying it by about six rows. The products are the engine's, so each row has the same
   bits in any batch, and the same bits as in the engine in float32. */

#include "matrix.h"
#include "training.h"

enum {
    ROW_BLOCK = 16 * ROWS, /* rows whose sums for a panel are computed together */
    SHARED_WORK = SMALL_WORK / 8, /* threads that wake too late are not waited for, so less work is shared than elsewhere */
};

typedef struct {
    int64_t n_rows, n_inputs, n_outputs;
    const float *inputs, *weight, *bias;
    float *outputs;
    char *memory; /* a panel for each thread */
    int64_t next_panel;
} product;

/* The panel of outputs that begins with `column`. */
static void multiply_panel(const product *of, int64_t column, float *panel) {
    const int64_t n_inputs = of->n_inputs, n_columns = at_most(of->n_outputs - column, PANEL);
    const float *weights[PANEL] = {0};
    float bias[PANEL] = {0}, sums[ROW_BLOCK * PANEL] __attribute__((aligned(64)));
    for (int64_t c = 0; c < n_columns; c++) weights[c] = of->weight + (column + c) * n_inputs;
    if (of->bias) memcpy(bias, of->bias + column, n_columns * sizeof(float));
    pack_float_panel(weights, n_inputs, n_inputs, PANEL * n_inputs, panel);
    for (int64_t first = 0; first < of->n_rows; first += ROW_BLOCK) {
        const int64_t n = at_most(of->n_rows - first, ROW_BLOCK);
        add_product(FLOAT32, n, 1, (inputs){of->inputs + first * n_inputs, 4 * n_inputs}, panel, n_inputs,
                    (target){sums, PANEL, bias}, panel);
        for (int64_t row = 0; row < n; row++)
            memcpy(of->outputs + (first + row) * of->n_outputs + column, sums + row * PANEL, n_columns * sizeof(float));
    }
}

static void multiply(const member *me, void *context) {
    product *of = context;
    float *panel = (float *)(of->memory + me->thread * elmokit_linear_rows_bytes(1, of->n_inputs));
    for (int64_t n; (n = __atomic_fetch_add(&of->next_panel, 1, __ATOMIC_RELAXED)) * PANEL < of->n_outputs;)
        multiply_panel(of, n * PANEL, panel);
}

int64_t elmokit_linear_rows_bytes(int64_t n_threads, int64_t n_inputs) {
    return (n_threads < 1 ? 1 : n_threads) * n_inputs * PANEL * (int64_t)sizeof(float);
}

void elmokit_linear_rows(int64_t n_threads, int64_t n_rows, int64_t n_inputs, int64_t n_outputs, const float *inputs,
                         const float *weight, const float *bias, char *memory, float *outputs) {
    product of = {n_rows, n_inputs, n_outputs, inputs, weight, bias, outputs, memory, 0};
    share_work(n_rows * n_inputs * n_outputs < SHARED_WORK ? 1 : n_threads, multiply, &of);
}
