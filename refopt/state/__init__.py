"""State dictionaries, from which a training run resumes as if uninterrupted, also in PyTorch's layout.

    >>> import numpy as np
    >>> from refopt import state
    >>> slots = {name: [np.ones(3, np.float32)] for name in ("params", "grads", "velocities")}
    >>> saved = state.state_dict("momentum", slots, {"lr": 0.1, "mu": 0.9})
    >>> slots["velocities"][0][:] = 7
    >>> state.load(saved, "momentum", slots)["lr"], slots["velocities"][0].tolist()
    (0.1, [1.0, 1.0, 1.0])

Plans of `refopt.gpu` have methods for both, ``state_dict()`` and ``load_state_dict(saved)``.

A state dictionary has what a step changes other than the parameters::

    {"routine": "adamw", "version": 1,
     "hypers": {"lr": 0.001, "beta1": 0.9, ...},
     "slots": {"moment1": [array, ...], "beta1_pow": [array, ...], ..., "master_params": [None, ...]}}

Each slot has an entry per tensor: a NumPy array, or ``None`` if there is none. Parameters belong to the model's
checkpoint; master parameters belong to the optimizer and are included. `state_dict` and `load` do the same without a
plan, for NumPy arrays, or with ``memory=gpu.Transfer(params[0])`` for device arrays. `to_torch` and `from_torch`
convert to and from the ``state_dict()`` of optimizers in ``torch.optim``. `refopt.state.peers` maps their names,
`refopt.state.steps` relates powers and step counts. The package needs only NumPy.
"""

from refopt.state.plain import load, state_dict
from refopt.state.pytorch import from_torch, to_torch

__all__ = ["from_torch", "load", "state_dict", "to_torch"]
