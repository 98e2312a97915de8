/* S and F of a block of queries. */

/* What selection keeps of a block and chunk while the heads go over it: tiles [panel][CHUNK + 1][PANEL]. */
template <class T> struct Selected {
    T *logit; /* of the selecting head or form, base 2, before its bias, F and masks */
    T *bias;  /* of the same, base 2; null if it has none */
    T *f;     /* base 2; one number more than the tile, see below. Written where `masked` says so, and 0 elsewhere. */
    /* Of ROWS keys each: whether some row of the panel, or one before it, may have selected one of them. */
    bool masked[PANELS<T>][(CHUNK + GROUP) / ROWS];

    void take(Arena &m, bool has_bias) {
        for (T **tile : {&logit, &f}) *tile = m.take<T>(PANELS<T> * TILE<T> + 64);
        bias = has_bias ? m.take<T>(PANELS<T> * TILE<T> + 64) : nullptr;
    }
    const T *bias_of(int panel, int64_t i) const { return bias ? bias + panel * TILE<T> + i * PANEL<T> : nullptr; }
    bool is_masked(int panel, int64_t i) const { return masked[panel][i / ROWS]; }
};

/* Whether some logit of ROWS keys is positive, or not a number. */
template <class T> INLINE bool any_selects(const Vector<T> (&logit)[ROWS][3]) {
    Ints<T> is{};
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int v = 0; v < 3; v++) is |= ~(logit[r][v] <= Vector<T>{});
    return any<T>(is);
}

/* The same of logits in a tile, with what is added to them. */
template <class T> __attribute__((noinline)) bool any_selects_with(const T *logit, const T *bias) {
    Ints<T> is{};
    for (int x = 0; x < ROWS * PANEL<T>; x += LANES<T>) is |= ~(load(logit + x) + load(bias + x) <= Vector<T>{});
    return any<T>(is);
}

/* What makes S: the queries of the selecting head or form, packed, and its soft cap in base 2 (0: none). */
template <class T> struct Selector {
    const T *queries;
    int64_t size, padded;
    T cap;
};

/* Lanes whose rows may read key i of the chunk for S and M. `bias`: of that key, or null. */
template <class T>
INLINE Ints<T> counts_for(const Problem &p, const Lanes<T> &lanes, const Chunk<T> &c, const T *bias, int64_t lane, int64_t i) {
    const Ints<T> may = selector_sees(p, lanes, c, lane, i);
    return bias ? may & (load(bias) != splat(MASKED<T>)) : may;
}

/* F of the block's rows for the keys of a chunk: f[i] = F before the block + sum over earlier
 * rows of S, S = strength * relu(logit).
 * `begin` [M] is F at the first row of the block, `end` [M] becomes that of the next block, unless it is null. */
