/* Which columns are dead for good.
 *
 * Of a row i with own key i and first key 0, both with F = 0, key j gets at most
 *     exp(logit[i, j] - F[i, j] - max(logit[i, i], logit[i, 0]))
 * of the attention. With |logit[i, j]| <= scale |q_i| |k_j|, column j is dead from row t if for every head
 *     F[t, j] >= scale max over i >= t of |q_i| * |k_j| - min over i >= t of max(logit[i, i], logit[i, 0]) + ln(M / tolerance)
 * as F never falls: relu is on. Then all dead columns together have at most `tolerance` of any later row. A threshold of
 * at least tau makes them count as forgotten in M. Everything is in base 2.
 */
template <class T> struct Bounds {
    T *query;  /* [B,blocks,H] scale * max |q_i| over the rows from the block on */
    T *own;    /* [B,blocks,H] min over those rows of max(logit[i, i], logit[i, first]) */
    T *key;    /* [B,M,H] |k_j| */
    T least;   /* log2(M / tolerance), but at least tau */
};

INLINE bool may_leave_out(const Problem &p) {
    return p.selecting >= 0 && p.tolerance > 0 && p.relu && (p.shift || p.protect_self) && !p.state_out;
}

template <class T> T dot(const T *a, const T *b, int64_t n) {
    constexpr int L = LANES<T>;
    Vector<T> sum{};
    int64_t d = 0;
    for (; d + L <= n; d += L) sum += load(a + d) * load(b + d);
    T total = sum_of<T>(sum);
    for (; d < n; d++) total += a[d] * b[d];
    return total;
}

template <class T> void bound(const Problem &p, const Rows &q, const Rows &k, int64_t b, int64_t h, const Bounds<T> &to) {
    const int64_t offset = p.M - p.N, blocks = block_count(p), g = h / (p.H / p.G);
    const T scale = (T)p.scale * LOG2E<T>, most = std::numeric_limits<T>::max(), cap = (T)p.softcap * LOG2E<T>;
    T line[3][MAX_SIZE];
    const auto row_of = [&](const Rows &x, int64_t head, int64_t row, T *buffer) {
        const T *found = in_place<T>(x, b, head, row, x.size);
        if (!found) read_row(x.data, x.at(b, head, row), x.size, x.dtype, buffer), found = buffer;
        return found;
    };
    for (int64_t j = 0; j < p.M; j++) {
        const T *key = row_of(k, g, j, line[0]);
        to.key[(b * p.M + j) * p.H + h] = std::sqrt(dot(key, key, p.D));
    }
    T longest = 0, least = most;
    for (int64_t block = blocks - 1; block >= 0; block--) {
        for (int64_t i = block * BLOCK; i < std::min(p.N, (block + 1) * BLOCK); i++) {
            const int64_t row = offset + i, first = p.start ? p.start[b * p.M + row] : 0;
            if (first > row) continue; /* padding */
            const T *query = row_of(q, h, i, line[0]);
            T own = scale * dot(query, row_of(k, g, row, line[1]), p.D);
            if (p.until && p.until[b * p.M + row] <= row) own = -most; /* the row does not see its own key */
            /* The first token is seen by all rows, with F = 0, only where nothing takes it away and no state says else. */
            if (p.protect_first && first >= 0 && !p.window && !p.until && !(p.state && ((const T *)p.state)[b * p.M + first] > 0))
                own = std::max(own, scale * dot(query, row_of(k, g, first, line[2]), p.D));
            if (p.softcap && own != -most) own = cap * std::tanh(own / cap);
            least = std::min(least, own);
            longest = std::max(longest, std::abs(scale) * std::sqrt(dot(query, query, p.D)));
        }
        to.query[(b * blocks + block) * p.H + h] = longest;
        to.own[(b * blocks + block) * p.H + h] = least;
    }
}

template <class T> bool is_dead(const Problem &p, const Bounds<T> &bounds, int64_t b, int64_t block, int64_t j, T f) {
    if (!(f >= bounds.least)) return false;
    const int64_t at = (b * block_count(p) + block) * p.H;
    const T *query = bounds.query + at, *own = bounds.own + at, *key = bounds.key + (b * p.M + j) * p.H;
    T most = std::numeric_limits<T>::lowest();
    const T cap = p.softcap ? (T)p.softcap * LOG2E<T> : std::numeric_limits<T>::max();
    for (int64_t h = 0; h < p.H; h++) {
        const T logit = query[h] * key[h], over = (logit > cap ? cap : logit) - own[h];
        if (over > most || over != over) most = over; /* NaN stays, and then nothing is dead */
    }
    /* Rounding of the bound itself: a few units in the last place of its largest part. */
    const T slack = (T)1e-5 * (std::abs(most) + f);
    return f >= most + bounds.least + slack;
}
