/* Convolutions over the characters of tokens and max pooling over positions, in one pass.

   `network/char_convolution.py` has the same in PyTorch operations. PyTorch would store the responses of every filter at
   every position (2048 x 50 numbers per token in the original model) only to take their maximum. Here they exist for one
   panel of filters and one token at a time. A token's characters are contiguous in memory, and so is each window: windows
   are rows of a matrix whose stride is one character, and nothing is copied. */

#include "matrix.h"
#include "training.h"

enum {
    TOKEN_BLOCK = 64,    /* tokens that use a panel of filters while it is in the L1 cache */
    POSITION_BLOCK = 48, /* positions whose sums are in the L1 cache together */
};

/* Update the maximum of LANES filters, and its position, with the sums of `n` positions from `first` on. A NaN wins every
   comparison, as in PyTorch; among equal sums, the first position wins. */
INLINE void update_maximum(const float *sums, int64_t n, int64_t first, vec *best, ivec *winner) {
    for (int64_t position = 0; position < n; position++) {
        const vec here = load(sums + position * PANEL);
        const ivec better = (here > *best) | (here != here);
        *best = choose(better, here, *best);
        *winner = (better & (int)(first + position)) | (~better & *winner);
    }
}

void elmokit_pack_filters(int64_t n_filters, int64_t dim, int64_t width, const float *weight, const float *bias,
                          float *panels, float *padded_bias) {
    const int64_t n_columns = (n_filters + PANEL - 1) / PANEL * PANEL, n_inputs = width * dim;
    memset(panels, 0, n_columns * n_inputs * sizeof(float));
    memset(padded_bias, 0, n_columns * sizeof(float));
    memcpy(padded_bias, bias, n_filters * sizeof(float));
    for (int64_t filter = 0; filter < n_filters; filter++) {
        float *column = panels + filter / PANEL * PANEL * n_inputs + filter % PANEL;
        for (int64_t at = 0; at < dim; at++)
            for (int64_t place = 0; place < width; place++) column[(place * dim + at) * PANEL] = *weight++;
    }
}

typedef struct {
    int64_t n_tokens, stride, dim, n_inputs, n_filters;
    const float *characters, *panels, *bias;
    const int64_t *n_windows;
    float *pooled;
    int32_t *positions;
    int64_t next_block;
} convolution;

/* The maxima of a block of tokens. */
static void convolve_block(const convolution *call, int64_t block) {
    const int64_t n_panels = (call->n_filters + PANEL - 1) / PANEL, n_inputs = call->n_inputs, dim = call->dim;
    const int64_t end = at_most((block + 1) * TOKEN_BLOCK, call->n_tokens);
    float sums[POSITION_BLOCK * PANEL];
    /* The outer loop runs over panels: a panel of filters is read from memory once per block of tokens. */
    for (int64_t panel = 0; panel < n_panels; panel++) {
        const float *weights = call->panels + panel * n_inputs * PANEL;
        const int64_t column = panel * PANEL, n_columns = at_most(call->n_filters - column, PANEL);
        for (int64_t token = block * TOKEN_BLOCK; token < end; token++) {
            const float *characters = call->characters + token * call->stride;
            /* A panel is two vectors wide (PANEL = 2 * LANES), hence the pairs. */
            vec best[2] = {all(-INFINITY), all(-INFINITY)};
            ivec winner[2] = {{0}, {0}};
            for (int64_t first = 0; first < call->n_windows[token]; first += POSITION_BLOCK) {
                const int64_t n = at_most(call->n_windows[token] - first, POSITION_BLOCK);
                memset(sums, 0, n * PANEL * sizeof(float));
                /* A row stride of one character (`dim`) makes overlapping windows the rows of a matrix. */
                add_product(FLOAT32, n, 1, (inputs){characters + first * dim, 4 * dim}, weights, n_inputs,
                            (target){sums, PANEL, NULL}, weights);
                for (int v = 0; v < 2; v++) update_maximum(sums + v * LANES, n, first, best + v, winner + v);
            }
            /* The result goes through a buffer, because the last panel has columns beyond n_filters that must not be
               written. The bias is added after the maximum: the result is the same, with one addition instead of one per
               position. */
            float values[PANEL];
            int32_t winners[PANEL];
            for (int v = 0; v < 2; v++) {
                store(values + v * LANES, best[v] + load(call->bias + column + v * LANES));
                memcpy(winners + v * LANES, winner + v, sizeof(ivec));
            }
            memcpy(call->pooled + token * call->n_filters + column, values, n_columns * sizeof(float));
            memcpy(call->positions + token * call->n_filters + column, winners, n_columns * sizeof(int32_t));
        }
    }
}

