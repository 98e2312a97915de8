"""What kernels do, counted in Triton's interpreter: operations of products, and bytes that loads and stores name."""

from collections import defaultdict
from contextlib import contextmanager
from unittest import mock

import numpy as np

from selattn.ops.backends.triton.prepare import instead


@contextmanager
def counted():
    """Within it kernels are counted; yields a dict {kernel: [operations, bytes]}."""
    from triton.runtime.interpreter import InterpreterBuilder as Builder

    found, now = defaultdict(lambda: [0, 0]), [None]
    dot, load, store = Builder.create_dot, Builder.create_masked_load, Builder.create_masked_store

    def count_dot(self, a, b, *rest):
        (m, k), n = a.data.shape, b.data.shape[1]
        found[now[0]][0] += 2 * m * n * k
        return dot(self, a, b, *rest)

    def size(pointers, mask):
        each = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        return each * int(np.count_nonzero(np.broadcast_to(mask.data, pointers.data.shape)))

    def count_load(self, pointers, mask, *rest):
        found[now[0]][1] += size(pointers, mask)
        return load(self, pointers, mask, *rest)

    def count_store(self, pointers, value, mask, *rest):
        found[now[0]][1] += size(pointers, mask)
        return store(self, pointers, value, mask, *rest)

    def run(kernel, grid, arguments, options):
        now[0] = kernel.fn.__name__
        kernel[grid](*arguments, **options)

    counters = {"create_dot": count_dot, "create_masked_load": count_load, "create_masked_store": count_store}
    with mock.patch.multiple(Builder, **counters), instead(run):
        yield found
