"""The optimizers of ``torch.optim`` for which refopt has no merged kernels; their errors name an alternative."""

from typing import Any

INSTEAD = {
    "ASGD": "torch.optim.ASGD, or SGD with the averages of torch.optim.swa_utils.AveragedModel",
    "Adafactor": "torch.optim.Adafactor, or AdamW with states='8bit' for less memory",
    "LBFGS": "torch.optim.LBFGS: its step evaluates the loss several times, so it cannot be one launch",
    "Rprop": "torch.optim.Rprop",
    "SparseAdam": "torch.optim.SparseAdam, or Adam with sparse='rows', which adds eps after the correction",
}


class Absent:
    """A class without instances."""

    def __init__(self, *args: Any, **named: Any) -> None:
        name = type(self).__name__
        raise NotImplementedError(f"refopt.torch.{name}: there are no merged kernels for it; use {INSTEAD[name]}")


ASGD, Adafactor, LBFGS, Rprop, SparseAdam = (
    type(name, (Absent,), {"__doc__": f"Not merged: use {instead}.", "__module__": __name__})
    for name, instead in INSTEAD.items()
)
