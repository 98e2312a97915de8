/* Products over what is seen, in which nothing else matters.
 *
 * In a tile what a row does not see has weight 0, and 0 * NaN is NaN: padding, another document or a later token that is not
 * finite would reach the row. Keeping it out costs more than the product itself, so a pass does without, and where a result is
 * not finite it is done again with these. What a row sees counts as it is: a NaN comes out as NaN.
 */

/* What takes keys of a chunk away from a head or form: the rows from which they are gone, and tiles of its bias, or null. */
template <class T> struct Hidden {
    const T *until, *bias;
};

/* add_columns_times for one panel of queries: c[d][query] += sum over the keys of the chunk that it sees of a[key][d]
 * tile[key][query]. */
template <class T>
void add_seen_keys(const Lanes<T> &lanes, const Chunk<T> &c, int panel, Range range, const Gathered<T> &a, const T *tile,
                   Hidden<T> by, T *to, int64_t size) {
    constexpr int L = LANES<T>, W = PANEL<T>;
    for (int64_t i = range.begin; i < range.end; i++)
        for (int v = 0; v < 3; v++) {
            const Vector<T> row = load(lanes.row + panel * W + v * L), key = splat(c.index[i]);
            Ints<T> may = (load(lanes.low + panel * W + v * L) <= key) & (key <= row) & (row < splat(by.until[i]));
            if (by.bias) may &= load(by.bias + panel * TILE<T> + i * W + v * L) != splat(MASKED<T>);
            if (!any<T>(may)) continue;
            const Vector<T> weight = load(tile + i * W + v * L);
            for (int64_t d = 0; d < size; d++) {
                T *at = to + d * W + v * L;
                store(at, load(at) + (may ? weight * a.data[i * a.row + d] : Vector<T>{}));
            }
        }
}

/* add_tile_times for one key: c[.] += sum over the rows of the block that see it of tile[key][row] rows[row][.]. */
template <class T>
void add_seen_rows(const Lanes<T> &lanes, const Chunk<T> &c, int64_t key, const T *tile, Hidden<T> by, const T *rows,
                   int64_t rows_row, T *to, int64_t size) {
    constexpr int W = PANEL<T>;
    for (int64_t i = 0; i < lanes.count; i++) {
        if (!(lanes.low[i] <= c.index[key] && c.index[key] <= lanes.row[i] && lanes.row[i] < by.until[key])) continue;
        const int64_t at = i / W * TILE<T> + key * W + i % W;
        if (by.bias && by.bias[at] == MASKED<T>) continue;
        const T weight = tile[at];
        for (int64_t d = 0; d < size; d++) to[d] += weight * rows[i * rows_row + d];
    }
}

/* Whether all numbers of a panel [size][PANEL] are finite. */
template <class T> bool is_finite(const T *panel, int64_t size) {
    constexpr int L = LANES<T>, W = PANEL<T>;
    Vector<T> sum[3] = {};
    for (int64_t d = 0; d < size; d++)
        for (int v = 0; v < 3; v++) sum[v] += load(panel + d * W + v * L) * 0; /* NaN, if it is not */
    sum[0] += sum[1] + sum[2];
    return !any<T>(sum[0] != sum[0]);
}

/* Whether key j is no padding and not gone for the heads. */
INLINE bool is_visible(const Problem &p, int64_t b, int64_t j, int64_t row) {
    return !(p.start && p.start[b * p.M + j] > j) && !(p.until && p.until[b * p.M + j] <= row);
}

/* Whether a row of the block sees anything at all, for head h. */
template <class T> bool sees_something(const Problem &p, int64_t b, int64_t h, const Lanes<T> &lanes, int64_t i) {
    const int64_t row = p.M - p.N + lanes.first_row + i;
    const Bias<T> bias = head_bias<T>(p, b, h);
    for (int64_t j = row; j >= 0 && lanes.low[i] <= (T)j; j--)
        if (is_visible(p, b, j, row) && !bias.hides(lanes.first_row + i, j)) return true;
    return false;
}
