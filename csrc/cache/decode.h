/* One step of decoding over the slots of a layer: the evicted token is overwritten, F is updated by one query, and all
 * heads attend. The same as selattn/ops/backends/plain_cache.py. */

template <class T> INLINE void read_slot(const void *at, int64_t offset, int64_t n, int64_t dtype, T *buffer, const T *&row) {
    if (dtype == BFLOAT16)
        read_row(at, offset, n, dtype, buffer), row = buffer;
    else
        row = (const T *)at + offset;
}

/* Of a token that is padding the row is left as it is, and the output, too. */
inline bool is_active(const Step &p, int64_t b) { return !p.real || p.real[b]; }

/* The arrays of the pool, from the row of sequence b on. */
inline int64_t row_of(const Step &p, int64_t b) { return p.rows ? p.rows[b] : b; }
inline int64_t bytes_of(int64_t dtype, int64_t exact) { return dtype == BFLOAT16 ? 2 : exact; }
template <class T> char *keys_of(const Step &p, int64_t b) {
    return (char *)p.keys + row_of(p, b) * p.keys_row * bytes_of(p.dtype, sizeof(T));
}
template <class T> char *values_of(const Step &p, int64_t b) {
    return (char *)p.values + row_of(p, b) * p.values_row * bytes_of(p.dtype, sizeof(T));
}
template <class T> char *form_keys_of(const Step &p, int64_t b) {
    return (char *)p.form_keys + row_of(p, b) * p.form_keys_row * bytes_of(p.form_dtype, sizeof(T));
}
inline int32_t *positions_of(const Step &p, int64_t b, int64_t order) {
    return p.position + row_of(p, b) * p.position_row + order * p.C;
}
template <class T> T *f_of(const Step &p, int64_t b, int64_t s) { return (T *)p.f + row_of(p, b) * p.f_row + s * p.C; }
template <class T> T *scores_of(const Step &p, int64_t b, int64_t order) {
    return p.score ? (T *)p.score + row_of(p, b) * p.score_row + order * p.C : nullptr;
}

/* The masks of an eviction order, from the first up to the last: all of them if there is one order. */
struct Masks {
    int64_t first, last;
    Masks(const Step &p, int64_t order) : first(order * p.S / p.P), last((order + 1) * p.S / p.P) {}
};

/* The slot of the new token in one order: the next empty one, or that of the token which is evicted. `line` has room for the
 * positions of all slots. */
template <class T> int64_t free_slot(const Step &p, int64_t b, int64_t order, T *line) {
    const int64_t now = p.length[b];
    if (!p.budget || now < p.budget) return now;
    const int32_t *position = positions_of(p, b, order);
    const T *score = scores_of<T>(p, b, order);
    const Masks masks(p, order);
    const T *stored = p.f ? f_of<T>(p, b, masks.first) : nullptr;
    int64_t worst = -1, newest = std::numeric_limits<int64_t>::max(); /* the first position that is safe as one of the latest */
    T most = 0;
    const int64_t safe = p.policy == POLICY_H2O ? safe_tokens(p.parameter, p.budget) : 0;
    if (safe) {
        int32_t *latest = (int32_t *)line;
        int64_t kept = 0;
        for (int64_t c = 0; c < p.C; c++)
            if (position[c] >= 0) latest[kept++] = position[c];
        const int64_t at = std::min(safe, kept) - 1;
        if (at >= 0) std::nth_element(latest, latest + at, latest + kept, std::greater<int32_t>()), newest = latest[at];
    }
    for (int64_t c = 0; c < p.C; c++) {
        if (position[c] < 0) continue;
        T f = stored ? stored[c] : 0;
        for (int64_t s = 1; stored && s < masks.last - masks.first; s++) f = std::min(f, stored[s * p.C + c]);
        const T rank =
            rank_of<T>(p.policy, p.parameter, p.budget, position[c], position[c] >= newest ? 0 : p.C, score ? score[c] : 0, f);
        /* Of equals not the first token, then the oldest. */
        const bool wins = worst < 0 || rank > most ||
                          (rank == most && (position[worst] == 0 || (position[c] != 0 && position[c] < position[worst])));
        if (wins) worst = c, most = rank;
    }
    return worst;
}

