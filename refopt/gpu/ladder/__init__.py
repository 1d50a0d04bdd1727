"""Ladders: each file takes a routine from a first version, step by step, to what runs in production.

    python -m refopt.gpu.ladder.adam

runs the rungs of a file on a GPU, or else on the executor: it compares their results with NumPy's bit for bit, and
times them.

Read each file from top to bottom: the reference, the versions and their times on a GPU, then the kernels, each with
its launches. ``RUNGS`` maps each version to a function that returns the launches of a step; ``OTHER_BITS`` names the
versions, if any, that do not match the reference bit for bit.
"""