static void convolve(const member *me, void *context) {
    convolution *call = context;
    const int64_t n_blocks = (call->n_tokens + TOKEN_BLOCK - 1) / TOKEN_BLOCK;
    (void)me;
    /* A free thread takes the next block, because tokens differ in their numbers of windows. */
    for (int64_t block; (block = __atomic_fetch_add(&call->next_block, 1, __ATOMIC_RELAXED)) < n_blocks;)
        convolve_block(call, block);
}

/* The caller omits windows that lie entirely in a token's padding, because they all give the same response. */
void elmokit_convolve(int64_t n_threads, int64_t n_tokens, const float *characters, int64_t stride, int64_t dim,
                      const int64_t *n_windows, const float *panels, const float *bias, int64_t n_inputs,
                      int64_t n_filters, float *pooled, int32_t *positions) {
    convolution call = {n_tokens, stride, dim, n_inputs, n_filters, characters,
                        panels, bias, n_windows, pooled, positions, 0};
    run_team(n_threads, convolve, &call);
}

/* to[n] += from[n] * factor */
INLINE void add_scaled(float *to, const float *from, float factor, int64_t n) {
    for (int64_t at = 0; at < n; at += LANES)
        store_some(to + at, load_some(to + at, n - at) + load_some(from + at, n - at) * factor, n - at);
}

typedef struct {
    int64_t n_parts, n_tokens, stride, dim, n_inputs, n_filters;
    const float *characters, *weights, *gradient;
    const int32_t *positions;
    float *character_gradient, *weight_gradient;
} convolution_gradient;

/* Only the winning window of each filter has a gradient. The tokens are divided into parts; since all of them add to the
   same weights, `weight_gradient` has a copy for each part. The assignment of tokens to parts only depends on the number of
   parts, not on how many threads share them, so the order of all sums, and therefore every bit of the result, is
   reproducible. */
static void convolve_backward(const member *me, void *context) {
    const convolution_gradient *call = context;
    const int64_t n_inputs = call->n_inputs, n_filters = call->n_filters, n_parts = call->n_parts;
    for (int64_t part = first_of(me, n_parts); part < last_of(me, n_parts); part++) {
        float *own_copy = call->weight_gradient + part * n_filters * n_inputs;
        for (int64_t token = call->n_tokens * part / n_parts; token < call->n_tokens * (part + 1) / n_parts; token++) {
            for (int64_t filter = 0; filter < n_filters; filter++) {
                const float upstream = call->gradient[token * n_filters + filter];
                if (upstream == 0.0f) continue; /* frequent: a ReLU follows */
                const int64_t at = token * call->stride + call->positions[token * n_filters + filter] * call->dim;
                add_scaled(own_copy + filter * n_inputs, call->characters + at, upstream, n_inputs);
                add_scaled(call->character_gradient + at, call->weights + filter * n_inputs, upstream, n_inputs);
            }
        }
    }
}

void elmokit_convolve_backward(int64_t n_threads, int64_t n_tokens, const float *characters, int64_t stride,
                               int64_t dim, const float *weights, int64_t n_inputs, int64_t n_filters,
                               const int32_t *positions, const float *gradient, float *character_gradient,
                               float *weight_gradient) {
    convolution_gradient call = {n_threads, n_tokens, stride, dim, n_inputs, n_filters,
                                 characters, weights, gradient, positions, character_gradient, weight_gradient};
    run_team(n_threads, convolve_backward, &call);
}
