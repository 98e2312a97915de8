/* The backward pass: gradients of query, key and value.
 *
 * With P the weights, dP = dO V^T and delta = rowsum(dO * O), for each head h
 *     dA^h = P^h (dP^h - delta^h)
 *     dF   = - sum over h of dA^h - (dM_i / tau where F <= tau)
 *     dS[k, j] = sum over i > k of dF[i, j],  and  dA of the selecting head += strength * dS where its logit is positive
 *     dQ = scale dA K,  dK = scale dA^T Q,  dV = P^T dO
 * Blocks of queries go from the last to the first, because dS is a sum over later rows; the sum over later blocks is kept
 * for each column. The selecting head's dA is held back until all heads have been there. Every dA here is scale * dA.
 */
template <class T> struct Back { /* what a thread needs of its own */
    T *queries, *d_outputs, *query_rows, *d_output_rows, *d_queries, *lse, *delta; /* of all heads */
    T *logit, *f, *df, *first_da, *weights, *da, *keys, *values, *dk, *dv, *later;  /* of one chunk */
    Lanes<T> lanes;
    Chunk<T> chunk;
    std::vector<int32_t> living;

    void take(Memory &m, const Problem &p, int64_t d, int64_t dv_size) {
        queries = m.take<T>(p.H * BLOCK * d), d_queries = m.take<T>(p.H * BLOCK * d), query_rows = m.take<T>(BLOCK * d);
        d_outputs = m.take<T>(p.H * BLOCK * dv_size), d_output_rows = m.take<T>(BLOCK * dv_size);
        lse = m.take<T>(p.H * BLOCK), delta = m.take<T>(p.H * BLOCK);
        for (T **tile : {&logit, &f, &df, &first_da, &weights, &da}) *tile = m.take<T>(PANELS<T> * TILE<T> + 64);
        keys = m.take<T>((CHUNK + GROUP) * d), values = m.take<T>((CHUNK + GROUP) * dv_size);
        dk = m.take<T>((CHUNK + GROUP) * d), dv = m.take<T>((CHUNK + GROUP) * dv_size);
        later = m.take<T>(PANEL<T> + 64);
    }
};

/* delta_i = scale * sum over d of dO O, and the log-sum-exp, of a block's rows. */
template <class T> void row_sums(const Problem &p, const Rows &d_out, int64_t b, int64_t h, Back<T> &a) {
    T line[2][MAX_SIZE];
    for (int64_t i = 0; i < BLOCK; i++) {
        T &lse = a.lse[h * BLOCK + i], &delta = a.delta[h * BLOCK + i];
        lse = std::numeric_limits<T>::infinity(), delta = 0;
        if (i >= a.lanes.count) continue;
        const int64_t row = a.lanes.first_row + i, at = (b * p.H + h) * p.N + row;
        lse = ((const T *)p.lse)[at];
        read_row(p.out, at * p.Dv, p.Dv, p.dtype, line[0]);
        read_row(d_out.data, d_out.at(b, h, row), p.Dv, p.dtype, line[1]);
        delta = (T)p.scale * dot(line[0], line[1], p.Dv);
    }
}

