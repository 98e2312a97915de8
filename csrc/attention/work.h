/* Sharing a call out among threads: blocks of queries are claimed in order, and a block waits for the one before it only
 * where it needs what that one leaves behind for the same columns. So threads follow each other from left to right, and
 * every sum has one order, whatever the number of threads. */

struct Progress {
    std::atomic<int64_t> *done; /* [units] columns below it are done */
    std::atomic<int64_t> next{0};

    void finish(int64_t unit, int64_t column) { done[unit].store(column, std::memory_order_release); }
    void wait(int64_t unit, int64_t column) const {
        for (int spins = 0; done[unit].load(std::memory_order_acquire) < column; spins++)
            if (spins > 2000) sched_yield();
    }
};

/* Memory of a call, released with it. */
class Memory {
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
    ~Memory() {
        for (void *each : taken) std::free(each);
    }
};
