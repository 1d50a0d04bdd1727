"""Kernels, tables and plans: access, sums over threads, PTX, others' arrays, ladders, the files of kernels."""
