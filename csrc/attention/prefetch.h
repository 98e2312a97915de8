/* Software prefetch of what the next step reads, issued while this one computes: of a long context nothing stays in a core's
 * own cache until its turn comes again. A little at a time: all at once, the products would wait behind it for what they need
 * themselves. */
class Prefetch {
    struct Stream {
        const char *at;
        int64_t row, bytes, rows, each; /* bytes from row to row, bytes of a row, rows that are left, rows at a time */
    };
    Stream streams[9];
    int count = 0;
    int64_t turn, turns, calls;

  public:
    /* The `turn`-th of `turns` steps, in which `issue` is called so many times. */
    Prefetch(int64_t turn, int64_t turns, int64_t calls) : turn(turn), turns(turns), calls(std::max<int64_t>(calls, 1)) {}

    template <class T> void rows(const T *at, int64_t row, int64_t size, int64_t n) {
        constexpr int64_t bytes = sizeof(T);
        if (at && n > 0) streams[count++] = {(const char *)at, row * bytes, size * bytes, n, (n + calls - 1) / calls};
    }
    /* Numbers that lie side by side. */
    template <class T> void numbers(const T *at, int64_t n) {
        constexpr int64_t LINE = 64 / sizeof(T);
        rows(at, LINE, LINE, (n + LINE - 1) / LINE);
    }
    /* Of `n` rows that all steps together prefetch, those of this one. */
    template <class T> void share_of_rows(const T *at, int64_t row, int64_t size, int64_t n) {
        const int64_t begin = n * turn / turns, end = n * (turn + 1) / turns;
        if (at) rows(at + begin * row, row, size, end - begin);
    }
    /* Not inline: the products around it would get fewer registers. */
    __attribute__((noinline)) void issue() {
        for (int i = 0; i < count; i++) {
            Stream &x = streams[i];
            for (int64_t n = std::min(x.each, x.rows); n > 0; n--, x.rows--, x.at += x.row)
                for (int64_t byte = 0; byte < x.bytes; byte += 64) __builtin_prefetch(x.at + byte, 0, 2);
        }
    }
};
