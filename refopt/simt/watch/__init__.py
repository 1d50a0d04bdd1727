"""Records of observed launches: counts, races, reads of unwritten memory, and floating-point events."""
