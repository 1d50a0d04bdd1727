"""State dictionaries, refopt's own and PyTorch's."""
