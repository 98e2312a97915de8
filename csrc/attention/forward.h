/* The forward pass: output, log-sum-exp and M.
 *
 * For each block of queries, over chunks of its living keys: F of the chunk from the selecting head, then for each head
 * logits - F, the softmax so far, and its product with the values.
 */
template <class T> struct Ahead { /* what a thread needs of its own */
    T *queries, *output, *top, *total, *memory, *tile, *logit, *f, *keys, *values;
    Lanes<T> lanes;
    Chunk<T> chunk;

    void take(Memory &memory_of, const Problem &p, int64_t d, int64_t dv) {
        queries = memory_of.take<T>(p.H * BLOCK * d), output = memory_of.take<T>(p.H * BLOCK * dv);
        top = memory_of.take<T>(p.H * BLOCK), total = memory_of.take<T>(p.H * BLOCK), memory = memory_of.take<T>(BLOCK);
        tile = memory_of.take<T>(TILE<T>);
        logit = memory_of.take<T>(PANELS<T> * TILE<T> + 64), f = memory_of.take<T>(PANELS<T> * TILE<T> + 64);
        keys = memory_of.take<T>((CHUNK + GROUP) * d), values = memory_of.take<T>((CHUNK + GROUP) * dv);
    }
};

/* Logits - F of one panel for the keys of a chunk, and their largest for each query. */
template <class T>
void shifted_logits(const Problem &p, const Lanes<T> &lanes, const Chunk<T> &c, int panel, Range seen, const Gathered<T> &k,
                    const T *queries, const T *known, const T *f, const Coming<T> &next, T *tile, Vector<T> (&most)[3]) {
    constexpr int L = LANES<T>, W = PANEL<T>;
    const T cap = (T)p.softcap * LOG2E<T>;
    for (int64_t i = seen.begin; i < seen.end; i += ROWS) {
        Vector<T> sum[ROWS][3];
        next.ask_for(i);
        if (known) {
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < 3; v++) sum[r][v] = load(known + (i + r) * W + v * L);
        } else {
            times_rows(k.data + i * k.row, k.row, queries, p.D, sum);
            if (p.softcap)
                for (int r = 0; r < ROWS; r++)
                    for (int v = 0; v < 3; v++) sum[r][v] = capped<T>(sum[r][v], cap);
        }
        const bool all = sees_all(lanes, c, panel, i);
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < 3; v++) {
                Vector<T> x = sum[r][v];
                if (f) x -= load(f + (i + r) * W + v * L);
                if (!all) x = sees(lanes, c, panel * W + v * L, i + r) ? x : splat(MASKED<T>);
                most[v] = larger<T>(x, most[v]);
                store(tile + (i + r) * W + v * L, x);
            }
    }
}

/* One panel of one head over one chunk: the softmax so far. */
template <class T>
void attend_panel(const Problem &p, Ahead<T> &a, int64_t h, int panel, const Gathered<T> &k, const Gathered<T> &v,
                  const Coming<T> &next, int64_t d, int64_t dv) {
    constexpr int L = LANES<T>, W = PANEL<T>;
    const Range seen = seen_by(a.lanes, a.chunk, panel);
    if (seen.begin == seen.end) return;
    T *top = a.top + h * BLOCK + panel * W, *total = a.total + h * BLOCK + panel * W;
    T *output = a.output + (h * BLOCK + panel * W) * dv;
    const bool selects = p.selecting >= 0;
    Vector<T> most[3], factor[3], sum[3];
    for (int i = 0; i < 3; i++) most[i] = load(top + i * L);
    shifted_logits(p, a.lanes, a.chunk, panel, seen, k, a.queries + (h * BLOCK + panel * W) * d,
                   h == p.selecting ? a.logit + panel * TILE<T> : nullptr, selects ? a.f + panel * TILE<T> : nullptr, next,
                   a.tile, most);
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
    for (T *x = a.tile + seen.begin * W; x < a.tile + seen.end * W; x += W)
        for (int i = 0; i < 3; i++) {
            const Vector<T> weight = exp2_of(load(x + i * L) - most[i]);
            sum[i] += weight;
            store(x + i * L, weight);
        }
    for (int i = 0; i < 3; i++) store(total + i * L, sum[i]);
    add_columns_times(v.data + seen.begin * v.row, v.row, a.tile + seen.begin * W, seen.end - seen.begin, output, dv);
}

