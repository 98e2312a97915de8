/* The forward pass: output, log-sum-exp and M.
 *
 * For each strip of blocks of queries, over chunks of its living keys: F of the chunk from the selecting head, block after
 * block, then for each head logits - F, the softmax so far, and its product with the values.
 */
template <class T> struct ForwardBlock { /* what a thread keeps of a block of queries */
    T *queries, *output, *top, *total, *memory; /* of all heads, but for memory */
    T *form_queries;                            /* null if a head selects */
    Selected<T> selected;                       /* of one chunk */
    Lanes<T> lanes;
    Chunk<T> chunk;
    bool exact_masking, finite = true; /* whether it takes the products of seen.h; whether its outputs were finite so far */

    void take(Arena &m, const Problem &p, int64_t d, int64_t dv, bool exactly) {
        exact_masking = exactly;
        queries = m.take<T>(p.H * BLOCK * d), output = m.take<T>(p.H * BLOCK * dv);
        top = m.take<T>(p.H * BLOCK), total = m.take<T>(p.H * BLOCK), memory = m.take<T>(BLOCK);
        const int64_t size = padded_size<T>(p.form_size);
        form_queries = has_form(p) ? m.take<T>(BLOCK * size) : nullptr;
        selected.take(m, selector_has_bias(p));
    }
    void begin(const Problem &p, int64_t b, int64_t block, int64_t d, int64_t dv) {
        const Rows q = query_of(p);
        fill_lanes(p, b, block, lanes);
        for (int64_t h = 0; h < p.H; h++)
            pack_panels(q(b, h), lanes.first_row, lanes.count, (T)p.scale * LOG2E<T>, d, queries + h * BLOCK * d);
        if (form_queries)
            pack_panels(form_query_of(p)(b, 0), lanes.first_row, lanes.count, (T)p.form_scale * LOG2E<T>,
                        padded_size<T>(p.form_size), form_queries);
        std::fill_n(output, p.H * BLOCK * dv, (T)0);
        std::fill_n(total, p.H * BLOCK, (T)0);
        std::fill_n(top, p.H * BLOCK, std::numeric_limits<T>::lowest() / 2);
        std::fill_n(memory, BLOCK, (T)0);
    }
};

template <class T> struct ForwardStrip { /* what a thread needs of its own */
    std::vector<ForwardBlock<T>> blocks;
    T *tile, *keys, *values, *form_keys, *bias; /* the last two: null if there are none */
    std::vector<int32_t> living; /* of one chunk */

    void take(Arena &m, const Problem &p, int64_t most, int64_t d, int64_t dv, bool exact_masking) {
        blocks.resize(most);
        for (ForwardBlock<T> &each : blocks) each.take(m, p, d, dv, exact_masking);
        tile = m.take<T>(TILE<T>);
        form_keys = has_form(p) ? m.take<T>((CHUNK + GROUP) * padded_size<T>(p.form_size)) : nullptr;
        bias = p.bias ? m.take<T>(TILE<T>) : nullptr;
        keys = m.take<T>((CHUNK + GROUP) * d), values = m.take<T>((CHUNK + GROUP) * dv);
        living.reserve(CHUNK);
    }
};

/* Logits - F of ROWS keys for one panel, and their largest for each query. */
template <bool MASKED_BY_F, bool ALL, class T>
INLINE void shift_group(const Lanes<T> &lanes, const Chunk<T> &c, int panel, int64_t i, const T *f,
                        const Vector<T> (&logit)[ROWS][3], T *tile, Vector<T> (&most)[3]) {
    constexpr int L = LANES<T>, W = PANEL<T>;
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int v = 0; v < 3; v++) {
            Vector<T> x = logit[r][v];
            if (MASKED_BY_F) x -= load(f + (i + r) * W + v * L);
            if (!ALL) x = sees(lanes, c, panel * W + v * L, i + r) ? x : splat(MASKED<T>);
            most[v] = larger<T>(x, most[v]);
            store(tile + (i + r) * W + v * L, x);
        }
}

