"""`refopt.torch` beside PyTorch's own classes; make test-peers runs these."""
