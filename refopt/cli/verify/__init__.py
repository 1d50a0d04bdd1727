"""The comparison of ``refopt verify``: CPU reference against kernels, on the tensors of a real model.

`rows` runs the forms of one routine in one dtype configuration and yields a `Row` for each: whether every bit agrees
after every step, and whether launches and bytes, counted on the executor, match the catalogue. `AROUND` has the same
for the operations around a step.
"""

from refopt.catalog.data import DTYPES, extents, hypers, make_case, matrices, offered, unavailable
from refopt.cli.verify.around import AROUND, PLAIN
from refopt.cli.verify.compare import Mismatch, Row, rows, unmerged

__all__ = [
    "AROUND", "DTYPES", "PLAIN", "Mismatch", "Row", "extents", "hypers", "make_case", "matrices",
    "offered", "rows", "unavailable", "unmerged",
]
