/* A block of queries: which rows it has, what they see, and which keys are alive for it. */

template <class T> constexpr T MASKED = -std::numeric_limits<T>::infinity();
template <class T> constexpr T LOG2E = (T)1.4426950408889634074;

/* What the rows of a block see: key j if low[i] <= j <= row[i] (and row[i] < until[j]). */
template <class T> struct Lanes {
    T low[BLOCK], row[BLOCK];
    T panel_low_max[BLOCK], panel_row_min[BLOCK], panel_row_max[BLOCK], panel_low_min[BLOCK];
    int64_t first_row, count; /* of queries */
    int64_t first_key, end_key; /* keys that some row sees: first_key <= j < end_key */
};

/* Where the window of a row begins: it holds `window` tokens, the row's own included, and padding does not count. Rows are
 * given in ascending order. */
struct Window {
    const Problem &p;
    const int64_t b;
    int64_t first, tokens = 0; /* the tokens from `first` to the row */
    Window(const Problem &p, int64_t b, int64_t row) : p(p), b(b), first(p.window ? row : 0) {
        while (first > 0 && tokens < p.window - 1) tokens += real(--first);
    }
    bool real(int64_t j) const { return !p.start || p.start[b * p.M + j] < p.M; }
    int64_t begin(int64_t row) {
        if (!p.window) return 0;
        tokens += real(row);
        while (tokens > p.window) tokens -= real(first++);
        return first;
    }
};

template <class T> void fill_lanes(const Problem &p, int64_t b, int64_t block, Lanes<T> &lanes) {
    constexpr int W = PANEL<T>;
    const T never = std::numeric_limits<T>::max();
    const int64_t offset = p.M - p.N;
    lanes.first_row = block * BLOCK;
    lanes.count = std::min<int64_t>(BLOCK, p.N - lanes.first_row);
    lanes.first_key = p.M, lanes.end_key = offset + lanes.first_row + lanes.count;
    Window window(p, b, offset + lanes.first_row);
    for (int64_t i = 0; i < BLOCK; i++) {
        const int64_t row = offset + lanes.first_row + i;
        int64_t low = p.start && i < lanes.count ? p.start[b * p.M + row] : 0;
        if (i < lanes.count) low = std::max(low, window.begin(row)); /* a start below 0: the first token is gone */
        const bool real = i < lanes.count && low <= row;
        lanes.row[i] = (T)row, lanes.low[i] = real ? (T)low : never;
        if (real) lanes.first_key = std::min(lanes.first_key, low);
    }
    for (int panel = 0; panel < PANELS<T>; panel++) {
        const T *low = lanes.low + panel * W, *row = lanes.row + panel * W;
        lanes.panel_low_max[panel] = *std::max_element(low, low + W),
        lanes.panel_low_min[panel] = *std::min_element(low, low + W);
        lanes.panel_row_min[panel] = row[0], lanes.panel_row_max[panel] = row[W - 1];
    }
}

/* Whether key j is there for a block: no padding, and not gone before its first row, for the heads or for the form. */
INLINE bool is_there(const Problem &p, int64_t b, int64_t j, int64_t first_row) {
    if (p.start && p.start[b * p.M + j] > j) return false;
    return !(p.until && p.until[b * p.M + j] <= first_row) || (p.form_until && p.form_until[b * p.M + j] > first_row);
}

/* Keys of one chunk, ascending, and what is known of them. Room for the rounding up to whole groups. */
template <class T> struct Chunk {
    int32_t key[CHUNK + GROUP];
    T index[CHUNK + GROUP], until[CHUNK + GROUP], form_until[CHUNK + GROUP]; /* form_until: if the problem has one */
    bool is_protected[CHUNK + GROUP]; /* the first key of a sequence, where it is protected: nobody selects it */
    int64_t count, rounded;
    bool evicts, form_evicts; /* some row of the block sees one of the keys no longer */
};

template <class T> void finish_chunk(const Problem &p, int64_t b, const Lanes<T> &lanes, Chunk<T> &c) {
    c.rounded = (c.count + GROUP - 1) / GROUP * GROUP;
    c.evicts = c.form_evicts = false;
    const T last_row = lanes.row[lanes.count - 1];
    for (int64_t i = 0; i < c.rounded; i++) {
        const bool real = i < c.count;
        const int64_t j = real ? c.key[i] : 0;
        c.index[i] = real ? (T)j : std::numeric_limits<T>::max(); /* no row sees a key beyond all */
        c.until[i] = real && p.until ? (T)p.until[b * p.M + j] : std::numeric_limits<T>::max();
        c.evicts = c.evicts || c.until[i] <= last_row;
        if (p.form_until) {
            c.form_until[i] = real ? (T)p.form_until[b * p.M + j] : std::numeric_limits<T>::max();
            c.form_evicts = c.form_evicts || c.form_until[i] <= last_row;
        }
        const bool first = p.start ? p.start[b * p.M + j] == j : j == 0;
        c.is_protected[i] = protects(p, first, false);
    }
}

