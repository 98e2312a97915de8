/* What is added to logits after scale and soft cap, for any pair of a query and a key: minus infinity hides. */

/* Of one head, [rows, keys]; data is null without a bias. */
template <class T> struct Bias {
    T *data;
    int64_t row, key;
    T *at(int64_t i, int64_t j) const { return data + i * row + j * key; }
    bool hides(int64_t i, int64_t j) const { return data && *at(i, j) == MASKED<T>; }
};
template <class T>
Bias<T> bias_of(const Problem &p, const void *data, const int64_t (&stride)[3], int64_t key, int64_t heads, int64_t b,
                int64_t h) {
    if (!data) return {nullptr, 0, 0};
    return {(T *)data + b / p.folds * stride[0] + (b % p.folds * heads + h) * stride[1], stride[2], key};
}
template <class T> Bias<T> head_bias(const Problem &p, int64_t b, int64_t h) {
    return bias_of<T>(p, p.bias, p.bias_stride, p.bias_key, p.H, b, h);
}
template <class T> Bias<T> d_head_bias(const Problem &p, int64_t b, int64_t h) {
    return bias_of<T>(p, p.d_bias, p.d_bias_stride, p.d_bias_key, p.H, b, h);
}
/* That of the selecting head, or of the form. */
template <class T> Bias<T> selector_bias(const Problem &p, int64_t b) {
    if (!has_form(p)) return head_bias<T>(p, b, selecting_head(p, b));
    return bias_of<T>(p, p.form_bias, p.form_bias_stride, p.form_bias_key, 1, b, 0);
}
template <class T> Bias<T> d_selector_bias(const Problem &p, int64_t b) {
    if (!has_form(p)) return d_head_bias<T>(p, b, selecting_head(p, b));
    return bias_of<T>(p, p.d_form_bias, p.d_form_bias_stride, p.d_form_bias_key, 1, b, 0);
}
INLINE bool selector_has_bias(const Problem &p) { return p.selects && (has_form(p) ? p.form_bias : p.bias); }

/* One panel of a tile [key][query], in base 2, for the keys of a range; 0 beyond the last query or key. */
template <class T>
void fill_bias(const Bias<T> &bias, const Lanes<T> &lanes, const Chunk<T> &c, int panel, Range range, T *tile) {
    constexpr int L = LANES<T>, W = PANEL<T>;
    const bool dense = bias.key == 1 && c.count > 0 && c.key[c.count - 1] - c.key[0] == c.count - 1;
    for (int v = 0; v < 3; v++) {
        const int64_t lane = panel * W + v * L, row = lanes.first_row + lane, rows = std::min<int64_t>(L, lanes.count - lane);
        int64_t i = range.begin;
        for (; dense && rows == L && i + L <= std::min(range.end, c.count); i += L) {
            Vector<T> square[L];
            for (int r = 0; r < L; r++) square[r] = LOG2E<T> * load(bias.at(row + r, c.key[i]));
            transpose<T>(square);
            for (int r = 0; r < L; r++) store(tile + (i + r) * W + v * L, square[r]);
        }
        for (; i < range.end; i++)
            for (int r = 0; r < L; r++)
                tile[i * W + v * L + r] = r < rows && i < c.count ? LOG2E<T> * *bias.at(row + r, c.key[i]) : 0;
    }
}

/* A tile's rows of `count` keys from key i on, added to the gradient of a bias. */
template <class T>
void add_to_bias(const Bias<T> &to, const Lanes<T> &lanes, const Chunk<T> &c, int panel, int64_t i, int64_t count,
                 const T *rows) {
    constexpr int W = PANEL<T>;
    const int64_t queries = std::min<int64_t>(W, lanes.count - panel * W), keys = std::min(count, c.count - i);
    for (int64_t query = 0; query < queries; query++)
        for (int64_t r = 0; r < keys; r++) *to.at(lanes.first_row + panel * W + query, c.key[i + r]) += rows[r * W + query];
}

/* The rows of one vector, from `lane` of the block on, for key j. */
template <class T> void add_vector_to_bias(const Bias<T> &to, const Lanes<T> &lanes, int64_t lane, int64_t j, const T *rows) {
    for (int64_t i = 0; i < LANES<T> && lane + i < lanes.count; i++) *to.at(lanes.first_row + lane + i, j) += rows[i];
}

/* ROWS keys of a tile: minus infinity where the bias hides. */
template <class T> __attribute__((noinline)) void hide(const T *bias, T *tile) {
    for (int x = 0; x < ROWS * PANEL<T>; x += LANES<T>)
        store(tile + x, load(bias + x) == splat(MASKED<T>) ? splat(MASKED<T>) : load(tile + x));
}

/* logit + bias of ROWS keys, whatever the logit is where the bias hides. */
template <class T> INLINE void add_bias(const T *bias, Vector<T> (&logit)[ROWS][3]) {
    constexpr int L = LANES<T>, W = PANEL<T>;
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < 3; v++) {
            const Vector<T> x = load(bias + r * W + v * L);
            logit[r][v] = x == splat(MASKED<T>) ? x : logit[r][v] + x;
        }
}
