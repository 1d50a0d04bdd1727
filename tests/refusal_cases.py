"""Every function that takes arrays, as a table: its arrays by name, and a call with them on either side."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refopt import cpu, gpu
from refopt.catalog import ROUTINES
from refopt.oracle.exact.build import make, step_of

Arrays = dict[str, Any]  # "params[1]" and the like


class Entry(NamedTuple):
    """A function: ``make()`` gives arrays on the host, ``run(module, arrays)`` is a call of `refopt.cpu` or ``gpu``."""

    name: str
    make: Callable[[], Arrays]
    run: Callable[[Any, Arrays], Any]
    written: tuple[str, ...] = ()


def listed(arrays: Arrays, slot: str) -> list[Any]:
    """The entries of a list."""
    return [x for name, x in arrays.items() if name.startswith(f"{slot}[")]


def _routine(routine: Any) -> Entry:
    optional = tuple(slot.name for slot in routine.slots if slot.optional)

    def arrays() -> Arrays:
        dtypes = ("bfloat16", "float32", "float32", "float32")
        case = make(routine, [4, 6], dtypes, optional=tuple(set(optional) - {"master_params"}))
        named = {f"{slot}[{i}]": x for slot, xs in case.lists().items() for i, x in enumerate(xs)}
        return named | {"grad_factor": np.ones(1, np.float32), "found_inf": np.zeros(1, np.float32)}

    def run(module: Any, arrays: Arrays) -> None:
        lists = [listed(arrays, slot.name) for slot in routine.slots if not slot.optional]
        named = {name: listed(arrays, name) for name in optional}
        gate = {name: arrays[name] for name in ("grad_factor", "found_inf")}
        getattr(module, routine.merged_name)(*lists, **named, **gate, **step_of(routine))

    written = tuple(slot.name for slot in routine.slots if slot.written)
    return Entry(routine.merged_name, arrays, run, written)


def _floats(*names: str, size: int = 4) -> Arrays:
    return {name: np.arange(1, 1 + size, dtype=np.float32) for name in names}


def _cast(module: Any, arrays: Arrays) -> None:
    module.merged_cast(listed(arrays, "sources"), listed(arrays, "targets"), scale=arrays["scale"])


def _gradient_check(module: Any, arrays: Arrays) -> Any:
    function = module.check_gradients if module is cpu else module.gradient_check
    return function(listed(arrays, "grads"), loss_scale=arrays["loss_scale"])


def _scaling() -> Arrays:
    floats = {name: np.full(1, 8, np.float32) for name in ("found_inf", "loss_scale")}
    return floats | {name: np.ones(1, np.int32) for name in ("good_steps", "bad_steps")}


def _persisting(module: Any, arrays: Arrays) -> Any:
    lists = {key: listed(arrays, key) for key in ("inputs", "outputs")}
    return module.coalesce_tensor(lists["inputs"], outputs=lists["outputs"], persist_output=True, scale=arrays["scale"])


def _gathered(way: str) -> Callable[[Any, Arrays], Any]:
    def run(module: Any, arrays: Arrays) -> Any:
        coalesced = module.coalesce_tensor([None, None], shapes=[(4,), (4,)], dtype="float32")
        getattr(coalesced, way)(listed(arrays, "tensors"), scale=arrays["scale"])

    return run


LAZY = "params", "indices", "values", "moment1", "moment2", "beta1_pow", "beta2_pow"


def _lazy_arrays() -> Arrays:
    given = np.ones(4), np.array([3, 1, 3]), np.ones(3), np.ones(4), np.ones(4), np.ones(1) / 2
    lists = zip(LAZY, (*given, np.ones(1) / 4), strict=True)
    return {f"{name}[0]": x if name == "indices" else x.astype(np.float32) for name, x in lists}


def _lazy(module: Any, arrays: Arrays) -> None:
    module.merged_lazy("adamw", *(listed(arrays, name) for name in LAZY), lr=0.5)


ONE = {"scale": np.full(1, 3, np.float32)}
ENTRIES = [
    *map(_routine, ROUTINES.values()),
    Entry("merged_lazy_adamw", _lazy_arrays, _lazy, tuple(name for name in LAZY if name not in ("indices", "values"))),
    Entry("merged_cast", lambda: _floats("sources[0]", "sources[1]", "targets[0]", "targets[1]") | ONE, _cast,
          ("targets",)),
    Entry("check_gradients", lambda: _floats("grads[0]", "grads[1]") | {"loss_scale": np.ones(1, np.float32)},
          _gradient_check),
    Entry("update_loss_scaling", _scaling,
          lambda module, arrays: module.update_loss_scaling(*arrays.values(), decr_every_n_nan_or_inf=1),
          ("loss_scale", "good_steps", "bad_steps")),
    Entry("coalesce_tensor", lambda: _floats("inputs[0]", "inputs[1]", "outputs[0]", "outputs[1]") | ONE, _persisting),
    Entry("gather", lambda: _floats("tensors[0]", "tensors[1]") | ONE, _gathered("gather")),
    Entry("scatter", lambda: _floats("tensors[0]", "tensors[1]") | ONE, _gathered("scatter"), ("tensors",))]


def put(arrays: Arrays) -> Arrays:
    """The arrays on the executor."""
    with gpu.use("executor"):
        return {name: None if x is None else gpu.device("executor").to_device(x) for name, x in arrays.items()}


def bytes_of(arrays: Arrays) -> dict[str, bytes]:
    """What each array holds."""
    return {
        name: (x.copy_to_host() if hasattr(x, "copy_to_host") else np.asarray(x)).tobytes()
        for name, x in arrays.items() if x is not None
    }
