/* Eviction policies, by the names and parameters that `compiled()` in selattn/cache/policies.py gives them. */
#ifndef SELATTN_POLICIES_H
#define SELATTN_POLICIES_H
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

/* H2O: how many of the latest kept tokens are safe; the coming token is one of the `parameter` of the budget. */
static inline int64_t safe_tokens(double parameter, int64_t budget) {
    return std::max<int64_t>((int64_t)std::floor(parameter * (double)budget) - 1, 0);
}

enum { POLICY_SELECTIVE, POLICY_H2O, POLICY_TOVA, POLICY_WINDOW };

/* The entry with the highest rank is evicted. `newer` counts the kept entries after it. */
template <class T>
static inline T rank_of(int64_t policy, double parameter, int64_t budget, int64_t position, int64_t newer, T score, T f) {
    const T safe = -std::numeric_limits<T>::infinity();
    switch (policy) {
    case POLICY_SELECTIVE:
        return f;
    case POLICY_H2O:
        return newer < safe_tokens(parameter, budget) ? safe : -score;
    case POLICY_TOVA:
        return -score;
    default: /* POLICY_WINDOW: the first `parameter` tokens are safe, as many as leave room for the coming one */
        return position < std::min<int64_t>((int64_t)parameter, budget - 1) ? safe : -(T)position;
    }
}
#endif
