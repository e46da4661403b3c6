/* The char CNN without gradients: from the char ids of tokens to their vectors, in one call.

   `token_layer.py` packs the weights; `nn/char_cnn.py` has the same in PyTorch operations.

   The convolutions multiply nothing. There are a few hundred characters, so what each of them adds to a filter at each
   position within the filter's window is computed when the weights are packed: a table. The response of a window is the sum
   of one row of the table for each of its characters, a sixteenth of the operations in the original sizes, where a
   character has 16 numbers. Tables are float32 in every precision. */

#include <stdint.h>

#include "packed_product.h"

/* In `lstm_inference.c`. */
void elmokit_product(long n_threads, long precision, long n_rows, const float *inputs, long n_inputs,
                     const float *weights, const float *bias, long n_outputs, float *outputs, char *rounded_inputs);

/* The windows of a token that can change a maximum: those that begin before its padding, and one inside it. The ids of a
   token end in padding, which is equal columns, and all windows inside it give the same response. */
INLINE long count_windows(const int64_t *ids, long n_columns, long width) {
    long n_distinct = n_columns;
    while (n_distinct > 0 && ids[n_distinct - 1] == ids[n_columns - 1]) n_distinct--;
    return at_most(n_distinct + 1, n_columns - width + 1);
}

/* The largest response over a token's windows, for a panel of filters. A NaN wins every comparison, as in PyTorch.
   `width` is a constant where this is inlined for the usual widths, so that the loop over it unrolls. */
INLINE void largest_response(long width, const int64_t *ids, long n_windows, const float *table, vec *best) {
    best[0] = best[1] = all(-INFINITY);
    for (long window = 0; window < n_windows; window++) {
        vec sum[2] = {{0}, {0}};
        for (long place = 0; place < width; place++) {
            const float *row = table + (ids[window + place] * width + place) * WIDE;
            for (int v = 0; v < 2; v++) sum[v] += load(row + v * LANES);
        }
        for (int v = 0; v < 2; v++) best[v] = choose((sum[v] > best[v]) | (sum[v] != sum[v]), sum[v], best[v]);
    }
}

/* Compute the features of a panel of filters for all tokens: the activation of the largest response plus the bias. The
   bias is added after the maximum: that is the same number, and one addition instead of one per window. */
static void convolve_panel(long n_tokens, const int64_t *char_ids, long n_columns, long width, const float *table,
                           const float *bias, long n_filters, int is_tanh, float *features, long n_features) {
    for (long token = 0; token < n_tokens; token++) {
        const int64_t *ids = char_ids + token * n_columns;
        const long n_windows = count_windows(ids, n_columns, width);
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
            const vec active = is_tanh ? tangent(value) : choose(value < (vec){0}, (vec){0}, value);
            /* The last panel has columns beyond n_filters, which must not be written. */
            if (n_filters > v * LANES) store_some(features + token * n_features + v * LANES, active, n_filters - v * LANES);
        }
    }
}

/* features = g * relu(t) + (1 - g) * features with g = sigmoid of the gate's sums; `sums` has all t of a row, then its
   gate. Each number is computed alone, so a row's bits do not depend on its position. */
static void gate_rows(long n_rows, long n_features, const float *sums, float *features) {
    for (long row = 0; row < n_rows; row++, sums += 2 * n_features, features += n_features)
        for (long at = 0; at < n_features; at += LANES) {
            const long left = n_features - at;
            const vec transformed = load_some(sums + at, left), before = load_some(features + at, left);
            const vec gate = sigmoid(load_some(sums + n_features + at, left));
            const vec positive = choose(transformed < (vec){0}, (vec){0}, transformed);
            store_some(features + at, gate * positive + (1.0f - gate) * before, left);
        }
}

/* Compute the vectors of tokens.

   char_ids: (tokens, columns), each a row of the tables. widths, n_filters: those of each convolution. tables: for each
   convolution (panels, rows, width, WIDE); filter_bias: for each (panels * WIDE). Highways: for each the panels of a matrix
   of 2 * n_features outputs, and their bias, padded to whole panels. Without a projection, `projection` is NULL, and the
   features are the outputs. `features`, `sums` and `rounded` are memory for `at_once` tokens. */
void elmokit_token_layer(long n_threads, long n_tokens, const int64_t *char_ids, long n_columns, long n_rows,
                         long n_convolutions, const int64_t *widths, const int64_t *n_filters, const float *tables,
                         const float *filter_bias, long is_tanh, long n_highways, long highway_precision,
                         const float *highways, const float *highway_bias, long projection_precision,
                         const float *projection, const float *projection_bias, long output_dim, long at_once,
                         float *features, float *sums, char *rounded, float *outputs) {
    long n_features = 0, n_all_panels = 0;
    for (long k = 0; k < n_convolutions; k++)
        n_features += n_filters[k], n_all_panels += (n_filters[k] + WIDE - 1) / WIDE;
    const long highway_panels = (2 * n_features + WIDE - 1) / WIDE;
    const long highway_lanes = highway_panels * panel_lanes((int)highway_precision, n_features);
    for (long first = 0; first < n_tokens; first += at_once) {
        const long n = at_most(n_tokens - first, at_once);
        const int64_t *ids = char_ids + first * n_columns;
        float *rows = projection ? features : outputs + first * n_features;
        /* Panels outside, tokens inside: the rows of a panel's table that the batch needs stay in the cache. They differ
           in cost by their width, so threads take them one by one. */
#pragma omp parallel for num_threads(n_threads) schedule(dynamic) if (n_threads > 1)
        for (long panel = n_all_panels - 1; panel >= 0; panel--) {
            const float *table = tables;
            long k = 0, inside = panel, feature = 0;
            for (; inside >= (n_filters[k] + WIDE - 1) / WIDE; k++) {
                inside -= (n_filters[k] + WIDE - 1) / WIDE;
                table += (n_filters[k] + WIDE - 1) / WIDE * n_rows * widths[k] * WIDE;
                feature += n_filters[k];
            }
            convolve_panel(n, ids, n_columns, widths[k], table + inside * n_rows * widths[k] * WIDE,
                           filter_bias + panel * WIDE, n_filters[k] - inside * WIDE, (int)is_tanh,
                           rows + feature + inside * WIDE, n_features);
        }
        for (long highway = 0; highway < n_highways; highway++) {
            elmokit_product(n_threads, highway_precision, n, rows, n_features, highways + highway * highway_lanes,
                            highway_bias + highway * highway_panels * WIDE, 2 * n_features, sums, rounded);
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)
            for (long row = 0; row < n; row++)
                gate_rows(1, n_features, sums + row * 2 * n_features, rows + row * n_features);
        }
        if (projection)
            elmokit_product(n_threads, projection_precision, n, rows, n_features, projection, projection_bias, output_dim,
                            outputs + first * output_dim, rounded);
    }
}
