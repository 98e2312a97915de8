/* Vectors of one instruction set, by the compiler's vector extension. Included once for each, with VECTOR_BYTES set. */

template <class T> struct VectorOf;
template <> struct VectorOf<float> {
    typedef float type __attribute__((vector_size(VECTOR_BYTES)));
    typedef int32_t ints __attribute__((vector_size(VECTOR_BYTES)));
    typedef uint32_t bits __attribute__((vector_size(VECTOR_BYTES)));
};
template <> struct VectorOf<double> {
    typedef double type __attribute__((vector_size(VECTOR_BYTES)));
    typedef int64_t ints __attribute__((vector_size(VECTOR_BYTES)));
    typedef uint64_t bits __attribute__((vector_size(VECTOR_BYTES)));
};
template <class T> using Vector = typename VectorOf<T>::type;
template <class T> using Ints = typename VectorOf<T>::ints;
template <class T> using Bits = typename VectorOf<T>::bits; /* unsigned: what no row sees may be any number, and overflow */
template <class T> constexpr int LANES = VECTOR_BYTES / sizeof(T);
/* A panel is what the products work on: 3 vectors of queries. 3 x ROWS sums, 3 loads and a broadcast fill the registers. */
template <class T> constexpr int PANEL = 3 * LANES<T>;
template <class T> constexpr int PANELS = BLOCK / PANEL<T>;

template <class T> INLINE Vector<T> load(const T *p) {
    Vector<T> v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
template <class T> INLINE void store(T *p, Vector<T> v) { __builtin_memcpy(p, &v, sizeof v); }
template <class T> INLINE Vector<T> splat(T x) { return Vector<T>{} + x; }
template <class T> INLINE bool any(Ints<T> is) { /* lanes are 0 or -1 */
    for (int lane = 1; lane < LANES<T>; lane++) is[0] |= is[lane];
    return is[0];
}
template <class T> INLINE Vector<T> larger(Vector<T> a, Vector<T> b) { return a > b ? a : b; }

/* 2^x for x <= 0 or a little above: 2^round(x) by the exponent's bits, the rest by a polynomial of relative error 2e-9.
 * Below 2^-125 it is 0; NaN stays NaN. */
INLINE Vector<float> exp2_of(Vector<float> x) {
    typedef Vector<float> V;
    const V low = splat<float>(-125.0f), magic = splat<float>(12582912.0f); /* 1.5 * 2^23: rounds, integer in the low bits */
    const auto gone = x < low;
    x = gone ? low : x;
    const V r = x + magic, f = x - (r - magic);
    V p = splat<float>(0.0001534579973201406f);
    p = p * f + 0.001339993111986272f;
    p = p * f + 0.009618489002720304f;
    p = p * f + 0.05550328777274292f;
    p = p * f + 0.2402264689021289f;
    p = p * f + 0.6931472057370769f;
    p = p * f + 1.0f;
    const V y = p * (V)(((Bits<float>)r << 23) + 0x3f800000u); /* a product, so that every NaN stays one */
    return gone ? V{} : y;
}
INLINE Vector<double> exp2_of(Vector<double> x) {
    typedef Vector<double> V;
    const V low = splat<double>(-1020.0), magic = splat<double>(6755399441055744.0); /* 1.5 * 2^52 */
    const auto gone = x < low;
    x = gone ? low : x;
    const V r = x + magic, f = (x - (r - magic)) * 0.693147180559945309417;
    V p = splat<double>(1.0 / 6227020800.0); /* Taylor's series of exp to degree 13, |f| < 0.35 */
    const double terms[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
                            1.0 / 120,       1.0 / 24,       1.0 / 6,       0.5,          1.0,         1.0};
    for (double term : terms) p = p * f + term;
    const V y = p * (V)(((Bits<double>)r << 52) + 0x3ff0000000000000u);
    return gone ? V{} : y;
}

/* Running sums over the lanes: lane i becomes the sum of lanes 0..i, or of lanes i.. for the reverse. */
template <class T, int STEP> INLINE Vector<T> moved_up(Vector<T> v) {
    Ints<T> at;
    for (int i = 0; i < LANES<T>; i++) at[i] = i < STEP ? i : LANES<T> + i - STEP;
    return __builtin_shuffle(Vector<T>{}, v, at);
}
template <class T, int STEP> INLINE Vector<T> moved_down(Vector<T> v) {
    Ints<T> at;
    for (int i = 0; i < LANES<T>; i++) at[i] = i + STEP; /* past the end: the zeros */
    return __builtin_shuffle(v, Vector<T>{}, at);
}
/* Rows of LANES numbers become columns: each round mixes the first half of the rows with the second. */
template <class T> INLINE void transpose(Vector<T> (&x)[LANES<T>]) {
    constexpr int L = LANES<T>;
    Ints<T> low, high;
    for (int i = 0; i < L; i++) low[i] = i / 2 + i % 2 * L, high[i] = low[i] + L / 2;
    _Pragma("GCC unroll 4") for (int round = 1; round < L; round *= 2) {
        Vector<T> y[L];
        UNROLLED for (int i = 0; i < L / 2; i++) {
            y[2 * i] = __builtin_shuffle(x[i], x[i + L / 2], low);
            y[2 * i + 1] = __builtin_shuffle(x[i], x[i + L / 2], high);
        }
        _Pragma("GCC unroll 16") for (int i = 0; i < L; i++) x[i] = y[i];
    }
}

/* The sum of all lanes, in pairs: one after the other they would wait for each other. */
template <class T> INLINE T sum_of(Vector<T> v) {
    if constexpr (LANES<T> > 8) v += moved_down<T, 8>(v);
    if constexpr (LANES<T> > 4) v += moved_down<T, 4>(v);
    if constexpr (LANES<T> > 2) v += moved_down<T, 2>(v);
    return v[0] + v[1];
}
/* The largest of all lanes, none below 0, in lane 0. */
template <class T> INLINE Ints<T> largest_lane(Ints<T> x) {
    const auto with = [](Ints<T> a, Vector<T> b) { return a > (Ints<T>)b ? a : (Ints<T>)b; };
    if constexpr (LANES<T> > 8) x = with(x, moved_down<T, 8>((Vector<T>)x));
    if constexpr (LANES<T> > 4) x = with(x, moved_down<T, 4>((Vector<T>)x));
    if constexpr (LANES<T> > 2) x = with(x, moved_down<T, 2>((Vector<T>)x));
    return with(x, moved_down<T, 1>((Vector<T>)x));
}
template <class T> INLINE Vector<T> running_sum(Vector<T> v) {
    v += moved_up<T, 1>(v);
    if constexpr (LANES<T> > 2) v += moved_up<T, 2>(v);
    if constexpr (LANES<T> > 4) v += moved_up<T, 4>(v);
    if constexpr (LANES<T> > 8) v += moved_up<T, 8>(v);
    return v;
}
template <class T> INLINE Vector<T> reverse_running_sum(Vector<T> v) {
    v += moved_down<T, 1>(v);
    if constexpr (LANES<T> > 2) v += moved_down<T, 2>(v);
    if constexpr (LANES<T> > 4) v += moved_down<T, 4>(v);
    if constexpr (LANES<T> > 8) v += moved_down<T, 8>(v);
    return v;
}
