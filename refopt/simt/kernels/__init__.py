"""`cuda.jit`: kernels and device functions, their signatures, and their arguments."""
