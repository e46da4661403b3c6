/* Convolutions over a token's characters and the maximum over their positions, in one pass, without keeping what every
   position gives; `nn/convolution.py` has the same in PyTorch's own operations. A window of characters is a stretch of
   memory, so that windows are read where they stand, and only the winning ones have a gradient. */

#include <stdint.h>

#include "panels.h"

enum {
    TOKENS_AT_ONCE = 64,    /* that pass a panel while it is in the first cache */
    POSITIONS_AT_ONCE = 48, /* of a token, whose sums are in the first cache together */
};

/* The best of `n` positions' sums, of LANES filters; `best` and `place` hold that of the positions before. A NaN wins. */
INLINE void keep_best(const float *sums, long n, long first, vec *best, ivec *place) {
    for (long position = 0; position < n; position++) {
        const vec here = load(sums + position * WIDE);
        const ivec better = (here > *best) | (here != here);
        *best = choose(better, here, *best);
        *place = (better & (int)(first + position)) | (~better & *place);
    }
}

/* pooled[tokens][n_filters] and the winning positions, `places`, or NULL if nobody asks. characters: (tokens, stride),
   a window begins every `dim` numbers and is n_inputs long; n_positions of them in each token. */
void elmokit_convolve(long n_threads, long n_tokens, const float *characters, long stride, long dim,
                      const int64_t *n_positions, const float *panels, const float *bias, long n_inputs, long n_filters,
                      float *pooled, int32_t *places) {
    const long n_panels = (n_filters + WIDE - 1) / WIDE, n_blocks = (n_tokens + TOKENS_AT_ONCE - 1) / TOKENS_AT_ONCE;
#pragma omp parallel for num_threads(n_threads) schedule(dynamic) if (n_threads > 1)
    for (long block = 0; block < n_blocks; block++) {
        float sums[POSITIONS_AT_ONCE * WIDE];
        const long end = (block + 1) * TOKENS_AT_ONCE < n_tokens ? (block + 1) * TOKENS_AT_ONCE : n_tokens;
        for (long panel = 0; panel < n_panels; panel++) {
            const float *weights = panels + panel * n_inputs * WIDE;
            const long column = panel * WIDE, n_columns = n_filters - column < WIDE ? n_filters - column : WIDE;
            for (long token = block * TOKENS_AT_ONCE; token < end; token++) {
                vec best[2] = {all(-INFINITY), all(-INFINITY)};
                ivec place[2] = {{0}, {0}};
                for (long first = 0; first < n_positions[token]; first += POSITIONS_AT_ONCE) {
                    const long left = n_positions[token] - first, n = left < POSITIONS_AT_ONCE ? left : POSITIONS_AT_ONCE;
                    memset(sums, 0, n * WIDE * sizeof(float));
                    multiply(n, 1, characters + token * stride + first * dim, dim, weights, n_inputs, sums, WIDE);
                    for (int v = 0; v < 2; v++) keep_best(sums + v * LANES, n, first, best + v, place + v);
                }
                float values[WIDE];
                int32_t winners[WIDE];
                for (int v = 0; v < 2; v++) {
                    store(values + v * LANES, best[v] + load(bias + column + v * LANES));
                    memcpy(winners + v * LANES, place + v, sizeof(ivec));
                }
                memcpy(pooled + token * n_filters + column, values, n_columns * sizeof(float));
                if (places) memcpy(places + token * n_filters + column, winners, n_columns * sizeof(int32_t));
            }
        }
    }
}

/* to[n] += from[n] * by */
INLINE void add_times(float *to, const float *from, float by, long n) {
    for (long at = 0; at < n; at += LANES)
        store_some(to + at, load_some(to + at, n - at) + load_some(from + at, n - at) * by, n - at);
}

/* Adds to the gradients of characters and weights (n_filters, n_inputs). `to_weights` has a copy for each of n_threads,
   which the caller sums; which tokens a thread takes depends on n_threads alone. */
void elmokit_convolve_back(long n_threads, long n_tokens, const float *characters, long stride, long dim,
                           const float *weights, long n_inputs, long n_filters, const int32_t *places,
                           const float *gradient, float *to_characters, float *to_weights) {
#pragma omp parallel for num_threads(n_threads) schedule(static, 1) if (n_threads > 1)
    for (long part = 0; part < n_threads; part++) {
        float *to_mine = to_weights + part * n_filters * n_inputs;
        for (long token = n_tokens * part / n_threads; token < n_tokens * (part + 1) / n_threads; token++) {
            for (long filter = 0; filter < n_filters; filter++) {
                const float by = gradient[token * n_filters + filter];
                if (by == 0.0f) continue; /* as behind a ReLU that is shut */
                const long at = token * stride + places[token * n_filters + filter] * dim;
                add_times(to_mine + filter * n_inputs, characters + at, by, n_inputs);
                add_times(to_characters + at, weights + filter * n_inputs, by, n_inputs);
            }
        }
    }
}