/* Logits - F of one panel for the keys of a chunk, and their largest for each query. */
template <class T>
void shifted_logits(const Problem &p, const Lanes<T> &lanes, const Chunk<T> &c, int panel, Range seen, const Gathered<T> &k,
                    const T *queries, const Selected<T> &selected, const T *bias, bool is_selecting, Prefetch &prefetch, T *tile,
                    Vector<T> (&most)[3]) {
    constexpr int L = LANES<T>, W = PANEL<T>;
    const T cap = (T)p.softcap * LOG2E<T>;
    const T *known = selected.logit + panel * TILE<T>, *f = selected.f + panel * TILE<T>;
    for (int64_t i = seen.begin; i < seen.end; i += ROWS) {
        Vector<T> sum[ROWS][3];
        prefetch.issue();
        if (is_selecting) {
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < 3; v++) sum[r][v] = load(known + (i + r) * W + v * L);
        } else {
            times_rows(k.data + i * k.row, k.row, queries, p.D, sum);
            if (p.softcap)
                for (int r = 0; r < ROWS; r++)
                    for (int v = 0; v < 3; v++) sum[r][v] = capped<T>(sum[r][v], cap);
        }
        if (bias) add_bias(bias + i * W, sum);
        const bool masked = p.selects && selected.is_masked(panel, i), all = sees_all(lanes, c, panel, i);
        if (masked && all)
            shift_group<true, true>(lanes, c, panel, i, f, sum, tile, most);
        else if (masked)
            shift_group<true, false>(lanes, c, panel, i, f, sum, tile, most);
        else if (all)
            shift_group<false, true>(lanes, c, panel, i, f, sum, tile, most);
        else
            shift_group<false, false>(lanes, c, panel, i, f, sum, tile, most);
        if (bias) hide(bias + i * W, tile + i * W); /* also where F is NaN */
    }
}

/* One panel of one head over one chunk: the softmax so far. */
template <class T>
void attend_panel(const Problem &p, ForwardBlock<T> &a, const ForwardStrip<T> &own, int64_t b, int64_t h, int panel, const Gathered<T> &k, const Gathered<T> &v,
                  Prefetch &prefetch, int64_t d, int64_t dv) {
    constexpr int L = LANES<T>, W = PANEL<T>;
    const Range seen = seen_by(a.lanes, a.chunk, panel);
    if (seen.begin == seen.end) return;
    T *top = a.top + h * BLOCK + panel * W, *total = a.total + h * BLOCK + panel * W;
    T *output = a.output + (h * BLOCK + panel * W) * dv;
    T *tile = own.tile;
    const bool is_selecting = p.selects && h == selecting_head(p, b);
    const T *bias = is_selecting ? a.selected.bias_of(panel, 0) : own.bias;
    if (bias && !is_selecting) fill_bias(head_bias<T>(p, b, h), a.lanes, a.chunk, panel, seen, own.bias);
    Vector<T> most[3], factor[3], sum[3];
    for (int i = 0; i < 3; i++) most[i] = load(top + i * L);
    shifted_logits(p, a.lanes, a.chunk, panel, seen, k, a.queries + (h * BLOCK + panel * W) * d, a.selected,
                   bias, is_selecting, prefetch, tile, most);
    bool moves = false;
    for (int i = 0; i < 3; i++) {
        const Vector<T> before = load(top + i * L);
        factor[i] = exp2_of(before - most[i]), sum[i] = load(total + i * L) * factor[i];
        store(top + i * L, most[i]);
        for (int lane = 0; lane < L; lane++) moves = moves || factor[i][lane] != 1;
    }
    if (moves)
        for (int64_t row = 0; row < dv; row++)
            for (int i = 0; i < 3; i++) store(output + row * W + i * L, load(output + row * W + i * L) * factor[i]);
    for (T *x = tile + seen.begin * W; x < tile + seen.end * W; x += W)
        for (int i = 0; i < 3; i++) {
            const Vector<T> weight = exp2_of(load(x + i * L) - most[i]);
            sum[i] += weight;
            store(x + i * L, weight);
        }
    for (int i = 0; i < 3; i++) store(total + i * L, sum[i]);
    if (a.exact_masking)
        add_seen_keys(a.lanes, a.chunk, panel, seen, v, tile, {a.chunk.until, bias ? bias - panel * TILE<T> : nullptr}, output, dv);
    else
        add_columns_times(v.data + seen.begin * v.row, v.row, tile + seen.begin * W, seen.end - seen.begin, output, dv);
}

