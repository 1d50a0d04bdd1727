"""The reference: every routine in plain NumPy, written to be read and believed."""

from refopt.cpu.lars import lars_momentum, merged_lars_momentum, weight_decays

__all__ = ["lars_momentum", "merged_lars_momentum", "weight_decays"]
