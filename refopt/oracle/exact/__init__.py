"""Equal bits: laws for implementations that follow docs/numerics.md to the letter.

    from refopt.oracle.exact import check
    check("lars_momentum", my_merged_lars)

``my_merged_lars`` has the signature of `refopt.cpu.merged_lars_momentum`. The strategies in
``refopt.oracle.exact.strategies`` draw cases at random and need Hypothesis; the rest needs NumPy alone.
"""

from refopt.oracle.exact.laws import check

__all__ = ["check"]
