/* The eviction order of a pruned cache, for many queries at once.
 *
 * For each row, in order: if `budget` earlier entries are kept, the one with the highest rank is evicted; then the row
 * attends to what is kept and to itself, which updates the scores and F. The same as selattn/ops/backends/plain_cache.py, without
 * its Python loop.
 */
template <class T> struct Order { /* of one row of the batch */
    const Eviction &e;
    const int64_t b;
    const int64_t *position;
    T *F, *score;
    int64_t *until;
    std::vector<std::vector<int64_t>> kept; /* [P] in the order of positions */
    std::vector<T> keys, query, weights;    /* keys: of all entries in T, where they are not in T already */
    std::vector<T> form_keys, form_query;   /* the same of a form */
    std::vector<std::vector<int64_t>> choice; /* [S] what a mask may select of what is kept */

    Order(const Eviction &e, int64_t b)
        : e(e), b(b), position(e.positions + b * e.M), F((T *)e.f + b * e.S * e.M), score((T *)e.score + b * e.P * e.M),
          until(e.until + b * e.P * e.M), kept(e.P), query(e.D), weights(e.M), form_query(e.form_size), choice(e.S) {
        for (auto &list : kept) list.reserve(e.M);
        if (e.form_query && e.form_dtype == BFLOAT16) {
            form_keys.resize(e.S * e.M * e.form_size);
            for (int64_t s = 0; s < e.S; s++)
                for (int64_t j = 0; j < e.M; j++)
                    read_row(e.form_key, b * e.form_key_stride[0] + s * e.form_key_stride[1] + j * e.form_key_stride[2],
                             e.form_size, e.form_dtype, form_keys.data() + (s * e.M + j) * e.form_size);
        }
        if (!e.query || e.dtype != BFLOAT16) return;
        keys.resize(e.G * e.M * e.D);
        for (int64_t g = 0; g < e.G; g++)
            for (int64_t j = 0; j < e.M; j++)
                read_row(e.key, b * e.key_stride[0] + g * e.key_stride[1] + j * e.key_stride[2], e.D, e.dtype,
                         keys.data() + (g * e.M + j) * e.D);
    }

    const T *key(int64_t g, int64_t j) const {
        if (!keys.empty()) return keys.data() + (g * e.M + j) * e.D;
        return (const T *)e.key + b * e.key_stride[0] + g * e.key_stride[1] + j * e.key_stride[2];
    }

    /* Into `weights`: what the form of mask s makes of the entries of a list in row r. What a window or a bias hides from all
     * heads is hidden from it, too. */
    void form_logits(int64_t s, int64_t r, const std::vector<int64_t> &list) {
        read_row(e.form_query, b * e.form_query_stride[0] + s * e.form_query_stride[1] + r * e.form_query_stride[2],
                 e.form_size, e.form_dtype, form_query.data());
        const int64_t now = position[e.M - e.n + r];
        const T scale = 1 / std::sqrt((T)e.form_size);
        for (size_t c = 0; c < list.size(); c++) {
            const int64_t j = list[c];
            const T *key = form_keys.empty() ? (const T *)e.form_key + b * e.form_key_stride[0] + s * e.form_key_stride[1] +
                                                   j * e.form_key_stride[2]
                                             : form_keys.data() + (s * e.M + j) * e.form_size;
            const bool sees = !e.window || now - position[j] < e.window;
            weights[c] = sees && !is_hidden(s, r, j) ? scale * dot(form_query.data(), key, e.form_size) : MASKED<T>;
        }
    }

    /* Whether a bias hides entry j from all heads that follow mask s and keep it. */
    bool is_hidden(int64_t s, int64_t r, int64_t j) const {
        if (!e.bias) return false;
        for (int64_t h = s * (e.H / e.S); h < (s + 1) * (e.H / e.S); h++) {
            const T *bias = (const T *)e.bias + b * e.bias_stride[0] + h * e.bias_stride[1] + r * e.bias_stride[2];
            const int64_t p = e.P == 1 ? 0 : h / (e.H / e.G);
            if (bias[j] != MASKED<T> && until[p * e.M + j] > e.M - e.n + r) return false;
        }
        return true;
    }

    /* Into `weights`: logits of head h in row r for the entries of a list. */
    void logits(int64_t h, int64_t r, const std::vector<int64_t> &list) {
        if (!e.query) {
            const T *row = (const T *)e.logits + ((b * e.H + h) * e.n + r) * e.M;
            for (size_t c = 0; c < list.size(); c++) weights[c] = row[list[c]];
            return;
        }
        read_row(e.query, b * e.query_stride[0] + h * e.query_stride[1] + r * e.query_stride[2], e.D, e.dtype, query.data());
        const int64_t now = position[e.M - e.n + r], g = h / (e.H / e.G);
        for (size_t c = 0; c < list.size(); c++) {
            const bool sees = !e.window || now - position[list[c]] < e.window;
            weights[c] = sees ? (T)e.scale * dot(query.data(), key(g, list[c]), e.D) : MASKED<T>;
        }
        if (!e.softcap && !e.bias) return;
        const T *bias = (const T *)e.bias + b * e.bias_stride[0] + h * e.bias_stride[1] + r * e.bias_stride[2];
        for (size_t c = 0; c < list.size(); c++)
            if (weights[c] != MASKED<T>) weights[c] = soft_capped<T>(e, weights[c]) + (e.bias ? bias[list[c]] : (T)0);
    }

    /* S of mask s in row r for the entries of a list, into `to`. */
    void selected(int64_t s, int64_t r, const std::vector<int64_t> &list, std::vector<T> &to) {
        to.resize(list.size());
        if (!e.query) {
            const T *row = (const T *)e.selected + ((b * e.S + s) * e.n + r) * e.M;
            for (size_t c = 0; c < list.size(); c++) to[c] = row[list[c]];
            return;
        }
        if (e.heads)
            logits(e.heads[s], r, list);
        else
            form_logits(s, r, list);
        for (size_t c = 0; c < list.size(); c++) {
            const bool exempt = protects(e, position[list[c]] == 0, list[c] == e.M - e.n + r);
            const T x = e.relu && !(weights[c] > 0) ? (T)0 : (T)e.strength * weights[c];
            to[c] = exempt || weights[c] == MASKED<T> ? (T)0 : x;
        }
    }

    /* The entries that mask s may select: what one order keeps, or several together, in the order of positions. */
    const std::vector<int64_t> &chosen(int64_t s) const {
        return e.selecting[2 * s + 1] - e.selecting[2 * s] == 1 ? kept[e.selecting[2 * s]] : choice[s];
    }
    void gather_choice(int64_t s) {
        if (e.selecting[2 * s + 1] - e.selecting[2 * s] == 1) return;
        auto &all = choice[s];
        all.clear();
        for (int64_t p = e.selecting[2 * s]; p < e.selecting[2 * s + 1]; p++)
            all.insert(all.end(), kept[p].begin(), kept[p].end());
        std::sort(all.begin(), all.end());
        all.erase(std::unique(all.begin(), all.end()), all.end());
    }

    /* The entry to evict: the highest rank. Entries stand in the order of their positions, so the first best is the oldest;
     * but a tie with the sequence's first token goes against the other. */
    size_t victim(int64_t p) const {
        const auto &list = kept[p];
        /* The masks that its heads follow. */
        const int64_t each = e.H / e.P, share = e.S ? e.H / e.S : 1;
        const int64_t first = e.S ? p * each / share : 0, last = e.S ? ((p + 1) * each - 1) / share + 1 : 0;
        size_t worst = list.size();
        T most = 0;
        for (size_t c = 0; c < list.size(); c++) {
            T f = e.S ? std::numeric_limits<T>::infinity() : 0;
            for (int64_t s = first; s < last; s++) f = std::min(f, F[s * e.M + list[c]]);
            const T rank = rank_of<T>(e.policy, e.parameter, e.budget, position[list[c]], list.size() - 1 - c,
                                      score[p * e.M + list[c]], f);
            if (worst == list.size() || rank > most || (rank == most && position[list[worst]] == 0)) worst = c, most = rank;
        }
        return worst;
    }

    void attend(int64_t r, const std::vector<std::vector<T>> &S) {
        if (e.policy == POLICY_TOVA) std::fill_n(score, e.P * e.M, (T)0);
        for (int64_t h = 0; h < e.H; h++) {
            const int64_t p = e.P == 1 ? 0 : h / (e.H / e.G), s = e.S ? h / (e.H / e.S) : 0;
            const auto &list = kept[p];
            logits(h, r, list);
            const auto &own = e.S ? chosen(s) : list; /* S is known of these */
            size_t at = 0;
            T top = MASKED<T>, total = 0;
            for (size_t c = 0; c < list.size(); c++) {
                if (e.S) {
                    weights[c] -= F[s * e.M + list[c]];
                    while (at < own.size() && own[at] < list[c]) at++;
                    if (!e.shift && at < own.size() && own[at] == list[c]) weights[c] -= S[s][at];
                }
                top = std::max(top, weights[c]);
            }
            if (top == MASKED<T>) continue;
            for (size_t c = 0; c < list.size(); c++) total += weights[c] = std::exp(weights[c] - top);
            const T share = e.P == 1 ? (T)1 / e.H : (T)e.G / e.H;
            for (size_t c = 0; c < list.size(); c++) score[p * e.M + list[c]] += share * weights[c] / total;
        }
    }

    void run() {
        const int64_t first_row = e.M - e.n;
        int64_t begin = first_row; /* of the document that the rows begin in: its first token, or 0 if that is gone */
        while (begin > 0 && (begin == first_row || position[begin] != 0)) begin--;
        for (int64_t p = 0; p < e.P; p++)
            for (int64_t j = begin; j < first_row; j++)
                if (position[j] >= 0 && until[p * e.M + j] > first_row) kept[p].push_back(j);
        std::vector<std::vector<T>> S(e.S);
        for (int64_t r = 0; r < e.n; r++) {
            const int64_t i = first_row + r;
            if (position[i] == 0) /* another document of a packed row begins */
                for (auto &list : kept) list.clear();
            if (position[i] >= 0) {
                for (int64_t p = 0; p < e.P; p++) {
                    if ((int64_t)kept[p].size() >= e.budget) {
                        const size_t worst = victim(p);
                        until[p * e.M + kept[p][worst]] = i;
                        kept[p].erase(kept[p].begin() + worst);
                    }
                    kept[p].push_back(i);
                }
                for (int64_t s = 0; s < e.S; s++) gather_choice(s), selected(s, r, chosen(s), S[s]);
                if (e.policy == POLICY_H2O || e.policy == POLICY_TOVA) attend(r, S);
                for (int64_t s = 0; s < e.S; s++) {
                    const auto &list = chosen(s);
                    for (size_t c = 0; c < list.size(); c++) F[s * e.M + list[c]] += S[s][c];
                }
            }
            if (e.history) std::copy_n(score, e.P * e.M, (T *)e.history + (r * e.B + b) * e.P * e.M);
        }
    }
};

template <class T> int evict(const Eviction &e, int64_t threads) {
    bool failed = false; /* an exception must not leave a parallel region */
#pragma omp parallel for num_threads(threads) schedule(dynamic) reduction(|| : failed)
    for (int64_t b = 0; b < e.B; b++) {
        try {
            Order<T>(e, b).run();
        } catch (const std::bad_alloc &) {
            failed = true;
        }
    }
    return failed;
}
