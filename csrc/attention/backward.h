/* The backward pass: gradients of query, key and value, of the selecting form and of biases.
 *
 * With P the weights, dP = dO V^T and delta = rowsum(dO * O), for each head h
 *     dA^h = P^h (dP^h - delta^h)
 *     dF   = - sum over h of dA^h - (dM_i / tau where F <= tau)
 *     dS[k, j] = sum over i > k of dF[i, j],  and  dA of the selecting head += strength * dS where its logit is positive
 *     dQ = scale dA K,  dK = scale dA^T Q,  dV = P^T dO
 * Blocks of queries go from the last to the first, because dS is a sum over later rows; the sum over later blocks is kept
 * for each column. The selecting head's dA is deferred until all heads are done; a form's is dS alone. Every dA here is
 * d_scale * dA, with the scale of the logits as d_scale unless others than query and key need it.
 * The blocks of a strip go over a chunk of keys together, head by head.
 */
template <class T> struct BackwardPanel { /* one panel of one head over a chunk */
    const Lanes<T> &lanes;
    const Chunk<T> &chunk;
    int panel;
    const T *queries, *d_outputs, *lse, *delta;
    const T *known, *f; /* tiles: logits, where they are known, and F */
    T *df, *weights, *da;
    const T *bias;  /* a tile, or null */
    Bias<T> d_bias; /* of the caller */
};

/* ROWS keys of a panel: weights and dA into their tiles, and dF. Where F is 0 for all rows, no row before has selected the
 * key, so that dF is not needed. (Or the logit was so near 0 that strength times it is no number above 0.) */
template <bool MASKED_BY_F, bool ALL, class T>
void differentiate_group(const Problem &p, const BackwardPanel<T> &a, int64_t i, const T *k, int64_t k_row, const T *v,
                         int64_t v_row) {
    constexpr int L = LANES<T>, W = PANEL<T>;
    const T cap = (T)p.softcap * LOG2E<T>;
    Vector<T> sum[ROWS][3], slope[ROWS][3], lse[3], delta[3];
    for (int x = 0; x < 3; x++) lse[x] = load(a.lse + x * L), delta[x] = load(a.delta + x * L);
    const bool is_capped = p.softcap && !a.known;
    if (a.known) {
        for (int r = 0; r < ROWS; r++)
            for (int x = 0; x < 3; x++) sum[r][x] = load(a.known + (i + r) * W + x * L);
    } else
        times_rows(k, k_row, a.queries, p.D, sum);
    if (is_capped)
        for (int r = 0; r < ROWS; r++)
            for (int x = 0; x < 3; x++) {
                sum[r][x] = capped<T>(sum[r][x], cap);
                slope[r][x] = 1 - (sum[r][x] / cap) * (sum[r][x] / cap);
            }
    if (a.bias) add_bias(a.bias + i * W, sum);
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int x = 0; x < 3; x++) {
            Vector<T> y = sum[r][x] - lse[x];
            if (MASKED_BY_F) y -= load(a.f + (i + r) * W + x * L);
            y = exp2_of(y);
            if (!ALL) y = sees(a.lanes, a.chunk, a.panel * W + x * L, i + r) ? y : Vector<T>{};
            if (a.bias) y = load(a.bias + (i + r) * W + x * L) == splat(MASKED<T>) ? Vector<T>{} : y;
            store(a.weights + (i + r) * W + x * L, y);
        }
    times_rows(v, v_row, a.d_outputs, p.Dv, sum);
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int x = 0; x < 3; x++) {
            const int64_t at = (i + r) * W + x * L;
            Vector<T> y = load(a.weights + at) * (sum[r][x] - delta[x]);
            if (!ALL) y = sees(a.lanes, a.chunk, a.panel * W + x * L, i + r) ? y : Vector<T>{};
            if (a.bias) y = load(a.bias + at) == splat(MASKED<T>) ? Vector<T>{} : y;
            if (MASKED_BY_F) store(a.df + at, load(a.df + at) - y);
            store(a.da + at, y);
        }
    if (a.d_bias.data && !a.known) add_to_bias(a.d_bias, a.lanes, a.chunk, a.panel, i, ROWS, a.da + i * W);
    if (is_capped)
        for (int r = 0; r < ROWS; r++)
            for (int x = 0; x < 3; x++) store(a.da + (i + r) * W + x * L, load(a.da + (i + r) * W + x * L) * slope[r][x]);
}

