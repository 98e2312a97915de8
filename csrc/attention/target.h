/* Everything that depends on the instruction set, in a namespace of its own. */
namespace TARGET_NAME {
/* Rows of the register blocks: with 32 vector registers twice as many as with 16. */
#if VECTOR_BYTES == 64
static constexpr int ROWS = 8;
#else
static constexpr int ROWS = 4;
#endif
static constexpr int KEY_ROWS = 6, GROUP = 3 * ROWS; /* GROUP: a multiple of both */

#include "vector.h"
#include "products.h"
#include "inputs.h"
#include "block.h"
#include "bounds.h"

/* Head sizes are rounded up to what the products take. */
template <class T> int64_t padded_size(int64_t size) {
    const int64_t step = std::max<int64_t>(2 * LANES<T>, ROWS);
    return (size + step - 1) / step * step;
}

#include "forward.h"
#include "backward.h"

int run_forward(const Problem &p) { return p.dtype == FLOAT64 ? forward<double>(p) : forward<float>(p); }
int run_backward(const Problem &p) { return p.dtype == FLOAT64 ? backward<double>(p) : backward<float>(p); }
} // namespace TARGET_NAME
