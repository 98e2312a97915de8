/* One call of attention, as Python hands it over by ctypes: selattn/ops/cpu.py has the same fields in the same order.
 *
 * Shapes: B batch, H query heads, G key-value heads, N queries, which are the last N of M keys, D and Dv head sizes.
 * Strides are in elements, for batch, head and row; a row itself is dense. Arrays without strides are dense.
 * "T" is the type that is computed in: double for double, else float.
 */
#ifndef SELATTN_PROBLEM_H
#define SELATTN_PROBLEM_H
#include <cstdint>

enum Dtype { FLOAT32, FLOAT64, BFLOAT16 };

/* Queries that are served together. Within such a block F is a running sum; what it begins with is stored. A multiple of
 * every vector width's panel (3 vectors of 4, 8 or 16 numbers). */
enum { BLOCK = 96 };

struct Problem {
    int64_t B, H, G, N, M, D, Dv;
    int64_t dtype, threads;
    int64_t q_stride[3], k_stride[3], v_stride[3], d_out_stride[3];
    const void *q, *k, *v;
    double scale, softcap; /* softcap 0: none */
    /* Selection. selecting < 0: standard attention, F = 0. */
    int64_t selecting, relu, protect_first, protect_self, shift;
    double strength, tau;
    /* What a query sees. */
    int64_t window;        /* 0: none */
    const int64_t *start;  /* [B,M] or null: where the sequence of a token begins; M for padding, -1 if its first token is gone */
    const int64_t *until;  /* [B,M] or null: the row from which a key is gone */
    const void *state;     /* [B,M] T or null: F before the first query */
    double tolerance;      /* of attention mass that dead columns may cost a row; 0: no column is left out */
    /* Results of the forward pass; what is null is not wanted. */
    void *out;             /* [B,H,N,Dv] */
    void *lse;             /* [B,H,N] T, base 2 */
    void *memory;          /* [B,N] T, the paper's M_i */
    void *state_out;       /* [B,M] T */
    void *block_f;         /* [B,blocks,M] T: F at the first row of each block */
    int32_t *dead;         /* [B,M] the block from which a column is dead */
    int64_t *living;       /* [B] pairs of a query and a living key that it sees */
    /* The backward pass reads out, lse, block_f and dead, and gives these. */
    const void *d_out;     /* [B,H,N,Dv] strided */
    const void *d_memory;  /* [B,N] T or null */
    void *dq, *dk, *dv;    /* [B,H,N,D], [B,G,M,D], [B,G,M,Dv] T, zeroed by the caller */
};

static inline int64_t block_count(const Problem &p) { return (p.N + BLOCK - 1) / BLOCK; }
#endif
