/* Convolutions over characters in training, using a table: the maximum of each filter over positions, and its gradient.

   As in `token_layer.c`, what a character adds to a filter at a place of its window is a row of a table. PyTorch computes
   the table from the characters' vectors and the filters before each step: 262 rows instead of about 20,000 characters.
   Here, rows are added; in the backward pass, each winning window adds its gradient to the rows of its characters. All of
   this is float32. */

#include "packed_product.h"
#include "threads.h"
#include "training.h"

typedef struct {
    int64_t n_tokens, n_columns, width, n_rows, n_filters, n_features;
    const int64_t *char_ids, *n_windows;
    const float *table, *bias;
    float *pooled;
    int32_t *winners;
} table_convolution;

static void convolve(const member *me, void *context) {
    const table_convolution call = *(const table_convolution *)context;
    const int64_t n_panels = (call.n_filters + PANEL - 1) / PANEL, width = call.width;
    for (int64_t panel = first_of(me, n_panels); panel < last_of(me, n_panels); panel++) {
        const float *rows = call.table + panel * call.n_rows * width * PANEL;
        const int64_t first = panel * PANEL, n = call.n_filters - first;
        for (int64_t token = 0; token < call.n_tokens; token++) {
            const int64_t *ids = call.char_ids + token * call.n_columns;
            vec best[2] = {all(-INFINITY), all(-INFINITY)};
            ivec winner[2] = {{0}, {0}};
            for (int64_t window = 0; window < call.n_windows[token]; window++) {
                vec sum[2] = {{0}, {0}};
                for (int64_t place = 0; place < width; place++) {
                    const float *row = rows + (ids[window + place] * width + place) * PANEL;
                    for (int v = 0; v < 2; v++) sum[v] += load(row + v * LANES);
                }
                for (int v = 0; v < 2; v++) {
                    /* A NaN wins, as in PyTorch; among equal sums, the first window wins. */
                    const ivec better = (sum[v] > best[v]) | (sum[v] != sum[v]);
                    best[v] = choose(better, sum[v], best[v]);
                    winner[v] = (better & (int)window) | (~better & winner[v]);
                }
            }
            float *to = call.pooled + token * call.n_features + first;
            int32_t *won = call.winners + token * call.n_features + first;
            for (int v = 0; v < 2 && v * LANES < n; v++) {
                const int64_t left = n - v * LANES;
                store_some(to + v * LANES, best[v] + load_some(call.bias + first + v * LANES, left), left);
                memcpy(won + v * LANES, winner + v, at_most(left, LANES) * sizeof(int32_t));
            }
        }
    }
}

void elmokit_table_convolve(int64_t n_threads, int64_t n_tokens, const int64_t *char_ids, int64_t n_columns,
                            const int64_t *n_windows, int64_t width, const float *table, int64_t n_rows,
                            const float *bias, int64_t n_filters, int64_t n_features, float *pooled, int32_t *winners) {
    table_convolution call = {n_tokens, n_columns, width, n_rows, n_filters, n_features,
                              char_ids, n_windows, table, bias,   pooled,    winners};
    run_team(n_threads, convolve, &call);
}

typedef struct {
    int64_t n_tokens, n_columns, width, n_rows, n_filters, n_features;
    const int64_t *char_ids;
    const int32_t *winners;
    const float *upstream;
    float *table;
} table_gradient;

/* Each thread takes whole panels, so no two threads add to the same row. */
static void convolve_backward(const member *me, void *context) {
    const table_gradient *call = context;
    const int64_t n_panels = (call->n_filters + PANEL - 1) / PANEL, width = call->width;
    for (int64_t panel = first_of(me, n_panels); panel < last_of(me, n_panels); panel++) {
        float *rows = call->table + panel * call->n_rows * width * PANEL;
        const int64_t first = panel * PANEL, n = at_most(call->n_filters - first, PANEL);
        for (int64_t token = 0; token < call->n_tokens; token++) {
            const int64_t *ids = call->char_ids + token * call->n_columns;
            const int64_t at = token * call->n_features + first;
            for (int64_t filter = 0; filter < n; filter++) {
                const float gradient = call->upstream[at + filter];
                if (gradient == 0.0f) continue; /* frequent: a ReLU follows */
                const int64_t *window = ids + call->winners[at + filter];
                for (int64_t place = 0; place < width; place++)
                    rows[(window[place] * width + place) * PANEL + filter] += gradient;
            }
        }
    }
}

void elmokit_table_convolve_backward(int64_t n_threads, int64_t n_tokens, const int64_t *char_ids, int64_t n_columns,
                                     int64_t width, int64_t n_rows, int64_t n_filters, int64_t n_features,
                                     const int32_t *winners, const float *upstream, float *table) {
    table_gradient call = {n_tokens, n_columns, width,   n_rows,   n_filters,
                           n_features, char_ids, winners, upstream, table};
    run_team(n_threads, convolve_backward, &call);
}