/* Whether key j lives at a block, whose F begins with `f` for it; where it dies there, that is written down. */
template <class T> bool find_living(const Problem &p, const Bounds<T> *bounds, int64_t b, int64_t block, int64_t first_row, int64_t j, T f) {
    if (!is_there(p, b, j, first_row)) return false;
    if (!bounds) return true;
    int32_t &dead = p.dead[b * p.M + j];
    if (dead > block && j < first_row && is_dead(p, *bounds, b, block, j, f)) dead = (int32_t)block;
    return dead > block;
}

/* The keys of a strip's next chunk, from column `from` on; returns the column after the last one that was checked. */
template <class T>
int64_t next_chunk(const Problem &p, const Bounds<T> *bounds, int64_t b, int64_t block, int64_t end_key, int64_t unit_before,
                   const Progress &progress, int64_t from, const T *f_now, std::vector<int32_t> &living) {
    const int64_t first_row = p.M - p.N + block * BLOCK;
    int64_t j = from;
    living.clear();
    while (j < end_key && (int64_t)living.size() < CHUNK) {
        const int64_t stop = std::min({j + 64, end_key, j + CHUNK - (int64_t)living.size()});
        if (unit_before >= 0) progress.wait(unit_before, std::min(stop, first_row));
        for (; j < stop; j++)
            if (find_living(p, bounds, b, block, first_row, j, f_now[j])) living.push_back((int32_t)j);
    }
    return j;
}

/* Those of a strip's chunk that live for one of its blocks, and that it sees. */
template <class T>
void share_of_block(const Problem &p, const Bounds<T> *bounds, int64_t b, int64_t block, const std::vector<int32_t> &living,
                    const T *f_now, const Lanes<T> &lanes, Chunk<T> &c) {
    c.count = 0;
    for (const int32_t j : living)
        if (j >= lanes.first_key && j < lanes.end_key && find_living(p, bounds, b, block, p.M - p.N + lanes.first_row, j, f_now[j]))
            c.key[c.count++] = j;
    finish_chunk(p, b, lanes, c);
}

/* Pairs of a row and a key of the chunk that it sees. */
template <class T> int64_t count_pairs(const Lanes<T> &lanes, const Chunk<T> &c) {
    int64_t pairs = 0;
    for (int64_t i = 0; i < c.count; i++)
        for (int64_t row = 0; row < lanes.count; row++)
            pairs += lanes.low[row] <= c.index[i] && c.index[i] <= lanes.row[row] && lanes.row[row] < c.until[i];
    return pairs;
}

template <class T> void write_block(const Problem &p, ForwardBlock<T> &a, int64_t b, int64_t dv) {
    constexpr int W = PANEL<T>;
    constexpr T infinity = std::numeric_limits<T>::infinity();
    for (int64_t h = 0; h < p.H; h++) {
        for (int panel = 0; panel < PANELS<T>; panel++)
            a.finite = a.finite && is_finite(a.output + (h * BLOCK + panel * W) * dv, dv);
        for (int64_t i = 0; i < a.lanes.count; i++) {
            const int64_t row = (b * p.H + h) * p.N + a.lanes.first_row + i;
            const T *output = a.output + (h * BLOCK + i / W * W) * dv + i % W;
            T total = a.total[h * BLOCK + i], share = 1 / total;
            /* It sees nothing, and is 0; or all of its logits are -infinity, and 0 / 0 is NaN. */
            if (total == 0) share = 0, total = infinity;
            if (!share && sees_something(p, b, h, a.lanes, i)) share = total = std::numeric_limits<T>::quiet_NaN();
            for (int64_t d = 0; d < p.Dv; d++) write_number(p.output, row * p.Dv + d, output[d * W] * share, p.dtype);
            ((T *)p.lse)[row] = total == infinity ? infinity : a.top[h * BLOCK + i] + std::log2(total);
        }
    }
    if (p.memory)
        for (int64_t i = 0; i < a.lanes.count; i++) ((T *)p.memory)[b * p.N + a.lanes.first_row + i] = a.memory[i];
}

