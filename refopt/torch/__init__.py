"""PyTorch's optimizers with merged steps: one line of a training loop changes.

    >>> import torch
    >>> import refopt.torch
    >>> model = torch.nn.Linear(4, 3)
    >>> optimizer = refopt.torch.AdamW(model.parameters(), lr=1e-3)
    >>> model(torch.ones(2, 4)).sum().backward()
    >>> optimizer.step()
    >>> isinstance(optimizer, torch.optim.AdamW)
    True

`SGD`, `Adam`, `AdamW`, `Adamax`, `Adagrad`, `Adadelta`, `RMSprop`, `NAdam`, `RAdam` and `Muon` derive from the classes
of ``torch.optim`` and take their arguments; `LARS`, `LAMB`, `Lion` and `NovoGrad` are used in the same way. Schedulers,
hooks, ``add_param_group`` and ``GradScaler`` work unchanged, and state dictionaries can be exchanged with PyTorch's
classes in both directions. Parameters may be DTensors, as ``fully_shard`` makes them. `clip_grad_norm_` clips the norm
of several optimizers together. `ASGD`, `Adafactor`, `LBFGS`, `Rprop` and `SparseAdam` name an alternative.
One or two launches per device update tensors on a GPU; the executor updates tensors on the CPU, for tests.
"""

from refopt.torch.absent import ASGD, LBFGS, Adafactor, Rprop, SparseAdam
from refopt.torch.host import accelerate
from refopt.torch.norm import clip_grad_norm_
from refopt.torch.optimizers import (
    LAMB,
    LARS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Lion,
    Muon,
    NAdam,
    NovoGrad,
    RAdam,
    RMSprop,
)

__all__ = [
    "ASGD", "LAMB", "LARS", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Lion",
    "Muon", "NAdam", "NovoGrad", "RAdam", "RMSprop", "Rprop", "SparseAdam", "accelerate", "clip_grad_norm_",
]
