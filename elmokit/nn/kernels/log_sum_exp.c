/* The softmax of a language model for scoring: the logarithm of the sum of the exponentials of a row's scores, for a
   vocabulary of any size, without storing the scores.

   The product is turned around: words are its rows, and the rows of the text are its columns. The weights of the words
   are then read as they lie in the model, and only the text is packed. Packed weights would have to be kept, as much
   memory again as the model's largest matrix, and packed anew after every step of a training. And a row of the text has a lane
   of its own: its maximum and its sum need no sums over lanes, and its bits cannot depend on other rows.

   A block of words is multiplied by all of the text while the block is in the L2 cache. The scores of a block with a
   panel of the text stay in the L1 cache, and go into each lane's running maximum and sum (Milakov and Gimelshein 2018).
   Blocks belong to segments, which are summed apart and combined at the end, in the order of the vocabulary. Threads
   share the segments, so the number of threads changes no bit either. */

#include <stdint.h>

#include "bfloat16_tiles.h"
#include "packed_product.h"
#include "rounded_rows.h"

enum {
    WORD_BLOCK = HAS_TILES ? 32 : 96, /* words, panel and scores fit in the L1 cache; whole BLOCKs, or 8 * ROWS */
    SEGMENT_WORDS = 1536,             /* 30,000 words have 20 segments: enough for the threads of most machines */
    STATE = 2 * WIDE,                 /* floats of a panel's state: the maxima of its rows, then their sums */
    N_TERMS = HAS_TILES ? 3 : 1,      /* numbers in bf16 whose sum is a number in float32; 1 for lower precision alone */
};

/* Lower than any score, but finite: the difference of two infinities would be a NaN. */
static const float LOWEST = -1e30f;

/* e^x for x <= 0, with a relative error of 2e-7 near 0 and 2e-6 near the smallest results. The method is that of
   `exponential`, of which this saves a third: one bound, and powers of 2, so that no digits of ln 2 need care. */
INLINE vec decay(vec x) {
    const float ROUND = 12582912.0f + 127.0f, LOG2_E = 1.44269504088896341f;
    x = larger(all(-87.0f), x); /* below this it is not a normal number, and nothing next to e^0 */
    /* x log2 e = n + f. The addition rounds, as in `exponential`, and adds the exponent's bias. */
    const vec shifted = x * LOG2_E + ROUND;
    const vec f = x * LOG2_E - (shifted - ROUND);
    /* 2^f with -0.5 <= f <= 0.5: the polynomial of this degree with the smallest relative error, 9e-8. */
    vec p = all(1.3264727247e-3f);
    p = p * f + 9.6715126882e-3f;
    p = p * f + 5.5507337436e-2f;
    p = p * f + 2.4022242085e-1f;
    p = p * f + 6.9314697760e-1f;
    p = p * f + 1.0f;
    /* Multiplied, not added to the exponent's bits: a NaN must stay a NaN. */
    return p * (vec)((ivec)shifted << 23);
}

/* Take the scores of n words, (n, WIDE), into the state of a panel. */
INLINE void add_scores(const float *scores, long n, float *state) {
    vec before[2], largest[2], sum[2];
    for (int v = 0; v < 2; v++) before[v] = largest[v] = load(state + v * LANES);
    long word = 0;
    for (; word + 2 <= n; word += 2) /* two words at once, as each maximum waits for the one before */
        for (int v = 0; v < 2; v++) {
            const float *at = scores + word * WIDE + v * LANES;
            largest[v] = larger(larger(load(at), load(at + WIDE)), largest[v]);
        }
    if (word < n)
        for (int v = 0; v < 2; v++) largest[v] = larger(load(scores + word * WIDE + v * LANES), largest[v]);
    /* A block is summed by itself: one probable word in the running sum would swallow all improbable ones, one by one. */
    sum[0] = sum[1] = (vec){0};
    for (word = 0; word < n; word++)
        for (int v = 0; v < 2; v++) sum[v] += decay(load(scores + word * WIDE + v * LANES) - largest[v]);
    for (int v = 0; v < 2; v++) {
        float *to = state + v * LANES;
        store(to + WIDE, load(to + WIDE) * decay(before[v] - largest[v]) + sum[v]);
        store(to, largest[v]);
    }
}

