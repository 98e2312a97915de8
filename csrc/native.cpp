/* Selective attention on the CPU: attention/ is the operator, cache/ decoding. Plain C++ without torch's headers; called by
 * ctypes, see attention/problem.h and cache/structs.h.
 *
 * The same source is compiled for each instruction set; which one runs is chosen when the library is first called.
 */
#include "attention/problem.h"
#include "cache/policies.h"
#include "cache/structs.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <vector>

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 8") /* so that what a register block holds stays in registers */

static constexpr int64_t CHUNK = 192, MAX_SIZE = 1024; /* keys that are served together; the largest head size */

#include "attention/prefetch.h"
#include "attention/work.h"

#if defined(__x86_64__)
#define TARGET_NAME avx512
#define VECTOR_BYTES 64
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")
#include "target.h"
#pragma GCC pop_options
#undef TARGET_NAME
#undef VECTOR_BYTES

#define TARGET_NAME avx2
#define VECTOR_BYTES 32
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#include "target.h"
#pragma GCC pop_options
#undef TARGET_NAME
#undef VECTOR_BYTES
#endif

#define TARGET_NAME plain /* 16 bytes: SSE2 on x86, NEON on ARM, plain C++ elsewhere */
#define VECTOR_BYTES 16
#include "target.h"

struct Target {
    const char *name;
    int (*forward)(const Problem &);
    int (*backward)(const Problem &);
    int (*evict)(const Eviction &, int64_t);
    int (*decode)(const Step &);
};

static const Target TARGETS[] = {
#if defined(__x86_64__)
    {"avx512", avx512::run_forward, avx512::run_backward, avx512::run_evict, avx512::run_decode},
    {"avx2", avx2::run_forward, avx2::run_backward, avx2::run_evict, avx2::run_decode},
#endif
    {"plain", plain::run_forward, plain::run_backward, plain::run_evict, plain::run_decode},
};

static bool supported(const Target &target) {
#if defined(__x86_64__)
    if (!std::strcmp(target.name, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq");
    if (!std::strcmp(target.name, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return target.name != nullptr;
}

/* SELATTN_TARGET names one, for tests and for doubts; else the best that the machine has. */
static const Target &chosen() {
    static const Target &found = []() -> const Target & {
        const char *wanted = std::getenv("SELATTN_TARGET");
        for (const Target &target : TARGETS)
            if (supported(target) && (!wanted || !std::strcmp(wanted, target.name))) return target;
        return TARGETS[sizeof TARGETS / sizeof *TARGETS - 1];
    }();
    return found;
}

/* A call that returns 1 where an allocation fails. */
template <class Call> static int guarded(Call call) {
    try {
        return call();
    } catch (const std::bad_alloc &) {
        return 1;
    }
}

extern "C" {
const char *selattn_target() { return chosen().name; }
/* The fields of a struct, one in each line: selattn/utils/native.py makes Python's view of it from them. */
const char *selattn_fields(const char *name) {
    if (!std::strcmp(name, "Problem")) return Problem_FIELDS;
    if (!std::strcmp(name, "Eviction")) return Eviction_FIELDS;
    if (!std::strcmp(name, "Step")) return Step_FIELDS;
    return nullptr;
}
int64_t selattn_constant(const char *name) {
    if (!std::strcmp(name, "sizeof(Problem)")) return sizeof(Problem);
    if (!std::strcmp(name, "sizeof(Eviction)")) return sizeof(Eviction);
    if (!std::strcmp(name, "sizeof(Step)")) return sizeof(Step);
    if (!std::strcmp(name, "BLOCK")) return BLOCK;
    if (!std::strcmp(name, "MAX_SIZE")) return MAX_SIZE;
    if (!std::strcmp(name, "POLICY_SELECTIVE")) return POLICY_SELECTIVE;
    if (!std::strcmp(name, "POLICY_H2O")) return POLICY_H2O;
    if (!std::strcmp(name, "POLICY_TOVA")) return POLICY_TOVA;
    if (!std::strcmp(name, "POLICY_WINDOW")) return POLICY_WINDOW;
    if (!std::strcmp(name, "FLOAT32")) return FLOAT32;
    if (!std::strcmp(name, "FLOAT64")) return FLOAT64;
    if (!std::strcmp(name, "BFLOAT16")) return BFLOAT16;
    return -1;
}
int selattn_forward(const Problem *p) {
    return guarded([&] { return chosen().forward(*p); });
}
int selattn_backward(const Problem *p) {
    return guarded([&] { return chosen().backward(*p); });
}
int selattn_evict(const Eviction *e, int64_t threads) {
    return guarded([&] { return chosen().evict(*e, threads); });
}
int selattn_decode(const Step *p) {
    return guarded([&] { return chosen().decode(*p); });
}
}
