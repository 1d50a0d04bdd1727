"""Ladders: a routine as one would write it first, and step by step to what runs in production, a file each.

    python -m refopt.gpu.ladder.adam

runs the rungs of a file on a GPU, or else on the executor: it compares their bits with NumPy's, and times them.

Each file is read from top to bottom: the reference, the versions and what each took on a GPU, then the kernels, each
with how it is launched. ``RUNGS`` of a file has, by version, a function that gives the launches of a step;
``OTHER_BITS`` names the versions whose bits are not the reference's.
"""