/* F of a chunk for one block, which moves on to the next. */
template <class T>
void select_forward(const Problem &p, ForwardBlock<T> &a, const ForwardStrip<T> &own, int64_t b, int64_t block, T *f_now, int64_t d) {
    const Chunk<T> &c = a.chunk;
    if (p.block_f) {
        T *begin = (T *)p.block_f + (b * block_count(p) + block) * p.M;
        for (int64_t i = 0; i < c.count; i++) begin[c.key[i]] = f_now[c.key[i]];
    }
    const Selector<T> by = selector(p, b, a.queries, d, a.form_queries);
    fill_selector_bias(p, b, a.lanes, c, a.selected);
    select(p, a.lanes, c, selector_keys(p, b, c, d, own.keys, own.form_keys), by, f_now, f_now, p.memory ? a.memory : nullptr,
           a.selected);
}

/* What is read after head h of key-value head g and block s. */
template <class T>
Prefetch prefetch_forward(const Problem &p, const ForwardStrip<T> &own, int64_t b, int64_t g, int64_t s, int64_t blocks, int64_t h, int64_t d,
                    int64_t dv) {
    const Rows k = key_of(p), v = value_of(p);
    const int64_t shared = p.H / p.G;
    const Chunk<T> &c = own.blocks[s].chunk;
    Prefetch prefetch(s * shared + h - g * shared, blocks * shared, PANELS<T> * c.rounded / ROWS);
    prefetch_keys(prefetch, p, k, b, g + 1, c, d), prefetch_keys(prefetch, p, v, b, g + 1, c, dv);
    const Turn then = turn_after(p, {s, h}, blocks);
    const ForwardBlock<T> &after = own.blocks[then.number];
    prefetch.numbers(after.queries + then.head * BLOCK * d, BLOCK * d), prefetch.numbers(after.output + then.head * BLOCK * dv, BLOCK * dv);
    return prefetch;
}

template <class T> void forward_strip(const Problem &p, ForwardStrip<T> &own, const Bounds<T> *bounds, Progress &progress, T *running_f,
                                      const Strips &strips, int64_t unit, int64_t d, int64_t dv) {
    const int64_t b = unit % p.B, first = unit / p.B * strips.size, blocks = std::min(strips.size, block_count(p) - first);
    const int64_t shared = p.H / p.G, first_row = p.M - p.N + first * BLOCK;
    const int64_t unit_before = p.selects && first > 0 ? unit - p.B : -1;
    const Rows k = key_of(p), v = value_of(p);
    T *f_now = running_f + b * p.M;
    int64_t from = p.M, living = 0;
    for (int64_t s = 0; s < blocks; s++) {
        own.blocks[s].begin(p, b, first + s, d, dv);
        from = std::min(from, own.blocks[s].lanes.first_key);
    }
    const int64_t end_key = own.blocks[blocks - 1].lanes.end_key;
    while (from < end_key) {
        from = next_chunk(p, bounds, b, first, end_key, unit_before, progress, from, f_now, own.living);
        for (int64_t s = 0; s < blocks; s++) {
            ForwardBlock<T> &a = own.blocks[s];
            share_of_block(p, bounds, b, first + s, own.living, f_now, a.lanes, a.chunk);
            if (a.chunk.count && p.selects) select_forward(p, a, own, b, first + s, f_now, d);
            if (p.living) living += count_pairs(a.lanes, a.chunk);
        }
        progress.finish(unit, from); /* the next strip may go on */
        for (int64_t g = 0; g < p.G; g++)
            for (int64_t s = 0; s < blocks; s++) {
                ForwardBlock<T> &a = own.blocks[s];
                if (!a.chunk.count) continue;
                const Gathered<T> keys = gather(k(b, g), a.chunk.key, a.chunk.count, d, own.keys);
                const Gathered<T> values = gather(v(b, g), a.chunk.key, a.chunk.count, dv, own.values);
                for (int64_t h = g * shared; h < (g + 1) * shared; h++) {
                    Prefetch prefetch = prefetch_forward(p, own, b, g, s, blocks, h, d, dv);
                    for (int panel = 0; panel < PANELS<T>; panel++)
                        attend_panel(p, a, own, b, h, panel, keys, values, prefetch, d, dv);
                }
            }
    }
    /* Also where this strip sees nothing (padding), those before it may not be overtaken. */
    if (unit_before >= 0) progress.wait(unit_before, first_row);
    progress.finish(unit, p.M);
    if (p.living) __atomic_fetch_add(p.living + b, living, __ATOMIC_RELAXED);
    for (int64_t s = 0; s < blocks; s++) write_block(p, own.blocks[s], b, dv);
}

