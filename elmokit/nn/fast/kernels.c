/* Kernels for LSTM inference in float32: a matrix product with packed weights, the elementwise part of a step, and one
   layer read over all steps.

   Plain C with the vector types of GCC and Clang, no header of Python or PyTorch. `compiled.py` builds it for the
   processor at hand and says what each argument is; `reader.py` holds the same loop in PyTorch's own operations.

   Weights come in panels: WIDE output columns side by side, (panels, inputs, WIDE), so that a tile of ROWS x WIDE sums
   stays in registers while a panel streams past. Every sum runs over its inputs in the same order whatever the number
   of rows, so that a row's result does not depend on the rows beside it. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 12 };
#elif defined(__AVX__)
enum { LANES = 8, ROWS = 6 };
#elif defined(__aarch64__)
enum { LANES = 4, ROWS = 8 };
#else
enum { LANES = 4, ROWS = 4 };
#endif

enum {
    WIDE = 2 * LANES,   /* columns of a panel */
    GATES = 4,          /* i, g, f, o: a block of WIDE hidden units has a panel of each, in this order */
    INPUTS_AT_ONCE = 256 /* a panel's part of so many inputs stays in the first cache while all rows pass */
};

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int ivec __attribute__((vector_size(4 * LANES), aligned(4)));

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec value) { *(vec *)to = value; }
INLINE vec all(float value) { return value - (vec){0}; }
INLINE vec choose(ivec where, vec yes, vec no) { return (vec)((where & (ivec)yes) | (~where & (ivec)no)); }

/* A NaN fails both comparisons and stays. */
INLINE vec clip(vec value, vec bound) {
    value = choose(value > bound, bound, value);
    return choose(value < -bound, -bound, value);
}

/* e^x to 1e-7 of its value: x = n ln 2 + r, a polynomial in r (Cephes), and n put into the exponent. */
INLINE vec exponential(vec x) {
    x = choose(x > all(88.0f), all(88.0f), x);
    x = choose(x < all(-87.0f), all(-87.0f), x);
    vec n = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f; /* to the nearest whole number */
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (vec)((__builtin_convertvector(n, ivec) + 127) << 23);
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }

/* Near zero a polynomial (Cephes), since 1 - 2 / (e^2x + 1) would cancel there. */
INLINE vec tangent(vec x) {
    vec far = 1.0f - 2.0f / (exponential(x + x) + 1.0f);
    vec z = x * x;
    vec near = all(-5.70498872745e-3f);
    near = near * z + 2.06390887954e-2f;
    near = near * z - 5.37397155531e-2f;
    near = near * z + 1.33314422036e-1f;
    near = near * z - 3.33332819422e-1f;
    near = near * z * x + x;
    return choose(z < all(0.625f * 0.625f), near, far);
}

/* sums[rows][panels * WIDE] += inputs[rows][n_inputs] x panels; rows and panels are constants where it is inlined. */
INLINE void tile(int rows, int panels, const float *inputs, long input_stride, const float *weights, long panel_stride,
                 long n_inputs, float *sums, long sum_stride) {
    vec sum[ROWS * 2];
    _Pragma("GCC unroll 24") for (int i = 0; i < rows * 2 * panels; i++) sum[i] = (vec){0};
    for (long k = 0; k < n_inputs; k++) {
        vec weight[2 * GATES];
        _Pragma("GCC unroll 8") for (int v = 0; v < 2 * panels; v++)
            weight[v] = load(weights + (v / 2) * panel_stride + k * WIDE + (v % 2) * LANES);
        _Pragma("GCC unroll 12") for (int r = 0; r < rows; r++)
            _Pragma("GCC unroll 8") for (int v = 0; v < 2 * panels; v++)
                sum[r * 2 * panels + v] += inputs[r * input_stride + k] * weight[v];
    }
    _Pragma("GCC unroll 12") for (int r = 0; r < rows; r++)
        _Pragma("GCC unroll 8") for (int v = 0; v < 2 * panels; v++) {
            float *to = sums + r * sum_stride + v * LANES;
            store(to, load(to) + sum[r * 2 * panels + v]);
        }
}

