/* Linear layers and highways in training, with products of bf16 tiles (`bfloat16_tiles.h`): forward and backward.

   The factors of the products are rounded to bf16, sums and everything elementwise are float32. */

#include "bfloat16_tiles.h"

#if HAS_BFLOAT16
/* Tiles of the left factor that stay in the L2 cache while the right one passes. */
enum { LEFT_TILES = 768 };

/* outputs[n_left][n_right] = or += left x right + bias, a thread's part: it takes blocks of the right factor. `sums` is
   memory for one block. `bias`, one number for each column, may be NULL. */
static void multiply_factors(int adds, const char *left, long n_left, const char *right, long n_right, long n_inner,
                             const float *bias, float *outputs, long stride, long thread, long n_threads) {
    const long n_tiles = blocks(n_inner), n_blocks = blocks(n_right);
    const long at_once = LEFT_TILES / (2 * n_tiles) > 2 ? LEFT_TILES / (2 * n_tiles) : 2;
    float sums[BLOCK * BLOCK] __attribute__((aligned(64)));
    for (long first = 0; first < blocks(n_left); first += at_once)
        for (long r = n_blocks * thread / n_threads; r < n_blocks * (thread + 1) / n_threads; r++)
            for (long l = first; l < at_most(first + at_once, blocks(n_left)); l++) {
                add_block(0, left + 2 * l * n_tiles * TILE_SIZE, n_tiles * TILE_SIZE, right + 2 * r * n_tiles * TILE_SIZE,
                          n_tiles * TILE_SIZE, n_tiles, sums, BLOCK, NULL);
                const long n = n_right - r * BLOCK;
                for (long row = l * BLOCK; row < at_most(n_left, (l + 1) * BLOCK); row++)
                    for (long v = 0; v < 2 && v * LANES < n; v++) {
                        float *to = outputs + row * stride + r * BLOCK + v * LANES;
                        vec sum = load(sums + row % BLOCK * BLOCK + v * LANES);
                        if (bias) sum += load_some(bias + r * BLOCK + v * LANES, n - v * LANES);
                        if (adds) sum += load_some(to, n - v * LANES);
                        store_some(to, sum, n - v * LANES);
                    }
            }
}

INLINE long factor_bytes(long n_outer, long n_inner) { return 2 * TILE_SIZE * blocks(n_outer) * blocks(n_inner); }
#endif

/* The bytes of `memory` for both passes of a linear layer. */
long elmokit_linear_bytes(long n_rows, long n_inputs, long n_outputs) {
#if HAS_BFLOAT16
    return factor_bytes(n_rows, n_inputs) + 2 * factor_bytes(n_outputs, n_inputs) + 2 * factor_bytes(n_rows, n_outputs);
#else
    return (void)n_rows, (void)n_inputs, (void)n_outputs, 0;
#endif
}

/* outputs = inputs x weight^T + bias; weight: (n_outputs, n_inputs). */
void elmokit_linear_forward(long n_threads, long n_rows, long n_inputs, long n_outputs, const float *inputs,
                            const float *weight, const float *bias, char *memory, float *outputs) {
#if HAS_BFLOAT16
    char *left = memory, *right = memory + factor_bytes(n_rows, n_inputs);
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        long thread = 0, n_here = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num(), n_here = omp_get_num_threads();
#endif
        round_factor(LEFT, 1, inputs, n_inputs, n_rows, n_inputs, thread, n_here, left);
        round_factor(RIGHT, 1, weight, n_inputs, n_outputs, n_inputs, thread, n_here, right);
#pragma omp barrier
        use_whole_tiles();
        multiply_factors(0, left, n_rows, right, n_outputs, n_inputs, bias, outputs, n_outputs, thread, n_here);
        release_tiles();
    }
#else
    (void)n_threads, (void)n_rows, (void)n_inputs, (void)n_outputs, (void)inputs, (void)weight, (void)bias, (void)memory;
    (void)outputs;
#endif
}

