/* Convolutions over characters in training, by table: the maximum of each filter over positions, and its gradient.

   As in `token_layer.c`, what a character adds to a filter at a place of its window is a row of a table, which PyTorch
   computes from the characters' vectors and the filters before each step: 262 rows instead of some 20,000 characters. Here
   rows are added, and in the backward pass, each winning window adds its gradient to the rows of its characters. All of it
   is float32. */

#include <stdint.h>

#include "packed_product.h"

/* Compute the maxima and the windows that win, for the filters of one convolution.

   char_ids: (tokens, n_columns). n_windows: how many windows of each token count. table: (panels, n_rows, width, WIDE).
   pooled and winners: (tokens, n_features), of which this convolution has the n_filters columns from their start on; their
   last panel must have all its WIDE filters in the table, though not in the result. */
void elmokit_table_convolve(long n_threads, long n_tokens, const int64_t *char_ids, long n_columns,
                            const int64_t *n_windows, long width, const float *table, long n_rows, const float *bias,
                            long n_filters, long n_features, float *pooled, int32_t *winners) {
    const long n_panels = (n_filters + WIDE - 1) / WIDE;
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)
    for (long panel = 0; panel < n_panels; panel++) {
        const float *rows = table + panel * n_rows * width * WIDE;
        const long first = panel * WIDE, n = n_filters - first;
        for (long token = 0; token < n_tokens; token++) {
            const int64_t *ids = char_ids + token * n_columns;
            vec best[2] = {all(-INFINITY), all(-INFINITY)};
            ivec winner[2] = {{0}, {0}};
            for (long window = 0; window < n_windows[token]; window++) {
                vec sum[2] = {{0}, {0}};
                for (long place = 0; place < width; place++) {
                    const float *row = rows + (ids[window + place] * width + place) * WIDE;
                    for (int v = 0; v < 2; v++) sum[v] += load(row + v * LANES);
                }
                for (int v = 0; v < 2; v++) {
                    /* A NaN wins, as in PyTorch; of equal sums the first window does. */
                    const ivec better = (sum[v] > best[v]) | (sum[v] != sum[v]);
                    best[v] = choose(better, sum[v], best[v]);
                    winner[v] = (better & (int)window) | (~better & winner[v]);
                }
            }
            float *to = pooled + token * n_features + first;
            int32_t *won = winners + token * n_features + first;
            for (int v = 0; v < 2 && v * LANES < n; v++) {
                store_some(to + v * LANES, best[v] + load_some(bias + first + v * LANES, n - v * LANES), n - v * LANES);
                memcpy(won + v * LANES, winner + v, at_most(n - v * LANES, LANES) * sizeof(int32_t));
            }
        }
    }
}

/* Add to the gradient of the table. Threads take panels, so that no two write to the same row. */
void elmokit_table_convolve_backward(long n_threads, long n_tokens, const int64_t *char_ids, long n_columns, long width,
                                     long n_rows, long n_filters, long n_features, const int32_t *winners,
                                     const float *upstream, float *table) {
    const long n_panels = (n_filters + WIDE - 1) / WIDE;
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)
    for (long panel = 0; panel < n_panels; panel++) {
        float *rows = table + panel * n_rows * width * WIDE;
        const long first = panel * WIDE, n = at_most(n_filters - first, WIDE);
        for (long token = 0; token < n_tokens; token++) {
            const int64_t *ids = char_ids + token * n_columns;
            const long at = token * n_features + first;
            for (long filter = 0; filter < n; filter++) {
                const float gradient = upstream[at + filter];
                if (gradient == 0.0f) continue; /* frequent: a ReLU follows */
                const int64_t *window = ids + winners[at + filter];
                for (long place = 0; place < width; place++)
                    rows[(window[place] * width + place) * WIDE + filter] += gradient;
            }
        }
    }
}