/* The same for any number of rows, and of panels up to GATES. */
static void multiply(long n_rows, int n_panels, const float *inputs, long input_stride, const float *weights,
                     long n_inputs, float *sums, long sum_stride) {
    const long panel_stride = n_inputs * WIDE;
    /* One row or two have too few sums to fill the registers: several panels at once. */
    const int at_once = n_rows == 1 && n_panels == GATES ? GATES : n_rows == 2 && n_panels % 2 == 0 ? 2 : 1;
    for (int panel = 0; panel < n_panels; panel += at_once) {
        for (long first = 0; first < n_inputs; first += INPUTS_AT_ONCE) {
            const long n = n_inputs - first < INPUTS_AT_ONCE ? n_inputs - first : INPUTS_AT_ONCE;
            const float *part = weights + panel * panel_stride + first * WIDE;
            for (long row = 0; row < n_rows; row += ROWS) {
                const float *from = inputs + row * input_stride + first;
                float *to = sums + row * sum_stride + panel * WIDE;
#define TILE(rows, panels) tile(rows, panels, from, input_stride, part, panel_stride, n, to, sum_stride); break;
                switch (n_rows - row) {
                    case 1: if (at_once == GATES) { TILE(1, GATES) } TILE(1, 1)
                    case 2: if (at_once == 2) { TILE(2, 2) } TILE(2, 1)
                    case 3: TILE(3, 1)
#if defined(__AVX__) || defined(__aarch64__)
                    case 4: TILE(4, 1)
                    case 5: TILE(5, 1)
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
                    case 6: TILE(6, 1)
                    case 7: TILE(7, 1)
#endif
#if defined(__AVX512F__)
                    case 8: TILE(8, 1)
                    case 9: TILE(9, 1)
                    case 10: TILE(10, 1)
                    case 11: TILE(11, 1)
#endif
                    default: TILE(ROWS, 1)
                }
            }
        }
    }
}

/* outputs[rows][n_outputs] = bias + inputs x panels, clipped; panels `first` to `last` of them. */
static void product_part(long first, long last, long n_rows, const float *inputs, long n_inputs, const float *weights,
                         const float *bias, long n_outputs, float *outputs, float bound) {
    enum { AT_ONCE = 16 * ROWS };
    float sums[AT_ONCE * GATES * WIDE];
    const vec wide_bound = all(bound);
    for (long panel = first; panel < last; panel += GATES) {
        const int n_panels = last - panel < GATES ? (int)(last - panel) : GATES;
        const long column = panel * WIDE;
        const long n_columns = n_outputs - column < n_panels * WIDE ? n_outputs - column : n_panels * WIDE;
        for (long row = 0; row < n_rows; row += AT_ONCE) {
            const long n = n_rows - row < AT_ONCE ? n_rows - row : AT_ONCE;
            for (long r = 0; r < n; r++)
                for (int v = 0; v < 2 * n_panels; v++)
                    store(sums + r * GATES * WIDE + v * LANES, bias ? load(bias + column + v * LANES) : (vec){0});
            multiply(n, n_panels, inputs + row * n_inputs, n_inputs, weights + panel * n_inputs * WIDE, n_inputs, sums,
                     GATES * WIDE);
            for (long r = 0; r < n; r++) {
                float *sum = sums + r * GATES * WIDE, *to = outputs + (row + r) * n_outputs + column;
                for (int v = 0; v < 2 * n_panels; v++) store(sum + v * LANES, clip(load(sum + v * LANES), wide_bound));
                for (long c = 0; c < n_columns; c++) to[c] = sum[c];
            }
        }
    }
}

int elmokit_wide(void) { return WIDE; }

/* Ask for large pages before a block of weights is written: they are read from end to end at every step, and with small
   pages much of that time goes into finding the next one. A request that the system does not grant changes nothing. */
void elmokit_large_pages(void *start, size_t n_bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 4096, first = ((uintptr_t)start + page - 1) / page * page;
    const uintptr_t last = ((uintptr_t)start + n_bytes) / page * page;
    if (last > first) madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)start, (void)n_bytes;
#endif
}

void elmokit_product(long n_threads, long n_rows, const float *inputs, long n_inputs, const float *weights,
                     const float *bias, long n_outputs, float *outputs) {
    const long n_panels = (n_outputs + WIDE - 1) / WIDE;
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        long thread = 0, n_here = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num(), n_here = omp_get_num_threads();
#endif
        product_part(n_panels * thread / n_here, n_panels * (thread + 1) / n_here, n_rows, inputs, n_inputs, weights,
                     bias, n_outputs, outputs, INFINITY);
    }
}

/* LANES hidden units of a row: gate sums and old cell to new cell and what goes into the projection. */
INLINE void unit_step(vec i, vec g, vec f, vec o, float *cell, float *squashed, vec cell_clip) {
    vec new_cell = clip(sigmoid(f) * load(cell) + sigmoid(i) * tangent(g), cell_clip);
    store(cell, new_cell);
    store(squashed, sigmoid(o) * tangent(new_cell));
}

