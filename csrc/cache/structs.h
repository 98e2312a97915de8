/* What Python hands over by ctypes: selattn/cache/compiled.py has the same fields in the same order.
 *
 * Shapes: B batch, H query heads, G key-value heads, P eviction orders (1 or G), S selection masks, D and Dv head sizes.
 * "T" is float, or double for dtype FLOAT64. Strides are in elements, for batch, head and row; other arrays are dense.
 */
#ifndef SELATTN_CACHE_STRUCTS_H
#define SELATTN_CACHE_STRUCTS_H
#include <cstdint>

/* The eviction order of n queries, which are the last n of M entries in the order of their positions. */
struct Eviction {
    int64_t policy, B, H, G, P, S, n, M, D, budget, shift, dtype;
    /* Logits and S of all pairs, as if nothing had left: given ... */
    const void *logits;   /* [B,H,n,M] T, -inf where invisible; null if the policy needs none */
    const void *selected; /* [B,S,n,M] T; null if S = 0 */
    /* ... or made from queries and keys, of what is kept only. query null: they are given. */
    const void *query, *key;
    int64_t query_stride[3], key_stride[3];
    double scale, strength;
    int64_t relu, protect_first, protect_self, window; /* window 0: none */
    const int64_t *heads;     /* [S] the selecting heads */
    const int64_t *selecting; /* [S] the order that each of them follows */
    const int64_t *positions; /* [B,M], -1 for none */
    int64_t *until;           /* [B,P,M] */
    void *state;              /* [B,S,M] T */
    void *score;              /* [B,P,M] T */
    void *history;            /* [n,B,P,M] T scores after each row, or null */
};

/* One token for each row of the batch, over the slots of a layer. */
struct Step {
    int64_t policy, B, H, G, C, D, Dv, budget, used, dtype, threads; /* budget 0: none; used: slots that may be taken */
    const void *query, *key, *value;
    int64_t query_stride[3], key_stride[3], value_stride[3];
    void *keys, *values;   /* [B,G,C,D], [B,G,C,Dv] of the tokens' own type */
    int32_t *position;     /* [B,C], -1 for an empty slot */
    void *state;           /* [B,C] T, or null: standard attention */
    const int64_t *length; /* [B] tokens so far */
    double scale, strength;
    int64_t selecting, relu, protect_first, protect_self, shift, window;
    void *out; /* [B,H,1,Dv] */
};
static_assert(sizeof(Step) == 37 * 8, "selattn/cache/compiled.py packs its fields as _STEP");
#endif
