"""The base class of all optimizers here: PyTorch's interface around plans."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from refopt.checks.arguments import chosen, flag, number, whole
from refopt.torch import host, options
from refopt.torch.arrays import has_memory
from refopt.torch.bucket import Bucket
from refopt.torch.gate import Gate
from refopt.torch.groups import Grouped, Recorded, check_state, options_of
from refopt.torch.norm import clipping, require_finite, unscaled
from refopt.torch.sharded import is_dtensor, total_norm
from refopt.torch.states import Member, real_dtype
from refopt.torch.watched import States

# Hooks of all optimizers' steps: dictionaries, None where PyTorch has others.
EVERYWHERE = [getattr(sys.modules[Optimizer.__module__], f"_global_optimizer_{x}_hooks", None) for x in ("pre", "post")]
# Arguments.
OWN = ("masters", "states", "sparse", "compare_masters", "max_norm", "norm_type", "error_if_nonfinite", "rounding",
       "seed")


class Merged(Grouped):
    """An optimizer of ``torch.optim`` whose step runs refopt's merged kernels.

    In addition to the arguments of PyTorch's class it takes:

    Args:
        masters: for parameters of fp16 and bf16, ``"fp32"`` for masters in fp32, or, only for bf16, ``"remainder"``
            for the 16 bits that an fp32 number has beyond its bf16, or ``"remainder8"`` for 8 that complete it to 24
            (`refopt.cpu.remainder`); they are ``master_param`` in the state. Other
            states are then fp32, also if a checkpoint's are 16-bit. ``None`` for neither, as in PyTorch. Groups may
            also have an option of this name.
        states: ``"8bit"`` for states in 8 bits, in elementwise routines, by `refopt.cpu.codes`: 1.125 bytes for each
            element, in the state a flat tensor of uint8; floats that are loaded are rounded to it, and it is loaded as
            floats where this is ``None``. Parameters are contiguous, and not fp64; shards are whole groups of 32
            elements, and their states have axes. Groups may have an option of this name.
        sparse: ``"rows"`` for lazy steps of SGD, Adam, AdamW and Adagrad by sparse gradients, as of
            ``torch.nn.Embedding(sparse=True)``: only the rows that a gradient names are updated, also by momentum and
            weight decay, while the number of steps is the parameter's, as in ``torch.optim.SparseAdam``
            (`refopt.cpu.merged_lazy`). A row may occur several times. A step by a dense gradient updates all rows.
            ``None`` refuses sparse gradients. Groups may have an option of this name.
        compare_masters: whether each step compares all fp32 masters with the stored parameters, and updates those that
            do not round to them. Otherwise masters follow the writes to a parameter that PyTorch counts; it does not
            count those through ``param.data``.
        max_norm: clip the norm of all gradients to this, as ``torch.nn.utils.clip_grad_norm_`` does, but without
            modifying the gradients, and without waiting on the host. If the norm is NaN nothing is clipped, so the
            other parameters still take their steps. ``None`` for no clipping.
        norm_type: of ``max_norm``, as in ``clip_grad_norm_``: 2, inf, or another.
        error_if_nonfinite: whether a norm of inf or NaN raises; each step then waits for the norm.
        rounding: ``"stochastic"`` rounds bf16 parameters without masters, and their states and those in 8 bits,
            stochastically, by `refopt.cpu.stochastic`, in elementwise routines only; ``"nearest"`` rounds as PyTorch
            does.
        seed: of the first such step, at most 2**24 - 1. Groups keep the next one as an option.

    Arguments that are not options of a group are not in ``state_dict``. ``max_norm`` may be set between steps.

    ``foreach`` and ``fused`` are accepted and change nothing. Every step reads options that are tensors; the host waits
    for one on a GPU.

    Raises:
        TypeError, ValueError: naming the argument or the parameter: complex, sparse and integer parameters, those that
            share memory, LARS, LAMB, NovoGrad or Muon of a parameter that is sharded, ``differentiable=True``, a group
            with ``max_norm``, or what PyTorch's class refuses. The optimizer is as it was then.
        RuntimeError: at a step, naming the parameter: a gradient is sparse, without ``sparse="rows"`` or in several
            dimensions.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self, *args: Any, masters: str | None = None, states: str | None = None, sparse: str | None = None,
        compare_masters: bool = False, max_norm: float | None = None, norm_type: float = 2.0,
        error_if_nonfinite: bool = False, rounding: str = "nearest", seed: int = 0, **named: Any,
    ) -> None:
        where = type(self).__name__
        self._masters, self._states, self._sparse = (
            chosen(f"{where}: {name}", value, options.CHOICES[name])
            for name, value in (("masters", masters), ("states", states), ("sparse", sparse)))
        self._compare_masters = flag(f"{where}: compare_masters", compare_masters)
        self._max_norm = self._checked_norm(max_norm)
        self._norm_type = number(f"{where}: norm_type", norm_type, above=0)
        self._error_if_nonfinite = flag(f"{where}: error_if_nonfinite", error_if_nonfinite)
        self._rounding = chosen(f"{where}: rounding", rounding, ("nearest", "stochastic"))
        self._seed = whole(f"{where}: seed", seed, 0, options.SEEDS - 1)
        options.check_one(f"{where}: differentiable", "differentiable", named.get("differentiable"))
        self._begin()
        self._constructed = False
        super().__init__(*args, **named)
        self._check_apart()
        self._constructed, self._looked = True, False

    def _begin(self) -> None:
        """Start without plans."""
        self._buckets: list[Bucket] | None = None
        self._looked = False  # whether other code may refer to the states
        self._accelerated: bool | None = None  # whether `host.accelerate` was in force at the first step
        self._of_graphs: list[Bucket] = []  # whose plans replays need
        self._given: tuple[Tensor, float] | None = None  # the norm of gradients, and to what the next step clips it
        self._multiplied = False  # whether plans read such a factor
        self._norm: Callable[[], Tensor] | None = None

    @property
    def masters(self) -> str | None:
        """The kind of masters of 16-bit parameters, except in groups with their own option."""
        return self._masters

    @property
    def max_norm(self) -> float | None:
        """The norm to which all gradients are clipped, or None; a new value applies from the next step on."""
        return self._max_norm

    @max_norm.setter
    def max_norm(self, max_norm: float | None) -> None:
        before, self._max_norm = self._max_norm, self._checked_norm(max_norm)
        if (self._max_norm is None) != (before is None):
            self._norm = None
            self._give_up()

    @property
    def grad_norm(self) -> Tensor | None:
        """The norm of all gradients before the last step clipped them, shape (), on their device.

        Reading its value waits for it. ``None`` before the first step, and without ``max_norm``.
        """
        return None if self._norm is None else self._norm()

    def clip_next(self, norm: Tensor, max_norm: float) -> None:
        """Make the next step clip to ``max_norm``, given the norm, shape (), of these and possibly other gradients."""
        self._given = norm, max_norm

    def _checked_norm(self, max_norm: Any) -> float | None:
        return None if max_norm is None else number(f"{type(self).__name__}: max_norm", max_norm, 0)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step: a launch or two per device, in the order of PyTorch's current stream.

        Args:
            closure: recomputes the loss and the gradients, if given.

        Returns:
            The closure's result.
        """
        if type(self).step is Merged.step and self._observed():
            return _with_hooks(self, *([] if closure is None else [closure]))
        return self._whole_step(closure)

    # PyTorch would wrap it by what `_with_hooks` is, which costs the host 0.1 ms even if nobody observes steps.
    step.hooked = True  # type: ignore[attr-defined]

    def _observed(self) -> bool:
        """Whether there are hooks of steps, or a profiler that is to see them."""
        own = self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
        return bool(own or EVERYWHERE != [{}, {}] or torch.autograd._profiler_enabled())

    def _whole_step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scaler = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if torch.compiler.is_compiling():
            with torch.no_grad():
                self._step_apart(*scaler)
            return loss
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        try:
            self._step(*scaler)
        finally:
            torch.set_grad_enabled(before)
        return loss

    @torch._disable_dynamo  # a break in the graph: kernels and plans are not for Dynamo to look into
    def _step_apart(self, scale: Tensor | None, found_inf: Tensor | None) -> None:
        self._step(scale, found_inf)

    def refresh(self) -> None:
        """Write the groups' numbers, such as a scheduler's lr, where the steps in captured graphs read them.

        A step does so itself; the replay of a graph does not. Other options are those of the capture.
        """
        if self._buckets is not None and not self._holds():
            raise RuntimeError(f"{type(self).__name__}: refresh: expected the parameters and choices of the last step")

    @torch.no_grad()
    def refresh_masters(self) -> None:
        """Make every master follow its parameter's current value, such as after a write through ``param.data``."""
        if self._buckets is None:
            self._build((False, False))
        for bucket in self._buckets or ():
            bucket.masters.follow_all()

    def _step(self, scale: Tensor | None, found_inf: Tensor | None) -> None:
        gated = scale is not None, found_inf is not None
        self._multiplied |= self._given is not None
        if self._buckets is None or (*gated, self._multiplied) != self._gated or not self._holds(before_compare=True):
            self._build(gated)
        found = [bucket.compare() for bucket in self._buckets or ()]
        if None in found:  # another parameter
            self._build(gated)
            found = [bucket.compare() for bucket in self._buckets or ()]
        assert self._buckets is not None
        moved = any(found)
        factor = None
        if self._max_norm is not None and not self._clips_here:
            norm = total_norm([param for group in self.param_groups for param in group["params"]], self._norm_type)
            self._norm = unscaled(norm, scale).clone
            factor = clipping(self._norm(), self._max_norm)
        elif self._given is not None:
            factor = clipping(unscaled(self._given[0], scale), self._given[1])
        for gate in self._gates:
            gate.take(scale, found_inf, factor, self._max_norm, moved)
        if self._max_norm is not None and self._clips_here and self._gates:
            self._norm = self._gates[0].norm
        if self._error_if_nonfinite and self._norm is not None:
            require_finite(self._norm(), self._norm_type)
        for bucket in self._buckets:
            bucket.masters.follow(self._compare_masters, in_place=True)
            bucket.step()
        self._given = None
        if self._rounding == "stochastic":
            for group in self.param_groups:
                group["seed"] = (group["seed"] + 1) % options.SEEDS

    def _build(self, gated: tuple[bool, bool]) -> None:
        """Sort the parameters that have a gradient or a state into buckets, each of which gets a plan."""
        self._give_up()
        self._accelerated = host.is_on() if self._accelerated is None else self._accelerated
        self._form = host.form(self._accelerated)
        formulas = [self._checked_formula(k, group) for k, group in enumerate(self.param_groups)]
        kinds: dict[tuple, list[Member]] = {}
        dormant = []
        for k, group in enumerate(self.param_groups):
            for i, param in enumerate(group["params"]):
                if not has_memory(param) or (param.grad is None and not self._state.get(param)):
                    dormant += [param] if param.device.type != "meta" else []
                    continue
                formula = formulas[k]
                self._check_param(k, i, param, formula)  # its data may be others than at construction
                member = Member(param, self._label(k, i), k, self._state.of(param))
                check_state(f"{member.label}: state", member.state, formula)
                lazy = formula.lazy and param.grad is not None and param.grad.is_sparse
                kinds.setdefault((param.device, real_dtype(param), lazy, formula.kind), []).append(member)
        self._clips_here = self._takes_norm_here(kinds)
        multiplied = self._multiplied or (self._max_norm is not None and not self._clips_here)
        buckets = [Bucket(members, formulas, self._form, self._looked, lazy)
                   for (_, _, lazy, _), members in kinds.items()]
        gates = []
        for device in dict.fromkeys(device for device, *_ in kinds):
            here = [bucket for bucket in buckets if bucket.params[0].device == device]
            clips = self._max_norm is not None and self._clips_here
            gates.append(Gate(device, [bucket.gradients for bucket in here], (*gated, multiplied), clips))
            for bucket in here:
                bucket.bind(gates[-1])
        for members, bucket in zip(kinds.values(), buckets, strict=True):
            bucket.commit()
            for member in members:
                if member.state:
                    self._state.put(member.param, member.state)
        self._state.keep()
        self._buckets, self._gates, self._gated = buckets, gates, (*gated, self._multiplied)
        self._dormant, self._formulas = dormant, formulas
        self._recorded = Recorded(self.param_groups, self._form)

    def _takes_norm_here(self, kinds: Mapping[tuple, list[Member]]) -> bool:
        """Whether one check computes the norm of all gradients: dense, of one device and arithmetic type, unsharded."""
        places = {(device, real) for device, real, *_ in kinds}
        parts = any(lazy or is_dtensor(member.param) for (_, _, lazy, _), of in kinds.items() for member in of)
        return self._norm_type == 2 and len(places) <= 1 and not parts and self._given is None

    def _holds(self, before_compare: bool = False) -> bool:
        """Whether the buckets have the right parameters and states, and after this call the right numbers.

        ``before_compare`` leaves out what `Bucket.compare` finds.
        """
        compiled = self._form is not host.form(self._accelerated)  # in the meantime
        if compiled and not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
            return False
        same = self._recorded.same_objects(self.param_groups)
        if self._state.changed or not (same or self._recorded.same_params(self.param_groups)):
            return False
        if self._dormant and any(param.grad is not None for param in self._dormant if has_memory(param)):
            return False
        for bucket in self._buckets or ():
            if not bucket.is_current(before_compare):
                return False
        if same:
            return True
        now, formulas = options_of(self.param_groups), list(self._formulas)
        for k, (group, new, old) in enumerate(zip(self.param_groups, now, self._recorded.options, strict=True)):
            if new != old:
                if new.keys() != old.keys():
                    return False
                changed = [name for name, x in new.items() if x != old[name]]
                options.check(self._group_label(k), new, changed, group["params"])
                formulas[k] = self._formula(k, group)
                if len({(x.kind, x.blocks, x.masters, x.lazy) for x in (formulas[k], self._formulas[k])}) > 1:
                    return False
        for bucket in self._buckets or ():
            bucket.set(formulas)
        self._formulas = formulas
        self._recorded.keep(self.param_groups, now)
        return True

    def _give_up(self) -> None:
        """Bring the states up to date, and drop all plans."""
        for bucket in self._buckets or ():
            bucket.show(self._compare_masters)
        self._drop()

    def _drop(self) -> None:
        """Drop all plans, except those that replays need."""
        self._of_graphs += [bucket for bucket in self._buckets or () if bucket.captured]
        self._buckets = None

    @property
    def state(self) -> Any:
        """The states by parameter, in PyTorch's layout and up to date; changes to them apply in the next step."""
        self._looked = True
        for bucket in self._buckets or ():
            bucket.show(self._compare_masters)
            bucket.watch_states()
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        self._drop()
        self._state = States(state)

    def state_dict(self) -> dict[str, Any]:
        """Like PyTorch's, with plain dictionaries."""
        found = super().state_dict()
        return found | {"state": {i: dict(x) if isinstance(x, dict) else x for i, x in found["state"].items()}}

    def __getstate__(self) -> dict[str, Any]:
        own = {name: getattr(self, f"_{name}") for name in OWN}
        return super().__getstate__() | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        rest = dict(state)
        if not hasattr(self, "_of_graphs"):
            self._begin()
        for name in OWN:
            if name in rest:
                setattr(self, f"_{name}", rest.pop(name))
        if "state" in rest:
            self.state = rest.pop("state")
        super().__setstate__(rest)
        self._give_up()


_with_hooks = Optimizer.profile_hook_step(Merged._whole_step)
