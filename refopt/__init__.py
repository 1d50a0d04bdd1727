"""refopt: merged optimizer steps, each in NumPy and as a CUDA kernel, equal bit for bit.

``refopt.cpu`` is the reference (only NumPy), ``refopt.gpu`` the kernels, ``refopt.simt`` the executor that runs those
kernels on a machine without a GPU, ``refopt.catalog`` the table of routines.
"""

__version__ = "0.3.0"
