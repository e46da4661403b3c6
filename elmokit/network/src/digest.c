/* Digests of weights, by which Python notices that packed weights are outdated. They take about as long as summing. */

#include <string.h>

#include "threads.h"
#include "training.h"

enum {
    LANES = 32, /* words that are mixed side by side: a multiplication takes several cycles */
    BYTES_AT_ONCE = 8 * LANES,
    PART_BYTES = 1 << 18, /* of an array: what a free thread takes */
};

typedef struct {
    int64_t n_arrays;
    const int64_t *n_bytes;
    const char *const *arrays;
    int64_t *digests;
    int64_t *next;
} call;

/* Both steps can be undone, so a single word that changes always changes the result. The rotation brings the sign of a
   number to where the multiplication spreads it. */
static inline uint64_t mix(uint64_t sum, uint64_t word) {
    sum ^= word;
    return ((sum << 29) | (sum >> 35)) * UINT64_C(0x9E3779B185EBCA87);
}

static uint64_t digest_of(const char *bytes, int64_t n_bytes, uint64_t place) {
    uint64_t lanes[LANES] = {0}, words[LANES];
    for (; n_bytes >= BYTES_AT_ONCE; bytes += BYTES_AT_ONCE, n_bytes -= BYTES_AT_ONCE) {
        memcpy(words, bytes, BYTES_AT_ONCE);
        for (int lane = 0; lane < LANES; lane++) lanes[lane] = mix(lanes[lane], words[lane]);
    }
    memset(words, 0, BYTES_AT_ONCE);
    memcpy(words, bytes, (size_t)n_bytes);
    uint64_t sum = mix(0, place);
    for (int lane = 0; lane < LANES; lane++) sum = mix(mix(sum, lanes[lane]), words[lane]);
    return sum;
}

static void digest_apart(const member *me, void *context) {
    const call *of = context;
    int64_t array = 0, first = 0; /* the part with which the array begins, of all parts of all arrays */
    (void)me;
    for (;;) {
        const int64_t part = __atomic_fetch_add(of->next, 1, __ATOMIC_RELAXED);
        for (int64_t n; array < of->n_arrays; array++, first += n) {
            n = (of->n_bytes[array] + PART_BYTES - 1) / PART_BYTES;
            if (part < first + n) break;
        }
        if (array == of->n_arrays) return;
        const int64_t start = (part - first) * PART_BYTES, rest = of->n_bytes[array] - start;
        const uint64_t digest = digest_of(of->arrays[array] + start, rest < PART_BYTES ? rest : PART_BYTES, part - first);
        /* A sum, so that the order of the threads does not matter. */
        __atomic_fetch_add(of->digests + array, (int64_t)digest, __ATOMIC_RELAXED);
    }
}

void elmokit_digests(int64_t n_threads, int64_t n_arrays, const int64_t *n_bytes, const char *const *arrays,
                     int64_t *digests) {
    int64_t n_words = 0, next = 0;
    for (int64_t k = 0; k < n_arrays; k++) digests[k] = 0, n_words += n_bytes[k] / 8;
    call of = {n_arrays, n_bytes, arrays, digests, &next};
    share_work(n_words < SMALL_WORK / 8 ? 1 : n_threads, digest_apart, &of);
}
