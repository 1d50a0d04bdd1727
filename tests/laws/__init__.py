"""The specification: a file for each clause of docs/numerics.md, parametrised by routine."""
