"""The executor in place of `numba.cuda`: modules of its names, and functions rewritten to use them."""
