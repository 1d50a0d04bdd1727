"""The queries of a step about many tensors at once, in two forms: this module, and ``_host.cpp``, with the same names.

Querying each tensor separately is most of a step's cost on the host. The C++ form makes no Python objects for
gradients that autograd has made. Only `accelerate` compiles it, which needs a C++ compiler.
"""

import hashlib
import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Sequence
from operator import is_
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version as increment_version

from refopt.checks.files import replaced
from refopt.torch.recent import Recent

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # which is no public name
    TensorGuards = None

SOURCE = Path(__file__).with_name("_host.cpp")
VARIABLE = "REFOPT_TORCH_HOST"
STAY, MOVED, OTHERS = range(3)  # gradients are in place, have moved, or some have appeared or disappeared
_compiled: Any = None  # the extension, once it is compiled
_is_on, _turn = False, threading.Lock()


def is_on() -> bool:
    """Whether `accelerate` is in force for new optimizers, even if the extension is still being compiled."""
    return _is_on


def form(on: bool | None = None) -> Any:
    """The extension if it is compiled and ``on``, by default `is_on`; else the module."""
    return _compiled if (_is_on if on is None else on) and _compiled is not None else sys.modules[__name__]


def accelerate(on: bool = True, wait: bool = True) -> bool:
    """Make steps read tensors with compiled code, or not, in all optimizers whose first step is yet to come.

    The first call on a machine compiles it with ``torch.utils.cpp_extension``, which needs a C++ compiler and ninja and
    takes about ten seconds; later ones load the result, from ``TORCH_EXTENSIONS_DIR`` or PyTorch's cache folder.
    ``REFOPT_TORCH_HOST=1`` in the environment calls this without waiting when `refopt.torch` is imported; with
    ``REFOPT_TORCH_HOST=0`` it does nothing.

    Args:
        on: ``True`` for compiled code, ``False`` for Python.
        wait: ``False`` compiles in another thread; until it is done steps use Python.

    Returns:
        Whether compiled code is in use. If it cannot be compiled, a warning says why, and steps use Python, with the
        same results.
    """
    global _is_on
    if on and _compiled is None and os.environ.get(VARIABLE) != "0":
        if wait or _kept().exists():
            _compile()
        else:
            threading.Thread(target=_compile, daemon=True).start()
    _is_on = on
    return form() is not sys.modules[__name__]


def extension_name() -> str:
    """The extension's name as a module: it is for one source and one version of PyTorch."""
    made_from = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    return re.sub(r"\W", "_", f"refopt_host_{torch.__version__}_{made_from}")


def _kept() -> Path:
    """The file of an extension that is compiled."""
    from torch.utils import cpp_extension

    root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    return Path(root) / f"{extension_name()}{importlib.machinery.EXTENSION_SUFFIXES[0]}"


def _compile() -> None:
    """Load the extension, which is compiled if it has to be; a warning says why it cannot be."""
    global _compiled
    with _turn:
        try:
            _compiled = _compiled or _extension(extension_name(), _kept())
        except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
            reason = str(error).partition("\n")[0]
            warnings.warn(f"refopt.torch.accelerate: steps continue in Python, since {SOURCE.name} cannot be compiled: "
                          f"{reason}", RuntimeWarning, stacklevel=3)


