"""What a training run has to keep to go on as if it had not stopped, and the same in PyTorch's layout.

    >>> import numpy as np
    >>> from refopt import state
    >>> slots = {name: [np.ones(3, np.float32)] for name in ("params", "grads", "velocities")}
    >>> saved = state.state_dict("momentum", slots, {"lr": 0.1, "mu": 0.9})
    >>> slots["velocities"][0][:] = 7
    >>> state.load(saved, "momentum", slots)["lr"], slots["velocities"][0].tolist()
    (0.1, [1.0, 1.0, 1.0])

Plans of `refopt.gpu` have methods of their own for both, ``state_dict()`` and ``load_state_dict(saved)``.

A state dictionary has what a step changes beside the parameters::

    {"routine": "adamw", "version": 1,
     "hypers": {"lr": 0.001, "beta1": 0.9, ...},
     "slots": {"moment1": [array, ...], "beta1_pow": [array, ...], ..., "master_params": [None, ...]}}

Each slot has an entry per tensor: an array of NumPy, or ``None`` where there is none. Parameters are the model's and
belong to its own checkpoint; master parameters are the optimizer's and are here. `state_dict` and `load` do the same
without a plan, for arrays of NumPy, or with ``memory=gpu.Transfer(params[0])`` for those of a device. `to_torch` and
`from_torch` convert to and from what ``state_dict()`` of an optimizer in ``torch.optim`` returns. `refopt.state.peers`
says which of theirs is which, `refopt.state.steps` how powers and counts follow from each other. All of it needs NumPy
alone.
"""

from refopt.state.plain import load, state_dict
from refopt.state.pytorch import from_torch, to_torch

__all__ = ["from_torch", "load", "state_dict", "to_torch"]
