/* Linear layers in training, with products of bf16 tiles (`bfloat16_tiles.h`), and the elementwise parts of highways and
   dropout: forward and backward.

   The factors of the products are rounded to bf16; sums and everything elementwise are float32. */

#include "bfloat16_tiles.h"
#include "threads.h"
#include "training.h"

#if HAS_BFLOAT16
/* Tiles of the left factor that stay in the L2 cache while the right factor streams past. */
enum { LEFT_TILES = 768 };

/* outputs[n_left][n_right] = or += left x right + bias, for a thread's blocks of the right factor. `bias`, one number per
   column, may be NULL. */
static void multiply_factors(const member *me, int adds, const char *left, int64_t n_left, const char *right,
                             int64_t n_right, int64_t n_inner, const float *bias, float *outputs, int64_t stride) {
    const int64_t n_tiles = blocks(n_inner), n_blocks = blocks(n_right);
    const int64_t at_once = LEFT_TILES / (2 * n_tiles) > 2 ? LEFT_TILES / (2 * n_tiles) : 2;
    float sums[BLOCK * BLOCK] __attribute__((aligned(64)));
    for (int64_t first = 0; first < blocks(n_left); first += at_once)
        for (int64_t r = first_of(me, n_blocks); r < last_of(me, n_blocks); r++)
            for (int64_t l = first; l < at_most(first + at_once, blocks(n_left)); l++) {
                add_block(0, left + 2 * l * n_tiles * TILE_SIZE, n_tiles * TILE_SIZE, right + 2 * r * n_tiles * TILE_SIZE,
                          n_tiles * TILE_SIZE, n_tiles, sums, BLOCK, NULL);
                const int64_t n = n_right - r * BLOCK;
                for (int64_t row = l * BLOCK; row < at_most(n_left, (l + 1) * BLOCK); row++)
                    for (int64_t v = 0; v < 2 && v * LANES < n; v++) {
                        float *to = outputs + row * stride + r * BLOCK + v * LANES;
                        vec sum = load(sums + row % BLOCK * BLOCK + v * LANES);
                        if (bias) sum += load_some(bias + r * BLOCK + v * LANES, n - v * LANES);
                        if (adds) sum += load_some(to, n - v * LANES);
                        store_some(to, sum, n - v * LANES);
                    }
            }
}

INLINE int64_t factor_bytes(int64_t n_outer, int64_t n_inner) { return 2 * TILE_SIZE * blocks(n_outer) * blocks(n_inner); }
#endif

int64_t elmokit_linear_bytes(int64_t n_rows, int64_t n_inputs, int64_t n_outputs) {
#if HAS_BFLOAT16
    return factor_bytes(n_rows, n_inputs) + 2 * factor_bytes(n_outputs, n_inputs) + 2 * factor_bytes(n_rows, n_outputs);
#else
    return (void)n_rows, (void)n_inputs, (void)n_outputs, 0;
#endif
}

#if HAS_BFLOAT16
typedef struct {
    int64_t n_rows, n_inputs, n_outputs;
    const float *inputs, *weight, *bias;
    float *outputs;
    char *left, *right; /* inputs; weight */
} linear;

static void multiply_linear(const member *me, void *context) {
    const linear *call = context;
    const int64_t n_rows = call->n_rows, n_inputs = call->n_inputs, n_outputs = call->n_outputs;
    round_factor(LEFT, 1, call->inputs, n_inputs, n_rows, n_inputs, me->thread, me->n_threads, call->left);
    round_factor(RIGHT, 1, call->weight, n_inputs, n_outputs, n_inputs, me->thread, me->n_threads, call->right);
    meet(me);
    use_whole_tiles();
    multiply_factors(me, 0, call->left, n_rows, call->right, n_outputs, n_inputs, call->bias, call->outputs, n_outputs);
    release_tiles();
}
#endif

void elmokit_linear_forward(int64_t n_threads, int64_t n_rows, int64_t n_inputs, int64_t n_outputs, const float *inputs,
                            const float *weight, const float *bias, char *memory, float *outputs) {
#if HAS_BFLOAT16
    char *right = memory + factor_bytes(n_rows, n_inputs);
    linear call = {n_rows, n_inputs, n_outputs, inputs, weight, bias, outputs, memory, right};
    run_team(n_threads, multiply_linear, &call);
#else
    (void)n_threads, (void)n_rows, (void)n_inputs, (void)n_outputs, (void)inputs, (void)weight, (void)bias, (void)memory;
    (void)outputs;
#endif
}

