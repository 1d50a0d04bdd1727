"""The reference: every routine in plain NumPy, written to be read and believed."""

from refopt.cpu.adam import adam, merged_adam
from refopt.cpu.lars import lars_momentum, merged_lars_momentum, weight_decays
from refopt.cpu.momentum import merged_momentum, momentum
from refopt.cpu.sgd import merged_sgd, sgd

__all__ = [
    "adam",
    "lars_momentum",
    "merged_adam",
    "merged_lars_momentum",
    "merged_momentum",
    "merged_sgd",
    "momentum",
    "sgd",
    "weight_decays",
]
