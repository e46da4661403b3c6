/* Check whether this process may use the instructions that this library was compiled for.

   The compiler's flags determine what is checked, as in the rest of the library. On Linux, Python chooses a library by what
   the system reports, and this is a second check. macOS and Windows have no such report (Windows reports AVX2, but not FMA),
   so this check decides. */

#if defined(__linux__)
#define _GNU_SOURCE
#endif
#include "elmokit.h"

#if defined(__AVX2__) && !defined(EMULATE)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define REQUIRE(found, bits)                                                                                         \
    if (((found) & (bits)) != (bits)) return 0

/* This code runs on any processor, so the compiler must not use the instructions that it checks for. */
__attribute__((target("no-avx,no-bmi,no-bmi2"))) int64_t elmokit_is_permitted(void) {
    unsigned a, b, c, d, state, upper_state;
    const unsigned fma = 1 << 12, system_saves = 1 << 27, f16c = 1 << 29;
    if (__get_cpuid_max(0, 0) < 7) return 0;
    __cpuid_count(1, 0, a, b, c, d);
    REQUIRE(c, fma | system_saves | f16c);
    __asm__ volatile("xgetbv" : "=a"(state), "=d"(upper_state) : "c"(0)); /* the registers that the system saves */
    (void)upper_state;
    const unsigned vectors = 0x6, bmi = 1 << 3, avx2 = 1 << 5, bmi2 = 1 << 8;
    REQUIRE(state, vectors);
    __cpuid_count(7, 0, a, b, c, d);
    REQUIRE(b, avx2 | bmi | bmi2);
#if defined(__AVX512F__)
    const unsigned foundation = 1 << 16, dq = 1 << 17, cd = 1 << 28, bw = 1 << 30, vl = 1u << 31;
    REQUIRE(b, foundation | dq | cd | bw | vl);
#if !defined(__APPLE__) /* macOS begins to save them when a process first uses them */
    const unsigned masks_and_long_vectors = 0xe0;
    REQUIRE(state, masks_and_long_vectors);
#endif
#endif
#if defined(__AVX512VNNI__)
    const unsigned vnni = 1 << 11;
    REQUIRE(c, vnni);
#endif
#if defined(AMX)
    const unsigned amx_bf16 = 1 << 22, amx_tile = 1 << 24, amx_int8 = 1 << 25;
    REQUIRE(d, amx_bf16 | amx_tile | amx_int8);
#endif
#if defined(__AVXVNNI__) || defined(__AVX512BF16__)
    __cpuid_count(7, 1, a, b, c, d);
#endif
#if defined(__AVXVNNI__)
    const unsigned avx_vnni = 1 << 4;
    REQUIRE(a, avx_vnni);
#endif
#if defined(__AVX512BF16__)
    const unsigned avx512_bf16 = 1 << 5;
    REQUIRE(a, avx512_bf16);
#endif
#if defined(AMX) && defined(__linux__)
    /* Linux only provides AMX's 8 kB of tiles per thread to processes that ask, and may refuse: in a container that filters
       system calls, or with a small signal stack. */
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return 1;
#endif
}

#elif defined(__ARM_FEATURE_DOTPROD)
#if defined(__linux__)
#include <sys/auxv.h>
enum { DOT_PRODUCT = 1 << 20, MATRIX_PRODUCT = 1 << 13 };
static inline int has_dot_product(void) { return (getauxval(AT_HWCAP) & DOT_PRODUCT) != 0; }
static inline int has_matrix_product(void) { return (getauxval(AT_HWCAP2) & MATRIX_PRODUCT) != 0; }
#elif defined(__APPLE__)
#include <sys/sysctl.h>
static int reports(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, 0, 0) == 0 && value;
}
static inline int has_dot_product(void) { return reports("hw.optional.arm.FEAT_DotProd"); }
static inline int has_matrix_product(void) { return reports("hw.optional.arm.FEAT_I8MM"); }
#elif defined(_WIN32)
#include <windows.h>
enum { DOT_PRODUCT = 43, MATRIX_PRODUCT = 66 }; /* PF_ARM_V82_DP_... and ..._I8MM_INSTRUCTIONS_AVAILABLE */
static inline int has_dot_product(void) { return IsProcessorFeaturePresent(DOT_PRODUCT); }
static inline int has_matrix_product(void) { return IsProcessorFeaturePresent(MATRIX_PRODUCT); }
#else
static inline int has_dot_product(void) { return 1; }
static inline int has_matrix_product(void) { return 1; }
#endif

int64_t elmokit_is_permitted(void) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if (!has_matrix_product()) return 0;
#endif
    return has_dot_product();
}

#else
int64_t elmokit_is_permitted(void) { return 1; }
#endif