/* sum over the keys of a chunk of tile^T keys, added to the gradients of a panel's queries. */
template <class T>
void add_to_queries(const BackwardBlock<T> &a, const T *tile, Hidden<T> by, int panel, Range seen, const Gathered<T> &k, T *to, int64_t d) {
    if (a.exact_masking)
        add_seen_keys(a.lanes, a.chunk, panel, seen, k, tile, by, to, d);
    else
        add_columns_times(k.data + seen.begin * k.row, k.row, tile + seen.begin * PANEL<T>, seen.end - seen.begin, to, d);
}

/* One panel of one head: weights and dA into their tiles, dF and dQ. */
template <class T>
void differentiate_panel(const Problem &p, const BackwardStrip<T> &own, BackwardBlock<T> &a, int64_t b, int64_t h, int panel, const Gathered<T> &k,
                         const Gathered<T> &v, Prefetch &prefetch, int64_t d, int64_t dv_size) {
    constexpr int W = PANEL<T>;
    const Range seen = seen_by(a.lanes, a.chunk, panel);
    const bool defers = p.selects && h == selecting_head(p, b);
    const int64_t at = h * BLOCK + panel * W, tile = panel * TILE<T>;
    const BackwardPanel<T> one{a.lanes, a.chunk, panel, a.queries + at * d, a.d_outputs + at * dv_size, a.lse + at, a.delta + at,
                           defers ? a.selected.logit + tile : nullptr, a.selected.f + tile, a.df + tile, own.weights + tile,
                           (defers ? a.first_da : own.da) + tile, defers ? a.selected.bias_of(panel, 0) : own.bias ? own.bias + tile : nullptr, d_head_bias<T>(p, b, h)};
    for (T *each : {one.weights, one.da}) { /* the products over queries read whole chunks */
        std::fill(each, each + seen.begin * W, (T)0);
        std::fill(each + seen.end * W, each + a.chunk.rounded * W, (T)0);
    }
    if (seen.begin == seen.end) return;
    if (own.bias && !defers) fill_bias(head_bias<T>(p, b, h), a.lanes, a.chunk, panel, seen, own.bias + tile);
    for (int64_t i = seen.begin; i < seen.end; i += ROWS) {
        prefetch.issue();
        const bool masked = p.selects && a.selected.is_masked(panel, i), all = sees_all(a.lanes, a.chunk, panel, i);
        const auto group = masked ? (all ? differentiate_group<true, true, T> : differentiate_group<true, false, T>)
                                  : (all ? differentiate_group<false, true, T> : differentiate_group<false, false, T>);
        group(p, one, i, k.data + i * k.row, k.row, v.data + i * v.row, v.row);
    }
    if (!defers) add_to_queries(a, one.da, {a.chunk.until, defers ? a.selected.bias : own.bias}, panel, seen, k, a.d_queries + at * d, d);
}

/* Whether the gradients of a chunk's keys lie side by side, as the products want them. */
template <class T> bool adds_in_place(const Chunk<T> &c, int64_t size, int64_t padded) {
    return size == padded && c.count == c.rounded && c.key[c.count - 1] - c.key[0] == c.count - 1;
}

/* sum over the queries of tile^T rows, added to the gradient of a chunk's keys (or values). */
template <class T>
void add_to_keys(const BackwardBlock<T> &a, const T *tile, Hidden<T> by, const T *rows, int64_t rows_row, T *scratch, int64_t padded, T *to, int64_t size) {
    const Chunk<T> &c = a.chunk;
    const bool direct = adds_in_place(c, size, padded);
    T *sums = direct ? to + c.key[0] * size : scratch;
    if (!direct) std::fill_n(scratch, c.rounded * padded, (T)0);
    if (a.exact_masking)
        for (int64_t i = 0; i < c.count; i++) add_seen_rows(a.lanes, c, i, tile, by, rows, rows_row, sums + i * padded, padded);
    for (int64_t i = 0; i < c.rounded && !a.exact_masking; i += KEY_ROWS) {
        int first = 0; /* panels before it have no row after these keys */
        while (first < PANELS<T> && a.lanes.panel_row_max[first] < c.index[i]) first++;
        add_tile_times(tile + i * PANEL<T>, TILE<T>, first, PANELS<T>, rows, rows_row, sums + i * padded, padded, padded);
    }
    if (direct) return;
    for (int64_t i = 0; i < c.count; i++)
        for (int64_t d = 0; d < size; d++) to[c.key[i] * size + d] += scratch[i * padded + d];
}

