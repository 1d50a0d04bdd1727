"""What the accesses of warps cost: sectors, bank conflicts, divergence, and a picture of them."""
