"""Test vectors of a routine for other languages: inputs, expected results, and a bound for each element.

`vectors` makes them; `SCHEMA` is the JSON schema of their text.
"""

from refopt.oracle.portable.make import SCHEMA, Vectors, vectors

__all__ = ["SCHEMA", "Vectors", "vectors"]