/* One panel of one head: weights and dA into their tiles, dF and dQ. */
template <class T>
void differentiate_panel(const Problem &p, Back<T> &a, int64_t h, int panel, const Gathered<T> &k, const Gathered<T> &v,
                         const Coming<T> &next, int64_t d, int64_t dv_size) {
    constexpr int L = LANES<T>, W = PANEL<T>;
    const Range seen = seen_by(a.lanes, a.chunk, panel);
    const bool selects = p.selecting >= 0, holds_back = h == p.selecting;
    T *weights = a.weights + panel * TILE<T>, *da = (holds_back ? a.first_da : a.da) + panel * TILE<T>;
    T *df = a.df + panel * TILE<T>;
    const T cap = (T)p.softcap * LOG2E<T>;
    for (T *tile : {weights, da}) { /* the products over queries read whole chunks */
        std::fill(tile, tile + seen.begin * W, (T)0);
        std::fill(tile + seen.end * W, tile + a.chunk.rounded * W, (T)0);
    }
    if (seen.begin == seen.end) return;
    const T *queries = a.queries + (h * BLOCK + panel * W) * d, *d_outputs = a.d_outputs + (h * BLOCK + panel * W) * dv_size;
    const T *known = holds_back ? a.logit + panel * TILE<T> : nullptr, *f = a.f + panel * TILE<T>;
    Vector<T> lse[3], delta[3];
    for (int x = 0; x < 3; x++)
        lse[x] = load(a.lse + h * BLOCK + panel * W + x * L), delta[x] = load(a.delta + h * BLOCK + panel * W + x * L);
    for (int64_t i = seen.begin; i < seen.end; i += ROWS) {
        Vector<T> sum[ROWS][3], slope[ROWS][3];
        next.ask_for(i);
        const bool all = sees_all(a.lanes, a.chunk, panel, i);
        if (known) {
            for (int r = 0; r < ROWS; r++)
                for (int x = 0; x < 3; x++) sum[r][x] = load(known + (i + r) * W + x * L);
        } else {
            times_rows(k.data + i * k.row, k.row, queries, p.D, sum);
            if (p.softcap)
                for (int r = 0; r < ROWS; r++)
                    for (int x = 0; x < 3; x++) {
                        sum[r][x] = capped<T>(sum[r][x], cap);
                        slope[r][x] = 1 - (sum[r][x] / cap) * (sum[r][x] / cap);
                    }
        }
        for (int r = 0; r < ROWS; r++)
            for (int x = 0; x < 3; x++) {
                Vector<T> y = sum[r][x] - lse[x];
                if (selects) y -= load(f + (i + r) * W + x * L);
                y = exp2_of(y);
                if (!all) y = sees(a.lanes, a.chunk, panel * W + x * L, i + r) ? y : Vector<T>{};
                store(weights + (i + r) * W + x * L, y);
            }
        times_rows(v.data + i * v.row, v.row, d_outputs, p.Dv, sum);
        for (int r = 0; r < ROWS; r++)
            for (int x = 0; x < 3; x++) {
                const Vector<T> weight = load(weights + (i + r) * W + x * L);
                Vector<T> y = weight * (sum[r][x] - delta[x]);
                if (!all) y = sees(a.lanes, a.chunk, panel * W + x * L, i + r) ? y : Vector<T>{};
                if (selects) store(df + (i + r) * W + x * L, load(df + (i + r) * W + x * L) - y);
                if (p.softcap && !known) y *= slope[r][x];
                store(da + (i + r) * W + x * L, y);
            }
    }
    if (!holds_back)
        add_columns_times(k.data + seen.begin * k.row, k.row, da + seen.begin * W, seen.end - seen.begin,
                          a.d_queries + (h * BLOCK + panel * W) * d, d);
}

/* Whether the gradients of a chunk's keys lie side by side, as the products want them. */
template <class T> bool adds_in_place(const Chunk<T> &c, int64_t size, int64_t padded) {
    return size == padded && c.count == c.rounded && c.key[c.count - 1] - c.key[0] == c.count - 1;
}

/* sum over the queries of tile^T rows, added to the gradient of a chunk's keys (or values). */
template <class T>
void add_to_keys(const Back<T> &a, const T *tile, const T *rows, int64_t rows_row, T *scratch, int64_t padded, T *to, int64_t size) {
    const Chunk<T> &c = a.chunk;
    const bool direct = adds_in_place(c, size, padded);
    T *sums = direct ? to + c.key[0] * size : scratch;
    if (!direct) std::fill_n(scratch, c.rounded * padded, (T)0);
    for (int64_t i = 0; i < c.rounded; i += KEY_ROWS) {
        int first = 0; /* panels before it have no row after these keys */
        while (first < PANELS<T> && a.lanes.panel_row_max[first] < c.index[i]) first++;
        add_tile_times(tile + i * PANEL<T>, TILE<T>, first, PANELS<T>, rows, rows_row, sums + i * padded, padded, padded);
    }
    if (direct) return;
    for (int64_t i = 0; i < c.count; i++)
        for (int64_t d = 0; d < size; d++) to[c.key[i] * size + d] += scratch[i * padded + d];
}

