"""The machine: launches, threads that take turns, barriers, warps, atomics, and what kernels call on it."""