/* What selection adds to the selecting head's dA, and the soft cap's slope. `later` [M] is the sum of dF over later blocks, and
 * is moved on, where it is needed. */
template <class T> void select_backward(const Problem &p, BackwardBlock<T> &a, int64_t b, T *scratch, T *later) {
    constexpr int L = LANES<T>, W = PANEL<T>;
    const Chunk<T> &c = a.chunk;
    const T tau = (T)p.tau * LOG2E<T>, cap = (T)(has_form(p) ? p.form_softcap : p.softcap) * LOG2E<T>;
    const Bias<T> d_bias = d_selector_bias<T>(p, b);
    T *sums = scratch + 1; /* sums[x]: of the rows from x on; one more at the end, and room for one before */
    for (int64_t i = 0; i < c.count; i++) {
        T carry = later[c.key[i]];
        for (int panel = PANELS<T> - 1; panel >= 0; panel--) {
            if (c.index[i] > a.lanes.panel_row_max[panel]) break; /* after this panel's rows, and all before */
            const bool masked = a.selected.is_masked(panel, i);
            if (!masked && !cap && !d_bias.data) break; /* these rows have not selected the key, nor has any before */
            const T *df = a.df + panel * TILE<T> + i * W, *logit = a.selected.logit + panel * TILE<T> + i * W;
            const T *f = a.selected.f + panel * TILE<T> + i * W;
            const T *bias = a.selected.bias_of(panel, i);
            T *da = a.first_da + panel * TILE<T> + i * W;
            const bool all = !bias && selector_sees_all(p, a.lanes, c, panel, i / ROWS * ROWS);
            const auto seen = [&](int x) {
                return all ? (Ints<T>{} == 0) : counts_for(p, a.lanes, c, bias ? bias + x * L : nullptr, panel * W + x * L, i);
            };
            sums[W] = carry;
            for (int x = 2; masked && x >= 0; x--) {
                const int64_t lane = panel * W + x * L;
                const Ints<T> visible = seen(x);
                Vector<T> y = load(df + x * L);
                if (p.d_memory) {
                    const Vector<T> pull = load(a.d_memory + lane) * (T)(p.d_scale / p.tau);
                    y -= visible & (load(f + x * L) <= splat(tau)) ? pull : Vector<T>{};
                }
                y = reverse_running_sum<T>(y) + carry;
                store(sums + x * L, y);
                carry = y[0];
            }
            for (int x = 0; x < 3; x++) {
                const int64_t lane = panel * W + x * L;
                Ints<T> may = seen(x);
                /* Where a row does not see the key, the tile may hold anything. */
                const Vector<T> y = may ? load(logit + x * L) : Vector<T>{};
                Vector<T> found = load(da + x * L);
                if (masked && !c.is_protected[i]) {
                    if (!all && protects(p, false, true)) may &= load(a.lanes.row + lane) != splat(c.index[i]);
                    if (p.relu) may &= (bias ? y + load(bias + x * L) : y) > Vector<T>{};
                    found += may ? load(sums + x * L + (p.shift ? 1 : 0)) * (T)p.strength : Vector<T>{};
                }
                if (d_bias.data) store(da + x * L, found), add_vector_to_bias(d_bias, a.lanes, lane, c.key[i], da + x * L);
                if (cap) found *= 1 - (y / cap) * (y / cap);
                store(da + x * L, found);
            }
        }
        later[c.key[i]] = carry;
    }
}

/* The rows of a block as the products over queries take them: in place where that can be, else in `buffer`. */
template <class T>
Gathered<T> rows_of(const HeadRows &x, const Lanes<T> &lanes, int64_t padded, T *buffer) {
    const T *found = lanes.count == BLOCK ? in_place<T>(x, lanes.first_row, padded) : nullptr;
    if (found) return {found, x.stride};
    pack_rows(x, lanes.first_row, lanes.count, padded, buffer);
    return {buffer, padded};
}

