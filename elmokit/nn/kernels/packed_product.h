/* The matrix product with packed weights.

   Weights come in panels: WIDE output columns side by side, (panels, inputs, WIDE). A tile of ROWS x WIDE sums stays in
   registers while a panel streams past, so each weight is loaded once per ROWS rows and each sum is stored once.

   Every sum runs over its inputs in the same order, whatever the number of rows: a sentence gets the same bits in any
   batch. Tiles of all shapes below keep that order; so must any new one. */

#ifndef ELMOKIT_PACKED_PRODUCT_H
#define ELMOKIT_PACKED_PRODUCT_H

#include "vectors.h"

/* Rows of a tile: ROWS x 2 vectors of sums, 2 of weights and one broadcast input fill the processor's vector registers
   (32 of them with AVX-512 and NEON, 16 with AVX and SSE). */
#if defined(__AVX512F__)
enum { ROWS = 12 };
#elif defined(__AVX__)
enum { ROWS = 6 };
#elif defined(__aarch64__)
enum { ROWS = 8 };
#else
enum { ROWS = 4 };
#endif

enum {
    WIDE = 2 * LANES,    /* columns of a panel */
    INPUT_CHUNK = 256 /* so many inputs of a panel (32 kB with AVX-512) stay in the L1 cache while all rows pass */
};

/* sums[rows][panels * WIDE] += inputs[rows][n_inputs] x panels.

   `rows` and `panels` are constants wherever this is inlined, so the loops over them unroll completely and the array
   `sum` lives in registers. That is what the unroll pragmas make sure of. */
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

/* The same for any number of rows, and for 1 to GATES panels. Chunks of inputs are the outer loop, so that all rows
   use a chunk of weights while it is in the cache; partial sums wait in `sums` in between. */
static void multiply(long n_rows, int n_panels, const float *inputs, long input_stride, const float *weights,
                     long n_inputs, float *sums, long sum_stride) {
    const long panel_stride = n_inputs * WIDE;
    /* One or two rows have too few sums to hide the latency of a multiply-add (4 cycles, 2 per cycle: 8 independent
       sums at least), so they take several panels at once. */
    const int at_once = n_rows == 1 && n_panels == GATES ? GATES : n_rows == 2 && n_panels % 2 == 0 ? 2 : 1;
    for (int panel = 0; panel < n_panels; panel += at_once) {
        for (long first = 0; first < n_inputs; first += INPUT_CHUNK) {
            const long n = n_inputs - first < INPUT_CHUNK ? n_inputs - first : INPUT_CHUNK;
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

#endif
