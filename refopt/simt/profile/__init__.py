"""The cost of warps' accesses: sectors, bank conflicts, divergence, and pictures of them."""
