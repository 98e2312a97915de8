/* From the caller's tensors to what the products take: rows read in the type that is computed in, panels, gathered keys. */

template <class T> INLINE T read_number(const void *at, int64_t i, int64_t dtype) {
    if (dtype == BFLOAT16) {
        uint32_t bits = (uint32_t)((const uint16_t *)at)[i] << 16;
        float x;
        __builtin_memcpy(&x, &bits, sizeof x);
        return (T)x;
    }
    return ((const T *)at)[i];
}

template <class T> INLINE Vector<T> read_vector(const void *at, int64_t i, int64_t dtype) {
    if (dtype != BFLOAT16) return load((const T *)at + i);
    T line[LANES<T>];
    for (int lane = 0; lane < LANES<T>; lane++) line[lane] = read_number<T>(at, i + lane, dtype);
    return load(line);
}

template <class T> void read_row(const void *at, int64_t offset, int64_t n, int64_t dtype, T *to) {
    if (dtype == BFLOAT16)
        for (int64_t d = 0; d < n; d++) to[d] = read_number<T>(at, offset + d, dtype);
    else
        __builtin_memcpy(to, (const T *)at + offset, n * sizeof(T));
}

INLINE void write_number(void *at, int64_t i, float x, int64_t dtype) {
    if (dtype == BFLOAT16) { /* round to nearest, ties to even; NaN stays NaN */
        uint32_t bits;
        __builtin_memcpy(&bits, &x, sizeof bits);
        ((uint16_t *)at)[i] = x != x ? 0x7fc0 : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    } else
        ((float *)at)[i] = x;
}
INLINE void write_number(void *at, int64_t i, double x, int64_t) { ((double *)at)[i] = x; }

/* The rows of one head, [rows, size]. */
struct HeadRows {
    const void *data;
    int64_t begin, stride, size, dtype;
    int64_t at(int64_t row) const { return begin + row * stride; }
};

/* A tensor [B, heads, rows, size] of the caller, by the rows and heads of the problem: `heads` in a fold. */
struct Rows {
    const void *data;
    const int64_t *stride;
    int64_t size, dtype, folds, heads, repeat;
    HeadRows operator()(int64_t b, int64_t h) const {
        return {data, b / folds * stride[0] + (b % folds * heads + h) / repeat * stride[1], stride[2], size, dtype};
    }
};
INLINE Rows query_of(const Problem &p) { return {p.query, p.query_stride, p.D, p.dtype, p.folds, p.H, 1}; }
INLINE Rows key_of(const Problem &p) { return {p.key, p.key_stride, p.D, p.dtype, p.folds, p.G, p.repeat}; }
INLINE Rows value_of(const Problem &p) { return {p.value, p.value_stride, p.Dv, p.dtype, p.folds, p.G, p.repeat}; }
INLINE Rows d_output_of(const Problem &p) { return {p.d_output, p.d_output_stride, p.Dv, p.dtype, p.folds, p.H, 1}; }
INLINE Rows form_query_of(const Problem &p) {
    return {p.form_query, p.form_query_stride, p.form_size, p.form_dtype, p.folds, 1, 1};
}
INLINE Rows form_key_of(const Problem &p) { return {p.form_key, p.form_key_stride, p.form_size, p.form_dtype, p.folds, 1, 1}; }

/* Rows of the first vectors of memory that the products may read in place, or null: then they have to be copied. */
template <class T> const T *in_place(const HeadRows &x, int64_t row, int64_t padded) {
    return x.dtype == BFLOAT16 || x.size != padded ? nullptr : (const T *)x.data + x.at(row);
}

/* One row, in place where that can be, else in `buffer`. */
template <class T> const T *row_of(const HeadRows &x, int64_t row, T *buffer) {
    const T *found = in_place<T>(x, row, x.size);
    if (!found) read_row(x.data, x.at(row), x.size, x.dtype, buffer), found = buffer;
    return found;
}

/* The size of the largest number of a row. As bits without the sign, sizes are in order, and NaN is the largest. */
template <class T> T largest(const T *row, int64_t n) {
    constexpr int L = LANES<T>;
    const Bits<T> sizes = (Bits<T>{} - 1) >> 1;
    Ints<T> most{};
    int64_t d = 0;
    for (; d + L <= n; d += L) {
        const Ints<T> x = (Ints<T>)((Bits<T>)load(row + d) & sizes);
        most = x > most ? x : most;
    }
    for (; d < n; d++) {
        const Ints<T> x = (Ints<T>)((Bits<T>)splat(row[d]) & sizes);
        most = x > most ? x : most;
    }
    return ((Vector<T>)largest_lane<T>(most))[0];
}

/* [size][PANEL] of each panel = factor * rows, transposed; rows past `count` are 0. */
template <class T> void pack_panels(const HeadRows &x, int64_t row, int64_t count, T factor, int64_t padded, T *to) {
    constexpr int L = LANES<T>, W = PANEL<T>;
    for (int64_t i = 0; i < BLOCK; i += L) { /* LANES rows at a time */
        T *panel = to + (i / W) * padded * W + i % W;
        const int64_t rows = std::max<int64_t>(0, std::min<int64_t>(L, count - i)), at = x.at(row + i);
        int64_t d = 0;
        for (; rows == L && d + L <= x.size; d += L) {
            Vector<T> square[L];
            _Pragma("GCC unroll 16") for (int r = 0; r < L; r++) square[r] =
                factor * read_vector<T>(x.data, at + r * x.stride + d, x.dtype);
            transpose<T>(square);
            _Pragma("GCC unroll 16") for (int r = 0; r < L; r++) store(panel + (d + r) * W, square[r]);
        }
        for (; d < padded; d++)
            for (int r = 0; r < L; r++)
                panel[d * W + r] = r < rows && d < x.size ? factor * read_number<T>(x.data, at + r * x.stride + d, x.dtype) : 0;
    }
}

/* [BLOCK][padded] rows, 0 past `count` and past the size. */
template <class T> void pack_rows(const HeadRows &x, int64_t row, int64_t count, int64_t padded, T *to) {
    for (int64_t i = 0; i < BLOCK; i++, to += padded) {
        const int64_t n = i < count ? x.size : 0;
        if (n) read_row(x.data, x.at(row + i), n, x.dtype, to);
        for (int64_t d = n; d < padded; d++) to[d] = 0;
    }
}

/* Keys (or values) of a chunk, as dense rows of `row` numbers: in place where they are neighbours, else gathered. */
template <class T> struct Gathered {
    const T *data;
    int64_t row;
};
template <class T> Gathered<T> neighbors(const HeadRows &x, const int32_t *keys, int64_t count, int64_t padded) {
    const bool whole = count > 0 && count % GROUP == 0 && keys[count - 1] - keys[0] == count - 1;
    return {whole ? in_place<T>(x, keys[0], padded) : nullptr, x.stride};
}
template <class T> Gathered<T> gather(const HeadRows &x, const int32_t *keys, int64_t count, int64_t padded, T *buffer) {
    const Gathered<T> found = neighbors<T>(x, keys, count, padded);
    if (found.data) return found;
    const int64_t rows = (count + GROUP - 1) / GROUP * GROUP;
    for (int64_t i = 0; i < rows; i++) {
        T *to = buffer + i * padded;
        const int64_t n = i < count ? x.size : 0;
        if (n) read_row(x.data, x.at(keys[i]), n, x.dtype, to);
        for (int64_t d = n; d < padded; d++) to[d] = 0;
    }
    return {buffer, padded};
}
