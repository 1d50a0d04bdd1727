"""Random kernels without races, to compare the executor with a GPU: `kernels.make(seed)`.

What a seed makes is settled: `h200.npz` has an H200's outputs. So every draw stays where it is, even an unused one.
"""