/* The rows of dK and dV that a head adds to, if it adds in place. */
template <class T> Coming<T> sums_of(const Problem &p, const Back<T> &a, int64_t b, int64_t g, int64_t d, int64_t dv_size) {
    const Chunk<T> &c = a.chunk;
    if (!adds_in_place(c, p.D, d) || !adds_in_place(c, p.Dv, dv_size)) return {};
    const int64_t first = (b * p.G + g) * p.M + c.key[0];
    return {{{(const T *)p.dk + first * d, d}, {(const T *)p.dv + first * dv_size, dv_size}}, std::min(d, dv_size)};
}

/* What selection adds to the selecting head's dA. `later` [M] is the sum of dF over later blocks, and is moved on. */
template <class T> void select_backward(const Problem &p, Back<T> &a, const T *d_memory, T *later) {
    constexpr int L = LANES<T>, W = PANEL<T>;
    const Chunk<T> &c = a.chunk;
    const T tau = (T)p.tau * LOG2E<T>, cap = (T)p.softcap * LOG2E<T>;
    for (int64_t i = 0; i < c.count; i++) {
        T carry = later[c.key[i]];
        for (int panel = PANELS<T> - 1; panel >= 0; panel--) {
            if (c.index[i] > a.lanes.panel_row_max[panel]) break; /* after this panel's rows, and all before */
            const T *df = a.df + panel * TILE<T> + i * W, *logit = a.logit + panel * TILE<T> + i * W;
            const T *f = a.f + panel * TILE<T> + i * W;
            T *da = a.first_da + panel * TILE<T> + i * W;
            const bool all = sees_all(a.lanes, c, panel, i / ROWS * ROWS);
            T *sums = a.later + 1; /* sums[x]: of the rows from x on; one more at the end, and room for one before */
            sums[W] = carry;
            for (int x = 2; x >= 0; x--) {
                const int64_t lane = panel * W + x * L;
                const Ints<T> visible = all ? (Ints<T>{} == 0) : sees(a.lanes, c, lane, i);
                Vector<T> y = load(df + x * L);
                if (d_memory) {
                    const Vector<T> pull = load(d_memory + lane) * (T)(p.scale / p.tau);
                    y -= visible & (load(f + x * L) <= splat(tau)) ? pull : Vector<T>{};
                }
                y = reverse_running_sum<T>(y) + carry;
                store(sums + x * L, y);
                carry = y[0];
            }
            for (int x = 0; x < 3; x++) {
                const int64_t lane = panel * W + x * L;
                Ints<T> may = all ? (Ints<T>{} == 0) : sees(a.lanes, c, lane, i);
                /* Where a row does not see the key, the tile may hold anything. */
                const Vector<T> y = may ? load(logit + x * L) : Vector<T>{};
                if (!all && p.protect_self) may &= load(a.lanes.row + lane) != splat(c.index[i]);
                if (p.relu) may &= y > Vector<T>{};
                Vector<T> found = load(da + x * L) + (may ? load(sums + x * L + (p.shift ? 1 : 0)) * c.selects[i] : Vector<T>{});
                if (p.softcap) found *= 1 - (y / cap) * (y / cap);
                store(da + x * L, found);
            }
        }
        later[c.key[i]] = carry;
    }
}

