"""How far correct code may be from the truth: running error bounds of the rules of `refopt.cpu` (numerics, N13)."""
