"""Replaces `numba.cuda` by the executor: modules with its names, and functions rewritten to use them."""
