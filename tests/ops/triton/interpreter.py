"""Triton's interpreter, made quicker and given bf16: it runs the kernels in Python, on the CPU.

Quicker: it looks all of Triton's functions through for each call of a device function, which takes most of the time.
bf16: it stores bf16 as 16 bits, but cannot multiply them, and rounds towards 0. Kernels compute with bf16 in products
only, and there the matrix units sum up in fp32: so does this.
"""

import functools
import warnings

import numpy as np

_done = False


def quicken():
    """Change the interpreter, once. Triton must have been imported with TRITON_INTERPRET=1."""
    global _done
    if _done:
        return
    _done = True
    import triton.language as tl
    from triton.runtime import interpreter

    seen = set()

    def call(self, *args, **kwargs):
        module = self.fn.__module__
        if module.startswith("triton.") and module not in seen:  # Triton's own; ours are seen to by the launch
            interpreter._patch_lang(self.fn)
            seen.add(module)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
    of_scalar, of_any = functools.cache(interpreter._get_np_dtype), interpreter._get_np_dtype
    interpreter._get_np_dtype = lambda x: of_scalar(x) if type(x) is tl.dtype else of_any(x)

    builder = interpreter.InterpreterBuilder
    run, dot, cast = interpreter.GridExecutor.__call__, builder.create_dot, builder.cast_impl

    def quiet(self, *args, **kwargs):
        # What no row sees may be any number, and overflow, as on a GPU.
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)
            return run(self, *args, **kwargs)

    def widened(x):
        if x.dtype.scalar != tl.bfloat16:
            return x
        return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def rounded(self, x, to):
        if x.dtype.scalar == tl.float32 and to.scalar == tl.bfloat16:
            bits = np.ascontiguousarray(x.data, np.float32).view(np.uint32)
            nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
            return interpreter.TensorHandle(np.where(np.isnan(x.data), np.uint16(0x7FC0), nearest), tl.bfloat16)
        if x.dtype.scalar == tl.bfloat16:
            return cast(self, widened(x), to) if to.scalar != tl.float32 else widened(x)
        return cast(self, x, to)

    interpreter.GridExecutor.__call__ = quiet
    builder.create_dot = lambda self, a, b, *rest: dot(self, widened(a), widened(b), *rest)
    builder.cast_impl = rounded
    builder.create_fp_to_fp = lambda self, x, to, rounding: rounded(self, x, to)
