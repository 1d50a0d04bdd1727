"""Detects code that Numba does not compile for CUDA, from a kernel's source and the types inferred for it.

`syntax` finds syntax that no kernel may contain, whatever its types; `names` finds names with values that kernels
cannot use; `shapes` checks the sizes of shared and local arrays. `typed` and `statements` apply them while a function
is typed and, with `uses` and `calls`, check what depends on types. All follow numba-cuda 0.30, which tests compare
with. Operands of types for which Numba has no operator or function are found by `base.record`. Branches that Numba removes before type inference are not examined.
"""
