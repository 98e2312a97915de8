/* What the attention of a layer does: the fields that all structs share, named as in selattn/ops/rules.py and
 * selattn/ops/selection.py. */
#ifndef SELATTN_RULES_H
#define SELATTN_RULES_H
#include "fields.h"

#include <cmath>

#define RULES_LIST(INT, REAL)                                                                                                  \
    REAL(scale)                                                                                                                \
    REAL(softcap)                                                                                                              \
    INT(window)    /* 0: none; so for the soft cap */                                                                          \
    REAL(strength) /* of selection, like the switches that follow */                                                           \
    INT(relu) INT(protect_first) INT(protect_self) INT(shift)

/* Whether no query, or not this one, may select a key: constraint 2 for the first token, constraint 3 for its own. */
template <class P> static inline bool protects(const P &p, bool first, bool own) {
    return (p.protect_first && first) || (p.protect_self && own);
}

/* cap * tanh(logit / cap), as Gemma 2 does it. */
template <class T, class P> static inline T soft_capped(const P &p, T logit) {
    return p.softcap ? std::tanh(logit / (T)p.softcap) * (T)p.softcap : logit;
}
#endif
