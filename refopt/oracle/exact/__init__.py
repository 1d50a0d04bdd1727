"""Equal bits: laws for implementations that follow docs/numerics.md to the letter.

``refopt.oracle.check("lars_momentum", my_merged_lars, laws=["L18"])`` checks one on fixed cases. The strategies in
``refopt.oracle.exact.strategies`` draw cases at random and need Hypothesis; the rest needs NumPy alone.
"""