/* The gradients, from that of the outputs. That of the inputs is added if `adds`, and left out if it is NULL. */
void elmokit_linear_backward(long n_threads, long n_rows, long n_inputs, long n_outputs, const float *inputs,
                             const float *weight, const float *upstream, char *memory, long adds, float *input_gradient,
                             float *weight_gradient, float *bias_gradient) {
#if HAS_BFLOAT16
    char *by_row = take(&memory, factor_bytes(n_rows, n_outputs)), *by_output = take(&memory, factor_bytes(n_rows, n_outputs));
    char *pairs = take(&memory, factor_bytes(n_rows, n_inputs)), *right = take(&memory, factor_bytes(n_outputs, n_inputs));
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        long thread = 0, n_here = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num(), n_here = omp_get_num_threads();
#endif
        if (input_gradient) {
            round_factor(LEFT, 1, upstream, n_outputs, n_rows, n_outputs, thread, n_here, by_row);
            round_factor(RIGHT, 0, weight, n_inputs, n_inputs, n_outputs, thread, n_here, right);
        }
        round_factor(LEFT, 0, upstream, n_outputs, n_outputs, n_rows, thread, n_here, by_output);
        round_factor(RIGHT, 0, inputs, n_inputs, n_inputs, n_rows, thread, n_here, pairs);
        const long first = blocks(n_outputs) * thread / n_here * BLOCK;
        const long last = at_most(n_outputs, blocks(n_outputs) * (thread + 1) / n_here * BLOCK);
        for (long at = first; at < last; at++) bias_gradient[at] = 0;
        for (long row = 0; row < n_rows; row++)
            for (long at = first; at < last; at += LANES)
                store_some(bias_gradient + at,
                           load_some(bias_gradient + at, last - at) + load_some(upstream + row * n_outputs + at, last - at),
                           last - at);
#pragma omp barrier
        use_whole_tiles();
        if (input_gradient && adds)
            multiply_factors(1, by_row, n_rows, right, n_inputs, n_outputs, NULL, input_gradient, n_inputs, thread, n_here);
        else if (input_gradient)
            multiply_factors(0, by_row, n_rows, right, n_inputs, n_outputs, NULL, input_gradient, n_inputs, thread, n_here);
        multiply_factors(0, by_output, n_outputs, pairs, n_inputs, n_rows, NULL, weight_gradient, n_inputs, thread, n_here);
        release_tiles();
    }
#else
    (void)n_threads, (void)n_rows, (void)n_inputs, (void)n_outputs, (void)inputs, (void)weight, (void)upstream;
    (void)memory, (void)adds, (void)input_gradient, (void)weight_gradient, (void)bias_gradient;
#endif
}

/* The elementwise part of a highway, n numbers: outputs = g * relu(transformed) + (1 - g) * inputs with g = sigmoid(gate).
   `gate` is replaced by g. */
void elmokit_highway_forward(long n_threads, long n, const float *inputs, const float *transformed, float *gate,
                             float *outputs) {
#if HAS_BFLOAT16
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)
    for (long at = 0; at < n; at += LANES) {
        const vec open = quick_sigmoid(load_some(gate + at, n - at)), sum = load_some(transformed + at, n - at);
        const vec before = load_some(inputs + at, n - at);
        store_some(gate + at, open, n - at);
        store_some(outputs + at, before + open * (choose(sum < (vec){0}, (vec){0}, sum) - before), n - at);
    }
#else
    (void)n_threads, (void)n, (void)inputs, (void)transformed, (void)gate, (void)outputs;
#endif
}

/* Compute the gradients of the two sums, and that part of the inputs' gradient that does not pass through them. */
void elmokit_highway_backward(long n_threads, long n, const float *upstream, const float *inputs, const float *transformed,
                              const float *gate, float *transformed_gradient, float *gate_gradient,
                              float *input_gradient) {
#if HAS_BFLOAT16
    const vec zero = {0};
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)
    for (long at = 0; at < n; at += LANES) {
        const vec open = load_some(gate + at, n - at), sum = load_some(transformed + at, n - at);
        const vec before = load_some(inputs + at, n - at), gradient = load_some(upstream + at, n - at);
        const vec through = gradient * open;
        store_some(transformed_gradient + at, choose(sum > zero, through, zero), n - at);
        store_some(gate_gradient + at, through * (1.0f - open) * (choose(sum < zero, zero, sum) - before), n - at);
        store_some(input_gradient + at, gradient - through, n - at);
    }
#else
    (void)n_threads, (void)n, (void)upstream, (void)inputs, (void)transformed, (void)gate, (void)transformed_gradient;
    (void)gate_gradient, (void)input_gradient;
#endif
}

/* outputs[i] = inputs[i] / (1 - p) with probability 1 - p, else 0. The choice depends on `seed` and i alone, so that the
   gradient makes the same one. PyTorch's draws take longer than the products of a small layer. */
void elmokit_dropout(long n_threads, long n, long seed, float probability, const float *inputs, float *outputs) {
    typedef unsigned int bits __attribute__((vector_size(4 * LANES), aligned(4)));
    const float factor = 1.0f / (1.0f - probability);
    const unsigned threshold = (unsigned)(probability * 16777216.0f);
    bits lanes;
    for (int lane = 0; lane < LANES; lane++) lanes[lane] = (unsigned)lane;
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)
    for (long at = 0; at < n; at += LANES) {
        /* The mixing function of MurmurHash3, on a counter, twice: consecutive counters get unrelated bits. */
        bits hash = lanes + (unsigned)at + (unsigned)seed;
        for (int round = 0; round < 2; round++) {
            hash ^= hash >> 16, hash *= 0x85ebca6bu, hash ^= hash >> 13, hash *= 0xc2b2ae35u, hash ^= hash >> 16;
            hash += (unsigned)(seed >> 32);
        }
        const ivec is_kept = (ivec)((hash >> 8) >= threshold - (bits){0});
        store_some(outputs + at, choose(is_kept, load_some(inputs + at, n - at) * factor, (vec){0}), n - at);
    }
}
