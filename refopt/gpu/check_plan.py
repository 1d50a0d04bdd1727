"""The gradient check's interface: bound to gradients, which may be replaced at every step."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from refopt import checks
from refopt.checks import Array
from refopt.checks.arguments import number, rounded
from refopt.checks.dtypes import SIZES, widens
from refopt.gpu.arrays import describer, locator
from refopt.gpu.exclusive import Exclusive, in_turn
from refopt.gpu.gradient_check import BOUNDS, finisher, first_pass
from refopt.gpu.runtime import machine_of

NAME = "check_gradients"


class GradientCheck(Exclusive):
    """`refopt.cpu.check_gradients` bound to its arrays. Made by `refopt.gpu.gradient_check`.

    Calls from several threads run one after another; the object cannot be copied.

    Attributes:
        grad_factor: a device array of one element, written by every call: the factor that unscales and clips. Give it
            to the plans of the steps.
        found_inf: the same, for whether a gradient is inf or NaN.
        grad_norm: a device array of one element with the norm of all gradients.
        launches: kernel launches of one call: one for each dtype of gradients, and one more.
        bytes: bytes of gradients that one call reads.
    """

    def __init__(
        self, grads: Any, loss_scale: Any = None, max_norm: float = np.inf, epsilon: float = 1e-6, stream: Any = 0
    ) -> None:
        super().__init__(machine_of(grads), stream, NAME)
        self._describe = describer(self.device.name, self.device.index)
        self._begin(grads, loss_scale, max_norm, epsilon)

    @in_turn
    def _begin(self, grads: Any, loss_scale: Any, max_norm: float, epsilon: float) -> None:
        """Check the call and build the tables."""
        machine = self.device
        arrays = checks.check_gradient_list(grads, loss_scale, max_norm, epsilon, self._describe)
        self._real: Any = checks.norm_type(arrays)
        self.grad_factor, self.grad_norm = (machine.to_device(np.zeros(1, self._real)) for _ in range(2))
        self.found_inf = machine.to_device(np.zeros(1, np.float32))
        self._numbers = {"max_norm": float(max_norm), "epsilon": float(epsilon)}
        self._held = machine.to_device(rounded([*self._numbers.values()], self._real))
        self._fill = [machine.filler(self._held, place, 1) for place in range(len(self._numbers))]
        self._scale = machine.to_device(np.ones(1, np.float32)) if loss_scale is None else loss_scale
        self._bound = self._bound_to(list(grads), arrays)
        self._build()

    def _bound_to(self, grads: list, arrays: list[Array | None]) -> checks.Bound:
        self._slots, self._arrays = {"grads": grads}, {"grads": arrays}
        return checks.Bound(NAME, self._slots, self._arrays, locator(self._describe))

    def _build(self) -> None:
        machine, real, arrays = self.device, self._real, self._arrays["grads"]
        odd_ones = machine.to_device(np.zeros(1, np.int32))
        roots = machine.to_device(np.zeros((2, 2 * len(arrays) + 8), real))
        self._passes = first_pass(machine, dict(enumerate(arrays)), real, roots, odd_ones)
        scale_at = self._describe(self._scale, f"{NAME}: loss_scale").address
        left = self.grad_factor, self.found_inf, self.grad_norm
        args = roots, len(arrays), odd_ones, self._held, scale_at, *left
        steps = [*(one.launch for one in self._passes), machine.prepare(finisher(real), 1, BOUNDS[0], args)]
        self._run = machine.sequence(steps)
        self._replayed = False  # whether the replay of a graph writes addresses to the tables
        self.launches = len(steps)
        self.bytes = sum(a.size * SIZES[a.dtype] for a in arrays if a)

    @in_turn
    def __call__(self, **numbers: float) -> None:
        """Check the gradients, in stream order. Numbers given here also apply to later calls, as with `set`."""
        if numbers:
            self._set(numbers)
        if self._replayed:
            for one in self._passes:
                one.table.put_again(self._stream)
        self._run(self._stream)

    @in_turn
    def set(self, **numbers: float) -> None:
        """Change ``max_norm`` or ``epsilon``, in stream order, for the next call or a captured one's next replay."""
        self._set(numbers)

    def _set(self, numbers: dict[str, Any]) -> None:
        held = self._numbers
        for name in numbers:
            if name not in held:
                raise TypeError(f"{NAME}: {name}: expected one of {', '.join(held)}")
        types = {"epsilon": self._real}  # max_norm may be inf
        checked = {name: number(f"{NAME}: {name}", x, 0, real=types.get(name)) for name, x in numbers.items()}
        changed = {name: value for name, value in checked.items() if value != held[name]}
        if not changed:
            return
        self._refuse_capture(next(iter(changed)))
        for place, name in enumerate(held):
            if name in changed:
                self._fill[place](changed[name], self._stream)
        held.update(changed)

    @in_turn
    def rebind(self, grads: Any) -> None:
        """Replace the gradients by others of the same shapes and dtypes, as `Plan.rebind` does.

        Which are ``None`` may change, at the cost of rebuilding the tables. The norm keeps its planned type, so no
        gradient may have a wider dtype.
        """
        if isinstance(grads, list | tuple) and len(grads) != len(self._arrays["grads"]):
            expected = f"expected {len(self._arrays['grads'])} entries, as planned"
            raise ValueError(f"{NAME}: grads: {expected}, got {len(grads)}")
        moved = self._bound.located({"grads": grads})
        if moved is None:
            self._exchange_checked(grads)
        else:
            self._exchange(moved["grads"], list(grads))

    @in_turn
    def move(self, addresses: Sequence[int] | np.ndarray, arrays: Sequence[Any] | None = None) -> None:
        """`rebind` for callers who know that the gradients are as planned except for their addresses; see `Plan.move`.

        Args:
            addresses: P integers, 0 if there is no gradient.
            arrays: the gradients, kept alive from now on; if omitted, the caller keeps them alive, and no gradient may
                be added.

        Raises:
            TypeError, ValueError: the message names the index; nothing has been modified then.
        """
        places, values, come_or_gone, shifted = self._bound.moved(f"{NAME}: move", "grads", addresses, arrays)
        if come_or_gone:
            self._exchange_checked(values)
        else:
            self._exchange(places, values, aligned=shifted)

    def _exchange_checked(self, grads: Any) -> None:
        """Exchange the gradients after a check of each; some may have appeared or disappeared."""
        self._bound.settle()
        arrays = checks.check_gradient_list(grads, None, 0, 0, self._describe)
        for i, (new, old) in enumerate(zip(arrays, self._arrays["grads"], strict=True)):
            expected, got = (f"{x.dtype} of shape {x.shape}" if x else "None" for x in (old, new))
            if new and old and got != expected:
                raise ValueError(f"{NAME}: grads[{i}]: expected {expected}, as planned, got {got}")
            if new and not widens(new.dtype, self._real):
                expected = f"a dtype that widens to {np.dtype(self._real).name}, as planned"
                raise TypeError(f"{NAME}: grads[{i}]: expected {expected}, got {new.dtype}")
        self._refuse_tables()
        self._bound = self._bound_to(list(grads), arrays)
        self._build()

    def _exchange(self, places: np.ndarray, values: list | None, aligned: bool = False) -> None:
        """Exchange the gradients for others at new addresses, in the existing tables if possible.

        ``aligned`` says that they are aligned as before.
        """
        if places.tobytes() == self._bound.addresses["grads"].tobytes():
            self._bound.exchange("grads", values, places)
            return
        rows = [one.rows_of(places) for one in self._passes]
        pairs = zip(self._passes, rows, strict=True)
        serve = aligned or all(one.table.keeps_alignment(row) for one, row in pairs)
        if not serve:
            self._refuse_tables()
        self._bound.exchange("grads", values, places)
        if not serve:
            self._bound.settle()
            self._build()
            return
        self._replayed = self._replayed or self.device.capturing(self._stream)
        for one, row in zip(self._passes, rows, strict=True):
            one.table.put(row, self._stream)

    def _refuse_tables(self) -> None:
        if self.device.capturing(self._stream):
            expected = "expected gradients present and aligned as in the previous call during a capture"
            raise RuntimeError(f"{NAME}: {expected}, got some that need new tables")


def gradient_check(
    grads: Any, *, loss_scale: Any = None, max_norm: float = np.inf, epsilon: float = 1e-6, stream: Any = 0
) -> GradientCheck:
    """Bind the check of gradients to its arrays; see `GradientCheck`.

    Args:
        grads: P device arrays, or ``None``.
        loss_scale, max_norm, epsilon: as in `refopt.cpu.check_gradients`.
        stream: the stream on which calls run; the legacy default stream if not given.
    """
    return GradientCheck(grads, loss_scale, max_norm, epsilon, stream)
