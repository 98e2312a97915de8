/* Which columns are dead for good.
 *
 * Of a row i with own key i and first key 0, both with F = 0, key j gets at most
 *     exp(logit[i, j] - F[i, j] - max(logit[i, i], logit[i, 0]))
 * of the attention. With |logit[i, j]| <= scale |q_i| |k_j|, column j is dead from row t if for every head
 *     F[t, j] >= scale max over i >= t of |q_i| * |k_j| - min over i >= t of max(logit[i, i], logit[i, 0]) + ln(M / tolerance)
 * as F never falls: relu is on. Then all dead columns together have at most `tolerance` of any later row. A threshold of
 * at least tau makes them count as masked in M. Everything is in base 2.
 *
 * A little attention to a large value is not little. With |v| the size of a value's largest number and |v_s| the smallest of
 * these in the head, but for 0, column j has to have log2(|v_j| / |v_s|) more of F where that is positive. So the values that
 * a row loses add up to at most tolerance * |v_s|: little beside any value that it keeps.
 *
 * With a bias, its largest number in the head is added to the bound, and the logits of the row's own and first key have theirs.
 *
 * What is not finite makes a row NaN that has no attention left for it. So no column with such a key or value ever dies, and
 * none at all before the last row with such a query.
 */
template <class T> struct Bounds {
    T *query;  /* [B,blocks,H] scale * max |q_i| over the rows from the block on */
    T *own;    /* [B,blocks,H] min over those rows of max(logit[i, i], logit[i, first]) */
    T *key;    /* [B,M,H] |k_j| */
    T *value;  /* [B,M,G] |v_j| */
    T *small;  /* [B,G] |v_s| */
    T least;   /* log2(M / tolerance), but at least tau */
};