/* F of a chunk for one block, from what the forward pass left. */
template <class T> void recompute_f(const Problem &p, BackwardBlock<T> &a, const BackwardStrip<T> &own, int64_t b, int64_t block, int64_t d) {
    const Chunk<T> &c = a.chunk;
    fill_selector_bias(p, b, a.lanes, c, a.selected);
    const T *begin = (const T *)p.block_f + (b * block_count(p) + block) * p.M;
    select(p, a.lanes, c, selector_keys(p, b, c, d, own.keys, own.form_keys), selector(p, b, a.queries, d, a.form_queries), begin,
           (T *)nullptr, (T *)nullptr, a.selected);
    for (int panel = 0; a.form_queries && panel < PANELS<T>; panel++)
        std::fill_n(a.first_da + panel * TILE<T>, c.rounded * PANEL<T>, (T)0);
    for (int panel = 0; panel < PANELS<T>; panel++)
        for (int64_t i = 0; i < c.rounded; i += ROWS)
            if (a.selected.is_masked(panel, i)) std::fill_n(a.df + panel * TILE<T> + i * PANEL<T>, ROWS * PANEL<T>, (T)0);
}

/* What is read after head h of key-value head g and block s: the blocks come from the last to the first. */
template <class T>
Prefetch prefetch_backward(const Problem &p, const BackwardStrip<T> &own, int64_t b, int64_t g, int64_t s, int64_t blocks, int64_t h,
                   int64_t d, int64_t dv_size) {
    const Rows q = query_of(p), k = key_of(p), v = value_of(p);
    const Rows d_out = d_output_of(p);
    const int64_t shared = p.H / p.G;
    const Chunk<T> &c = own.blocks[s].chunk;
    Prefetch prefetch((blocks - 1 - s) * shared + h - g * shared, blocks * shared, PANELS<T> * c.rounded / ROWS);
    prefetch_keys(prefetch, p, k, b, g + 1, c, d), prefetch_keys(prefetch, p, v, b, g + 1, c, dv_size);
    if (adds_in_place(c, p.D, d) && adds_in_place(c, p.Dv, dv_size)) {
        const int64_t first = (b * p.G + (g + 1) % p.G) * p.M + c.key[0] + lookahead(p, g + 1, c);
        prefetch.share_of_rows((const T *)p.dk + first * d, d, d, c.count);
        prefetch.share_of_rows((const T *)p.dv + first * dv_size, dv_size, dv_size, c.count);
    }
    const Turn then = turn_after(p, {blocks - 1 - s, h}, blocks);
    const BackwardBlock<T> &after = own.blocks[blocks - 1 - then.number];
    const int64_t at = then.head * BLOCK;
    prefetch.numbers(after.queries + at * d, BLOCK * d), prefetch.numbers(after.d_queries + at * d, BLOCK * d);
    prefetch.numbers(after.d_outputs + at * dv_size, BLOCK * dv_size);
    if (after.lanes.count == BLOCK) {
        prefetch.rows(in_place<T>(q(b, then.head), after.lanes.first_row, d), q.stride[2], d, BLOCK);
        prefetch.rows(in_place<T>(d_out(b, then.head), after.lanes.first_row, dv_size), d_out.stride[2], dv_size, BLOCK);
    }
    return prefetch;
}

/* All heads of key-value head g over a chunk, for block s. */
template <class T> void differentiate(const Problem &p, BackwardStrip<T> &own, int64_t b, int64_t g, int64_t s, int64_t blocks,
                                      int64_t d, int64_t dv_size) {
    const Rows q = query_of(p), k = key_of(p), v = value_of(p);
    const Rows d_out = d_output_of(p);
    const int64_t shared = p.H / p.G;
    BackwardBlock<T> &a = own.blocks[s];
    const Chunk<T> &c = a.chunk;
    const Gathered<T> keys = gather(k(b, g), c.key, c.count, d, own.keys);
    const Gathered<T> values = gather(v(b, g), c.key, c.count, dv_size, own.values);
    for (int64_t h = g * shared; h < (g + 1) * shared; h++) {
        Prefetch prefetch = prefetch_backward(p, own, b, g, s, blocks, h, d, dv_size);
        for (int panel = 0; panel < PANELS<T>; panel++) differentiate_panel(p, own, a, b, h, panel, keys, values, prefetch, d, dv_size);
        const Gathered<T> out_rows = rows_of(d_out(b, h), a.lanes, dv_size, own.d_output_rows);
        const bool defers = p.selects && h == selecting_head(p, b);
        const Hidden<T> by{c.until, defers ? a.selected.bias : own.bias};
        add_to_keys(a, own.weights, by, out_rows.data, out_rows.row, own.dv, dv_size, (T *)p.dv + (b * p.G + g) * p.M * p.Dv, p.Dv);
        if (defers) continue;
        const Gathered<T> query_rows = rows_of(q(b, h), a.lanes, d, own.query_rows);
        add_to_keys(a, own.da, by, query_rows.data, query_rows.row, own.dk, d, (T *)p.dk + (b * p.G + g) * p.M * p.D, p.D);
    }
}

