"""Benchmarks: ``python -m benchmarks.run`` measures on a CUDA GPU, with PyTorch as the peer."""