INLINE bool may_leave_out(const Problem &p) {
    return p.selects && p.tolerance > 0 && p.relu && (p.shift || protects(p, false, true)) && !p.final_f;
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

/* Of a query: its square, and its products with its own key and the first one. */
template <class T> struct Dots {
    T square, own, first;
};
template <class T> Dots<T> dots(const T *query, const T *own, const T *first, int64_t n) {
    constexpr int L = LANES<T>;
    Vector<T> sum[3] = {};
    int64_t d = 0;
    for (; d + L <= n; d += L) {
        const Vector<T> x = load(query + d);
        sum[0] += x * x, sum[1] += x * load(own + d), sum[2] += x * load(first + d);
    }
    Dots<T> found{sum_of<T>(sum[0]), sum_of<T>(sum[1]), sum_of<T>(sum[2])};
    for (; d < n; d++) found.square += query[d] * query[d], found.own += query[d] * own[d], found.first += query[d] * first[d];
    return found;
}

/* The sizes of the keys and values of key-value head g. */
template <class T> void measure(const Problem &p, const Rows &k, const Rows &v, int64_t b, int64_t g, const Bounds<T> &to) {
    const int64_t shared = p.H / p.G;
    const HeadRows keys = k(b, g), values = v(b, g);
    T line[MAX_SIZE], small = std::numeric_limits<T>::max();
    for (int64_t j = 0; j < p.M; j++) {
        const T *key = row_of(keys, j, line);
        std::fill_n(to.key + (b * p.M + j) * p.H + g * shared, shared, std::sqrt(dot(key, key, p.D)));
        const T size = largest(row_of(values, j, line), p.Dv);
        to.value[(b * p.M + j) * p.G + g] = size;
        if (size > 0 && size < small && !(p.start && p.start[b * p.M + j] > j)) small = size;
    }
    to.small[b * p.G + g] = small;
}

/* The larger of a row's logits with its own and the first key, with their biases; the lowest number if it sees neither. */
template <class T>
T biased_own(const Problem &p, const Bias<T> &bias, int64_t i, int64_t row, int64_t first, const Dots<T> &found,
             bool counts_first) {
    const T lowest = -std::numeric_limits<T>::max();
    const auto logit = [&](T product, int64_t key) {
        const T x = (soft_capped<T>(p, (T)p.scale * product) + *bias.at(i, key)) * LOG2E<T>;
        return bias.hides(i, key) ? lowest : x;
    };
    return std::max(logit(found.own, row), counts_first ? logit(found.first, first) : lowest);
}

template <class T> void bound(const Problem &p, const Rows &q, const Rows &k, int64_t b, int64_t h, const Bounds<T> &to) {
    const int64_t offset = p.M - p.N, blocks = block_count(p), g = h / (p.H / p.G);
    const T scale = (T)p.scale * LOG2E<T>, most = std::numeric_limits<T>::max(), cap = (T)p.softcap * LOG2E<T>;
    const HeadRows queries = q(b, h), keys = k(b, g);
    const Bias<T> bias = head_bias<T>(p, b, h);
    T line[3][MAX_SIZE], longest = 0, least = most;
    for (int64_t block = blocks - 1; block >= 0; block--) {
        for (int64_t i = block * BLOCK; i < std::min(p.N, (block + 1) * BLOCK); i++) {
            const int64_t row = offset + i, first = p.start ? p.start[b * p.M + row] : 0;
            if (first > row) continue; /* padding */
            /* The first token is seen by all rows, with F = 0, only where nothing takes it away and no initial F says else. */
            const bool counts_first = protects(p, true, false) && first >= 0 && !p.window && !p.until &&
                                      !(p.initial_f && ((const T *)p.initial_f)[b * p.M + first] > 0);
            const T *own_key = row_of(keys, row, line[1]);
            const auto found =
                dots(row_of(queries, i, line[0]), own_key, counts_first ? row_of(keys, first, line[2]) : own_key, p.D);
            T own = std::max(scale * found.own, scale * found.first);
            if (p.until && p.until[b * p.M + row] <= row) own = -most; /* the row does not see its own key */
            if (p.softcap && own != -most) own = cap * std::tanh(own / cap);
            if (p.bias && own != -most) own = biased_own(p, bias, i, row, first, found, counts_first);
            least = std::min(least, own);
            longest = !(found.square <= most) ? std::numeric_limits<T>::infinity() : std::max(longest, found.square);
        }
        to.query[(b * blocks + block) * p.H + h] = std::abs(scale) * std::sqrt(longest);
        to.own[(b * blocks + block) * p.H + h] = least;
    }
}

template <class T> bool is_dead(const Problem &p, const Bounds<T> &bounds, int64_t b, int64_t block, int64_t j, T f) {
    if (!(f >= bounds.least)) return false;
    const int64_t at = (b * block_count(p) + block) * p.H;
    const T *query = bounds.query + at, *own = bounds.own + at, *key = bounds.key + (b * p.M + j) * p.H;
    const T *value = bounds.value + (b * p.M + j) * p.G, *small = bounds.small + b * p.G;
    const T limit = std::numeric_limits<T>::max(), cap = p.softcap ? (T)p.softcap * LOG2E<T> : limit;
    const int64_t shared = p.H / p.G;
    for (int64_t h = 0; h < p.H; h++) {
        const T logit = query[h] * key[h], top = p.bias ? ((const T *)p.bias_top)[b * p.H + h] * LOG2E<T> : 0;
        const T over = (logit > cap ? cap : logit) + top - own[h];
        /* Rounding of the bound itself: a few units in the last place of its largest part. */
        const auto suffices = [&](T over) { return f >= over + bounds.least + (T)1e-5 * (std::abs(over) + f); };
        if (!suffices(over)) return false;
        const T size = value[h / shared], ratio = size / small[h / shared];
        if (!(query[h] <= limit && key[h] <= limit && size <= limit)) return false;
        if (ratio > 1 && !suffices(over + std::log2(ratio))) return false;
    }
    return true;
}