/* The elementwise part of a step on its own; gates i, g, f, o are from_input + from_state, hidden_dim of each. */
void elmokit_step(long n_threads, long n_rows, long hidden_dim, const float *from_input, const float *from_state,
                  float *cell, float *squashed, float cell_clip) {
    const vec wide_clip = all(cell_clip);
    const long whole = hidden_dim / LANES * LANES, n_pieces = (hidden_dim + LANES - 1) / LANES;
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1 && n_rows * hidden_dim > 4096)
    for (long piece = 0; piece < n_rows * n_pieces; piece++) {
        const long row = piece / n_pieces, unit = piece % n_pieces * LANES;
        const float *a = from_input + row * GATES * hidden_dim + unit, *b = from_state + row * GATES * hidden_dim + unit;
        float *to_cell = cell + row * hidden_dim + unit, *to = squashed + row * hidden_dim + unit;
        if (unit < whole) {
            unit_step(load(a) + load(b), load(a + hidden_dim) + load(b + hidden_dim),
                      load(a + 2 * hidden_dim) + load(b + 2 * hidden_dim),
                      load(a + 3 * hidden_dim) + load(b + 3 * hidden_dim), to_cell, to, wide_clip);
            continue;
        }
        float rest[6][LANES] = {{0}}; /* fewer units than LANES: through a copy */
        for (long u = 0; u < hidden_dim - unit; u++) {
            for (int gate = 0; gate < GATES; gate++) rest[gate][u] = a[gate * hidden_dim + u] + b[gate * hidden_dim + u];
            rest[4][u] = to_cell[u];
        }
        unit_step(load(rest[0]), load(rest[1]), load(rest[2]), load(rest[3]), rest[4], rest[5], wide_clip);
        for (long u = 0; u < hidden_dim - unit; u++) to_cell[u] = rest[4][u], to[u] = rest[5][u];
    }
}

void elmokit_read_layer(long n_threads, long n_steps, const long *n_active, const float *inputs, long input_dim,
                        const float *input_panels, const float *bias, const float *recurrent_panels,
                        long projection_dim, const float *projection_panels, long hidden_dim, const float *hidden,
                        float *cell, float *outputs, float cell_clip, float projection_clip, long rows_at_once,
                        float *gates, float *squashed) {
    const long n_blocks = hidden_dim / WIDE;
    const long n_panels = (projection_dim + WIDE - 1) / WIDE;
    const long block_inputs = GATES * WIDE * input_dim, block_recurrent = GATES * WIDE * projection_dim;
    const vec wide_clip = all(cell_clip);
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        long thread = 0, n_here = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num(), n_here = omp_get_num_threads();
#endif
        const long first = n_blocks * thread / n_here, last = n_blocks * (thread + 1) / n_here;
        const float *before = hidden;
        long row = 0; /* of the step, among all rows of all steps */
        for (long start = 0, stop; start < n_steps; start = stop) {
            long n_rows = 0; /* of the steps whose input products are taken together */
            for (stop = start; stop < n_steps && (stop == start || n_rows + n_active[stop] <= rows_at_once); stop++)
                n_rows += n_active[stop];
            for (long block = first; block < last; block++) {
                float *sums = gates + block * rows_at_once * GATES * WIDE;
                for (long r = 0; r < n_rows; r++)
                    for (int v = 0; v < 2 * GATES; v++)
                        store(sums + (r * 2 * GATES + v) * LANES, load(bias + (block * 2 * GATES + v) * LANES));
                multiply(n_rows, GATES, inputs + row * input_dim, input_dim, input_panels + block * block_inputs,
                         input_dim, sums, GATES * WIDE);
            }
            for (long step = start, inside = 0; step < stop; inside += n_active[step], step++) {
                const long n = n_active[step];
                /* There and back again: what was read last is still in the cache. */
                const int back = step % 2;
                for (long i = first; i < last; i++) {
                    const long block = back ? last - 1 - (i - first) : i;
                    float *sums = gates + (block * rows_at_once + inside) * GATES * WIDE;
                    multiply(n, GATES, before, projection_dim, recurrent_panels + block * block_recurrent,
                             projection_dim, sums, GATES * WIDE);
                    for (long r = 0; r < n; r++) {
                        const long unit = r * hidden_dim + block * WIDE;
                        const float *of = sums + r * GATES * WIDE;
                        for (int v = 0; v < WIDE; v += LANES)
                            unit_step(load(of + v), load(of + WIDE + v), load(of + 2 * WIDE + v), load(of + 3 * WIDE + v),
                                      cell + unit + v, squashed + unit + v, wide_clip);
                    }
                }
#pragma omp barrier
                float *here = outputs + row * projection_dim;
                if (projection_panels) {
                    product_part(n_panels * thread / n_here, n_panels * (thread + 1) / n_here, n, squashed, hidden_dim,
                                 projection_panels, NULL, projection_dim, here, projection_clip);
                } else {
                    for (long r = n * thread / n_here; r < n * (thread + 1) / n_here; r++)
                        for (long c = 0; c < projection_dim; c++)
                            here[r * projection_dim + c] = squashed[r * hidden_dim + c];
                }
#pragma omp barrier
                before = here;
                row += n;
            }
        }
    }
}
