/* One step of decoding over the slots of a layer: the token that leaves is overwritten, F moves on by one query, and all
 * heads attend. The same as selattn/ops/backends/plain_step.py. */

template <class T> INLINE void read_slot(const void *at, int64_t offset, int64_t n, int64_t dtype, T *buffer, const T *&row) {
    if (dtype == BFLOAT16)
        read_row(at, offset, n, dtype, buffer), row = buffer;
    else
        row = (const T *)at + offset;
}

/* A row that sits out is left as it is, and its output, too. */
inline bool is_active(const Step &p, int64_t b) { return !p.real || p.real[b]; }

/* The slot of the new token: the next empty one, or that of the token which leaves. */
template <class T> int64_t free_slot(const Step &p, int64_t b) {
    const int64_t now = p.length[b];
    if (!p.budget || now < p.budget) return now;
    const int32_t *position = p.position + b * p.C;
    const T *stored = p.f ? (const T *)p.f + b * p.C : nullptr;
    int64_t worst = -1;
    T most = 0;
    for (int64_t c = 0; c < p.C; c++) {
        if (position[c] < 0) continue;
        const T rank = rank_of<T>(p.policy, p.parameter, p.budget, position[c], 0, 0, stored ? stored[c] : 0);
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
template <class T> struct Bias {
    const T *row;
    const int64_t behind, now;
    Bias(const Step &p, int64_t b, int64_t h)
        : row(p.bias ? (const T *)p.bias + b * p.bias_stride[0] + h * p.bias_stride[1] : nullptr), behind(p.used),
          now(p.length[b]) {}
    T operator()(int64_t c, int64_t position) const { return row ? row[position == now ? behind : c] : (T)0; }
};

/* Put the new token into its slot; then S of its query, F for this row into `f`, and the stored F moves on. */
template <bool PLAIN, class T> void write_and_select(const Step &p, int64_t b, T *f, T *line) {
    const int64_t slot = free_slot<T>(p, b), size = p.dtype == BFLOAT16 ? 2 : sizeof(T), now = p.length[b];
    for (int64_t g = 0; g < p.G; g++) {
        const int64_t from_k = b * p.key_stride[0] + g * p.key_stride[1],
                      from_v = b * p.value_stride[0] + g * p.value_stride[1];
        std::memcpy((char *)p.keys + ((b * p.G + g) * p.C + slot) * p.D * size, (const char *)p.key + from_k * size,
                    p.D * size);
        std::memcpy((char *)p.values + ((b * p.G + g) * p.C + slot) * p.Dv * size, (const char *)p.value + from_v * size,
                    p.Dv * size);
    }
    int32_t *position = p.position + b * p.C;
    position[slot] = (int32_t)now;
    if (!p.f) return;
    T *stored = (T *)p.f + b * p.C;
    stored[slot] = 0;
    T query[MAX_SIZE];
    read_row(p.query, b * p.query_stride[0] + p.selecting * p.query_stride[1], p.D, p.dtype, query);
    const int64_t g = p.selecting / (p.H / p.G);
    const Bias<T> bias(p, b, p.selecting);
    for (int64_t c = 0; c < p.used; c++) {
        f[c] = stored[c];
        const bool sees = position[c] >= 0 && (!p.window || now - position[c] < p.window);
        if (!sees || protects(p, position[c] == 0, c == slot)) continue;
        if (!PLAIN && bias(c, position[c]) == MASKED<T>) continue;
        const T *key;
        read_slot(p.keys, ((b * p.G + g) * p.C + c) * p.D, p.D, p.dtype, line, key);
        T logit = (T)p.scale * dot(query, key, p.D);
        if (!PLAIN) logit = soft_capped(p, logit) + bias(c, position[c]);
        if (p.relu && !(logit > 0)) continue;
        stored[c] += (T)p.strength * logit;
        if (!p.shift) f[c] = stored[c];
    }
}

/* sums[d] = sum over the slots of weight * value[d]; the slots are those from `first` on. */
template <class T> void mix_slots(const Step &p, int64_t first, const T *weights, T *line, T *sums) {
    constexpr int L = LANES<T>, WIDE = 4 * L; /* features that are summed in registers */
    const T *value;
    int64_t d = 0;
    /* Two slices at most: a value that is gone over in many of them is read slowly. */
    for (; p.Dv <= 2 * WIDE && d + L <= p.Dv; d += d + WIDE <= p.Dv ? WIDE : L) {
        const int count = d + WIDE <= p.Dv ? 4 : 1;
        Vector<T> sum[4] = {};
        for (int64_t j = 0; j < p.used; j++) {
            if (weights[j] == 0) continue;
            read_slot(p.values, (first + j) * p.Dv + d, count * L, p.dtype, line, value);
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
        read_slot(p.values, (first + j) * p.Dv + d, left, p.dtype, line, value);
        int64_t x = 0;
        for (; x + L <= left; x += L) store(sums + x, load(sums + x) + weights[j] * load(value + x));
        for (; x < left; x++) sums[x] += weights[j] * value[x];
    }
}

/* The query heads of one key-value head. */
template <bool PLAIN, class T> void attend_slots(const Step &p, int64_t b, int64_t g, const T *f, T *weights, T *line) {
    const int64_t shared = p.H / p.G, now = p.length[b];
    const int32_t *position = p.position + b * p.C;
    T query[MAX_SIZE], sums[MAX_SIZE];
    for (int64_t h = g * shared; h < (g + 1) * shared; h++) {
        read_row(p.query, b * p.query_stride[0] + h * p.query_stride[1], p.D, p.dtype, query);
        const Bias<T> bias(p, b, h);
        bool nothing = !PLAIN; /* but the new token, if nothing hides it */
        T top = MASKED<T>;
        for (int64_t c = 0; c < p.used; c++) {
            const bool sees = position[c] >= 0 && (!p.window || now - position[c] < p.window);
            const T *key;
            weights[c] = MASKED<T>;
            if (!sees || (!PLAIN && bias(c, position[c]) == MASKED<T>)) continue;
            nothing = false;
            read_slot(p.keys, ((b * p.G + g) * p.C + c) * p.D, p.D, p.dtype, line, key);
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
        mix_slots(p, (b * p.G + g) * p.C, weights, line, sums);
        for (int64_t d = 0; d < p.Dv; d++) write_number(p.output, (b * p.H + h) * p.Dv + d, sums[d] / total, p.dtype);
    }
}

template <bool PLAIN, class T> int decode_as(const Step &p) {
    /* Waking threads up costs some microseconds: not for less than about a hundred of them. */
    const bool small = p.B * p.H * p.used * p.D < 1 << 18;
    const int threads = small ? 1 : (int)p.threads;
    Arena memory;
    T *f = memory.take<T>(p.B * p.used), *own = memory.take<T>(threads * (p.used + LANES<T>)),
      *lines = memory.take<T>(threads * MAX_SIZE);
    if (memory.failed) return 1;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        T *weights = own + omp_get_thread_num() * (p.used + LANES<T>), *line = lines + omp_get_thread_num() * MAX_SIZE;
#pragma omp for schedule(static)
        for (int64_t b = 0; b < p.B; b++)
            if (is_active(p, b)) write_and_select<PLAIN>(p, b, f + b * p.used, line);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < p.B * p.G; i++)
            if (is_active(p, i / p.G)) attend_slots<PLAIN>(p, i / p.G, i % p.G, f + i / p.G * p.used, weights, line);
    }
    return 0;
}

template <class T> int decode(const Step &p) { return p.softcap || p.bias ? decode_as<false, T>(p) : decode_as<true, T>(p); }
