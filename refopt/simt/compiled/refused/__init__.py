"""Detects code that Numba does not compile for CUDA, from a kernel's source and the types inferred for it.

`names` finds names with values that kernels cannot use, and `shapes` checks the sizes of shared and local arrays.
`typed` and `statements` apply them, and `compiled.syntax`, while a function is typed and, with `compiled.uses` and
`calls`, check what depends on types. All follow numba-cuda 0.30, which tests compare with. `base.record` tells which
operands no operator or function of Numba takes. Branches that Numba removes before type inference are not examined.
"""
