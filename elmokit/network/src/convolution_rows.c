/* Convolutions over the characters of tokens without gradients, with the current weights: nothing is kept between calls.

   As in the engine's token layer, what each character adds to a filter at each place of its window is computed first, here
   for the characters of a call. The responses of windows are sums of these numbers. A number in the table only depends on
   its character and filter, so a token has the same bits in any batch, and the same bits as in the engine in float32. */

#include "token_layer.h"
#include "training.h"

typedef struct {
    const elmokit_convolution_call *given;
    char *memory;
    int64_t bytes_per_thread;
    int64_t next_panel;
} call;

/* A thread's memory, for one panel of filters. */
typedef struct {
    float *packed, *by_place; /* the filters' weights: (dim, width, PANEL), and (width, dim, PANEL) */
    float *table;             /* (n_characters, width, PANEL) */
} panel_memory;

static char *place_panel(const elmokit_convolution_call *given, char *at, panel_memory *to) {
    const int64_t n_weights = given->dim * given->width * PANEL;
    to->packed = (float *)place(&at, n_weights * 4);
    to->by_place = (float *)place(&at, n_weights * 4);
    to->table = (float *)place(&at, given->n_characters * given->width * PANEL * 4);
    return at;
}

int64_t elmokit_convolution_bytes(int64_t n_threads, const elmokit_convolution_call *given) {
    panel_memory one;
    return (n_threads < 1 ? 1 : n_threads) * (int64_t)(intptr_t)place_panel(given, NULL, &one);
}

/* What each character adds to a panel of filters at each place of the window. */
static void fill_table(const elmokit_convolution_call *given, int64_t first, const panel_memory *memory) {
    const int64_t dim = given->dim, width = given->width, n_weights = dim * width;
    const float *filters[PANEL] = {0};
    for (int64_t column = 0; column < at_most(given->n_filters - first, PANEL); column++)
        filters[column] = given->weight + (first + column) * n_weights;
    pack_float_panel(filters, n_weights, n_weights, 0, memory->packed);
    memset(memory->table, 0, given->n_characters * width * PANEL * sizeof(float));
    for (int64_t at = 0; at < width; at++) {
        float *weights = memory->by_place + at * dim * PANEL;
        for (int64_t k = 0; k < dim; k++)
            memcpy(weights + k * PANEL, memory->packed + (k * width + at) * PANEL, PANEL * sizeof(float));
        add_product(FLOAT32, given->n_characters, 1, (inputs){given->characters, 4 * dim}, weights, dim,
                    (target){memory->table + at * PANEL, width * PANEL, NULL}, weights);
    }
}

static void convolve(const member *me, void *context) {
    call *of = context;
    const elmokit_convolution_call *given = of->given;
    panel_memory memory;
    place_panel(given, of->memory + me->thread * of->bytes_per_thread, &memory);
    for (int64_t panel; (panel = __atomic_fetch_add(&of->next_panel, 1, __ATOMIC_RELAXED)) * PANEL < given->n_filters;) {
        const int64_t first = panel * PANEL, n_filters = at_most(given->n_filters - first, PANEL);
        float bias[PANEL] = {0};
        memcpy(bias, given->bias + first, n_filters * sizeof(float));
        fill_table(given, first, &memory);
        convolve_panel(given->n_tokens, given->ids, given->n_columns, given->width, memory.table, bias, n_filters,
                       NO_ACTIVATION, given->maxima + first, given->n_filters);
    }
}

int64_t elmokit_run_convolution(int64_t n_threads, const elmokit_convolution_call *given, char *memory) {
    for (int64_t at = 0; at < given->n_tokens * given->n_columns; at++)
        if (given->ids[at] < 0 || given->ids[at] >= given->n_characters) return 0;
    call of = {given, memory, elmokit_convolution_bytes(1, given), 0};
    const int64_t n_products = given->n_characters * given->dim + given->n_tokens * given->n_columns;
    share_work(n_products * given->width * given->n_filters < SMALL_WORK ? 1 : n_threads, convolve, &of);
    return 1;
}
