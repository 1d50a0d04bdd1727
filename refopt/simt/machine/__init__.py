"""The simulated machine: launches, the scheduling of threads, barriers, warps, atomics and other device functions."""
