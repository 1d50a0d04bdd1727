"""The state of a parameter in PyTorch's layout: made, read and kept up to date.

Kernels write the tensors of a state. They carry running powers of beta, for which PyTorch has the number of steps;
`Scalars` has the powers, for all tensors of a bucket, and `Steps` the numbers. PyTorch's tensors of one number are
views of them, so code that refers to a state sees the results of steps.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from refopt.catalog import Routine
from refopt.checks.dtypes import arithmetic, coded_bytes, name_of
from refopt.state.steps import BASES, power_after, rho_after
from refopt.torch import coded
from refopt.torch.arrays import FLOATS, has_memory, is_stored, layout, require_alike
from refopt.torch.formulas import Formula
from refopt.torch.masters import DTYPES, MASTER, first_master, has_master
from refopt.torch.sharded import like, local
from refopt.torch.watched import State


class Member(NamedTuple):
    """A parameter, its name in errors, the number of its group, and its state in PyTorch's layout."""

    param: Tensor
    label: str
    group: int
    state: State


def real_dtype(param: Tensor) -> torch.dtype:
    """The arithmetic type of a parameter."""
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def completed(where: str, param: Tensor, state: Mapping[str, Any], formula: Formula) -> dict[str, Tensor]:
    """The tensors of a parameter's shape that its step reads and writes, by PyTorch's key; the state stays as it is.

    Entries that the state lacks are as before the first step. Entries that are narrower than the steps', or whose
    strides differ from the parameter's, are copied: a checkpoint does not know a run's masters, nor ``channels_last``.
    Wider ones stay as they are.

    Args:
        where: what errors call the parameter.
        param, state: the parameter, and its state so far.
        formula: its step.

    Raises:
        TypeError, ValueError: an entry is no tensor, or of another shape, device or placement than the parameter, or
            wider than any that kernels take.
    """
    masters, widens = str(formula.masters), has_master(param, formula.masters)
    dtype, by_row = torch.float32 if widens else param.dtype, {x.name for x in formula.row.slots if x.by_row}
    begun = "step" in state and bool(state["step"] > 0)
    kept = {}
    for slot, key in ((slot, key) for slot, key in formula.states.items() if slot not in formula.row.scalars):
        held, first = state.get(key), formula.initial.get(slot, 0.0)
        owner = _by_row(param, formula.blocks) if slot in by_row else param
        least, codes = owner.dtype if slot in by_row else dtype, coded.zeros(param) if formula.coded else None
        # Adagrad's class makes its state at construction, in the parameter's dtype.
        if held is None or (widens and not begun and "step" in state and held.dtype != dtype):
            held = torch.full_like(local(owner), first, dtype=least, memory_format=torch.preserve_format)
            held = like(owner, held) if first or codes is None else codes
        held, label = coded.converted(held, param, slot, formula), f"{where}: state[{key!r}]"
        kept[key] = _fitting(label, held, owner, least) if codes is None else _fitting(label, held, codes, codes.dtype)
    if widens:
        master = state.get(MASTER)
        master = first_master(param, masters) if master is None else master
        kept[MASTER] = _fitting(f"{where}: state[{MASTER!r}]", master, param, DTYPES[masters])
    return kept


def _by_row(param: Tensor, blocks: Any) -> Tensor:
    """A tensor like a parameter's state by row."""
    own, every = (torch.empty(blocks.row_shape(x.shape), dtype=real_dtype(param), device="meta")
                  for x in (local(param), param))
    return like(param, torch.empty_like(own, device=param.device), every)


def kept_dtype(where: str, param: Tensor, least: torch.dtype, held: torch.dtype) -> torch.dtype:
    """The dtype of a state that loses nothing: that of its steps, ``least``, or a wider one if it was ``held`` in it.

    Raises:
        TypeError: kernels take no such state beside the parameter; ``where`` is what the message calls the state.
    """
    kept = torch.promote_types(least, held) if held in FLOATS else least
    if kept not in (least, real_dtype(param)):
        raise TypeError(f"{where}: expected {real_dtype(param)} or narrower, got {held}")
    return kept


def check_loaded(where: str, held: Any, param: Tensor) -> None:
    """Raise TypeError if steps take no such entry of a loaded state: neither floats nor in 8 bits."""
    if not isinstance(held, Tensor) or not has_memory(param) or coded.is_coded(held, param):
        return
    if not held.is_floating_point():
        expected = f"expected floats, or {coded_bytes(param.numel())} bytes of a state in 8 bits"
        raise TypeError(f"{where}: {expected}, got shape {tuple(held.shape)} of {held.dtype}")
    kept_dtype(where, param, param.dtype, held.dtype)


def _fitting(where: str, held: Any, param: Tensor, dtype: torch.dtype) -> Tensor:
    """An entry of a state as kernels take it: itself, or a copy in the dtype and the axis order that they want."""
    if not isinstance(held, Tensor):
        raise TypeError(f"{where}: expected a tensor, got {type(held).__name__}")
    require_alike(where, held, param)
    mine, part = local(held), local(param)
    if mine.is_floating_point() and dtype.is_floating_point:
        dtype = kept_dtype(where, param, dtype, mine.dtype)
    elif mine.dtype != dtype:
        raise TypeError(f"{where}: expected {dtype}, got {mine.dtype}")
    if mine.dtype == dtype and layout(mine) == layout(part) and not mine.requires_grad and is_stored(mine):
        return held
    copy = torch.empty_like(part, dtype=dtype, requires_grad=False, memory_format=torch.preserve_format)
    return like(param, copy.copy_(mine.detach()))