/* The keys of the next chunk, from column `from` on; returns the column after the last one that was looked at. */
template <class T>
int64_t next_chunk(const Problem &p, const Bounds<T> *bounds, int64_t b, int64_t block, int64_t unit_before, const Progress &progress,
                   int64_t from, const T *state, Ahead<T> &a) {
    const int64_t first_row = p.M - p.N + a.lanes.first_row;
    a.chunk.count = 0;
    int64_t j = from;
    while (j < a.lanes.end_key && a.chunk.count < CHUNK) {
        const int64_t stop = std::min({j + 64, a.lanes.end_key, j + CHUNK - a.chunk.count});
        if (unit_before >= 0) progress.wait(unit_before, std::min(stop, first_row));
        for (; j < stop; j++) {
            if (p.start && p.start[b * p.M + j] > j) continue; /* padding */
            if (p.until && p.until[b * p.M + j] <= first_row) continue;
            if (bounds) {
                int32_t &dead = p.dead[b * p.M + j];
                if (dead <= block) continue;
                if (j < first_row && is_dead(p, *bounds, b, block, j, state[j])) {
                    dead = (int32_t)block;
                    continue;
                }
            }
            a.chunk.key[a.chunk.count++] = (int32_t)j;
        }
    }
    finish_chunk(p, b, a.lanes, a.chunk);
    return j;
}

/* Pairs of a row and a key of the chunk that it sees. */
template <class T> int64_t count_pairs(const Lanes<T> &lanes, const Chunk<T> &c) {
    int64_t pairs = 0;
    for (int64_t i = 0; i < c.count; i++)
        for (int64_t row = 0; row < lanes.count; row++)
            pairs += lanes.low[row] <= c.index[i] && c.index[i] <= lanes.row[row] && lanes.row[row] < c.until[i];
    return pairs;
}

template <class T> void write_block(const Problem &p, Ahead<T> &a, int64_t b, int64_t dv) {
    constexpr int W = PANEL<T>;
    for (int64_t h = 0; h < p.H; h++) {
        for (int64_t i = 0; i < a.lanes.count; i++) {
            const int64_t row = (b * p.H + h) * p.N + a.lanes.first_row + i;
            const T total = a.total[h * BLOCK + i], share = total > 0 || total != total ? 1 / total : 0;
            const T *output = a.output + (h * BLOCK + i / W * W) * dv + i % W;
            for (int64_t d = 0; d < p.Dv; d++) write_number(p.out, row * p.Dv + d, output[d * W] * share, p.dtype);
            ((T *)p.lse)[row] = share != 0 ? a.top[h * BLOCK + i] + std::log2(total) : std::numeric_limits<T>::infinity();
        }
    }
    if (p.memory)
        for (int64_t i = 0; i < a.lanes.count; i++) ((T *)p.memory)[b * p.N + a.lanes.first_row + i] = a.memory[i];
}