template <class T> void backward_chunk(const Problem &p, Back<T> &a, int64_t b, int64_t block, const T *d_memory, T *later, int64_t d,
                                       int64_t dv_size) {
    const int64_t shared = p.H / p.G, row = a.lanes.first_row;
    const Rows q{p.q, p.q_stride, p.D, p.dtype}, k{p.k, p.k_stride, p.D, p.dtype}, v{p.v, p.v_stride, p.Dv, p.dtype};
    const Rows d_out{p.d_out, p.d_out_stride, p.Dv, p.dtype};
    const Chunk<T> &c = a.chunk;
    const bool whole = a.lanes.count == BLOCK;
    const auto rows_of = [&](const Rows &x, int64_t h, int64_t padded, T *buffer) -> Gathered<T> {
        const T *found = whole ? in_place<T>(x, b, h, row, padded) : nullptr;
        if (found) return {found, x.stride[2]};
        pack_rows(x, b, h, row, a.lanes.count, padded, buffer);
        return {buffer, padded};
    };
    if (p.selecting >= 0) {
        const Gathered<T> chosen = gather(k, b, p.selecting / shared, c.key, c.count, d, a.keys);
        const T *begin = (const T *)p.block_f + (b * block_count(p) + block) * p.M;
        select(p, a.lanes, c, chosen, a.queries + p.selecting * BLOCK * d, d, begin, (T *)nullptr, (T *)nullptr, {a.logit, a.f});
        for (int panel = 0; panel < PANELS<T>; panel++)
            std::fill_n(a.df + panel * TILE<T>, c.rounded * PANEL<T>, (T)0);
    }
    for (int64_t g = 0; g < p.G; g++) {
        const Gathered<T> keys = gather(k, b, g, c.key, c.count, d, a.keys);
        const Gathered<T> values = gather(v, b, g, c.key, c.count, dv_size, a.values);
        const Coming<T> none{}, next = coming<T>(k, v, b, g + 1, p, c, d, dv_size), sums = sums_of(p, a, b, g, d, dv_size);
        for (int64_t h = g * shared; h < (g + 1) * shared; h++) {
            for (int panel = 0; panel < PANELS<T>; panel++) {
                const Coming<T> &soon = h == g * shared && panel == 0 ? sums : h == g * shared && panel == 1 ? next : none;
                differentiate_panel(p, a, h, panel, keys, values, soon, d, dv_size);
            }
            const Gathered<T> out_rows = rows_of(d_out, h, dv_size, a.d_output_rows);
            add_to_keys(a, a.weights, out_rows.data, out_rows.row, a.dv, dv_size, (T *)p.dv + (b * p.G + g) * p.M * p.Dv, p.Dv);
            if (h == p.selecting) continue;
            const Gathered<T> query_rows = rows_of(q, h, d, a.query_rows);
            add_to_keys(a, a.da, query_rows.data, query_rows.row, a.dk, d, (T *)p.dk + (b * p.G + g) * p.M * p.D, p.D);
        }
    }
    if (p.selecting < 0) return;
    select_backward(p, a, d_memory, later);
    const int64_t h = p.selecting, g = h / shared;
    const Gathered<T> keys = gather(k, b, g, c.key, c.count, d, a.keys);
    for (int panel = 0; panel < PANELS<T>; panel++) {
        const Range seen = seen_by(a.lanes, c, panel);
        if (seen.begin < seen.end)
            add_columns_times(keys.data + seen.begin * keys.row, keys.row, a.first_da + panel * TILE<T> + seen.begin * PANEL<T>,
                              seen.end - seen.begin, a.d_queries + (h * BLOCK + panel * PANEL<T>) * d, d);
    }
    const Gathered<T> query_rows = rows_of(q, h, d, a.query_rows);
    add_to_keys(a, a.first_da, query_rows.data, query_rows.row, a.dk, d, (T *)p.dk + (b * p.G + g) * p.M * p.D, p.D);
}