def _extension(name: str, kept: Path) -> Any:
    """The extension: an installed module of its name, the kept file, or compiled now.

    Each process compiles in a folder of its own: in a common one, PyTorch waits forever for the lock of a process that
    was killed.
    """
    from torch.utils import cpp_extension

    if importlib.util.find_spec(name):
        return importlib.import_module(name)
    if not kept.exists():
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:
            module = cpp_extension.load(name, [str(SOURCE)], extra_cflags=["-O2"], build_directory=own)
            kept.parent.mkdir(parents=True, exist_ok=True)
            with replaced(kept) as file:
                file.write(Path(module.__file__).read_bytes())
        return module
    found: Any = importlib.util.spec_from_file_location(name, kept)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class Alike:
    """Whether tensors match some others in shape, strides, dtype and sign bit; keeps none of them alive.

    PyTorch's guards of compiled code compare all of them in one call, which costs the host 0.1 us a tensor.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Record the tensors that others must match."""
        self._check = TensorGuards and TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        self._known = None if self._check else [_kind(x) for x in tensors]

    def __call__(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these match; the answer may also be no if only autograd's flags differ."""
        return self._check(*tensors) if self._check else self._known == [_kind(x) for x in tensors]


class Steady:
    """Whether tensors are as they were recorded once: their class, address, shape, strides, dtype, device, sign bit.

    It keeps none of them alive, and never records them again.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        """Record the tensors as they are now."""
        self._places = [x.data_ptr() for x in tensors]
        self._kinds = [_kind(x) for x in tensors]
        self._alike = Alike(tensors)

    def __call__(self, tensors: list[Tensor]) -> bool:
        """Whether these are the recorded ones, unchanged."""
        if len(tensors) != len(self._kinds) or not self._alike(tensors):
            if self._kinds != [_kind(x) for x in tensors]:
                return False
            self._alike = Alike(tensors)  # another flag of autograd's, such as requires_grad
        return _are_at(tensors, self._places)


class Reader:
    """The addresses of some parameters' gradients, and whether they match the recorded ones.

    With the `Steady` of the parameters, it compares these first.

    Attributes:
        places: their addresses, 0 if there is none, int64.
        present: by parameter, whether there is one.
    """

    def __init__(self, params: list[Any], steady: Steady | None = None) -> None:
        """Read those of some parameters."""
        self._params, self._steady = params, steady
        self.places, self.present = np.zeros(len(params), np.int64), np.zeros(len(params), bool)
        self._all = np.ones(len(params), bool)
        self._masks: Recent[bytes, Alike] = Recent()  # what gradients are like, by which there are

    def compare(self, grads: list[Tensor | None] | None = None) -> int | None:
        """`STAY`, `MOVED` or `OTHERS` since the last call; ``None``, changing nothing, if one does not match.

        ``grads`` replace those of the parameters.
        """
        if self._steady is not None and not self._steady(self._params):
            return None
        if grads is None:
            grads = [param.grad for param in self._params]
        some: list[Any]
        try:
            some, places, present = grads, _places_of(grads), self._all
        except (TypeError, RuntimeError):  # of None, or of a sparse one
            some = [grad for grad in grads if grad is not None]
            if any(grad.layout is not torch.strided for grad in some):
                return None
            places, present = np.zeros(len(grads), np.int64), np.array([grad is not None for grad in grads])
            places[present] = _places_of(some)
        alike = self._masks.get(present.tobytes())
        if alike is None or not alike(some):
            return None
        others = present.tobytes() != self.present.tobytes()
        moved = others or places.tobytes() != self.places.tobytes()
        self.places[:], self.present[:] = places, present
        return OTHERS if others else MOVED if moved else STAY

    def note(self, grads: list[Tensor | None], unlike: list[int]) -> None:
        """Record gradients that later ones must match, except those numbered in ``unlike``, which never match."""
        self.places[:] = [0 if grad is None else grad.data_ptr() for grad in grads]
        self.present[:] = [grad is not None for grad in grads]
        mask = self.present.tobytes()
        if unlike:
            self._masks.pop(mask, None)
        else:
            self._masks.use(mask, Alike([grad for grad in grads if grad is not None]))


def same(some: list[Any], others: list[Any]) -> bool:
    """Whether two lists have the same objects."""
    return len(some) == len(others) and all(map(is_, some, others))


def versions(tensors: list[Tensor]) -> np.ndarray:
    """How often PyTorch has counted a write into each, int64."""
    return np.array([tensor._version for tensor in tensors], np.int64)


def _are_at(tensors: list[Any], places: list[int]) -> bool:
    """Whether tensors are at some addresses."""
    ask = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)  # only builds for CUDA have it
    return [x.data_ptr() for x in tensors] == places if ask is None else ask(tensors, places, [*range(len(tensors))])


def _places_of(tensors: Sequence[Any]) -> np.ndarray:
    return np.fromiter(map(Tensor.data_ptr, tensors), np.int64, len(tensors))


def _kind(x: Tensor) -> tuple:
    keys = type(x), torch._C._dispatch_keys(x).raw_repr()  # of the layout, the negative bit, a subclass
    plain = x.layout is torch.strided and not x.is_nested
    return (*keys, x.shape, x.stride(), x.dtype, x.device) if plain else keys


if os.environ.get(VARIABLE) == "1":
    accelerate(wait=False)
