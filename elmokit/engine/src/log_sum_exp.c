/* The softmax of a language model for scoring: the log-sum-exp of a row's scores, for a vocabulary of any size, without
   storing the scores.

   The product is transposed: words are its rows, and rows of the text are its columns. The words' weights are then read as
   they are stored in the model, and only the text is packed. Packed weights would need as much additional memory as the
   model's largest matrix, and would have to be packed again after every training step. Also, each row of the text has its
   own lane, so its maximum and sum need no sums over lanes, and its bits cannot depend on other rows.

   A block of words is multiplied by all of the text while the block is in the L2 cache. The scores of a block and a panel of
   the text stay in the L1 cache, and update each lane's running maximum and sum (Milakov and Gimelshein 2018). Blocks belong
   to segments, which are summed separately and combined at the end, in vocabulary order. Threads share the segments, so the
   number of threads does not change any bits, either. */

#include <stdint.h>

#include "bfloat16_tiles.h"
#include "elmokit.h"
#include "matrix.h"
#include "rounded_rows.h"

enum {
    WORD_BLOCK = HAS_TILES ? 32 : 96, /* words, panel and scores fit in the L1 cache; whole BLOCKs, or 8 * ROWS */
    SEGMENT_WORDS = 1536,             /* 30,000 words have 20 segments: enough for the threads of most machines */
    STATE = 2 * PANEL,                 /* floats of a panel's state: the maxima of its rows, then their sums */
    N_TERMS = HAS_TILES ? 3 : 1,      /* bf16 numbers whose sum is a float32 number; 1 for lower precision only */
};

/* Lower than any score, but finite: the difference of two infinities would be NaN. */
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

/* Update a panel's state with the scores of n words, (n, PANEL). */
INLINE void add_scores(const float *scores, int64_t n, float *state) {
    vec before[2], largest[2], sum[2];
    for (int v = 0; v < 2; v++) before[v] = largest[v] = load(state + v * LANES);
    int64_t word = 0;
    for (; word + 2 <= n; word += 2) /* two words at once, as each maximum waits for the one before */
        for (int v = 0; v < 2; v++) {
            const float *at = scores + word * PANEL + v * LANES;
            largest[v] = larger(larger(load(at), load(at + PANEL)), largest[v]);
        }
    if (word < n)
        for (int v = 0; v < 2; v++) largest[v] = larger(load(scores + word * PANEL + v * LANES), largest[v]);
    /* A block is summed separately: one probable word in the running sum would absorb improbable ones added one by one. */
    sum[0] = sum[1] = (vec){0};
    for (word = 0; word < n; word++)
        for (int v = 0; v < 2; v++) sum[v] += decay(load(scores + word * PANEL + v * LANES) - largest[v]);
    for (int v = 0; v < 2; v++) {
        float *to = state + v * LANES;
        store(to + PANEL, load(to + PANEL) * decay(before[v] - largest[v]) + sum[v]);
        store(to, largest[v]);
    }
}

#if !HAS_TILES
/* Pack up to PANEL rows of the text for a product in float32: (dim, PANEL), zeros for missing rows. */
static void pack_floats(int64_t n_rows, const float *rows, int64_t dim, float *panel) {
    for (int64_t k = 0; k < dim; k++)
        for (int64_t lane = 0; lane < PANEL; lane++) panel[k * PANEL + lane] = lane < n_rows ? rows[lane * dim + k] : 0.0f;
}
#endif

#if HAS_TILES
/* Tiles multiply bf16 numbers, with 8 binary digits, and sum in float32. A float32 number is the sum of three bf16 numbers,
   and a float16 number, as stored in models, of two. Six products of terms (five if the words have two) are as exact as one
   product in float32: the others are below its last digit. Tiles are 16 times as fast as vectors.

   A step is BLOCK inputs, the length of a tile's rows. */

/* Return the next term of 16 numbers, in the lower halves of the lanes, and subtract it from the numbers. */
INLINE ivec next_term(vec *numbers) {
    const ivec term = upper_halves(*numbers);
    *numbers -= (vec)(term << 16);
    return term;
}

/* Terms of rows of the text: (term, step, 16 pairs of inputs, PANEL rows of pairs). */
static void pack_terms(int64_t n_rows, const float *rows, int64_t dim, char *panel) {
    const int64_t n_steps = blocks(dim);
    memset(panel, 0, N_TERMS * n_steps * 2 * TILE_SIZE);
    for (int64_t lane = 0; lane < n_rows; lane++)
        for (int64_t k = 0; k < dim; k += LANES) {
            vec numbers = load_some(rows + lane * dim + k, at_most(dim - k, LANES));
            for (int term = 0; term < N_TERMS; term++) {
                const ivec halves = next_term(&numbers);
                uint16_t *to = (uint16_t *)panel + (term * n_steps * 16 + k / 2) * 2 * PANEL + 2 * lane;
                for (int i = 0; i < LANES; i++) to[i / 2 * 2 * PANEL + i % 2] = (uint16_t)halves[i];
            }
        }
}

