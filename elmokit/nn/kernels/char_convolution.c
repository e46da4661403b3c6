/* Convolutions over the characters of tokens and the maximum over positions, in one pass.

   `nn/char_convolution.py` has the same in PyTorch operations. PyTorch would store the responses of every filter at
   every position (2048 x 50 numbers a token in the original model) only to take their maximum. Here they exist for one
   panel of filters of one token at a time. The characters of a token are one stretch of memory, and so is each window
   of them: windows are rows of a matrix whose stride is one character, and nothing is copied. */

#include <stdint.h>

#include "packed_product.h"

enum {
    TOKEN_BLOCK = 64,    /* tokens that use a panel of filters while it is in the L1 cache */
    POSITION_BLOCK = 48, /* positions whose sums are in the L1 cache together */
};

/* Update the maximum of LANES filters, and its position, by the sums of `n` positions from `first` on. A NaN wins every
   comparison, as in PyTorch; of equal sums the first position wins. */
INLINE void update_maximum(const float *sums, long n, long first, vec *best, ivec *winner) {
    for (long position = 0; position < n; position++) {
        const vec here = load(sums + position * WIDE);
        const ivec better = (here > *best) | (here != here);
        *best = choose(better, here, *best);
        *winner = (better & (int)(first + position)) | (~better & *winner);
    }
}

/* Compute pooled[tokens][n_filters] and the winning positions.

   characters: (tokens, stride); a window starts every `dim` numbers and is n_inputs long. n_windows: how many windows
   each token has. The caller leaves out windows that lie wholly in a token's padding, as they all give the same
   response. The bias is added after the maximum: that is the same number, and one addition instead of one per
   position. */
void elmokit_convolve(long n_threads, long n_tokens, const float *characters, long stride, long dim,
                      const int64_t *n_windows, const float *panels, const float *bias, long n_inputs, long n_filters,
                      float *pooled, int32_t *positions) {
    const long n_panels = (n_filters + WIDE - 1) / WIDE, n_blocks = (n_tokens + TOKEN_BLOCK - 1) / TOKEN_BLOCK;
#pragma omp parallel for num_threads(n_threads) schedule(dynamic) if (n_threads > 1)
    for (long block = 0; block < n_blocks; block++) {
        float sums[POSITION_BLOCK * WIDE];
        const long end = (block + 1) * TOKEN_BLOCK < n_tokens ? (block + 1) * TOKEN_BLOCK : n_tokens;
        /* Panels outside, tokens inside: a panel of filters is read from memory once per block of tokens. */
        for (long panel = 0; panel < n_panels; panel++) {
            const float *weights = panels + panel * n_inputs * WIDE;
            const long column = panel * WIDE, n_columns = n_filters - column < WIDE ? n_filters - column : WIDE;
            for (long token = block * TOKEN_BLOCK; token < end; token++) {
                /* A panel is two vectors wide (WIDE = 2 * LANES), hence the pairs. */
                vec best[2] = {all(-INFINITY), all(-INFINITY)};
                ivec winner[2] = {{0}, {0}};
                for (long first = 0; first < n_windows[token]; first += POSITION_BLOCK) {
                    const long left = n_windows[token] - first, n = left < POSITION_BLOCK ? left : POSITION_BLOCK;
                    memset(sums, 0, n * WIDE * sizeof(float));
                    /* A row stride of one character (`dim`) makes overlapping windows the rows of a matrix. */
                    multiply(n, 1, characters + token * stride + first * dim, dim, weights, n_inputs, sums, WIDE,
                             weights);
                    for (int v = 0; v < 2; v++) update_maximum(sums + v * LANES, n, first, best + v, winner + v);
                }
                /* Through a buffer, because the last panel has columns beyond n_filters that must not be written. */
                float values[WIDE];
                int32_t winners[WIDE];
                for (int v = 0; v < 2; v++) {
                    store(values + v * LANES, best[v] + load(bias + column + v * LANES));
                    memcpy(winners + v * LANES, winner + v, sizeof(ivec));
                }
                memcpy(pooled + token * n_filters + column, values, n_columns * sizeof(float));
                memcpy(positions + token * n_filters + column, winners, n_columns * sizeof(int32_t));
            }
        }
    }
}

/* to[n] += from[n] * factor */
INLINE void add_scaled(float *to, const float *from, float factor, long n) {
    for (long at = 0; at < n; at += LANES)
        store_some(to + at, load_some(to + at, n - at) + load_some(from + at, n - at) * factor, n - at);
}

/* Add to the gradients of the characters and of the weights (n_filters, n_inputs).

   Only the winning window of each filter has a gradient. Tokens are shared out over threads; as all of them add to the
   same weights, `weight_gradient` has a copy for each thread, which the caller sums. Which thread takes which tokens
   depends on n_threads alone, so that the order of all sums, and with it every bit of the result, is reproducible. */
void elmokit_convolve_backward(long n_threads, long n_tokens, const float *characters, long stride, long dim,
                           const float *weights, long n_inputs, long n_filters, const int32_t *positions,
                           const float *gradient, float *character_gradient, float *weight_gradient) {
#pragma omp parallel for num_threads(n_threads) schedule(static, 1) if (n_threads > 1)
    for (long part = 0; part < n_threads; part++) {
        float *own_copy = weight_gradient + part * n_filters * n_inputs;
        for (long token = n_tokens * part / n_threads; token < n_tokens * (part + 1) / n_threads; token++) {
            for (long filter = 0; filter < n_filters; filter++) {
                const float upstream = gradient[token * n_filters + filter];
                if (upstream == 0.0f) continue; /* frequent: a ReLU follows */
                const long at = token * stride + positions[token * n_filters + filter] * dim;
                add_scaled(own_copy + filter * n_inputs, characters + at, upstream, n_inputs);
                add_scaled(character_gradient + at, weights + filter * n_inputs, upstream, n_inputs);
            }
        }
    }
}
