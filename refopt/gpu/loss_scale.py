"""The loss scale of the next iteration: ``refopt.cpu.loss_scale`` in one thread, so that the host need not wait."""

from typing import Any

import numpy as np

from refopt import checks
from refopt.gpu.arrays import describer, device_of, one_of
from refopt.gpu.exclusive import Exclusive, in_turn
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.runtime import device
from refopt.gpu.target import cuda, device_function

GROW, SHRINK = range(2)


@factory
def updater() -> Kernel:
    """The kernel: one thread, arrays of one element."""
    zero, one = np.float32(0), np.float32(1)

    @device_function
    def grown(scale, ratio):
        larger = scale * ratio
        return larger if larger - larger == zero else scale

    @device_function
    def shrunk(scale, ratio):
        smaller = scale * ratio
        return smaller if smaller > one else one

    @kernel()
    def update_loss_scaling(found, scale, good, bad, ratios, grows_after, shrinks_after):
        if cuda.grid(1) == 0:
            if found[0] != zero:
                good[0], bad[0] = 0, bad[0] + 1
                if bad[0] >= shrinks_after:
                    scale[0], bad[0] = shrunk(scale[0], ratios[SHRINK]), 0
            else:
                bad[0], good[0] = 0, good[0] + 1
                if good[0] >= grows_after:
                    scale[0], good[0] = grown(scale[0], ratios[GROW]), 0

    return update_loss_scaling


class LossScaling(Exclusive):
    """`refopt.cpu.update_loss_scaling` bound to its arrays. Made by `refopt.gpu.loss_scaling`.

    Calls from several threads run one after another; the object cannot be copied.
    """

    def __init__(
        self, found_inf: Any, loss_scale: Any, good_steps: Any, bad_steps: Any, stream: Any, **numbers: Any
    ) -> None:
        arrays = [found_inf, loss_scale, good_steps, bad_steps]
        machine = device(device_of(arrays) or None)
        super().__init__(machine, stream, "update_loss_scaling")
        numbers = checks.check_loss_scaling(arrays, describer(machine.name), **numbers)
        ratios = machine.to_device(np.array([numbers["incr_ratio"], numbers["decr_ratio"]], np.float32))
        counts = numbers["incr_every_n_steps"], numbers["decr_every_n_nan_or_inf"]
        self._keep = arrays
        launch = machine.prepare(updater(), 1, 32, (*map(one_of, arrays), ratios, *counts))
        self._run = machine.sequence([launch])

    @in_turn
    def __call__(self) -> None:
        """Update, in stream order."""
        self._run(self._stream)


def loss_scaling(
    found_inf: Any, loss_scale: Any, good_steps: Any, bad_steps: Any, *, incr_every_n_steps: int = 1000,
    decr_every_n_nan_or_inf: int = 2, incr_ratio: float = 2.0, decr_ratio: float = 0.5, stream: Any = 0,
) -> LossScaling:
    """Bind `refopt.cpu.update_loss_scaling` to its arrays on the device: a call is one update, in stream order."""
    return LossScaling(**locals())


def update_loss_scaling(
    found_inf: Any, loss_scale: Any, good_steps: Any, bad_steps: Any, *, incr_every_n_steps: int = 1000,
    decr_every_n_nan_or_inf: int = 2, incr_ratio: float = 2.0, decr_ratio: float = 0.5, stream: Any = 0,
) -> None:
    """`refopt.cpu.update_loss_scaling` for device arrays."""
    update = LossScaling(**locals())
    update()
    update.device.synchronize()
