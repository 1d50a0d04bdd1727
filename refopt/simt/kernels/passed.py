"""Arguments as a kernel sees them: scalars as Numba types them, host arrays as copies, and wrappers if watched."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.errors import MisalignedAddress
from ..base.places import here, report
from ..base.state import current
from ..memory import initialized
from ..memory.arrays import DeviceArray, as_cuda_array, is_cuda_array, to_device
from ..memory.buffers import FIRST_BASE
from ..memory.host_memory import Copied, HostArray
from ..memory.observed import ObservedArray
from ..memory.shared import Record, with_fields

Copies = list[tuple[np.ndarray, DeviceArray]]  # host arrays, and the arrays copied back to them after the launch


def argument(arg: Any, name: str, written_back: Copies) -> Any:
    """An argument as the kernel sees it."""
    if isinstance(arg, tuple):
        parts = [argument(part, f"{name}[{i}]", written_back) for i, part in enumerate(arg)]
        return type(arg)(*parts) if hasattr(arg, "_fields") else tuple(parts)
    watching = current.observer is not None and current.observer.watching
    array = _on_device(arg, written_back, watching)
    if array is None:
        return _scalar(arg, watching)
    if array.size and array.address % array.dtype.alignment:  # 1 of packed records, which Numba loads byte by byte
        most = array.dtype.alignment
        why = f"argument {name}: {array.dtype} at address {array.address:#x}, which is not a multiple of {most}"
        report(MisalignedAddress(why, here(), array=name, address=array.address))
    if not watching:
        initialized.taken(array)
        if current.observer is None or not current.observer.concerns(array.buffer):
            return with_fields(array.data)
    array.buffer.parameter = name
    return ObservedArray(array.buffer, array.data, current.observer)


def _scalar(arg: Any, watching: bool) -> Any:
    """An argument other than an array: int64, bool and double each in one representation, Python's or NumPy's."""
    if isinstance(arg, int | np.integer) and arg >= FIRST_BASE and not watching:
        initialized.assume_all()  # it may be an address
    if isinstance(arg, np.int64):
        return int(arg)
    if isinstance(arg, np.bool_):
        return bool(arg)
    if type(arg) is float:
        return np.float64(arg)
    if isinstance(arg, np.void) and arg.dtype.names:
        return arg.view((Record, arg.dtype))
    return arg


def _on_device(arg: Any, written_back: Copies, watching: bool) -> DeviceArray | None:
    """An array on the device; None for anything but arrays."""
    if isinstance(arg, DeviceArray):
        return arg
    if isinstance(arg, Copied):
        if not isinstance(arg.value, np.ndarray):
            return _on_device(arg.value, written_back, watching)
        copy = to_device(arg.value, copy=arg.to_device)
        if arg.to_host:
            written_back.append((arg.value, copy))
        return copy
    if isinstance(arg, np.ndarray) and getattr(arg, "on_device", None) is None:
        copy = to_device(arg)
        if arg.flags.writeable:
            written_back.append((arg, copy))
        return copy
    if not is_cuda_array(arg):
        return None
    if watching and isinstance(arg, HostArray):
        initialized.host_wrote(arg.on_device)
    return as_cuda_array(arg)
