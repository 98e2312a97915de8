/* The eviction order of a pruned cache, for a strip of queries at once. Plain C++ without torch's headers;
 * called by ctypes. */
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

enum { POLICY_SELECTIVE, POLICY_H2O, POLICY_TOVA, POLICY_SINKS, POLICY_WINDOW };
enum { SINKS = 4 };

#define REAL float
#define NAME(x) x##_f32
#include "evict.h"
#undef REAL
#undef NAME

#define REAL double
#define NAME(x) x##_f64
#include "evict.h"
