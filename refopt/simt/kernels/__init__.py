"""`cuda.jit`: kernels and device functions, their signatures, and what a launch passes to them."""
