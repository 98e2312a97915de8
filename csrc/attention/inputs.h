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

/* A tensor [B, heads, rows, size] of the caller. */
struct Rows {
    const void *data;
    const int64_t *stride;
    int64_t size, dtype;
    int64_t at(int64_t b, int64_t h, int64_t row) const { return b * stride[0] + h * stride[1] + row * stride[2]; }
};

/* Rows of the first vectors of memory that the products may read in place, or null: then they have to be copied. */
template <class T> const T *in_place(const Rows &x, int64_t b, int64_t h, int64_t row, int64_t padded) {
    return x.dtype == BFLOAT16 || x.size != padded ? nullptr : (const T *)x.data + x.at(b, h, row);
}

/* [size][PANEL] of each panel = factor * rows, transposed; rows past `count` are 0. */
template <class T>
void pack_panels(const Rows &x, int64_t b, int64_t h, int64_t row, int64_t count, T factor, int64_t padded, T *to) {
    constexpr int W = PANEL<T>;
    T line[MAX_SIZE];
    for (int i = 0; i < BLOCK; i++) {
        T *panel = to + (i / W) * padded * W + i % W;
        if (i >= count) {
            for (int64_t d = 0; d < padded; d++) panel[d * W] = 0;
            continue;
        }
        const T *from = in_place<T>(x, b, h, row + i, x.size);
        if (!from) read_row(x.data, x.at(b, h, row + i), x.size, x.dtype, line), from = line;
        for (int64_t d = 0; d < x.size; d++) panel[d * W] = factor * from[d];
        for (int64_t d = x.size; d < padded; d++) panel[d * W] = 0;
    }
}

/* [BLOCK][padded] rows, 0 past `count` and past the size. */
template <class T> void pack_rows(const Rows &x, int64_t b, int64_t h, int64_t row, int64_t count, int64_t padded, T *to) {
    for (int64_t i = 0; i < BLOCK; i++, to += padded) {
        const int64_t n = i < count ? x.size : 0;
        if (n) read_row(x.data, x.at(b, h, row + i), n, x.dtype, to);
        for (int64_t d = n; d < padded; d++) to[d] = 0;
    }
}

/* Keys (or values) of a chunk, as dense rows of `row` numbers: in place where they are neighbours, else gathered. */
template <class T> struct Gathered {
    const T *data;
    int64_t row;
};
template <class T> Gathered<T> neighbours(const Rows &x, int64_t b, int64_t g, const int32_t *keys, int64_t count, int64_t padded) {
    const bool whole = count > 0 && count % GROUP == 0 && keys[count - 1] - keys[0] == count - 1;
    return {whole ? in_place<T>(x, b, g, keys[0], padded) : nullptr, x.stride[2]};
}
template <class T>
Gathered<T> gather(const Rows &x, int64_t b, int64_t g, const int32_t *keys, int64_t count, int64_t padded, T *buffer) {
    const Gathered<T> found = neighbours<T>(x, b, g, keys, count, padded);
    if (found.data) return found;
    const int64_t rows = (count + GROUP - 1) / GROUP * GROUP;
    for (int64_t i = 0; i < rows; i++) {
        T *to = buffer + i * padded;
        const int64_t n = i < count ? x.size : 0;
        if (n) read_row(x.data, x.at(b, g, keys[i]), n, x.dtype, to);
        for (int64_t d = n; d < padded; d++) to[d] = 0;
    }
    return {buffer, padded};
}