def restore(state: dict[str, Any], param: Tensor, saved: Mapping[str, Any], formula: Formula) -> None:
    """Replace a loaded state by copies of the saved one, which stay wider than the parameter if they are.

    PyTorch's ``load_state_dict`` casts all to the parameter's dtype, and shares tensors with the dictionary.

    Args:
        state: that it has loaded.
        param: the parameter.
        saved: the saved state.
        formula: the steps that go on from it; states beside a master are at least fp32.
    """
    slots = {key: slot for slot, key in formula.states.items() if slot not in formula.row.scalars}
    for key, value in saved.items():
        if isinstance(value, Tensor):
            least = torch.float32 if has_master(param, formula.masters) else state[key].dtype
            dtype = torch.promote_types(least, value.dtype) if value.dtype in FLOATS else value.dtype
            value = value.detach().to(state[key].device, dtype, copy=True)
            state[key] = coded.converted(value, param, slots[key], formula) if key in slots else value


def numbers_of(states: Sequence[Mapping[str, Any]], key: str, first: Any) -> Tensor:
    """A number of each state, ``first`` where it has none, together in fp64: on a GPU if one is, to be read at once."""
    held = [torch.as_tensor(local(state.get(key, first))).reshape(()) for state in states]
    device = max(held, key=lambda x: x.is_cuda).device
    return torch.stack([x.to(device, torch.float64) for x in held])


class Scalars:
    """The scalars of a bucket's tensors.

    Attributes:
        tensors: by slot of the routine, a tensor of one number per parameter, on their device.
    """

    def __init__(self, row: Routine, params: Sequence[Tensor]) -> None:
        """Make room for those of some parameters of one arithmetic type on one device."""
        self._real = real_dtype(params[0])
        self._initial = {slot.name: slot.initial for slot in row.slots}
        self.tensors = {slot: torch.zeros(len(params), dtype=self._real, device=params[0].device)
                        for slot in row.scalars}
        self._versions: list[int] = []

    def count(self, steps: Sequence[int], numbers: Sequence[Mapping[str, float]]) -> None:
        """Set those that follow from the number of steps.

        Args:
            steps: that each tensor has taken.
            numbers: of the routine, by tensor.
        """
        real: Any = arithmetic(name_of(self._real))
        for slot, tensor in self.tensors.items():
            if slot in BASES:
                base = BASES[slot]
                values = [power_after(real(own[base]), n) for own, n in zip(numbers, steps, strict=True)]
            elif slot == "rho":
                values = [rho_after(real(own["beta2"]), n) for own, n in zip(numbers, steps, strict=True)]
            else:
                continue
            tensor.copy_(torch.tensor(values, dtype=self._real))
        self.written()

    def read(self, states: Sequence[Mapping[str, Any]], formula: Formula) -> None:
        """Read those that PyTorch keeps from the states of the parameters; 1 or 0 if there is none yet."""
        for slot, tensor in self.tensors.items():
            if slot in formula.states:
                tensor.copy_(numbers_of(states, formula.states[slot], self._initial[slot]))
        self.written()

    def views(self, formula: Formula) -> dict[str, list[Tensor]]:
        """Those that PyTorch keeps, by its key, of each tensor, shape ()."""
        return {formula.states[slot]: list(tensor.unbind()) for slot, tensor in self.tensors.items()
                if slot in formula.states}

    def written(self) -> bool:
        """Whether other code has written to one of `views` since the last call."""
        versions = [tensor._version for tensor in self.tensors.values()]
        before, self._versions = self._versions, versions
        return versions != before


class Steps:
    """How many steps each tensor of a bucket has taken, and PyTorch's tensors of that.

    Attributes:
        views: PyTorch's tensors, on the CPU, shape ().
        shown: what these say, which somebody may have written.
    """

    def __init__(self, taken: Sequence[int]) -> None:
        """Begin after some steps."""
        is_double = torch.get_default_dtype() == torch.float64  # PyTorch counts in no 16-bit dtype
        shown = torch.zeros(len(taken), dtype=torch.float64 if is_double else torch.float32)
        self.views, self.shown = list(shown.unbind()), shown.numpy()
        self.begin(taken)

    def begin(self, taken: Sequence[int]) -> None:
        """Go on after some steps."""
        self._taken, self._ahead, self._stepped = np.array(taken, np.int64), 0, np.zeros(len(taken), bool)
        self.show()

    @property
    def taken(self) -> np.ndarray:
        """The numbers, int64."""
        if self._ahead:
            self._taken += self._ahead * self._stepped
            self._ahead = 0
        return self._taken

    def count(self, stepped: np.ndarray, more: int = 1) -> None:
        """Count steps of some tensors, of which nothing is read before `taken`; ``stepped`` does not change."""
        if stepped is not self._stepped:
            _, self._stepped = self.taken, stepped
        self._ahead += more

    def show(self) -> None:
        """Update PyTorch's tensors."""
        self.shown[:] = self.taken
        self._known = self.shown.tobytes()

    def written(self) -> bool:
        """Whether other code has written to PyTorch's tensors."""
        return self.shown.tobytes() != self._known


def whole(labels: Sequence[str], counts: Sequence[float]) -> list[int]:
    """Numbers of steps; raises ValueError naming the parameter of one that is none."""
    for label, count in zip(labels, counts, strict=True):
        if not (math.isfinite(count) and count >= 0 and count == int(count)):
            raise ValueError(f"{label}: state['step']: expected a whole number of at least 0, got {count}")
    return list(map(int, counts))
