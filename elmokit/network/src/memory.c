/* The memory of PyTorch's tensors. */

#include "matrix.h"
#include "training.h"

void elmokit_large_pages(void *memory, int64_t n_bytes) { ask_for_large_pages(memory, n_bytes); }