/* The dA of the selecting head, complete at last, or of the form: its dQ and dK. */
template <class T> void finish_selecting(const Problem &p, BackwardStrip<T> &own, BackwardBlock<T> &a, int64_t b, int64_t d) {
    const Chunk<T> &c = a.chunk;
    const int64_t h = selecting_head(p, b), g = h / (p.H / p.G), size = h < 0 ? p.form_size : p.D;
    const int64_t padded = h < 0 ? padded_size<T>(size) : d;
    const Gathered<T> keys = selector_keys(p, b, c, d, own.keys, own.form_keys);
    const Hidden<T> by{p.form_until ? c.form_until : c.until, a.selected.bias};
    T *d_queries = h < 0 ? a.d_form_queries : a.d_queries + h * BLOCK * d;
    for (int panel = 0; panel < PANELS<T>; panel++) {
        const Range seen = seen_by(a.lanes, c, panel);
        if (seen.begin < seen.end)
            add_to_queries(a, a.first_da + panel * TILE<T>, by, panel, seen, keys,
                           d_queries + panel * PANEL<T> * padded, padded);
    }
    const HeadRows queries = h < 0 ? form_query_of(p)(b, 0) : query_of(p)(b, h);
    const Gathered<T> rows = rows_of(queries, a.lanes, padded, h < 0 ? own.form_rows : own.query_rows);
    T *to = h < 0 ? (T *)p.d_form_key + b * p.M * size : (T *)p.dk + (b * p.G + g) * p.M * size;
    add_to_keys(a, a.first_da, by, rows.data, rows.row, h < 0 ? own.d_form : own.dk, padded, to, size);
}

/* Whether key j lives for a block. */
INLINE bool is_living(const Problem &p, int64_t b, int64_t block, int64_t j) {
    return p.dead[b * p.M + j] > block && is_there(p, b, j, p.M - p.N + block * BLOCK);
}

/* A chunk of `count` keys of the strip: those of each block, which come in the order of the rows, from the last to the first. */
template <class T> void backward_chunk(const Problem &p, BackwardStrip<T> &own, const int32_t *living, int64_t count, int64_t b,
                                       int64_t first, int64_t blocks, T *later, int64_t d, int64_t dv_size) {
    for (int64_t s = 0; s < blocks; s++) {
        BackwardBlock<T> &a = own.blocks[s];
        a.chunk.count = 0;
        for (int64_t i = 0; i < count; i++)
            if (living[i] >= a.lanes.first_key && living[i] < a.lanes.end_key && is_living(p, b, first + s, living[i]))
                a.chunk.key[a.chunk.count++] = living[i];
        finish_chunk(p, b, a.lanes, a.chunk);
        if (a.chunk.count && p.selects) recompute_f(p, a, own, b, first + s, d);
    }
    for (int64_t g = 0; g < p.G; g++)
        for (int64_t s = blocks - 1; s >= 0; s--)
            if (own.blocks[s].chunk.count) differentiate(p, own, b, g, s, blocks, d, dv_size);
    for (int64_t s = blocks - 1; s >= 0 && p.selects; s--) {
        if (!own.blocks[s].chunk.count) continue;
        select_backward(p, own.blocks[s], b, own.later, later);
        finish_selecting(p, own, own.blocks[s], b, d);
    }
}