#if HAS_BFLOAT16
typedef struct {
    int64_t n_rows, n_inputs, n_outputs, adds;
    const float *inputs, *weight, *upstream;
    float *input_gradient, *weight_gradient, *bias_gradient;
    char *by_row, *by_output; /* left: the upstream gradient, rows x outputs and outputs x rows */
    char *pairs, *right;      /* right: inputs x rows; inputs x outputs */
} linear_gradient;

/* Sum a thread's part of the outputs over rows. */
static void add_rows(const member *me, const linear_gradient *call) {
    const int64_t n_outputs = call->n_outputs, first = first_of(me, blocks(n_outputs)) * BLOCK;
    const int64_t last = at_most(n_outputs, last_of(me, blocks(n_outputs)) * BLOCK);
    float *sums = call->bias_gradient;
    for (int64_t at = first; at < last; at++) sums[at] = 0;
    for (int64_t row = 0; row < call->n_rows; row++)
        for (int64_t at = first; at < last; at += LANES) {
            const vec upstream = load_some(call->upstream + row * n_outputs + at, last - at);
            store_some(sums + at, load_some(sums + at, last - at) + upstream, last - at);
        }
}

static void multiply_linear_backward(const member *me, void *context) {
    const linear_gradient *call = context;
    const int64_t n_rows = call->n_rows, n_inputs = call->n_inputs, n_outputs = call->n_outputs;
    const int64_t thread = me->thread, n_threads = me->n_threads;
    float *input_gradient = call->input_gradient;
    if (input_gradient) {
        round_factor(LEFT, 1, call->upstream, n_outputs, n_rows, n_outputs, thread, n_threads, call->by_row);
        round_factor(RIGHT, 0, call->weight, n_inputs, n_inputs, n_outputs, thread, n_threads, call->right);
    }
    round_factor(LEFT, 0, call->upstream, n_outputs, n_outputs, n_rows, thread, n_threads, call->by_output);
    round_factor(RIGHT, 0, call->inputs, n_inputs, n_inputs, n_rows, thread, n_threads, call->pairs);
    add_rows(me, call);
    meet(me);
    use_whole_tiles();
    if (input_gradient && call->adds)
        multiply_factors(me, 1, call->by_row, n_rows, call->right, n_inputs, n_outputs, NULL, input_gradient, n_inputs);
    else if (input_gradient)
        multiply_factors(me, 0, call->by_row, n_rows, call->right, n_inputs, n_outputs, NULL, input_gradient, n_inputs);
    multiply_factors(me, 0, call->by_output, n_outputs, call->pairs, n_inputs, n_rows, NULL, call->weight_gradient,
                     n_inputs);
    release_tiles();
}
#endif

void elmokit_linear_backward(int64_t n_threads, int64_t n_rows, int64_t n_inputs, int64_t n_outputs, const float *inputs,
                             const float *weight, const float *upstream, char *memory, int64_t adds,
                             float *input_gradient, float *weight_gradient, float *bias_gradient) {
#if HAS_BFLOAT16
    char *by_row = take(&memory, factor_bytes(n_rows, n_outputs)), *by_output = take(&memory, factor_bytes(n_rows, n_outputs));
    char *pairs = take(&memory, factor_bytes(n_rows, n_inputs)), *right = take(&memory, factor_bytes(n_outputs, n_inputs));
    linear_gradient call = {n_rows, n_inputs, n_outputs, adds, inputs, weight, upstream, input_gradient, weight_gradient,
                            bias_gradient, by_row, by_output, pairs, right};
    run_team(n_threads, multiply_linear_backward, &call);
#else
    (void)n_threads, (void)n_rows, (void)n_inputs, (void)n_outputs, (void)inputs, (void)weight, (void)upstream;
    (void)memory, (void)adds, (void)input_gradient, (void)weight_gradient, (void)bias_gradient;
#endif
}

/* A thread's part of n numbers, in whole vectors. */
INLINE int64_t first_number(const member *me, int64_t n) { return first_of(me, (n + LANES - 1) / LANES) * LANES; }
INLINE int64_t last_number(const member *me, int64_t n) { return at_most(n, last_of(me, (n + LANES - 1) / LANES) * LANES); }

typedef struct {
    int64_t n;
    const float *inputs, *transformed;
    float *gate, *outputs;
} highway;

