"""The kernels. They import triton, which is optional: only what runs or compiles them imports them."""
