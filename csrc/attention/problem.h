/* One call of attention, as Python hands it over by ctypes.
 *
 * Shapes: B batch, H query heads, G key-value heads, N queries, which are the last N of M keys, D and Dv head sizes.
 * Strides are in elements, for batch, head and row; a row itself is dense. Arrays without strides are dense.
 *
 * Several selection masks, or several eviction orders, are as many problems that have nothing to do with each other, each with
 * its share of the heads. They stand here as rows of one batch: row b is fold b % folds of row b / folds of the caller's batch,
 * and H and G are the heads of one fold. A key-value head whose query heads are in several folds is listed once for
 * each: `repeat` here are one of the caller's.
 *
 * S of a fold comes from one of its own heads, or from a selecting form: a query and a key for each fold, which belong to no
 * head of it, with scale, soft cap and bias of their own.
 * "T" is the type that is computed in: double for double, else float.
 */
#ifndef SELATTN_PROBLEM_H
#define SELATTN_PROBLEM_H
#include "../rules.h"

enum Dtype { FLOAT32, FLOAT64, BFLOAT16 };

/* Queries that are served together. Within such a block F is a running sum; what it begins with is stored. A multiple of
 * every vector width's panel (3 vectors of 4, 8 or 16 numbers). */
enum { BLOCK = 96 };

#define PROBLEM_LIST(INT, REAL, STRIDES, POINTER)                                                                              \
    INT(B) INT(H) INT(G) INT(N) INT(M) INT(D) INT(Dv) INT(dtype) INT(threads)                                                  \
    INT(folds) INT(repeat)                                                                                                     \
    STRIDES(query_stride) STRIDES(key_stride) STRIDES(value_stride) STRIDES(d_output_stride)                                   \
    POINTER(const void, query) POINTER(const void, key) POINTER(const void, value)                                             \
    RULES_LIST(INT, REAL)                                                                                                      \
    INT(selects)                   /* 0: standard attention, F = 0 */                                                          \
    POINTER(const int64_t, selecting) /* [folds] the selecting head of each; below 0: a form selects */                        \
    INT(form_size) INT(form_dtype) REAL(form_scale) REAL(form_softcap)                                                         \
    POINTER(const void, form_query) POINTER(const void, form_key) /* [B,folds,N,size], [B,folds,M,size] of the caller's B */   \
    STRIDES(form_query_stride) STRIDES(form_key_stride)                                                                        \
    POINTER(const void, form_bias) STRIDES(form_bias_stride) INT(form_bias_key) /* [B,folds,N,M] T, like bias below */         \
    /* [B,H,N,M] T of the caller, or null: added to the logits after scale and soft cap; -infinity hides. The last stride, that \
     * from key to key, stands beside. */                                                                                      \
    POINTER(const void, bias) STRIDES(bias_stride) INT(bias_key)                                                               \
    POINTER(const void, bias_top)  /* [B,H] T: the largest bias of a head */                                                   \
    REAL(tau) REAL(tolerance)      /* tolerance: of attention mass that dead columns may cost a row; 0: none is left out */    \
    POINTER(const int64_t, start)  /* [B,M] or null: where the sequence of a token begins; M for padding, -1 if its first */   \
                                   /* token is gone */                                                                         \
    POINTER(const int64_t, until)  /* [B,M] or null: the row from which a key is gone */                                       \
    POINTER(const int64_t, form_until) /* [B,M] the same for the form; null: as for the heads */                               \
    POINTER(const void, initial_f) /* [B,M] T or null: F before the first query */                                             \
    /* Results of the forward pass; what is null is not wanted. */                                                             \
    POINTER(void, output)          /* [B,H,N,Dv] */                                                                            \
    POINTER(void, lse)             /* [B,H,N] T, base 2 */                                                                     \
    POINTER(void, memory)          /* [B,N] T, the paper's M_i */                                                              \
    POINTER(void, final_f)         /* [B,M] T */                                                                               \
    POINTER(void, block_f)         /* [B,blocks,M] T: F at the first row of each block */                                      \
    POINTER(int32_t, dead)         /* [B,M] the block from which a column is dead */                                           \
    POINTER(int64_t, living)       /* [B] pairs of a query and a living key that it sees */                                    \
    /* The backward pass reads output, lse, block_f and dead, and gives these. */                                              \
    POINTER(const void, d_output)  /* [B,H,N,Dv] strided */                                                                    \
    POINTER(const void, d_memory)  /* [B,N] T or null */                                                                       \
    REAL(d_scale)                  /* the factor of all gradients but dv: the scale; or 1, and the caller multiplies */        \
    POINTER(void, dq) POINTER(void, dk) POINTER(void, dv) /* [B,H,N,D], [B,G,M,D], [B,G,M,Dv] T, zeroed by the caller */       \
    POINTER(void, d_form_query) POINTER(void, d_form_key) /* [B,N,size], [B,M,size] T, zeroed */                               \
    /* T, zeroed, with strides as of the biases; 0 where a sum is wanted. Null: not wanted. */                                 \
    POINTER(void, d_bias) STRIDES(d_bias_stride) INT(d_bias_key) INT(d_bias_count)                                                               \
    POINTER(void, d_form_bias) STRIDES(d_form_bias_stride) INT(d_form_bias_key) INT(d_form_bias_count)

STRUCT(Problem, PROBLEM_LIST)

/* The selecting head of row b; below 0: a form selects. */
static inline int64_t selecting_head(const Problem &p, int64_t b) { return p.selecting[b % p.folds]; }
static inline bool has_form(const Problem &p) { return p.selects && p.selecting[0] < 0; }
static inline int64_t block_count(const Problem &p) { return (p.N + BLOCK - 1) / BLOCK; }
#endif
