/* One precision of the eviction order. Included once for float and once for double, with REAL and NAME defined.
 *
 * For each row of a strip, in order: if `budget` earlier entries are kept, the one that ranks highest leaves; then the
 * row attends to what is kept and to itself, which moves the scores and the state of F. The same as
 * selattn/cache/evict.py, without its Python loop.
 *
 * Shapes: B rows of the batch, H query heads, G key-value heads, P independent orders (1, or G), S selection masks,
 * n queries, which are the last n of M entries. Arrays are dense, in the order of their names in brackets.
 */

static REAL NAME(badness)(int policy, long e, long kept_after, long budget, long position, const REAL *score,
                          REAL forgotten) {
    switch (policy) {
    case POLICY_SELECTIVE:
        return forgotten;
    case POLICY_H2O: /* the latest budget / 2 tokens are safe, the coming one among them */
        return kept_after < budget / 2 - 1 ? -INFINITY : -score[e];
    case POLICY_TOVA:
        return -score[e];
    case POLICY_SINKS: /* the first tokens are safe, as many of 4 as leave room for the coming one */
        return position < (budget - 1 < SINKS ? budget - 1 : SINKS) ? -INFINITY : -(REAL)position;
    default:
        return -(REAL)position;
    }
}

extern "C" int NAME(selattn_evict)(int policy, long B, long H, long G, long P, long S, long n, long M, long budget, int shift,
                        const REAL *logits /* [B,H,n,M], -inf where invisible; may be null */,
                        const REAL *selected /* [B,S,n,M] S as if nothing had left; may be null */,
                        const int64_t *selecting /* [S] the order that each selecting head follows */,
                        const int64_t *positions /* [B,M], -1 for none */, int64_t *until /* [B,P,M] */,
                        REAL *state /* [B,S,M] */, REAL *score /* [B,P,M] */,
                        REAL *history /* [n,B,P,M] scores after each row; may be null */) {
    const long first_row = M - n;
    long *kept = (long *)malloc(sizeof(long) * (size_t)P * M), *count = (long *)malloc(sizeof(long) * P);
    REAL *weights = (REAL *)malloc(sizeof(REAL) * M);
    if (!kept || !count || !weights) {
        free(kept), free(count), free(weights);
        return 1;
    }
    for (long b = 0; b < B; b++) {
        const int64_t *pos = positions + b * M;
        REAL *F = state + b * S * M;
        long begin = first_row; /* of the document that the strip begins in: its first token, or 0 if that is gone */
        while (begin > 0 && (begin == first_row || pos[begin] != 0)) begin--;
        for (long p = 0; p < P; p++) {
            count[p] = 0;
            for (long e = begin; e < first_row; e++)
                if (pos[e] >= 0 && until[(b * P + p) * M + e] > first_row) kept[p * M + count[p]++] = e;
        }
        for (long r = 0; r < n; r++) {
            const long i = first_row + r;
            if (pos[i] == 0) memset(count, 0, sizeof(long) * P); /* another document of a packed row begins */
            if (pos[i] >= 0) {
                for (long p = 0; p < P; p++) {
                    long *list = kept + p * M;
                    const REAL *scored = score + (b * P + p) * M;
                    if (count[p] >= budget) {
                        /* Entries stand in the order of their positions: the first best is the oldest; but a tie with
                           the sequence's first token goes against the other. */
                        long worst = -1;
                        REAL most = 0;
                        for (long c = 0; c < count[p]; c++) {
                            REAL forgotten = S ? INFINITY : 0;
                            for (long s = 0; s < S; s++)
                                if (F[s * M + list[c]] < forgotten) forgotten = F[s * M + list[c]];
                            const REAL bad = NAME(badness)(policy, list[c], count[p] - 1 - c, budget, pos[list[c]], scored,
                                                           forgotten);
                            if (worst < 0 || bad > most || (bad == most && pos[list[worst]] == 0)) worst = c, most = bad;
                        }
                        until[(b * P + p) * M + list[worst]] = i;
                        memmove(list + worst, list + worst + 1, sizeof(long) * (count[p] - 1 - worst));
                        count[p]--;
                    }
                    list[count[p]++] = i;
                }
                if (logits && (policy == POLICY_H2O || policy == POLICY_TOVA)) {
                    if (policy == POLICY_TOVA) memset(score + b * P * M, 0, sizeof(REAL) * P * M);
                    for (long h = 0; h < H; h++) {
                        const long p = P == 1 ? 0 : h / (H / G), s = S ? h / (H / S) : 0;
                        const long *list = kept + p * M;
                        const REAL *row = logits + ((b * H + h) * n + r) * M;
                        const REAL *mark = S ? selected + ((b * S + s) * n + r) * M : 0;
                        REAL top = -INFINITY, total = 0;
                        for (long c = 0; c < count[p]; c++) {
                            const long e = list[c];
                            REAL x = row[e];
                            if (S) x -= F[s * M + e];
                            if (S && !shift && until[(b * P + selecting[s]) * M + e] > i) x -= mark[e];
                            weights[c] = x;
                            if (x > top) top = x;
                        }
                        if (top == -INFINITY) continue;
                        for (long c = 0; c < count[p]; c++) total += weights[c] = std::exp(weights[c] - top);
                        const REAL share = P == 1 ? (REAL)1 / H : (REAL)G / H;
                        for (long c = 0; c < count[p]; c++) score[(b * P + p) * M + list[c]] += share * weights[c] / total;
                    }
                }
                for (long s = 0; s < S; s++) {
                    const long p = selecting[s];
                    const REAL *mark = selected + ((b * S + s) * n + r) * M;
                    for (long c = 0; c < count[p]; c++) F[s * M + kept[p * M + c]] += mark[kept[p * M + c]];
                }
            }
            if (history) memcpy(history + (r * B + b) * P * M, score + b * P * M, sizeof(REAL) * P * M);
        }
    }
    free(kept), free(count), free(weights);
    return 0;
}
