"""What Numba does not compile for CUDA, found in the text of a kernel and in the types that it is typed with.

`syntax` has what no kernel may hold, whatever its types; `names` what a name may not stand for; `shapes` the sizes of
shared and local arrays. `typed` and `statements` put them to work while a function is typed, and have what depends on
types, with `uses` and `calls`. All of it is as numba-cuda 0.30 has it, which tests ask. Ways that Numba drops
before it infers types are not looked at.
"""