/* PLAIN below: there is neither a soft cap nor a bias.
 *
 * What is added to the logits of a head; the new token's bias stands behind those of the slots. */
template <class T> struct SlotBias {
    const T *row;
    const int64_t behind, now;
    SlotBias(const Step &p, int64_t b, int64_t h)
        : row(p.bias ? (const T *)p.bias + b * p.bias_stride[0] + h * p.bias_stride[1] : nullptr), behind(p.used),
          now(p.length[b]) {}
    T operator()(int64_t c, int64_t position) const { return row ? row[position == now ? behind : c] : (T)0; }
};

/* Whether the bias hides a slot from all heads that follow mask s. */
template <class T> bool is_hidden(const Step &p, int64_t b, int64_t s, int64_t c, int64_t position) {
    for (int64_t h = s * (p.H / p.S); p.bias && h < (s + 1) * (p.H / p.S); h++)
        if (SlotBias<T>(p, b, h)(c, position) != MASKED<T>) return false;
    return p.bias;
}

/* S of the new query by mask s, F for this row into `f`, and the stored F moves on. */
template <bool PLAIN, class T>
void select_slots(const Step &p, int64_t b, int64_t s, const int32_t *position, int64_t slot, T *f, T *line) {
    const int64_t now = p.length[b];
    T *stored = f_of<T>(p, b, s);
    stored[slot] = 0;
    T query[MAX_SIZE];
    const bool is_form = !p.heads;
    const int64_t head = is_form ? 0 : p.heads[s], size = is_form ? p.form_size : p.D, dtype = is_form ? p.form_dtype : p.dtype;
    const int64_t *stride = is_form ? p.form_query_stride : p.query_stride;
    read_row(is_form ? p.form_query : p.query, b * stride[0] + (is_form ? s : head) * stride[1], size, dtype, query);
    const void *keys = is_form ? form_keys_of<T>(p, b) : keys_of<T>(p, b);
    const int64_t first = (is_form ? s : head / (p.H / p.G)) * p.C;
    const T scale = is_form ? 1 / std::sqrt((T)size) : (T)p.scale;
    const SlotBias<T> bias(p, b, head);
    for (int64_t c = 0; c < p.used; c++) {
        f[c] = stored[c];
        const bool sees = position[c] >= 0 && (!p.window || now - position[c] < p.window);
        if (!sees || protects(p, position[c] == 0, c == slot)) continue;
        if (!PLAIN && (is_form ? is_hidden<T>(p, b, s, c, position[c]) : bias(c, position[c]) == MASKED<T>)) continue;
        const T *key;
        read_slot(keys, (first + c) * size, size, dtype, line, key);
        T logit = scale * dot(query, key, size);
        if (!PLAIN && !is_form) logit = soft_capped(p, logit) + bias(c, position[c]);
        if (p.relu && !(logit > 0)) continue;
        stored[c] += (T)p.strength * logit;
        if (!p.shift) f[c] = stored[c];
    }
}