template <class T>
void select(const Problem &p, const Lanes<T> &lanes, const Chunk<T> &c, const Gathered<T> &k, const Selector<T> &by,
            const T *begin, T *end, T *memory, Selected<T> &to) {
    constexpr int L = LANES<T>, W = PANEL<T>;
    const T cap = by.cap, tau = (T)p.tau * LOG2E<T>, strength = (T)p.strength;
    for (int64_t i = 0; i < c.rounded; i += ROWS) {
        T carry[ROWS];
        bool masked = !p.relu; /* without relu a sum may be 0 and its parts not */
        for (int r = 0; r < ROWS; r++) {
            carry[r] = i + r < c.count ? begin[c.key[i + r]] : 0;
            masked = masked || carry[r] != 0;
        }
        for (int panel = 0; panel < PANELS<T>; panel++) {
            T *logit = to.logit + panel * TILE<T> + i * W, *f = to.f + panel * TILE<T> + i * W;
            to.masked[panel][i / ROWS] = masked;
            /* Keys after all of the panel's rows, or a panel of padding. */
            if (c.index[i] > lanes.panel_row_max[panel] || lanes.panel_low_min[panel] > c.index[i + ROWS - 1]) continue;
            Vector<T> sum[ROWS][3];
            times_rows(k.data + i * k.row, k.row, by.queries + panel * by.padded * W, by.size, sum);
            UNROLLED for (int r = 0; r < ROWS; r++)
                UNROLLED for (int v = 0; v < 3; v++) {
                    if (cap) sum[r][v] = capped<T>(sum[r][v], cap);
                    store(logit + r * W + v * L, sum[r][v]);
                }
            const T *bias = to.bias_of(panel, i);
            if (!masked && !(bias ? any_selects_with(logit, bias) : any_selects<T>(sum))) continue;
            to.masked[panel][i / ROWS] = masked = true;
            const bool all = !bias && selector_sees_all(p, lanes, c, panel, i);
            for (int r = 0; r < ROWS; r++) {
                Vector<T> before = splat(carry[r]);
                T *row = f + r * W;
                if (p.shift) row[0] = carry[r];
                for (int v = 0; v < 3; v++) {
                    const int64_t lane = panel * W + v * L;
                    Vector<T> x = load(logit + r * W + v * L);
                    if (bias) x += load(bias + r * W + v * L);
                    Vector<T> s = p.relu ? larger<T>(Vector<T>{}, x) : x; /* in this order NaN stays NaN */
                    s *= strength;
                    if (c.is_protected[i + r])
                        s = Vector<T>{}; /* not times 0: that is NaN where the logit is not finite */
                    else if (!all) {
                        Ints<T> may = counts_for(p, lanes, c, bias ? bias + r * W + v * L : nullptr, lane, i + r);
                        if (protects(p, false, true)) may &= load(lanes.row + lane) != splat(c.index[i + r]);
                        s = may ? s : Vector<T>{};
                    }
                    s = running_sum<T>(s) + before;
                    /* The row before: one number further on. What that writes into the next key's row is overwritten. */
                    store(row + v * L + (p.shift ? 1 : 0), s);
                    before = splat(s[L - 1]);
                }
                carry[r] = before[0];
            }
        }
        if (end && masked)
            for (int r = 0; r < ROWS; r++)
                if (i + r < c.count) end[c.key[i + r]] = carry[r];
    }
    if (!memory) return;
    for (int panel = 0; panel < PANELS<T>; panel++) {
        const Range seen = seen_by(lanes, c, panel);
        for (int v = 0; v < 3; v++) {
            const int64_t lane = panel * W + v * L;
            Vector<T> total{}; /* of this chunk: short sums round less than one long one */
            for (int64_t i = seen.begin; i < seen.end; i++) {
                const Vector<T> f = to.is_masked(panel, i) ? load(to.f + panel * TILE<T> + i * W + v * L) : Vector<T>{};
                const Vector<T> kept = 1 - (f > splat(tau) ? splat(tau) : f) / tau; /* in this order NaN stays NaN */
                const T *bias = to.bias_of(panel, i);
                total += counts_for(p, lanes, c, bias ? bias + v * L : nullptr, lane, i) ? kept : Vector<T>{};
            }
            store(memory + lane, load(memory + lane) + total);
        }
    }
}

/* The selecting head of a block, or its form. */
template <class T> Selector<T> selector(const Problem &p, int64_t b, const T *queries, int64_t d, const T *form_queries) {
    const int64_t h = selecting_head(p, b);
    if (h >= 0) return {queries + h * BLOCK * d, p.D, d, (T)p.softcap * LOG2E<T>};
    return {form_queries, p.form_size, padded_size<T>(p.form_size), (T)p.form_softcap * LOG2E<T>};
}
template <class T>
Gathered<T> selector_keys(const Problem &p, int64_t b, const Chunk<T> &c, int64_t d, T *keys, T *form_keys) {
    const int64_t h = selecting_head(p, b);
    if (h >= 0) return gather(key_of(p)(b, h / (p.H / p.G)), c.key, c.count, d, keys);
    return gather(form_key_of(p)(b, 0), c.key, c.count, padded_size<T>(p.form_size), form_keys);
}
template <class T> void fill_selector_bias(const Problem &p, int64_t b, const Lanes<T> &lanes, const Chunk<T> &c, Selected<T> &to) {
    for (int panel = 0; to.bias && panel < PANELS<T>; panel++)
        fill_bias(selector_bias<T>(p, b), lanes, c, panel, {0, c.rounded}, to.bias + panel * TILE<T>);
}