/* Pack up to WIDE rows of the text for a product in float32: (dim, WIDE), zeros for missing rows. */
static void pack_floats(long n_rows, const float *rows, long dim, float *panel) {
    for (long k = 0; k < dim; k++)
        for (long lane = 0; lane < WIDE; lane++) panel[k * WIDE + lane] = lane < n_rows ? rows[lane * dim + k] : 0.0f;
}

#if HAS_TILES
/* Tiles multiply numbers in bf16, with 8 binary digits, and sum in float32. A number in float32 is the sum of three of
   them, and one in float16, as models are stored, of two. Six products of terms (five if the words have two) are as
   exact as one product in float32: the others are below its last digit. Tiles are 16 times as fast as vectors.

   A step is BLOCK inputs, the length of a tile's rows. */

/* The next term of 16 numbers, in the lower halves of the lanes; the numbers become what is left of them. */
INLINE ivec next_term(vec *numbers) {
    const ivec term = upper_halves(*numbers);
    *numbers -= (vec)(term << 16);
    return term;
}

/* Terms of rows of the text: (term, step, 16 pairs of inputs, WIDE rows of pairs). */
static void pack_terms(long n_rows, const float *rows, long dim, char *panel) {
    const long n_steps = blocks(dim);
    memset(panel, 0, N_TERMS * n_steps * 2 * TILE_SIZE);
    for (long lane = 0; lane < n_rows; lane++)
        for (long k = 0; k < dim; k += LANES) {
            vec numbers = load_some(rows + lane * dim + k, at_most(dim - k, LANES));
            for (int term = 0; term < N_TERMS; term++) {
                const ivec halves = next_term(&numbers);
                uint16_t *to = (uint16_t *)panel + (term * n_steps * 16 + k / 2) * 2 * WIDE + 2 * lane;
                for (int i = 0; i < LANES; i++) to[i / 2 * 2 * WIDE + i % 2] = (uint16_t)halves[i];
            }
        }
}

/* Terms of a block of words: (16 words, term, step) tiles of 16 words by 32 inputs. Return how many terms they need. */
static int split_words(long n_words, const float *weight, long dim, char *tiles) {
    typedef short short_vec __attribute__((vector_size(2 * LANES), aligned(2)));
    const long n_steps = blocks(dim);
    ivec any = {0};
    for (long word = 0; word < n_words; word++) {
        char *to = tiles + word / 16 * N_TERMS * n_steps * TILE_SIZE + word % 16 * 64;
        for (long k = 0; k < 32 * n_steps; k += LANES) {
            vec numbers = k < dim ? load_some(weight + word * dim + k, at_most(dim - k, LANES)) : (vec){0};
            for (int term = 0; term < N_TERMS; term++) {
                const ivec halves = next_term(&numbers);
                if (term == 2) any |= halves & 0x7fff; /* without the sign: -0 is nothing, too */
                const short_vec shorts = __builtin_convertvector(halves, short_vec);
                memcpy(to + (term * n_steps + k / 32) * TILE_SIZE + k % 32 * 2, &shorts, sizeof shorts);
            }
        }
    }
    int needs_all = 0;
    for (int lane = 0; lane < LANES; lane++) needs_all |= any[lane];
    return needs_all ? N_TERMS : 2;
}

#define LOAD_WORDS(term)                                                                                             \
    TILE_LOAD(4, words + (term) * term_bytes, 64);                                                                   \
    TILE_LOAD(5, words + (N_TERMS + (term)) * term_bytes, 64);
#define LOAD_ROWS(term)                                                                                              \
    TILE_LOAD(6, rows + 2 * (term) * term_bytes, 4 * WIDE);                                                          \
    TILE_LOAD(7, rows + 2 * (term) * term_bytes + 64, 4 * WIDE);
#define MULTIPLY()                                                                                                   \
    TILE_DOT_BFLOAT16(0, 4, 6);                                                                                      \
    TILE_DOT_BFLOAT16(1, 4, 7);                                                                                      \
    TILE_DOT_BFLOAT16(2, 5, 6);                                                                                      \
    TILE_DOT_BFLOAT16(3, 5, 7);

