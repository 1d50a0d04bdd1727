"""The usual mixed-precision step with fp32 parameters, as a program for passes to start from.

fp16 copies have the names of Paddle's mixed precision, by which passes recognize them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from refopt.checks.arguments import RANKS, chosen, flag, mapped, names, number, shown, whole
from refopt.cpu import update_loss_scaling
from refopt.program.model import Op, Var
from refopt.program.ops.mixed_precision import SCALING
from refopt.program.program import Program
from refopt.program.step import begun, check_owner, named_shapes, parameters, variables

CAST = "cast_fp16"
RECOMPUTED = "subprog"


def copy_of(param: str) -> str:
    """The fp16 copy of a parameter."""
    if not isinstance(param, str):
        raise TypeError(f"copy_of: param: expected a name, got {shown(param)}")
    return f"{param}.{CAST}"


def recomputed_copy_of(param: str, number: int = 0) -> str:
    """The copy that the backward pass makes again if activations are recomputed."""
    if not isinstance(param, str):
        raise TypeError(f"recomputed_copy_of: param: expected a name, got {shown(param)}")
    return f"{copy_of(param)}.{RECOMPUTED}_{whole('recomputed_copy_of: number', number, 0)}"


def gradient_of(param: str, micro: int = 0, fp32: bool = False) -> str:
    """The gradient that the backward pass of a micro-step makes, which the caller provides.

    Args:
        param: the parameter.
        micro: the number of the micro-step.
        fp32: whether the parameter stays fp32.
    """
    names("gradient_of: param", [param])
    micro = whole("gradient_of: micro", micro, 0)
    if flag("gradient_of: fp32", fp32):
        return _part(param, micro)
    return f"{copy_of(param)}@GRAD@MICRO_{micro}"


def amp_program(
    params: Iterable[tuple[str, tuple[int, ...]]],
    optimizer: str | Mapping[str, str],
    *,
    world_size: int = 1,
    accumulate: int = 1,
    recompute: bool = False,
    fp32: Iterable[str] = (),
    reduced: str = "float32",
    max_norm: float | None = None,
    clip_epsilon: float = 1e-6,
    loss_scale: float = 2.0**15,
    scaling: Mapping[str, Any] | None = None,
    state_dtype: str | Mapping[str, str] | None = None,
    layer: Callable[[str], str] | None = None,
    optional: Iterable[str] = (),
    **numbers: Any,
) -> Program:
    """The program of a step that computes in fp16, updates fp32 parameters, and averages gradients over ranks.

    In each micro-step every parameter is cast to fp16 (``w.cast_fp16``) and read by a ``forward`` op; then, from the
    last to the first, cast again if activations are recomputed (``w.cast_fp16.subprog_0``) and read by a ``backward``
    op, whose gradient is cast to fp32 and added to that of earlier micro-steps. Then follow an ``all_reduce`` and a
    ``scale`` by 1 / (world_size * accumulate) for each parameter, a check of all gradients, the next loss scale, and
    the updates, which unscale and clip as they read, and change nothing if an element of any gradient was inf or NaN.
    At startup, rank 0 broadcasts its parameters.

    Args:
        params: names and shapes, in the order of the model.
        optimizer: a name of `refopt.catalog.KNOWN`, or one for each parameter by name.
        world_size: the number of ranks.
        accumulate: the number of micro-steps.
        recompute: whether the backward pass recomputes activations, and so repeats the casts.
        fp32: names of parameters that the model uses in fp32, such as those for which fp16 is too narrow.
        reduced: the dtype in which gradients are summed over ranks: ``"float32"``, once, after all micro-steps; or
            ``"float16"``, as the backward pass makes them, after each micro-step and before they are cast. That halves
            the bytes, and a sum that overflows fp16 skips the step.
        max_norm: the largest norm of all gradients together; ``None`` for no clipping.
        clip_epsilon: added to the norm before dividing by it.
        loss_scale: the initial scale, by which the caller's gradients are multiplied.
        scaling: numbers of `refopt.cpu.update_loss_scaling`.
        state_dtype, layer, optional, numbers: as in `refopt.program.step_program`.

    Returns:
        A program. The caller provides fp32 parameters, and the gradients that `gradient_of` names. It has the variables
        of `step_program`, where ``w@GRAD`` is the fp32 gradient of the whole step, and ``loss_scaling``,
        ``good_steps``, ``bad_steps``, ``found_inf``, ``grad_factor``, and with clipping ``grad_norm``.

    Source: Paddle's ``decorate`` of ``fluid.contrib.mixed_precision``, with pure-fp16 casts and gradient merge.
    """
    listed = named_shapes("amp_program: params", params)
    order, wide = [name for name, _ in listed], frozenset(names("amp_program: fp32", fp32))
    whole("amp_program: world_size", world_size, 1, RANKS)
    whole("amp_program: accumulate", accumulate, 1, RANKS)
    for unknown in sorted(wide - set(order)):
        raise ValueError(f"amp_program: fp32: expected names of params, got {unknown!r}")
    flag("amp_program: recompute", recompute)
    scaling = {} if scaling is None else mapped("amp_program: scaling", scaling)
    if max_norm is not None:
        number("amp_program: max_norm", max_norm, 0)
    number("amp_program: clip_epsilon", clip_epsilon, 0, real=np.float32)
    number("amp_program: loss_scale", loss_scale, above=0, real=np.float32)
    steps = parameters(
        listed, optimizer, numbers, layer=layer, optional=optional, state_dtype=state_dtype, where="amp_program"
    )
    layers = {step.name: step.layer for step in steps}
    builder = _Builder(variables(steps, "amp_program"), layers, world_size, accumulate, recompute, wide)
    early = chosen("amp_program: reduced", reduced, ("float32", "float16")) == "float16"
    for micro in range(accumulate):
        for name in order:
            builder.forward(name)
        for name in reversed(order):
            builder.backward(name, micro)
            if not early:
                builder.widen(name, micro)
        for name in (name for name in reversed(order) if early and name not in wide):
            builder.reduce(name, gradient_of(name, micro))
        for name in reversed(order) if early else ():  # after all sums, so that these can be fused
            builder.widen(name, micro)
    for name in reversed(order):
        if not early or name in wide:
            builder.reduce(name, _part(name, 0))
        if not early:
            builder.average([name])
    if early:
        builder.average(order[::-1])
    builder.check_gradients(order, max_norm, clip_epsilon)
    builder.scaling(loss_scale, scaling)
    gates = {"grad_factor": ("grad_factor",), "found_inf": ("found_inf",)}
    updates = (step.update() for step in steps)
    builder.main += [op.replace(inputs={**op.inputs, **gates}) for op in updates]
    return begun(Program(builder.vars, (), tuple(builder.main)), world_size)


def _part(param: str, micro: int) -> str:
    """The fp32 gradient of a micro-step. Those of later micro-steps are added to the first."""
    return f"{param}@GRAD" if micro == 0 else f"{param}@GRAD@MICRO_{micro}"


class _Builder:
    """A program as it grows."""

    def __init__(
        self, vars: dict[str, Var], layers: Mapping[str, str], ranks: int, accumulate: int, recompute: bool,
        wide: frozenset[str],
    ) -> None:
        self.vars = vars
        self._owners = {name: name for name in vars} | {_part(param, 0): param for param in layers}
        self.main: list[Op] = []
        self._layers, self._ranks, self._accumulate = layers, ranks, accumulate
        self._recompute, self._wide = recompute, wide

    def forward(self, param: str) -> None:
        read = self._cast(param, copy_of(param), "forward")
        self._add(param, "forward", "forward", {"params": [read]}, {})

    def backward(self, param: str, micro: int) -> None:
        read = param if param in self._wide else copy_of(param)
        if self._recompute:
            read = self._cast(param, recomputed_copy_of(param), "backward")
        grad = gradient_of(param, micro, param in self._wide)
        self._like(param, grad, "float32" if param in self._wide else "float16")
        self._add(param, "backward", "backward", {"params": [read]}, {"grads": [grad]})

    def widen(self, param: str, micro: int) -> None:
        """Add the gradient of a micro-step to the fp32 gradient."""
        grad, part = gradient_of(param, micro, param in self._wide), _part(param, micro)
        if grad != part:
            self._like(param, part, "float32")
            self._add(param, "cast", "backward", {"x": [grad]}, {"out": [part]})
        if micro:
            total = [_part(param, 0)]
            self._add(param, "sum", "backward", {"x": [part], "out": total}, {"out": total})

    def reduce(self, param: str, grad: str) -> None:
        if self._ranks > 1:
            self._add(param, "all_reduce", "communicate", {"x": [grad]}, {"out": [grad]}, {"ranks": self._ranks})

    def average(self, params: list[str]) -> None:
        names, count = tuple(_part(param, 0) for param in params), self._ranks * self._accumulate
        if names and count > 1:
            layer = self._layers[params[0]] if len(params) == 1 else None
            self.main.append(Op("scale", {"x": names}, {"out": names}, {"scale": 1 / count}, "communicate", layer))

    def check_gradients(self, params: list[str], max_norm: float | None, epsilon: float) -> None:
        """What `refopt.cpu.check_gradients` does, in two ops."""
        self._shared("loss_scaling", "float32", initial=1.0)
        outputs = {"grad_factor": "grad_factor", "found_inf": "found_inf"}
        inputs, attrs = {"odd": ("odd",), "loss_scale": ("loss_scaling",)}, {}
        if max_norm is not None:
            inputs["sums"], outputs["grad_norm"] = ("sums",), "grad_norm"
            attrs = {"max_norm": float(max_norm), "epsilon": float(epsilon)}
        for name in outputs:
            self._shared(name, "float32")
        self._shared("odd", "int32")
        self._shared("sums", "float32", len(params))
        grads, places = tuple(_part(param, 0) for param in params), tuple(range(len(params)))
        out = {"sums": ("sums",), "odd": ("odd",)}
        self.main.append(Op("check_gradients", {"x": grads}, out, {"positions": places}, "optimize"))
        slots = {slot: (name,) for slot, name in outputs.items()}
        self.main.append(Op("finish_check", inputs, slots, attrs, "optimize"))

    def scaling(self, loss_scale: float, numbers: Mapping[str, Any]) -> None:
        """The loss scale, and the op that changes it."""
        if unknown := set(numbers) - set(SCALING):
            raise TypeError(f"amp_program: scaling: expected some of {', '.join(SCALING)}, got {min(unknown)!r}")
        default = inspect.signature(update_loss_scaling).parameters
        self._shared("loss_scaling", "float32", initial=float(loss_scale))
        state = {"loss_scale": ("loss_scaling",)}
        for name in ("good_steps", "bad_steps"):
            self._shared(name, "int32", initial=0.0)
            state[name] = (name,)
        attrs = {name: numbers.get(name, default[name].default) for name in SCALING}
        self.main.append(Op("update_loss_scaling", {"found_inf": ("found_inf",), **state}, state, attrs, "optimize"))

    def _cast(self, param: str, copy: str, stage: str) -> str:
        """The variable that a pass of the model reads instead of a parameter."""
        if param in self._wide:
            return param
        self._like(param, copy, "float16")
        self._add(param, "cast", stage, {"x": [param]}, {"out": [copy]})
        return copy

    def _shared(self, name: str, dtype: str, elements: int = 1, initial: float | None = None) -> None:
        """Add a variable of the whole step, which lives from step to step if it has an initial value."""
        check_owner("amp_program", self._owners, name, "")
        self.vars[name] = Var(name, (elements,), dtype, persistable=initial is not None, initial=initial)

    def _like(self, param: str, name: str, dtype: str) -> None:
        check_owner("amp_program", self._owners, name, param)
        self.vars.setdefault(name, Var(name, self.vars[param].shape, dtype))

    def _add(self, param: str, kind: str, role: str, inputs: Any, outputs: Any, attrs: Any = None) -> None:
        self.main.append(Op(kind, inputs, outputs, attrs or {}, role, self._layers[param]))