/* Put the new token into its slot of one eviction order; then S and F of the order's masks. `f` is [S,used]. */
template <bool PLAIN, class T> void write_and_select(const Step &p, int64_t b, int64_t order, T *f, T *weights, T *line) {
    const int64_t slot = free_slot<T>(p, b, order, weights), size = bytes_of(p.dtype, sizeof(T));
    for (int64_t g = order * p.G / p.P; g < (order + 1) * p.G / p.P; g++) {
        const int64_t from_k = b * p.key_stride[0] + g * p.key_stride[1],
                      from_v = b * p.value_stride[0] + g * p.value_stride[1];
        std::memcpy(keys_of<T>(p, b) + (g * p.C + slot) * p.D * size, (const char *)p.key + from_k * size, p.D * size);
        std::memcpy(values_of<T>(p, b) + (g * p.C + slot) * p.Dv * size, (const char *)p.value + from_v * size, p.Dv * size);
    }
    int32_t *position = positions_of(p, b, order);
    position[slot] = (int32_t)p.length[b];
    if (p.score) scores_of<T>(p, b, order)[slot] = 0;
    if (!p.f) return;
    const Masks masks(p, order);
    for (int64_t s = masks.first; s < masks.last; s++) {
        const int64_t bytes = bytes_of(p.form_dtype, sizeof(T)), from = b * p.form_key_stride[0] + s * p.form_key_stride[1];
        if (p.form_keys)
            std::memcpy(form_keys_of<T>(p, b) + (s * p.C + slot) * p.form_size * bytes, (const char *)p.form_key + from * bytes,
                        p.form_size * bytes);
        select_slots<PLAIN>(p, b, s, position, slot, f + s * p.used, line);
    }
}

/* sums[d] = sum over the slots of weight * value[d]; the slots are those of the row's `values` from `first` on. */
template <class T> void mix_slots(const Step &p, const void *values, int64_t first, const T *weights, T *line, T *sums) {
    constexpr int L = LANES<T>, WIDE = 4 * L; /* features that are summed in registers */
    const T *value;
    int64_t d = 0;
    /* Two slices at most: a value that is gone over in many of them is read slowly. */
    for (; p.Dv <= 2 * WIDE && d + L <= p.Dv; d += d + WIDE <= p.Dv ? WIDE : L) {
        const int count = d + WIDE <= p.Dv ? 4 : 1;
        Vector<T> sum[4] = {};
        for (int64_t j = 0; j < p.used; j++) {
            if (weights[j] == 0) continue;
            read_slot(values, (first + j) * p.Dv + d, count * L, p.dtype, line, value);
            for (int i = 0; i < count; i++) sum[i] += weights[j] * load(value + i * L);
        }
        for (int i = 0; i < count; i++) store(sums + d + i * L, sum[i]);
    }
    if (d == p.Dv) return;
    const int64_t left = p.Dv - d;
    sums += d;
    std::fill_n(sums, left, (T)0);
    for (int64_t j = 0; j < p.used; j++) {
        if (weights[j] == 0) continue;
        read_slot(values, (first + j) * p.Dv + d, left, p.dtype, line, value);
        int64_t x = 0;
        for (; x + L <= left; x += L) store(sums + x, load(sums + x) + weights[j] * load(value + x));
        for (; x < left; x++) sums[x] += weights[j] * value[x];
    }
}