/* scores[32][WIDE] += words x rows, all of them in terms. */
INLINE void multiply_terms(int n_terms, long n_steps, const char *words, const char *rows, float *scores) {
    const long term_bytes = n_steps * TILE_SIZE;
    TILE_LOAD(0, scores, 4 * WIDE);
    TILE_LOAD(1, scores + 16, 4 * WIDE);
    TILE_LOAD(2, scores + 16 * WIDE, 4 * WIDE);
    TILE_LOAD(3, scores + 16 * WIDE + 16, 4 * WIDE);
    for (long step = 0; step < n_steps; step++, words += TILE_SIZE, rows += 2 * TILE_SIZE) {
        /* In an order in which most tiles are loaded once. */
        LOAD_WORDS(0)
        LOAD_ROWS(2) MULTIPLY()
        LOAD_ROWS(1) MULTIPLY()
        LOAD_ROWS(0) MULTIPLY()
        if (n_terms > 2) {
            LOAD_WORDS(2) MULTIPLY()
        }
        LOAD_WORDS(1) MULTIPLY()
        LOAD_ROWS(1) MULTIPLY()
    }
    TILE_STORE(0, scores, 4 * WIDE);
    TILE_STORE(1, scores + 16, 4 * WIDE);
    TILE_STORE(2, scores + 16 * WIDE, 4 * WIDE);
    TILE_STORE(3, scores + 16 * WIDE + 16, 4 * WIDE);
}
#endif

/* A panel of the text: floats, or tiles of all terms. */
static long panel_bytes(long dim) {
    const long in_floats = 4 * WIDE * dim;
#if HAS_BFLOAT16
    const long in_tiles = N_TERMS * 2 * TILE_SIZE * blocks(dim);
    return HAS_TILES || in_tiles > in_floats ? in_tiles : in_floats;
#else
    return in_floats;
#endif
}

/* The tiles of a thread's block of words. */
static long block_bytes(long dim) {
#if HAS_BFLOAT16
    return WORD_BLOCK / 16 * N_TERMS * TILE_SIZE * blocks(dim);
#else
    (void)dim;
    return 0;
#endif
}

static long n_segments_of(long n_words) {
    return (n_words + SEGMENT_WORDS - 1) / (SEGMENT_WORDS);
}

/* The memory that `elmokit_log_sum_exp` needs. */
long elmokit_log_sum_exp_bytes(long n_threads, long n_rows, long dim, long n_words) {
    const long n_panels = (n_rows + WIDE - 1) / WIDE;
    return n_panels * (panel_bytes(dim) + n_segments_of(n_words) * STATE * 4) + n_threads * block_bytes(dim);
}

/* Take the scores of a block of words into the states of all panels. In a lower precision, words and text are rounded to
   bf16 where the processor multiplies such numbers. */
static void add_words(int precision, long n_words, const float *weight, const float *bias, long dim, long n_panels,
                      const char *panels, char *tiles, float *states) {
    float scores[WORD_BLOCK * WIDE] __attribute__((aligned(64)));
#if HAS_BFLOAT16
    const long n_steps = blocks(dim), step = n_steps * TILE_SIZE;
    if (precision != FLOAT32) round_factor(LEFT, 1, weight, dim, n_words, dim, 0, 1, tiles);
#endif
#if HAS_TILES
    const int n_terms = precision == FLOAT32 ? split_words(n_words, weight, dim, tiles) : 1;
#endif
    for (long panel = 0; panel < n_panels; panel++) {
        const char *rows = panels + panel * panel_bytes(dim);
        for (long word = 0; word < n_words; word++)
            for (int v = 0; v < 2; v++) store(scores + word * WIDE + v * LANES, all(bias[word]));
        /* The last tiles may have fewer words. What their other rows hold reaches only scores that nobody reads. */
#if HAS_BFLOAT16
        if (precision != FLOAT32)
            for (long word = 0; word < n_words; word += BLOCK)
                add_block(1, tiles + word / 16 * step, step, rows, step, n_steps, scores + word * WIDE, WIDE, NULL);
        else
#endif
#if HAS_TILES
            for (long word = 0; word < n_words; word += BLOCK) {
                const char *part = tiles + word / 16 * N_TERMS * step;
                float *to = scores + word * WIDE;
                if (n_terms == 2)
                    multiply_terms(2, n_steps, part, rows, to);
                else
                    multiply_terms(3, n_steps, part, rows, to);
            }
#else
            multiply(n_words, 1, weight, dim, (const float *)rows, dim, scores, WIDE,
                     (const float *)(rows + panel_bytes(dim)));
#endif
        add_scores(scores, n_words, states + panel * STATE);
    }
    (void)precision, (void)tiles;
}

