"""Kernels as one reads them: all that a GPU runs for a routine as one text in plain Python.

A kernel is put together from functions of several files, made for dtypes and choices. `listing` writes each of them
once, callees first, with the values it was made for in their places, without the branches that these leave dead, and
with the comments of the sources. `refopt show` is the command, `Kernel.source` a kernel's own.
"""

from refopt.show.kernels import launches_of
from refopt.show.text import Listing, listing

__all__ = ["Listing", "launches_of", "listing"]
