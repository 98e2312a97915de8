/* The three matrix products of a tile, in registers.
 *
 * A tile lies with its queries in the lanes: [panel][key][query in the panel]. So the logits, K Q^T, need no packing of K,
 * the softmax of a query stays in its lane, and the tile is at once the packed operand of the next product.
 */

/* sum[r][.] = sum over k of a[r][k] b[k][.]: keys by queries, over the head size. Rows of `a` are keys. */
template <class T> INLINE void times_rows(const T *a, int64_t a_row, const T *b, int64_t n, Vector<T> (&sum)[ROWS][3]) {
    constexpr int L = LANES<T>;
    for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = sum[r][2] = Vector<T>{};
    for (int64_t k = 0; k < n; k++, b += 3 * L) {
        const Vector<T> b0 = load(b), b1 = load(b + L), b2 = load(b + 2 * L);
        for (int r = 0; r < ROWS; r++) {
            const T x = a[r * a_row + k];
            sum[r][0] += x * b0, sum[r][1] += x * b1, sum[r][2] += x * b2;
        }
    }
}

/* c[d][.] += sum over k of a[k][d] b[k][.] for all d < size: features by queries, over the keys. size: a multiple of ROWS. */
template <class T> void add_columns_times(const T *a, int64_t a_row, const T *b, int64_t n, T *c, int64_t size) {
    constexpr int L = LANES<T>;
    for (int64_t d = 0; d < size; d += ROWS) {
        T *out = c + d * 3 * L;
        Vector<T> sum[ROWS][3];
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < 3; i++) sum[r][i] = load(out + (3 * r + i) * L);
        const T *ak = a + d, *bk = b;
        for (int64_t k = 0; k < n; k++, ak += a_row, bk += 3 * L) {
            const Vector<T> b0 = load(bk), b1 = load(bk + L), b2 = load(bk + 2 * L);
            for (int r = 0; r < ROWS; r++) {
                const T x = ak[r];
                sum[r][0] += x * b0, sum[r][1] += x * b1, sum[r][2] += x * b2;
            }
        }
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < 3; i++) store(out + (3 * r + i) * L, sum[r][i]);
    }
}

/* c[key][.] += sum over queries of tile[key][query] b[query][.], for KEY_ROWS keys and all `size` features.
 * The queries are those of panels first..last; a panel of the tile is `panel_size` numbers away from the next. */
template <class T>
void add_tile_times(const T *tile, int64_t panel_size, int first, int last, const T *b, int64_t b_row, T *c, int64_t c_row,
                    int64_t size) {
    constexpr int L = LANES<T>, W = PANEL<T>;
    for (int64_t d = 0; d < size; d += 2 * L) {
        Vector<T> sum[KEY_ROWS][2];
        for (int r = 0; r < KEY_ROWS; r++) sum[r][0] = load(c + r * c_row + d), sum[r][1] = load(c + r * c_row + d + L);
        for (int p = first; p < last; p++) {
            const T *a = tile + p * panel_size, *bk = b + p * W * b_row + d;
            for (int k = 0; k < W; k++, bk += b_row) {
                const Vector<T> b0 = load(bk), b1 = load(bk + L);
                for (int r = 0; r < KEY_ROWS; r++) {
                    const T x = a[r * W + k];
                    sum[r][0] += x * b0, sum[r][1] += x * b1;
                }
            }
        }
        for (int r = 0; r < KEY_ROWS; r++) store(c + r * c_row + d, sum[r][0]), store(c + r * c_row + d + L, sum[r][1]);
    }
}
