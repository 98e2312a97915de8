/* Everything that depends on the instruction set, in a namespace of its own. */
namespace TARGET_NAME {
/* Rows of the register blocks: with 32 vector registers twice as many as with 16. */
#if VECTOR_BYTES == 64
static constexpr int ROWS = 8;
#else
static constexpr int ROWS = 4;
#endif
static constexpr int KEY_ROWS = 6, GROUP = 3 * ROWS; /* GROUP: a multiple of both */

/* Head sizes are rounded up to what the products take. */
template <class T> int64_t padded_size(int64_t size) {
    const int64_t step = std::max<int64_t>(2 * VECTOR_BYTES / (int64_t)sizeof(T), ROWS);
    return (size + step - 1) / step * step;
}

#include "attention/vector.h"
#include "attention/products.h"
#include "attention/inputs.h"
#include "attention/block.h"
#include "attention/bias.h"
#include "attention/select.h"
#include "attention/bounds.h"
#include "attention/seen.h"
#include "attention/forward.h"
#include "attention/backward_block.h"
#include "attention/backward.h"
#include "cache/evict.h"
#include "cache/decode.h"

int run_forward(const Problem &p) { return p.dtype == FLOAT64 ? forward<double>(p) : forward<float>(p); }
int run_backward(const Problem &p) { return p.dtype == FLOAT64 ? backward<double>(p) : backward<float>(p); }
int run_evict(const Eviction &e, int64_t threads) {
    return e.dtype == FLOAT64 ? evict<double>(e, threads) : evict<float>(e, threads);
}
int run_decode(const Step &p) { return p.dtype == FLOAT64 ? decode<double>(p) : decode<float>(p); }
} // namespace TARGET_NAME