/* The query heads of one key-value head. `f` is [S,used]; `attended` [used] gets the sum of the heads' weights, or is null. */
template <bool PLAIN, class T>
void attend_slots(const Step &p, int64_t b, int64_t g, const T *f, T *weights, T *attended, T *line) {
    const int64_t shared = p.H / p.G, now = p.length[b];
    const int32_t *position = positions_of(p, b, g * p.P / p.G);
    const void *keys = keys_of<T>(p, b), *values = values_of<T>(p, b);
    const T *masks = f;
    if (attended) std::fill_n(attended, p.used, (T)0);
    T query[MAX_SIZE], sums[MAX_SIZE];
    for (int64_t h = g * shared; h < (g + 1) * shared; h++) {
        f = p.f ? masks + h / (p.H / p.S) * p.used : nullptr;
        read_row(p.query, b * p.query_stride[0] + h * p.query_stride[1], p.D, p.dtype, query);
        const SlotBias<T> bias(p, b, h);
        bool nothing = !PLAIN; /* but the new token, if nothing hides it */
        T top = MASKED<T>;
        for (int64_t c = 0; c < p.used; c++) {
            const bool sees = position[c] >= 0 && (!p.window || now - position[c] < p.window);
            const T *key;
            weights[c] = MASKED<T>;
            if (!sees || (!PLAIN && bias(c, position[c]) == MASKED<T>)) continue;
            nothing = false;
            read_slot(keys, (g * p.C + c) * p.D, p.D, p.dtype, line, key);
            const T product = dot(query, key, p.D);
            if (PLAIN)
                weights[c] = ((T)p.scale * product - (p.f ? f[c] : 0)) * LOG2E<T>;
            else
                weights[c] = (soft_capped(p, (T)p.scale * product) + bias(c, position[c]) - (p.f ? f[c] : 0)) * LOG2E<T>;
            top = std::max(top, weights[c]);
        }
        if (nothing) { /* the bias hides everything */
            for (int64_t d = 0; d < p.Dv; d++) write_number(p.output, (b * p.H + h) * p.Dv + d, (T)0, p.dtype);
            continue;
        }
        constexpr int L = LANES<T>;
        for (int64_t c = p.used; c % L; c++) weights[c] = MASKED<T>; /* to the end of a vector: there is room */
        Vector<T> parts{};
        for (int64_t c = 0; c < p.used; c += L) {
            const Vector<T> x = exp2_of(load(weights + c) - top);
            store(weights + c, x);
            parts += x;
        }
        const T total = sum_of<T>(parts);
        mix_slots(p, values, g * p.C, weights, line, sums);
        for (int64_t c = 0; attended && c < p.used; c++) attended[c] += weights[c] / total;
        for (int64_t d = 0; d < p.Dv; d++) write_number(p.output, (b * p.H + h) * p.Dv + d, sums[d] / total, p.dtype);
    }
}

/* The policy's scores of one order after the query: `attended` [G,used] has what the heads of each group attended with. */
template <class T> void update_scores(const Step &p, int64_t b, int64_t order, const T *attended) {
    T *score = scores_of<T>(p, b, order);
    const T share = (T)p.P / p.H;
    for (int64_t c = 0; c < p.used; c++) {
        T sum = 0;
        for (int64_t g = order * p.G / p.P; g < (order + 1) * p.G / p.P; g++) sum += attended[g * p.used + c];
        score[c] = share * sum + (p.policy == POLICY_H2O ? score[c] : 0);
    }
}

template <bool PLAIN, class T> int decode_as(const Step &p) {
    /* Waking threads up costs some microseconds: not for less than about a hundred of them. */
    const bool small = p.B * p.H * p.used * p.D < 1 << 18;
    const int threads = small ? 1 : (int)p.threads;
    Arena memory;
    T *f = memory.take<T>(p.B * p.S * p.used), *own = memory.take<T>(threads * (p.C + LANES<T>)),
      *lines = memory.take<T>(threads * MAX_SIZE), *attended = p.score ? memory.take<T>(p.B * p.G * p.used) : nullptr;
    if (memory.failed) return 1;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        T *weights = own + omp_get_thread_num() * (p.C + LANES<T>), *line = lines + omp_get_thread_num() * MAX_SIZE;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < p.B * p.P; i++)
            if (is_active(p, i / p.P)) write_and_select<PLAIN>(p, i / p.P, i % p.P, f + i / p.P * p.S * p.used, weights, line);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < p.B * p.G; i++)
            if (is_active(p, i / p.G))
                attend_slots<PLAIN>(p, i / p.G, i % p.G, f + i / p.G * p.S * p.used, weights,
                                    attended ? attended + i * p.used : nullptr, line);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < (p.score ? p.B * p.P : 0); i++)
            if (is_active(p, i / p.P)) update_scores<T>(p, i / p.P, i % p.P, attended + i / p.P * p.G * p.used);
    }
    return 0;
}

template <class T> int decode(const Step &p) { return p.softcap || p.bias ? decode_as<false, T>(p) : decode_as<true, T>(p); }