/* Compute ln(sum over words of e^score) for rows of the text, (n_rows, dim). */
void elmokit_log_sum_exp(long n_threads, long precision, long n_rows, const float *hidden, long dim,
                         const float *weight, const float *bias, long n_words, char *memory, double *result) {
    const long n_panels = (n_rows + WIDE - 1) / WIDE, n_segments = n_segments_of(n_words);
    char *panels = memory, *tiles = panels + n_panels * panel_bytes(dim);
    float *states = (float *)(tiles + n_threads * block_bytes(dim));
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        long thread = 0;
#ifdef _OPENMP
        thread = omp_get_thread_num();
#endif
#if HAS_BFLOAT16
        use_whole_tiles();
#endif
#pragma omp for
        for (long panel = 0; panel < n_panels; panel++) {
            const long first = panel * WIDE, n = at_most(n_rows - first, WIDE);
            char *to = panels + panel * panel_bytes(dim);
#if HAS_BFLOAT16
            if (precision != FLOAT32)
                round_factor(RIGHT, 1, hidden + first * dim, dim, n, dim, 0, 1, to);
            else
#endif
#if HAS_TILES
                pack_terms(n, hidden + first * dim, dim, to);
#else
                pack_floats(n, hidden + first * dim, dim, (float *)to);
#endif
        }
#pragma omp for schedule(dynamic)
        for (long segment = 0; segment < n_segments; segment++) {
            float *own = states + segment * n_panels * STATE;
            for (long at = 0; at < n_panels * STATE; at++) own[at] = at % STATE < WIDE ? LOWEST : 0.0f;
            const long first = segment * SEGMENT_WORDS;
            const long last = at_most(first + SEGMENT_WORDS, n_words);
            for (long word = first; word < last; word += WORD_BLOCK)
                add_words((int)precision, at_most(last - word, WORD_BLOCK), weight + word * dim, bias + word, dim,
                          n_panels, panels, tiles + thread * block_bytes(dim), own);
        }
#pragma omp for
        for (long panel = 0; panel < n_panels; panel++)
            for (int v = 0; v < 2; v++) {
                const float *own = states + panel * STATE + v * LANES;
                vec largest = load(own), sum = {0};
                for (long segment = 1; segment < n_segments; segment++)
                    largest = larger(load(own + segment * n_panels * STATE), largest);
                for (long segment = 0; segment < n_segments; segment++) {
                    const float *part = own + segment * n_panels * STATE;
                    sum += load(part + WIDE) * decay(load(part) - largest);
                }
                for (long lane = 0, row = panel * WIDE + v * LANES; lane < LANES && row < n_rows; lane++, row++)
                    /* Not log, which glibc 2.29 has in a new version: the wheel would need it, PyTorch needs 2.28. */
                    result[row] = largest[lane] + log1p((double)sum[lane] - 1);
            }
        release_tiles();
    }
}

/* Compute the scores of one word for each row: scores[r] = hidden[r] . weight[words[r]] + bias[words[r]]. */
void elmokit_word_scores(long n_rows, const float *hidden, long dim, const float *weight, const float *bias,
                         const int64_t *words, double *scores) {
    for (long row = 0; row < n_rows; row++) {
        const float *a = hidden + row * dim, *b = weight + words[row] * dim;
        vec sums = {0};
        for (long k = 0; k < dim; k += LANES)
            sums += load_some(a + k, at_most(dim - k, LANES)) * load_some(b + k, at_most(dim - k, LANES));
        double sum = bias[words[row]];
        for (int lane = 0; lane < LANES; lane++) sum += (double)sums[lane];
        scores[row] = sum;
    }
}
