/* One planted fault of each kind that `make sanitize` looks for: what finds none of these would find nothing else. */

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int counter;

static void *count(void *unused) {
    for (int k = 0; k < 1000; k++) counter++;
    return unused;
}

int main(int n_arguments, char **arguments) {
    const char *fault = n_arguments > 1 ? arguments[1] : "";
    volatile int64_t n = 1000;
    float *numbers = malloc((size_t)n * sizeof *numbers);
    if (!numbers) return 0;
    memset(numbers, n_arguments, (size_t)(n - 8) * sizeof *numbers);
    float sum = 0;
    if (!strcmp(fault, "beyond")) sum = ((volatile float *)numbers)[n + 4];
    if (!strcmp(fault, "freed")) free(numbers), sum = ((volatile float *)numbers)[1];
    if (!strcmp(fault, "overflow")) n = INT64_MAX - 1000 + n, n += 1;
    if (!strcmp(fault, "misaligned")) sum = *(volatile float *)((char *)numbers + 1);
    if (!strcmp(fault, "unwritten")) sum = ((volatile float *)numbers)[n - 1] > 0 ? 1.0f : 2.0f;
    if (!strcmp(fault, "leak")) numbers = NULL;
    if (!strcmp(fault, "race")) {
        pthread_t threads[2];
        for (int k = 0; k < 2; k++) pthread_create(threads + k, NULL, count, NULL);
        for (int k = 0; k < 2; k++) pthread_join(threads[k], NULL);
    }
    if (strcmp(fault, "freed")) free(numbers);
    return sum > 1e30f;
}
