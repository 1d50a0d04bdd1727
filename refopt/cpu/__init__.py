"""The reference: every routine in plain NumPy, written to be read and believed."""

from refopt.cpu.adadelta import adadelta, merged_adadelta
from refopt.cpu.adagrad import adagrad, merged_adagrad
from refopt.cpu.adam import adam, merged_adam
from refopt.cpu.adamax import adamax, merged_adamax
from refopt.cpu.adamw import adamw, merged_adamw
from refopt.cpu.cast import merged_cast
from refopt.cpu.coalesce import Coalesced, coalesce_tensor
from refopt.cpu.lamb import lamb, merged_lamb
from refopt.cpu.lars import lars_momentum, merged_lars_momentum, weight_decays
from refopt.cpu.layouts import Layout, layout
from refopt.cpu.lion import lion, merged_lion
from refopt.cpu.loss_scale import update_loss_scaling
from refopt.cpu.momentum import merged_momentum, momentum
from refopt.cpu.nadam import merged_nadam, nadam
from refopt.cpu.novograd import merged_novograd, novograd
from refopt.cpu.radam import merged_radam, radam
from refopt.cpu.rmsprop import merged_rmsprop, rmsprop
from refopt.cpu.scan import scan_gradients
from refopt.cpu.sgd import merged_sgd, sgd

__all__ = [
    "Coalesced",
    "Layout",
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "coalesce_tensor",
    "lamb",
    "lars_momentum",
    "layout",
    "lion",
    "merged_adadelta",
    "merged_adagrad",
    "merged_adam",
    "merged_adamax",
    "merged_adamw",
    "merged_cast",
    "merged_lamb",
    "merged_lars_momentum",
    "merged_lion",
    "merged_momentum",
    "merged_nadam",
    "merged_novograd",
    "merged_radam",
    "merged_rmsprop",
    "merged_sgd",
    "momentum",
    "nadam",
    "novograd",
    "radam",
    "rmsprop",
    "scan_gradients",
    "sgd",
    "update_loss_scaling",
    "weight_decays",
]
