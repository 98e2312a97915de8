/* Sharing a call out among threads: strips of queries are claimed in order, and a strip waits for the one before it only
 * where it needs what that one leaves behind for the same columns. So threads follow each other from left to right, and
 * every sum has one order, whoever is faster. */

/* Blocks of queries that go over the keys together, head by head. The keys and values of a context do not stay in a core's
 * own cache from one strip to the next: the more blocks share what was fetched, the better, as long as each thread has
 * several strips to do. */
struct Strips {
    int64_t size = 1, count; /* blocks of a strip; strips of a sequence */
    explicit Strips(const Problem &p) {
        constexpr int64_t LARGEST = 4; /* twice as many blocks gain nothing more */
        constexpr int64_t EACH = 8;    /* strips that each thread has at least, if they are larger than one block */
        const int64_t blocks = block_count(p), enough = EACH * std::max<int64_t>(1, p.threads);
        while (size < LARGEST && blocks * p.B / (2 * size) >= enough) size *= 2;
        count = (blocks + size - 1) / size;
    }
};

struct Progress {
    std::atomic<int64_t> *done; /* [strips] columns below it are done */
    std::atomic<int64_t> next{0};

    void finish(int64_t unit, int64_t column) { done[unit].store(column, std::memory_order_release); }
    void wait(int64_t unit, int64_t column) const {
        for (int spins = 0; done[unit].load(std::memory_order_acquire) < column; spins++)
            if (spins > 2000) sched_yield();
    }
};

/* Arena of a call, released with it. */
class Arena {
    std::vector<void *> taken;

  public:
    bool failed = false;
    template <class T> T *take(int64_t count) {
        void *found = std::aligned_alloc(64, (std::max<int64_t>(count, 1) * sizeof(T) + 127) / 64 * 64);
        if (found)
            taken.push_back(found);
        else
            failed = true;
        return (T *)found;
    }
    ~Arena() {
        for (void *each : taken) std::free(each);
    }
};
