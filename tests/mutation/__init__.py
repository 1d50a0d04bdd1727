"""Changes planted in the package one at a time, each tried on the tests that run its line: ``make mutants``.

- `edits`: which changes a file offers, and the text of the file with one of them.
- `covered`: which tests run a line, from a run of the suite under coverage.py.
- `sample`: which of all changes are tried, spread over the package.
- `trial`: one change in a copy of the checkout, and whether a test saw it.
- `report`: what was killed, by part of the package.

mutmut leaves out decorated functions, so most kernels, and Cosmic Ray neither drops statements nor swaps arguments
nor chooses tests by coverage; what they lack is most of what these files do.
"""
