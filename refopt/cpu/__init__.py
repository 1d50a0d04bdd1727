"""The reference: every routine in plain NumPy, written to be read.

    >>> import numpy as np
    >>> from refopt import cpu
    >>> params, grads, velocities = ([np.ones(n, np.float32) for n in (300, 5)] for _ in range(3))
    >>> cpu.merged_momentum(params, grads, velocities, lr=0.1, mu=0.9)
    >>> velocities[1][0], params[1][0]
    (np.float32(1.9), np.float32(0.81))

Every file with a row (`refopt.cpu.routine`) is an optimizer; its functions, ``merged_NAME`` and ``NAME``, are here. The
oracle also uses the formulae, and varies them. Optimizers share these modules, and the kernels follow them:
`refopt.cpu.weight_decay`; `refopt.cpu.reduce`, the order of sums; `refopt.cpu.remainder` and `refopt.cpu.stochastic`,
storage in bf16; `refopt.cpu.codes`, in 8 bits; `refopt.cpu.coalesce`, layouts; `refopt.cpu.gradient_check`, clipping;
`refopt.cpu.lazy`, sparse gradients; `refopt.cpu.matmul`, products of matrices, including those of tensor cores;
`refopt.cpu.muon`, `refopt.cpu.normuon`, `refopt.cpu.newton_schulz`, the iterations, and `refopt.cpu.blocks`, the
matrices of a parameter. `refopt.cpu.routine` and `refopt.cpu.merged` turn a rule into a step. A checked call can be
repeated: see these two, `refopt.cpu.cast` and `refopt.cpu.loss_scale`.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from refopt.checks.rows import Routine
from refopt.cpu.blocks import Blocks
from refopt.cpu.cast import merged_cast
from refopt.cpu.coalesce import Coalesced, coalesce_tensor
from refopt.cpu.gradient_check import check_gradients
from refopt.cpu.lars_momentum import weight_decays
from refopt.cpu.layouts import Layout, layout
from refopt.cpu.lazy import merged_lazy
from refopt.cpu.loss_scale import update_loss_scaling
from refopt.cpu.matmul import HOPPER, TensorCore, matmul, tensor_core

__all__ = [
    "HOPPER", "Blocks", "Coalesced", "Layout", "TensorCore", "check_gradients", "coalesce_tensor", "layout", "matmul",
    "merged_cast", "merged_lazy", "tensor_core", "update_loss_scaling", "weight_decays",
]

ROWS: dict[str, Routine] = {}
for _found in list(iter_modules(__path__)):
    _module = import_module(f"{__name__}.{_found.name}")
    for _row in [x for x in vars(_module).values() if isinstance(x, Routine) and hasattr(_module, x.merged_name)]:
        if not _row.matrix_arguments:  # for tensors of every shape
            ROWS[_row.name] = _row
        _names = _row.merged_name, _row.name
        globals().update({_name: getattr(_module, _name) for _name in _names})
        __all__ += _names


if TYPE_CHECKING:
    from refopt.cpu._functions import *  # noqa: F403