template <class T> void forward_block(const Problem &p, Ahead<T> &a, const Bounds<T> *bounds, Progress &progress, T *states,
                                      int64_t b, int64_t block, int64_t d, int64_t dv) {
    const int64_t unit = block * p.B + b, shared = p.H / p.G;
    const Rows q{p.q, p.q_stride, p.D, p.dtype}, k{p.k, p.k_stride, p.D, p.dtype}, v{p.v, p.v_stride, p.Dv, p.dtype};
    T *state = states + b * p.M;
    look(p, b, block, a.lanes);
    for (int64_t h = 0; h < p.H; h++)
        pack_panels(q, b, h, a.lanes.first_row, a.lanes.count, (T)p.scale * LOG2E<T>, d, a.queries + h * BLOCK * d);
    std::fill_n(a.output, p.H * BLOCK * dv, (T)0);
    std::fill_n(a.total, p.H * BLOCK, (T)0);
    std::fill_n(a.top, p.H * BLOCK, std::numeric_limits<T>::lowest() / 2);
    std::fill_n(a.memory, BLOCK, (T)0);
    int64_t living = 0;
    for (int64_t from = a.lanes.first_key; from < a.lanes.end_key;) {
        from = next_chunk(p, bounds, b, block, p.selecting >= 0 && block > 0 ? unit - p.B : -1, progress, from, state, a);
        const Chunk<T> &c = a.chunk;
        if (c.count && p.selecting >= 0) {
            const Gathered<T> chosen = gather(k, b, p.selecting / shared, c.key, c.count, d, a.keys);
            if (p.block_f) {
                T *begin = (T *)p.block_f + (b * block_count(p) + block) * p.M;
                for (int64_t i = 0; i < c.count; i++) begin[c.key[i]] = state[c.key[i]];
            }
            select(p, a.lanes, c, chosen, a.queries + p.selecting * BLOCK * d, d, state, state, p.memory ? a.memory : nullptr,
                   {a.logit, a.f});
        }
        progress.finish(unit, from); /* the next block may go on */
        if (!c.count) continue;
        for (int64_t g = 0; g < p.G; g++) {
            const Gathered<T> keys = gather(k, b, g, c.key, c.count, d, a.keys);
            const Gathered<T> values = gather(v, b, g, c.key, c.count, dv, a.values);
            const Coming<T> none{}, next = coming<T>(k, v, b, g + 1, p, c, d, dv);
            for (int64_t h = g * shared; h < (g + 1) * shared; h++)
                for (int panel = 0; panel < PANELS<T>; panel++)
                    attend_panel(p, a, h, panel, keys, values, h == g * shared && panel == PANELS<T> - 1 ? next : none, d, dv);
        }
        if (p.living) living += count_pairs(a.lanes, c);
    }
    /* Also where this block sees nothing (padding), the blocks before it may not be overtaken. */
    if (p.selecting >= 0 && block > 0) progress.wait(unit - p.B, p.M - p.N + a.lanes.first_row);
    progress.finish(unit, p.M);
    if (p.living) __atomic_fetch_add(p.living + b, living, __ATOMIC_RELAXED);
    write_block(p, a, b, dv);
}

template <class T> int forward(const Problem &p) {
    const int64_t blocks = block_count(p), units = blocks * p.B;
    const int64_t d = padded_size<T>(p.D), dv = padded_size<T>(p.Dv);
    const int threads = (int)std::max<int64_t>(1, std::min(p.threads, units));
    Memory memory;
    std::vector<Ahead<T>> ahead(threads);
    for (auto &each : ahead) each.take(memory, p, d, dv);
    T *states = memory.take<T>(p.B * p.M);
    Bounds<T> bounds;
    const bool leaves_out = may_leave_out(p);
    if (leaves_out) {
        bounds.query = memory.take<T>(p.B * blocks * p.H), bounds.own = memory.take<T>(p.B * blocks * p.H);
        bounds.key = memory.take<T>(p.B * p.M * p.H);
        bounds.least = std::max((T)std::log2(p.M / p.tolerance), (T)p.tau * LOG2E<T>);
    }
    Progress progress{memory.take<std::atomic<int64_t>>(units)};
    if (memory.failed) return 1;
    for (int64_t unit = 0; unit < units; unit++) progress.done[unit] = 0;
    for (int64_t i = 0; i < p.B * p.M; i++) states[i] = p.state ? ((const T *)p.state)[i] * LOG2E<T> : 0;
    std::fill_n(p.dead, p.B * p.M, std::numeric_limits<int32_t>::max());
    if (p.living) std::fill_n(p.living, p.B, (int64_t)0);
#pragma omp parallel num_threads(threads)
    {
        if (leaves_out) {
            const Rows q{p.q, p.q_stride, p.D, p.dtype}, k{p.k, p.k_stride, p.D, p.dtype};
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < p.B * p.H; i++) bound(p, q, k, i / p.H, i % p.H, bounds);
        }
        Ahead<T> &own = ahead[omp_get_thread_num()];
        for (int64_t unit; (unit = progress.next++) < units;)
            forward_block(p, own, leaves_out ? &bounds : nullptr, progress, states, unit % p.B, unit / p.B, d, dv);
    }
    if (p.state_out)
        for (int64_t i = 0; i < p.B * p.M; i++) ((T *)p.state_out)[i] = states[i] / LOG2E<T>;
    return 0;
}
