"""A library of fused optimizers as others write them: tables of tensors, blocks of chunks, functors. It is right.

The mutants of `oracle.mutants` are edits of its text.
"""