template <class T> void backward_strip(const Problem &p, BackwardStrip<T> &own, Progress &progress, T *d_f_later, const Strips &strips,
                                       int64_t unit, int64_t d, int64_t dv_size, int threads) {
    const int64_t b = unit % p.B, number = strips.count - 1 - unit / p.B, first = number * strips.size;
    const int64_t blocks = std::min(strips.size, block_count(p) - first), unit_before = unit >= p.B ? unit - p.B : -1;
    int64_t first_key = p.M;
    for (int64_t s = 0; s < blocks; s++) {
        begin_block(p, own.blocks[s], b, first + s, d, dv_size);
        first_key = std::min(first_key, own.blocks[s].lanes.first_key);
    }
    const int64_t end_key = own.blocks[blocks - 1].lanes.end_key;
    own.living.clear();
    for (int64_t j = first_key; j < end_key; j++)
        if (is_living(p, b, first, j)) own.living.push_back((int32_t)j);
    /* Chunks small enough that the threads, which follow each other over the columns, all have something to do. */
    const int64_t count = (int64_t)own.living.size(), share = (count + 2 * threads - 1) / (2 * threads);
    const int64_t size = threads == 1 ? CHUNK : std::max<int64_t>(GROUP * 4, std::min<int64_t>(CHUNK, (share + GROUP - 1) / GROUP * GROUP));
    for (int64_t from = 0; from < count; from += size) {
        const int64_t end = from + size < count ? own.living[from + size] : end_key;
        if (unit_before >= 0) progress.wait(unit_before, end);
        backward_chunk(p, own, own.living.data() + from, std::min(size, count - from), b, first, blocks, d_f_later + b * p.M, d, dv_size);
        progress.finish(unit, end);
    }
    /* Also where this strip has no keys, the one before may not be overtaken; but the next strip's rows come earlier, so that
     * no strip waits for columns from end_key on. */
    if (unit_before >= 0) progress.wait(unit_before, end_key);
    progress.finish(unit, end_key);
    for (int64_t s = 0; s < blocks; s++) end_block(p, own.blocks[s], b, d);
}

template <class T> int backward_pass(const Problem &p, bool exact_masking, bool &finite) {
    const int64_t d = padded_size<T>(p.D), dv = padded_size<T>(p.Dv);
    const Strips strips(p);
    const int64_t units = strips.count * p.B;
    const int threads = (int)std::max<int64_t>(1, std::min(p.threads, units));
    const int per_row = (int)std::max<int64_t>(1, threads / p.B); /* threads that follow each other in one batch row */
    Arena memory;
    std::vector<BackwardStrip<T>> workspaces(threads);
    for (auto &each : workspaces) each.take(memory, p, strips.size, d, dv, exact_masking);
    T *later = memory.take<T>(p.B * p.M);
    Progress progress{memory.take<std::atomic<int64_t>>(units)};
    if (memory.failed) return 1;
    std::fill_n(later, p.B * p.M, (T)0);
    for (int64_t unit = 0; unit < units; unit++) progress.done[unit] = 0;
#pragma omp parallel num_threads(threads)
    {
        BackwardStrip<T> &own = workspaces[omp_get_thread_num()];
        for (int64_t unit; (unit = progress.next++) < units;) backward_strip(p, own, progress, later, strips, unit, d, dv, per_row);
    }
    for (const auto &each : workspaces)
        for (const BackwardBlock<T> &block : each.blocks) finite = finite && block.finite;
    return 0;
}

template <class T> int backward(const Problem &p) {
    bool finite = true;
    const int failed = backward_pass<T>(p, false, finite);
    if (failed || finite) return failed;
    std::fill_n((T *)p.dq, p.B * p.H * p.N * p.D, (T)0);
    std::fill_n((T *)p.dk, p.B * p.G * p.M * p.D, (T)0);
    std::fill_n((T *)p.dv, p.B * p.G * p.M * p.Dv, (T)0);
    if (p.d_form_query) std::fill_n((T *)p.d_form_query, p.B * p.N * p.form_size, (T)0);
    if (p.d_form_key) std::fill_n((T *)p.d_form_key, p.B * p.M * p.form_size, (T)0);
    if (p.d_bias) std::fill_n((T *)p.d_bias, p.d_bias_count, (T)0);
    if (p.d_form_bias) std::fill_n((T *)p.d_form_bias, p.d_form_bias_count, (T)0);
    return backward_pass<T>(p, true, finite);
}