/* The blocks of a strip take turns with each key-value head, and each turn goes over the heads that share it. */
struct Turn {
    int64_t number, head;
};
INLINE Turn turn_after(const Problem &p, Turn now, int64_t turns) {
    const int64_t shared = p.H / p.G, next = now.head + 1;
    if (next % shared) return {now.number, next};
    if (now.number + 1 < turns) return {now.number + 1, next - shared};
    return {0, next % p.H};
}

/* The lookahead of key-value head g, in keys: after the last head, head 0 goes on with the keys behind the
 * chunk, if there are enough. */
template <class T> int64_t lookahead(const Problem &p, int64_t g, const Chunk<T> &c) {
    return g < p.G || c.key[0] + 2 * c.count > p.M ? 0 : c.count;
}
/* Keys (or values) of key-value head g, where they need not be gathered. */
template <class T>
void prefetch_keys(Prefetch &prefetch, const Problem &p, const Rows &x, int64_t b, int64_t g, const Chunk<T> &c,
                   int64_t padded) {
    const Gathered<T> found = neighbors<T>(x(b, g % p.G), c.key, c.count, padded);
    if (found.data) prefetch.share_of_rows(found.data + lookahead(p, g, c) * found.row, found.row, padded, c.count);
}

/* The groups of a chunk that a panel sees: begin <= i < end, multiples of ROWS. */
struct Range {
    int64_t begin, end;
};
template <class T> Range seen_by(const Lanes<T> &lanes, const Chunk<T> &c, int panel) {
    const T *from = std::lower_bound(c.index, c.index + c.count, lanes.panel_low_min[panel]);
    const T *to = std::upper_bound(from, c.index + c.count, lanes.panel_row_max[panel]);
    if (from == to) return {0, 0};
    return {(from - c.index) / ROWS * ROWS, (to - c.index + ROWS - 1) / ROWS * ROWS};
}

/* Whether every row of the panel sees all the ROWS keys from i on, and none of them is its own. */
template <class T> INLINE bool sees_all(const Lanes<T> &lanes, const Chunk<T> &c, int panel, int64_t i) {
    return !c.evicts && c.index[i] >= lanes.panel_low_max[panel] && c.index[i + ROWS - 1] < lanes.panel_row_min[panel];
}

/* Lanes that see key i of the chunk. */
template <class T> INLINE Ints<T> sees(const Lanes<T> &lanes, const Chunk<T> &c, int64_t lane, int64_t i) {
    const Vector<T> low = load(lanes.low + lane), row = load(lanes.row + lane), key = splat(c.index[i]);
    return (low <= key) & (key <= row) & (row < splat(c.until[i]));
}

/* A logit in base 2, from the product with queries that were packed with scale * log2(e). */
template <class T> INLINE Vector<T> capped(Vector<T> x, T cap) {
    /* cap * tanh(x / cap), in base 2: tanh(y) = (1 - e) / (1 + e) with e = e^-2|y|, the sign taken out. For a small y, where
     * 1 - e would lose what x has of digits, Lambert's fraction for tanh(y) / y: to 2e-16 where y < 1/2. */
    const Vector<T> size = x < 0 ? -x : x, y = size / cap, z = y * y;
    const auto small = y < splat<T>((T)0.5);
    const Vector<T> e = exp2_of(y * (-2 * LOG2E<T>));
    const Vector<T> above = size * (135135 + z * (17325 + z * (378 + z))), below = 135135 + z * (62370 + z * (3150 + z * 28));
    const Vector<T> found = (small ? above : cap * (1 - e)) / (small ? below : 1 + e);
    return x < 0 ? -found : found;
}

/* The same of what makes S: the form may see keys that are gone for the heads, and the other way round. */
template <class T>
INLINE Ints<T> selector_sees(const Problem &p, const Lanes<T> &lanes, const Chunk<T> &c, int64_t lane, int64_t i) {
    if (!p.form_until) return sees(lanes, c, lane, i);
    const Vector<T> low = load(lanes.low + lane), row = load(lanes.row + lane), key = splat(c.index[i]);
    return (low <= key) & (key <= row) & (row < splat(c.form_until[i]));
}
template <class T>
INLINE bool selector_sees_all(const Problem &p, const Lanes<T> &lanes, const Chunk<T> &c, int panel, int64_t i) {
    if (!p.form_until) return sees_all(lanes, c, panel, i);
    return !c.form_evicts && c.index[i] >= lanes.panel_low_max[panel] && c.index[i + ROWS - 1] < lanes.panel_row_min[panel];
}

/* Numbers of one panel of a tile. */
template <class T> constexpr int64_t TILE = (CHUNK + 1) * PANEL<T>;