template <class T> int forward_pass(const Problem &p, bool exact_masking, bool &finite) {
    const int64_t blocks = block_count(p), d = padded_size<T>(p.D), dv = padded_size<T>(p.Dv);
    const Strips strips(p);
    const int64_t units = strips.count * p.B;
    const int threads = (int)std::max<int64_t>(1, std::min(p.threads, units));
    Arena memory;
    std::vector<ForwardStrip<T>> workspaces(threads);
    for (auto &each : workspaces) each.take(memory, p, strips.size, d, dv, exact_masking);
    T *running_f = memory.take<T>(p.B * p.M);
    Bounds<T> bounds;
    const bool leaves_out = may_leave_out(p);
    if (leaves_out) {
        bounds.query = memory.take<T>(p.B * blocks * p.H), bounds.own = memory.take<T>(p.B * blocks * p.H);
        bounds.key = memory.take<T>(p.B * p.M * p.H), bounds.value = memory.take<T>(p.B * p.M * p.G);
        bounds.small = memory.take<T>(p.B * p.G);
        bounds.least = std::max((T)std::log2(p.M / p.tolerance), (T)p.tau * LOG2E<T>);
    }
    Progress progress{memory.take<std::atomic<int64_t>>(units)};
    if (memory.failed) return 1;
    for (int64_t unit = 0; unit < units; unit++) progress.done[unit] = 0;
    for (int64_t i = 0; i < p.B * p.M; i++) running_f[i] = p.initial_f ? ((const T *)p.initial_f)[i] * LOG2E<T> : 0;
    std::fill_n(p.dead, p.B * p.M, std::numeric_limits<int32_t>::max());
    if (p.living) std::fill_n(p.living, p.B, (int64_t)0);
#pragma omp parallel num_threads(threads)
    {
        if (leaves_out) {
            const Rows q = query_of(p), k = key_of(p), v = value_of(p);
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < p.B * p.H; i++) {
                const int64_t b = i / p.H, h = i % p.H, shared = p.H / p.G;
                if (h % shared == 0) measure(p, k, v, b, h / shared, bounds);
                bound(p, q, k, b, h, bounds);
            }
        }
        ForwardStrip<T> &own = workspaces[omp_get_thread_num()];
        for (int64_t unit; (unit = progress.next++) < units;)
            forward_strip(p, own, leaves_out ? &bounds : nullptr, progress, running_f, strips, unit, d, dv);
    }
    if (p.final_f)
        for (int64_t i = 0; i < p.B * p.M; i++) ((T *)p.final_f)[i] = running_f[i] / LOG2E<T>;
    for (const auto &each : workspaces)
        for (const ForwardBlock<T> &block : each.blocks) finite = finite && block.finite;
    return 0;
}

template <class T> int forward(const Problem &p) {
    bool finite = true;
    const int failed = forward_pass<T>(p, false, finite);
    return failed || finite ? failed : forward_pass<T>(p, true, finite);
}
