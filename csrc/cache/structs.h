/* What Python hands over by ctypes.
 *
 * Shapes: B batch, H query heads, G key-value heads, P eviction orders (1 or G), S selection masks, D and Dv head sizes.
 * "T" is float, or double for dtype FLOAT64. Strides are in elements, for batch, head and row; other arrays are dense.
 */
#ifndef SELATTN_CACHE_STRUCTS_H
#define SELATTN_CACHE_STRUCTS_H
#include "../rules.h"

/* The eviction order of n queries, which are the last n of M entries in the order of their positions. */
#define EVICTION_LIST(INT, REAL, STRIDES, POINTER)                                                                             \
    INT(policy) REAL(parameter) INT(B) INT(H) INT(G) INT(P) INT(S) INT(n) INT(M) INT(D) INT(budget) INT(dtype)                 \
    /* Logits and S of all pairs, as if nothing had left: given ... */                                                         \
    POINTER(const void, logits)   /* [B,H,n,M] T, -inf where invisible; null if the policy needs none */                       \
    POINTER(const void, selected) /* [B,S,n,M] T; null if S = 0 */                                                             \
    /* ... or made from queries and keys, of what is kept only. query null: they are given. */                                 \
    POINTER(const void, query) POINTER(const void, key)                                                                        \
    STRIDES(query_stride) STRIDES(key_stride)                                                                                  \
    RULES_LIST(INT, REAL)                                                                                                      \
    POINTER(const void, bias) STRIDES(bias_stride) /* [B,H,n,M] T or null: added after scale and soft cap */                   \
    POINTER(const int64_t, heads) /* [S] the selecting heads; null: a form selects */                                          \
    POINTER(const void, form_query) POINTER(const void, form_key) /* [B,S,n,size], [B,S,M,size] */                             \
    STRIDES(form_query_stride) STRIDES(form_key_stride) INT(form_size) INT(form_dtype)                                         \
    POINTER(const int64_t, selecting) /* [S,2] the orders, from the first up to the second, that keep what a mask may select */ \
    POINTER(const int64_t, positions) /* [B,M], -1 for none */                                                                 \
    POINTER(int64_t, until)           /* [B,P,M] */                                                                            \
    POINTER(void, f)                  /* [B,S,M] T */                                                                          \
    POINTER(void, score)              /* [B,P,M] T */                                                                          \
    POINTER(void, history)            /* [n,B,P,M] T scores after each row, or null */

STRUCT(Eviction, EVICTION_LIST)

/* One token for each sequence of the batch, over a pool of slots. Sequence b is row rows[b] of the pool; what is of a row is
 * dense, and rows lie as far apart as the strides say, in elements of each array. */
#define STEP_LIST(INT, REAL, STRIDES, POINTER)                                                                                 \
    INT(policy) REAL(parameter) INT(B) INT(H) INT(G) INT(C) INT(D) INT(Dv)                                                     \
    INT(budget) INT(used) INT(dtype) INT(threads) /* budget 0: none; used: slots that may be taken */                          \
    INT(P) INT(S)                                 /* with P > 1, mask s is of order s * P / S, which alone it selects in */     \
    POINTER(const void, query) POINTER(const void, key) POINTER(const void, value)                                             \
    STRIDES(query_stride) STRIDES(key_stride) STRIDES(value_stride)                                                            \
    POINTER(const int64_t, rows)              /* [B], each once; null: sequence b is row b */                                  \
    POINTER(void, keys) POINTER(void, values) /* [R,G,C,D], [R,G,C,Dv] of the tokens' own type */                              \
    POINTER(int32_t, position)                /* [R,P,C], -1 for an empty slot */                                              \
    POINTER(void, f)                          /* [R,S,C] T, or null: standard attention */                                     \
    POINTER(void, score)                      /* [R,P,C] T, or null: the policy keeps none */                                  \
    INT(keys_row) INT(values_row) INT(position_row) INT(f_row) INT(score_row) INT(form_keys_row)                               \
    POINTER(const int64_t, length)            /* [B] tokens so far */                                                          \
    POINTER(const bool, real)                 /* [B] false: the token is padding; null: none is */                             \
    RULES_LIST(INT, REAL)                                                                                                      \
    /* [B,H,1,used + 1] T or null: added after scale and soft cap; of the slots as they were, then of the new token */         \
    POINTER(const void, bias) STRIDES(bias_stride)                                                                             \
    POINTER(const int64_t, heads) /* [S] the selecting heads; null: a form selects */                                          \
    POINTER(const void, form_query) POINTER(const void, form_key) /* [B,S,1,size] of the new token */                          \
    STRIDES(form_query_stride) STRIDES(form_key_stride) INT(form_size) INT(form_dtype)                                         \
    POINTER(void, form_keys) /* [R,S,C,size] of the slots */                                                                   \
    POINTER(void, output)    /* [B,H,1,Dv] */

STRUCT(Step, STEP_LIST)
#endif
