"""Kernels, tables and plans: access, sums over threads, PTX, other libraries' arrays, ladders and listings."""