enum { HIGHWAY_WORK = 32 }; /* number of multiplications that take as long as one number of a highway */

INLINE vec opened(vec sum) {
#if HAS_BFLOAT16
    return quick_sigmoid(sum);
#else
    return sigmoid(sum);
#endif
}

static void pass_highway(const member *me, void *context) {
    const highway call = *(const highway *)context;
    const int64_t n = call.n;
    for (int64_t at = first_number(me, n); at < last_number(me, n); at += LANES) {
        const vec open = opened(load_some(call.gate + at, n - at)), sum = load_some(call.transformed + at, n - at);
        const vec before = load_some(call.inputs + at, n - at);
        store_some(call.gate + at, open, n - at);
        store_some(call.outputs + at, before + open * (choose(sum < (vec){0}, (vec){0}, sum) - before), n - at);
    }
}

void elmokit_highway_forward(int64_t n_threads, int64_t n, const float *inputs, const float *transformed, float *gate,
                             float *outputs) {
    highway call = {n, inputs, transformed, gate, outputs};
    run_team(n < SMALL_WORK / HIGHWAY_WORK ? 1 : n_threads, pass_highway, &call);
}

typedef struct {
    int64_t n;
    const float *upstream, *inputs, *transformed, *gate;
    float *transformed_gradient, *gate_gradient, *input_gradient;
} highway_gradient;

static void pass_highway_backward(const member *me, void *context) {
    const highway_gradient call = *(const highway_gradient *)context;
    const int64_t n = call.n;
    const vec zero = {0};
    for (int64_t at = first_number(me, n); at < last_number(me, n); at += LANES) {
        const vec open = load_some(call.gate + at, n - at), sum = load_some(call.transformed + at, n - at);
        const vec before = load_some(call.inputs + at, n - at), gradient = load_some(call.upstream + at, n - at);
        const vec through = gradient * open, opening = through * (1.0f - open) * (choose(sum < zero, zero, sum) - before);
        store_some(call.transformed_gradient + at, choose(sum > zero, through, zero), n - at);
        store_some(call.gate_gradient + at, opening, n - at);
        store_some(call.input_gradient + at, gradient - through, n - at);
    }
}

void elmokit_highway_backward(int64_t n_threads, int64_t n, const float *upstream, const float *inputs,
                              const float *transformed, const float *gate, float *transformed_gradient,
                              float *gate_gradient, float *input_gradient) {
    highway_gradient call = {n, upstream, inputs, transformed, gate, transformed_gradient, gate_gradient, input_gradient};
    run_team(n < SMALL_WORK / HIGHWAY_WORK ? 1 : n_threads, pass_highway_backward, &call);
}

typedef struct {
    int64_t n, seed;
    float probability;
    const float *inputs;
    float *outputs;
} dropping;

static void drop(const member *me, void *context) {
    typedef unsigned int bits __attribute__((vector_size(4 * LANES), aligned(4)));
    const dropping call = *(const dropping *)context;
    const int64_t n = call.n, seed = call.seed;
    const float factor = 1.0f / (1.0f - call.probability);
    const unsigned threshold = (unsigned)(call.probability * 16777216.0f);
    bits lanes = {0};
    for (int lane = 0; lane < LANES; lane++) lanes[lane] = (unsigned)lane;
    for (int64_t at = first_number(me, n); at < last_number(me, n); at += LANES) {
        /* The mixing function of MurmurHash3, applied twice to a counter: consecutive counters get unrelated bits. */
        bits hash = lanes + (unsigned)at + (unsigned)seed;
        for (int round = 0; round < 2; round++) {
            hash ^= hash >> 16, hash *= 0x85ebca6bu, hash ^= hash >> 13, hash *= 0xc2b2ae35u, hash ^= hash >> 16;
            hash += (unsigned)(seed >> 32);
        }
        const ivec is_kept = (ivec)((hash >> 8) >= threshold - (bits){0});
        store_some(call.outputs + at, choose(is_kept, load_some(call.inputs + at, n - at) * factor, (vec){0}), n - at);
    }
}

/* PyTorch's random numbers take longer than the products of a small layer. */
void elmokit_dropout(int64_t n_threads, int64_t n, int64_t seed, float probability, const float *inputs, float *outputs) {
    dropping call = {n, seed, probability, inputs, outputs};
    run_team(n_threads, drop, &call);
}
