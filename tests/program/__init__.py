"""Programs, passes, placement and sharding: bits, formulae, and what is refused."""
