"""refopt: every merged optimizer step twice, in NumPy and as one CUDA kernel, equal bit for bit.

``refopt.cpu`` is the reference (NumPy alone), ``refopt.gpu`` the kernels, ``refopt.simt`` the executor
that runs those kernels on a machine without a GPU, ``refopt.catalog`` the table of routines.
"""

__version__ = "0.2.0"
