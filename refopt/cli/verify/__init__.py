"""The comparison behind ``refopt verify``: CPU reference against kernel, on the tensors of a real model.

`rows` runs one routine in one dtype configuration through its forms and gives a `Row` for each: whether every
bit agrees after every step, and launches and bytes, counted on the executor, against the catalogue. `AROUND` has the
same for what goes on around a step.
"""

from refopt.catalog.data import DTYPES, extents, hypers, make_case, matrices, offered, unavailable
from refopt.cli.verify.around import AROUND, PLAIN
from refopt.cli.verify.compare import Mismatch, Row, rows, unmerged

__all__ = [
    "AROUND", "DTYPES", "PLAIN", "Mismatch", "Row", "extents", "hypers", "make_case", "matrices",
    "offered", "rows", "unavailable", "unmerged",
]