/* Terms of a block of words: (16 words, term, step) tiles of 16 words by 32 inputs. Return the number of terms needed. */
static int split_words(int64_t n_words, const float *weight, int64_t dim, char *tiles) {
    typedef short short_vec __attribute__((vector_size(2 * LANES), aligned(2)));
    const int64_t n_steps = blocks(dim);
    ivec any = {0};
    for (int64_t word = 0; word < n_words; word++) {
        char *to = tiles + word / 16 * N_TERMS * n_steps * TILE_SIZE + word % 16 * 64;
        for (int64_t k = 0; k < 32 * n_steps; k += LANES) {
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
    TILE_LOAD(6, rows + 2 * (term) * term_bytes, 4 * PANEL);                                                          \
    TILE_LOAD(7, rows + 2 * (term) * term_bytes + 64, 4 * PANEL);
#define MULTIPLY()                                                                                                   \
    TILE_DOT_BFLOAT16(0, 4, 6);                                                                                      \
    TILE_DOT_BFLOAT16(1, 4, 7);                                                                                      \
    TILE_DOT_BFLOAT16(2, 5, 6);                                                                                      \
    TILE_DOT_BFLOAT16(3, 5, 7);

/* scores[32][PANEL] += words x rows, all of them in terms. */
INLINE void multiply_terms(int n_terms, int64_t n_steps, const char *words, const char *rows, float *scores) {
    const int64_t term_bytes = n_steps * TILE_SIZE;
    TILE_LOAD(0, scores, 4 * PANEL);
    TILE_LOAD(1, scores + 16, 4 * PANEL);
    TILE_LOAD(2, scores + 16 * PANEL, 4 * PANEL);
    TILE_LOAD(3, scores + 16 * PANEL + 16, 4 * PANEL);
    for (int64_t step = 0; step < n_steps; step++, words += TILE_SIZE, rows += 2 * TILE_SIZE) {
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
    TILE_STORE(0, scores, 4 * PANEL);
    TILE_STORE(1, scores + 16, 4 * PANEL);
    TILE_STORE(2, scores + 16 * PANEL, 4 * PANEL);
    TILE_STORE(3, scores + 16 * PANEL + 16, 4 * PANEL);
}
#endif

/* A panel of the text: floats, or tiles of all terms. */
static int64_t panel_bytes(int64_t dim) {
#if HAS_TILES
    return N_TERMS * 2 * TILE_SIZE * blocks(dim);
#elif HAS_BFLOAT16
    const int64_t in_floats = 4 * PANEL * dim, in_tiles = N_TERMS * 2 * TILE_SIZE * blocks(dim);
    return in_tiles > in_floats ? in_tiles : in_floats;
#else
    return 4 * PANEL * dim;
#endif
}

/* The tiles of a thread's block of words. */
static int64_t block_bytes(int64_t dim) {
#if HAS_BFLOAT16
    return WORD_BLOCK / 16 * N_TERMS * TILE_SIZE * blocks(dim);
#else
    (void)dim;
    return 0;
#endif
}

static int64_t n_segments_of(int64_t n_words) {
    return (n_words + SEGMENT_WORDS - 1) / (SEGMENT_WORDS);
}

/* Update the states of all panels with the scores of a block of words. In a lower precision, words and text are rounded to
   bf16 if the processor multiplies such numbers. */
static void add_words(int precision, int64_t n_words, const float *weight, const float *bias, int64_t dim, int64_t n_panels,
                      const char *panels, char *tiles, float *states) {
    float scores[WORD_BLOCK * PANEL] __attribute__((aligned(64)));
#if HAS_BFLOAT16
    const int64_t n_steps = blocks(dim), step = n_steps * TILE_SIZE;
    if (precision != FLOAT32) round_factor(LEFT, 1, weight, dim, n_words, dim, 0, 1, tiles);
#endif
#if HAS_TILES
    const int n_terms = precision == FLOAT32 ? split_words(n_words, weight, dim, tiles) : 1;
#endif
    for (int64_t panel = 0; panel < n_panels; panel++) {
        const char *rows = panels + panel * panel_bytes(dim);
        for (int64_t word = 0; word < n_words; word++)
            for (int v = 0; v < 2; v++) store(scores + word * PANEL + v * LANES, all(bias[word]));
        /* The last tiles may have fewer words. Their other rows only affect scores that nobody reads. */
#if HAS_BFLOAT16
        if (precision != FLOAT32)
            for (int64_t word = 0; word < n_words; word += BLOCK)
                add_block(1, tiles + word / 16 * step, step, rows, step, n_steps, scores + word * PANEL, PANEL, NULL);
        else
#endif
#if HAS_TILES
            for (int64_t word = 0; word < n_words; word += BLOCK) {
                const char *part = tiles + word / 16 * N_TERMS * step;
                float *to = scores + word * PANEL;
                if (n_terms == 2)
                    multiply_terms(2, n_steps, part, rows, to);
                else
                    multiply_terms(3, n_steps, part, rows, to);
            }
#else
            add_product(FLOAT32, n_words, 1, (inputs){weight, 4 * dim}, (const float *)rows, dim,
                        (target){scores, PANEL, NULL}, (const float *)(rows + panel_bytes(dim)));
#endif
        add_scores(scores, n_words, states + panel * STATE);
    }
    (void)precision, (void)tiles;
}

typedef struct {
    int precision;
    int64_t n_rows, dim, n_words;
    const float *rows, *weight, *bias;
    double *result;
    char *panels;  /* of the text */
    float *states; /* (segments, panels, STATE) */
    char *tiles;   /* each thread's block of words */
    int64_t next_segment;
} scoring;

static void score(const member *me, void *context) {
    scoring *call = context;
    const int64_t dim = call->dim, n_panels = (call->n_rows + PANEL - 1) / PANEL;
    const int64_t n_segments = n_segments_of(call->n_words);
#if HAS_BFLOAT16
    use_whole_tiles();
#endif
    for (int64_t panel = first_of(me, n_panels); panel < last_of(me, n_panels); panel++) {
        const int64_t first = panel * PANEL, n = at_most(call->n_rows - first, PANEL);
        char *to = call->panels + panel * panel_bytes(dim);
#if HAS_BFLOAT16
        if (call->precision != FLOAT32)
            round_factor(RIGHT, 1, call->rows + first * dim, dim, n, dim, 0, 1, to);
        else
#endif
#if HAS_TILES
            pack_terms(n, call->rows + first * dim, dim, to);
#else
            pack_floats(n, call->rows + first * dim, dim, (float *)to);
#endif
    }
    meet(me);
    /* A free thread takes the next segment. */
    for (int64_t segment; (segment = __atomic_fetch_add(&call->next_segment, 1, __ATOMIC_RELAXED)) < n_segments;) {
        float *own = call->states + segment * n_panels * STATE;
        for (int64_t at = 0; at < n_panels * STATE; at++) own[at] = at % STATE < PANEL ? LOWEST : 0.0f;
        const int64_t first = segment * SEGMENT_WORDS, last = at_most(first + SEGMENT_WORDS, call->n_words);
        for (int64_t word = first; word < last; word += WORD_BLOCK)
            add_words(call->precision, at_most(last - word, WORD_BLOCK), call->weight + word * dim, call->bias + word, dim,
                      n_panels, call->panels, call->tiles + me->thread * block_bytes(dim), own);
    }
    meet(me);
    for (int64_t panel = first_of(me, n_panels); panel < last_of(me, n_panels); panel++)
        for (int v = 0; v < 2; v++) {
            const float *own = call->states + panel * STATE + v * LANES;
            vec largest = load(own), sum = {0};
            for (int64_t segment = 1; segment < n_segments; segment++)
                largest = larger(load(own + segment * n_panels * STATE), largest);
            for (int64_t segment = 0; segment < n_segments; segment++) {
                const float *part = own + segment * n_panels * STATE;
                sum += load(part + PANEL) * decay(load(part) - largest);
            }
            for (int64_t lane = 0, row = panel * PANEL + v * LANES; lane < LANES && row < call->n_rows; lane++, row++)
                /* Not log: glibc 2.29 has a new version of it, which a wheel for older systems must not call. */
                call->result[row] = largest[lane] + log1p((double)sum[lane] - 1);
        }
    release_tiles();
}

int64_t elmokit_log_sum_exp(int64_t n_threads, int64_t lowest_precision, int64_t n_rows, const float *rows, int64_t dim,
                            const float *weight, const float *bias, int64_t n_words, double *result) {
    const int64_t n_panels = (n_rows + PANEL - 1) / PANEL, n_segments = n_segments_of(n_words);
    if (n_rows < 1) return 0;
    if (dim < 1 || n_words < 1) return ELMOKIT_BAD_SIZES;
    if (n_threads < 1) n_threads = 1;
    scoring call = {(int)lowest_precision, n_rows, dim, n_words, rows, weight, bias, result, NULL, NULL, NULL, 0};
    call.panels = take_memory(n_panels * panel_bytes(dim));
    call.states = take_memory(n_panels * n_segments * STATE * 4);
    call.tiles = take_memory(n_threads * block_bytes(dim));
    const int has_memory = call.panels && call.states && call.tiles;
    if (has_memory) run_team(n_rows * dim * n_words < SMALL_WORK ? 1 : n_threads, score, &call);
    give_memory(call.panels);
    give_memory(call.states);
    give_memory(call.tiles);
    return has_memory ? 0 : ELMOKIT_NO_MEMORY;
}

/* Compute the scores of one word for each row: scores[r] = hidden[r] . weight[words[r]] + bias[words[r]]. */
void elmokit_word_scores(int64_t n_rows, const float *rows, int64_t dim, const float *weight, const float *bias,
                         const int64_t *words, double *scores) {
    for (int64_t row = 0; row < n_rows; row++) {
        const float *a = rows + row * dim, *b = weight + words[row] * dim;
        vec sums = {0};
        for (int64_t k = 0; k < dim; k += LANES)
            sums += load_some(a + k, at_most(dim - k, LANES)) * load_some(b + k, at_most(dim - k, LANES));
        double sum = bias[words[row]];
        for (int lane = 0; lane < LANES; lane++) sum += (double)sums[lane];
        scores[row] = sum;
    }
}
