/* Eviction policies, by the numbers that selattn/cache/policies.py gives them. */
#ifndef SELATTN_POLICIES_H
#define SELATTN_POLICIES_H
#include <cstdint>
#include <limits>

enum { POLICY_SELECTIVE, POLICY_H2O, POLICY_TOVA, POLICY_SINKS, POLICY_WINDOW };
static constexpr int64_t SINKS = 4;

/* The entry with the highest rank leaves. `newer` counts the kept entries after it. */
template <class T>
static inline T rank_of(int64_t policy, int64_t budget, int64_t position, int64_t newer, T score, T forgotten) {
    const T safe = -std::numeric_limits<T>::infinity();
    switch (policy) {
    case POLICY_SELECTIVE:
        return forgotten;
    case POLICY_H2O: /* the latest budget / 2 tokens are safe, the coming one among them */
        return newer < budget / 2 - 1 ? safe : -score;
    case POLICY_TOVA:
        return -score;
    case POLICY_SINKS: /* the first tokens are safe, as many of 4 as leave room for the coming one */
        return position < (budget - 1 < SINKS ? budget - 1 : SINKS) ? safe : -(T)position;
    default:
        return -(T)position;
    }
}
#endif
