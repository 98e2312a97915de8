/* One call of attention, as Python hands it over by ctypes.
 *
 * Shapes: B batch, H query heads, G key-value heads, N queries, which are the last N of M keys, D and Dv head sizes.
 * Strides are in elements, for batch, head and row; a row itself is dense. Arrays without strides are dense.
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
    STRIDES(query_stride) STRIDES(key_stride) STRIDES(value_stride) STRIDES(d_output_stride)                                   \
    POINTER(const void, query) POINTER(const void, key) POINTER(const void, value)                                             \
    RULES_LIST(INT, REAL)                                                                                                      \
    INT(selecting)                 /* the selecting head; below 0: standard attention, F = 0 */                                \
    REAL(tau) REAL(tolerance)      /* tolerance: of attention mass that dead columns may cost a row; 0: none is left out */    \
    POINTER(const int64_t, start)  /* [B,M] or null: where the sequence of a token begins; M for padding, -1 if its first */   \
                                   /* token is gone */                                                                         \
    POINTER(const int64_t, until)  /* [B,M] or null: the row from which a key is gone */                                       \
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
    POINTER(void, dq) POINTER(void, dk) POINTER(void, dv) /* [B,H,N,D], [B,G,M,D], [B,G,M,Dv] T, zeroed by the caller */

STRUCT(Problem, PROBLEM_LIST)

static inline int64_t block_count(const Problem &p) { return (p.N + BLOCK - 1) / BLOCK; }
#endif