template <class T> void backward_block(const Problem &p, Back<T> &a, Progress &progress, T *laters, int64_t b, int64_t block,
                                       int64_t d, int64_t dv_size, int threads) {
    constexpr int W = PANEL<T>;
    const int64_t blocks = block_count(p), unit = (blocks - 1 - block) * p.B + b;
    const Rows q{p.q, p.q_stride, p.D, p.dtype}, d_out{p.d_out, p.d_out_stride, p.Dv, p.dtype};
    look(p, b, block, a.lanes);
    const int64_t first_row = p.M - p.N + a.lanes.first_row;
    a.living.clear();
    for (int64_t j = a.lanes.first_key; j < a.lanes.end_key; j++)
        if (p.dead[b * p.M + j] > block && !(p.start && p.start[b * p.M + j] > j) && !(p.until && p.until[b * p.M + j] <= first_row))
            a.living.push_back((int32_t)j);
    for (int64_t h = 0; h < p.H; h++) {
        pack_panels(q, b, h, a.lanes.first_row, a.lanes.count, (T)p.scale * LOG2E<T>, d, a.queries + h * BLOCK * d);
        pack_panels(d_out, b, h, a.lanes.first_row, a.lanes.count, (T)p.scale, dv_size, a.d_outputs + h * BLOCK * dv_size);
        row_sums(p, d_out, b, h, a);
    }
    std::fill_n(a.d_queries, p.H * BLOCK * d, (T)0);
    T d_memory[BLOCK] = {};
    if (p.d_memory)
        for (int64_t i = 0; i < a.lanes.count; i++) d_memory[i] = ((const T *)p.d_memory)[b * p.N + a.lanes.first_row + i];
    /* Chunks small enough that the threads, which follow each other over the columns, all have something to do. */
    const int64_t count = (int64_t)a.living.size(), share = (count + 2 * threads - 1) / (2 * threads);
    const int64_t size = threads == 1 ? CHUNK : std::max<int64_t>(GROUP * 4, std::min<int64_t>(CHUNK, (share + GROUP - 1) / GROUP * GROUP));
    for (int64_t from = 0; from < count; from += size) {
        a.chunk.count = std::min(size, count - from);
        std::copy_n(a.living.data() + from, a.chunk.count, a.chunk.key);
        finish_chunk(p, b, a.lanes, a.chunk);
        const int64_t end = from + size < count ? a.living[from + size] : p.M;
        if (block + 1 < blocks) progress.wait(unit - p.B, std::min(end, p.M));
        backward_chunk(p, a, b, block, p.d_memory ? d_memory : nullptr, laters + b * p.M, d, dv_size);
        progress.finish(unit, end);
    }
    /* Also where this block has no keys, the blocks after it may not be overtaken. */
    if (block + 1 < blocks) progress.wait(unit - p.B, p.M);
    progress.finish(unit, p.M);
    for (int64_t h = 0; h < p.H; h++)
        for (int64_t i = 0; i < a.lanes.count; i++) {
            T *to = (T *)p.dq + ((b * p.H + h) * p.N + a.lanes.first_row + i) * p.D;
            const T *from = a.d_queries + (h * BLOCK + i / W * W) * d + i % W;
            for (int64_t x = 0; x < p.D; x++) to[x] = from[x * W];
        }
}

template <class T> int backward(const Problem &p) {
    const int64_t blocks = block_count(p), units = blocks * p.B;
    const int64_t d = padded_size<T>(p.D), dv = padded_size<T>(p.Dv);
    const int threads = (int)std::max<int64_t>(1, std::min(p.threads, units));
    const int per_row = (int)std::max<int64_t>(1, threads / p.B); /* threads that follow each other in one batch row */
    Memory memory;
    std::vector<Back<T>> back(threads);
    for (auto &each : back) each.take(memory, p, d, dv), each.living.reserve(p.M);
    T *later = memory.take<T>(p.B * p.M);
    Progress progress{memory.take<std::atomic<int64_t>>(units)};
    if (memory.failed) return 1;
    std::fill_n(later, p.B * p.M, (T)0);
    for (int64_t unit = 0; unit < units; unit++) progress.done[unit] = 0;
#pragma omp parallel num_threads(threads)
    {
        Back<T> &own = back[omp_get_thread_num()];
        for (int64_t unit; (unit = progress.next++) < units;)
            backward_block(p, own, progress, later, unit % p.B, blocks - 1 - unit / p.B, d, dv, per_row);
    }
    return 0;
}
