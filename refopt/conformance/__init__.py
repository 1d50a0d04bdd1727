"""The specification of the routines as laws, for others to hold their own code to.

    from refopt.conformance import check
    check("lars_momentum", my_merged_lars)

``my_merged_lars`` has the signature of `refopt.cpu.merged_lars_momentum`. The strategies in
``refopt.conformance.strategies`` draw cases at random and need Hypothesis; the rest needs NumPy alone.
"""

from refopt.conformance.laws import check

__all__ = ["check"]
