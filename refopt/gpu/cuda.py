"""`numba.cuda` for kernels that teach, and for your own kernels.

The names are those of ``numba.cuda``: a kernel that calls nothing else of refopt also works in Numba, below the line
``from numba import cuda``. ``jit`` differs in that it rounds each operation separately, and that a kernel runs on the
machine of its arrays, a GPU or the executor.

    >>> import numpy as np
    >>> from refopt import gpu
    >>> from refopt.gpu import cuda
    >>> @cuda.jit
    ... def double(x):
    ...     i = cuda.grid(1)
    ...     if i < x.size:
    ...         x[i] = x[i] + x[i]
    >>> with gpu.use("executor"):
    ...     x = gpu.to_device(np.ones(3, np.float32))
    >>> double[1, 32](x)
    >>> x.copy_to_host()
    array([2., 2., 2.], dtype=float32)
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from refopt.gpu.arrays import describer, device_of
from refopt.gpu.kernels import Kernel as _Kernel
from refopt.gpu.runtime import device
from refopt.gpu.target import argument_spelled, compiler, device_function
from refopt.simt.cuda import *  # noqa: F403


def __refopt_numba__() -> Any:
    """The module that replaces this one in compiled kernels."""
    return compiler().cuda


class Kernel(_Kernel):
    """A kernel in both forms, launched as ``kernel[grid, block](*args)``.

    It runs on the machine of its arrays; without arrays, only addresses, on the current machine: `gpu.use`.
    """

    def __getitem__(self, configuration: tuple[int, int]) -> Callable[..., None]:
        grid, block = configuration
        return lambda *args: Launch(self, grid, block, args)()


class Launch(NamedTuple):
    """A kernel, its blocks, the threads of each, and its arguments: arrays of one machine, integers, fp32 numbers.

    ``mode`` is "cooperative" for a kernel whose blocks wait for each other. ``keep`` has what must stay alive: arrays
    that the kernel accesses by address.
    """

    kernel: _Kernel
    grid: int
    block: int
    args: tuple
    mode: str = ""
    keep: Any = None

    def __call__(self, stream: Any = 0) -> None:
        """Launch, if there are any blocks.

        Raises:
            TypeError: an argument is a Python float, an fp64 number or of an unsupported type; the message names it.
            RuntimeError: kernels, or this one, cannot be compiled for the machine's compute capability.
        """
        if not self.grid:
            return
        machine = device(device_of(self.args) or None)
        if machine.name == "gpu":
            self.prepared()(stream)
        else:
            self.kernel.require(machine.properties)
            for k, arg in enumerate(self.args):
                argument_spelled(f"{self.kernel.name}: args[{k}]", arg)
            self.kernel.executor[self.grid, self.block, stream, self.kernel.dynamic_shared](*self.args)

    def prepared(self) -> Callable[[Any], None]:
        """A function of a stream that launches it on a GPU, any number of times, with arguments packed once."""
        if not self.grid:
            return lambda stream: None
        launch = device("gpu").prepare(self.kernel, self.grid, self.block, self.args, self.mode)
        launch.keep = self.keep  # type: ignore[attr-defined]
        return launch


def jit(  # type: ignore[no-redef]
    function: Callable | None = None, *, device: bool = False, contract: bool = False,
    launch_bounds: tuple[int, int] | None = None, dynamic_shared: int = 0,
) -> Any:
    """Make a kernel of a function.

    Args:
        function: in Numba's spelling, with this module as ``cuda``.
        device: whether it is a device function, which kernels call, instead of a kernel.
        contract: whether the compiler may turn ``a * b + c`` into one operation with one rounding, as Numba's ``jit``
            does. By default each operation is rounded separately, as in NumPy. The executor always rounds separately.
        launch_bounds: the most threads of a block, and how many blocks must fit on a multiprocessor.
        dynamic_shared: bytes of shared memory that launches give the kernel for ``cuda.shared.array(0, dtype)``: with
            it a kernel may have more than the 48 KB that it can declare.

    Raises:
        TypeError: a device function is given what its kernel has.
    """
    kernels: dict[str, Any] = {"contract": contract, "launch_bounds": launch_bounds, "dynamic_shared": dynamic_shared}
    for name, value in kernels.items():
        if device and value:
            raise TypeError(f"jit: {name}: expected none for a device function, since its kernel has it, got {value!r}")
    decorate: Callable = device_function if device else partial(Kernel, **kernels)
    return decorate if function is None else decorate(function)


def address(array: Any) -> int:
    """The address of an array on a GPU or the executor, in bytes."""
    return describer(device_of([array]))(array, "address").address


def on_machine_of(array: Any, table: np.ndarray) -> Any:
    """A copy of a host array on the machine of another array."""
    return device(device_of([array])).to_device(table)


def multiprocessors(array: Any) -> int:
    """How many multiprocessors the machine of an array has."""
    return device(device_of([array])).properties.multiprocessors
