/* What a thread of the backward pass keeps: of a block of queries, and of the strip that it is in. */

template <class T> struct BackwardBlock { /* what a thread keeps of a block of queries */
    T *queries, *d_outputs, *d_queries, *lse, *delta; /* of all heads */
    Selected<T> selected;                             /* of one chunk, and so are these */
    T *df, *first_da;
    T *form_queries, *d_form_queries; /* null if a head selects */
    T d_memory[BLOCK];
    Lanes<T> lanes;
    Chunk<T> chunk;
    /* Whether it takes the products of seen.h; and whether its queries, the gradients of its outputs and of its queries were finite so
     * far. Then no product of 0 was NaN: of the queries, of dO and, as dQ would show it, of the keys. */
    bool exact_masking, finite = true;

    void take(Arena &m, const Problem &p, int64_t d, int64_t dv_size, bool exactly) {
        exact_masking = exactly;
        queries = m.take<T>(p.H * BLOCK * d), d_queries = m.take<T>(p.H * BLOCK * d),
        d_outputs = m.take<T>(p.H * BLOCK * dv_size);
        lse = m.take<T>(p.H * BLOCK), delta = m.take<T>(p.H * BLOCK);
        selected.take(m, selector_has_bias(p));
        const int64_t size = has_form(p) ? BLOCK * padded_size<T>(p.form_size) : 0;
        form_queries = size ? m.take<T>(size) : nullptr, d_form_queries = size ? m.take<T>(size) : nullptr;
        for (T **tile : {&df, &first_da}) *tile = m.take<T>(PANELS<T> * TILE<T> + 64);
    }
};

template <class T> struct BackwardStrip { /* what a thread needs of its own */
    std::vector<BackwardBlock<T>> blocks;
    T *weights, *da, *keys, *values, *query_rows, *d_output_rows, *dk, *dv, *later;
    T *form_keys, *form_rows, *d_form, *bias; /* null if there are none */
    std::vector<int32_t> living; /* of the whole strip */

    void take(Arena &m, const Problem &p, int64_t most, int64_t d, int64_t dv_size, bool exact_masking) {
        blocks.resize(most);
        for (BackwardBlock<T> &each : blocks) each.take(m, p, d, dv_size, exact_masking);
        for (T **tile : {&weights, &da}) *tile = m.take<T>(PANELS<T> * TILE<T> + 64);
        query_rows = m.take<T>(BLOCK * d), d_output_rows = m.take<T>(BLOCK * dv_size);
        keys = m.take<T>((CHUNK + GROUP) * d), values = m.take<T>((CHUNK + GROUP) * dv_size);
        dk = m.take<T>((CHUNK + GROUP) * d), dv = m.take<T>((CHUNK + GROUP) * dv_size);
        later = m.take<T>(PANEL<T> + 64);
        const int64_t size = padded_size<T>(p.form_size);
        form_keys = has_form(p) ? m.take<T>((CHUNK + GROUP) * size) : nullptr,
        d_form = has_form(p) ? m.take<T>((CHUNK + GROUP) * size) : nullptr;
        form_rows = has_form(p) ? m.take<T>(BLOCK * size) : nullptr;
        bias = p.bias ? m.take<T>(PANELS<T> * TILE<T> + 64) : nullptr;
        living.reserve(p.M);
    }
};

/* delta_i = d_scale * sum over d of dO O, and the log-sum-exp, of a block's rows. */
template <class T> void row_sums(const Problem &p, const Rows &d_out, int64_t b, int64_t h, BackwardBlock<T> &a) {
    T line[2][MAX_SIZE];
    const HeadRows d_rows = d_out(b, h);
    for (int64_t i = 0; i < BLOCK; i++) {
        T &lse = a.lse[h * BLOCK + i], &delta = a.delta[h * BLOCK + i];
        lse = std::numeric_limits<T>::infinity(), delta = 0;
        if (i >= a.lanes.count) continue;
        const int64_t row = a.lanes.first_row + i, at = (b * p.H + h) * p.N + row;
        lse = ((const T *)p.lse)[at];
        read_row(p.output, at * p.Dv, p.Dv, p.dtype, line[0]);
        read_row(d_rows.data, d_rows.at(row), p.Dv, p.dtype, line[1]);
        delta = (T)p.d_scale * dot(line[0], line[1], p.Dv);
    }
}

template <class T>
void begin_block(const Problem &p, BackwardBlock<T> &a, int64_t b, int64_t block, int64_t d, int64_t dv_size) {
    const Rows q = query_of(p), d_out = d_output_of(p);
    fill_lanes(p, b, block, a.lanes);
    for (int64_t h = 0; h < p.H; h++) {
        pack_panels(q(b, h), a.lanes.first_row, a.lanes.count, (T)p.scale * LOG2E<T>, d, a.queries + h * BLOCK * d);
        pack_panels(d_out(b, h), a.lanes.first_row, a.lanes.count, (T)p.d_scale, dv_size, a.d_outputs + h * BLOCK * dv_size);
        row_sums(p, d_out, b, h, a);
        for (int64_t at = h * BLOCK; at < (h + 1) * BLOCK; at += PANEL<T>)
            a.finite = a.finite && is_finite(a.queries + at * d, d) && is_finite(a.d_outputs + at * dv_size, dv_size);
    }
    std::fill_n(a.d_queries, p.H * BLOCK * d, (T)0);
    if (a.form_queries) {
        const int64_t size = padded_size<T>(p.form_size);
        pack_panels(form_query_of(p)(b, 0), a.lanes.first_row, a.lanes.count, (T)p.form_scale * LOG2E<T>, size, a.form_queries);
        std::fill_n(a.d_form_queries, BLOCK * size, (T)0);
        for (int64_t at = 0; at < BLOCK; at += PANEL<T>) a.finite = a.finite && is_finite(a.form_queries + at * size, size);
    }
    for (int64_t i = 0; p.d_memory && i < BLOCK; i++)
        a.d_memory[i] = i < a.lanes.count ? ((const T *)p.d_memory)[b * p.N + a.lanes.first_row + i] : 0;
}

template <class T> void end_block(const Problem &p, BackwardBlock<T> &a, int64_t b, int64_t d) {
    constexpr int W = PANEL<T>;
    const auto write = [&](const T *panels, int64_t padded, T *to, int64_t size) {
        for (int64_t i = 0; i < a.lanes.count; i++)
            for (int64_t x = 0; x < size; x++)
                to[(a.lanes.first_row + i) * size + x] = panels[i / W * W * padded + x * W + i % W];
        for (int64_t at = 0; at < BLOCK; at += W) a.finite = a.finite && is_finite(panels + at * padded, padded);
    };
    for (int64_t h = 0; h < p.H; h++) write(a.d_queries + h * BLOCK * d, d, (T *)p.dq + (b * p.H + h) * p.N * p.D, p.D);
    if (a.form_queries)
        write(a.d_form_queries, padded_size<T>(p.form_size), (T *)p.d_form_query + b * p.N * p.form_size, p.form_size);
}
