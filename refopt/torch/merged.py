"""What all optimizers here have in common: PyTorch's interface around plans."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from refopt.catalog import ROUTINES
from refopt.checks.arguments import chosen, flag, number, whole
from refopt.torch import host, options
from refopt.torch.arrays import has_memory, refusal, require_apart
from refopt.torch.bucket import Bucket, Member
from refopt.torch.formulas import Formula, plain
from refopt.torch.gate import Gate
from refopt.torch.norm import clipping, require_finite
from refopt.torch.sharded import is_cut, is_dtensor, local, total_norm
from refopt.torch.states import MASTER, real_dtype, restore
from refopt.torch.watched import States

Group = dict[str, Any]
OWN = "masters", "compare_masters", "max_norm", "norm_type", "error_if_nonfinite", "rounding"  # arguments


NO_OPTIONS = "params", "param_names"  # entries of a group


class Merged(Optimizer):
    """An optimizer of ``torch.optim`` whose step is refopt's merged kernels.

    Beside the arguments of PyTorch's class it takes:

    Args:
        masters: for parameters of fp16 and bf16, ``"fp32"`` for masters in fp32, or ``"remainder"``, for bf16 alone,
            for the 16 bits that an fp32 number has beyond its bf16; they are ``master_param`` in the state. Other
            states are of fp32 then, whatever dtype a checkpoint has them in. ``None`` for neither, as in PyTorch.
            Groups may have options of this name, too.
        compare_masters: whether each step compares all fp32 masters with what their parameters store, and has those
            follow that do not round to it. Without, masters follow what PyTorch counts as a write into a parameter;
            it counts none through ``param.data``.
        max_norm: the gradients are clipped to this norm of all of them, as ``torch.nn.utils.clip_grad_norm_`` does,
            but leaving them as they are, and without the host waiting. Where the norm is NaN nothing is clipped, so
            the others keep their steps. ``None`` for no clipping.
        norm_type: of ``max_norm``, as ``clip_grad_norm_`` has it: 2, inf, or another.
        error_if_nonfinite: whether a norm of inf or NaN raises; each step waits for it then.
        rounding: ``"stochastic"`` for bf16 parameters without masters, and their states, to be rounded stochastically,
            by `refopt.cpu.stochastic`; ``"nearest"`` as in PyTorch. Elementwise routines alone have the former.
        seed: of the first such step, at most 2**24 - 1. Groups keep the next one as an option.

    Arguments that are none of a group's options are not in ``state_dict``. ``max_norm`` may be set between steps.

    ``foreach`` and ``fused`` are taken and change nothing. An option that is a tensor is read in every step, for which
    the host waits if it is on a GPU.

    Raises:
        TypeError, ValueError: naming the argument or the parameter: complex, sparse and integer parameters, those that
            share memory, LARS, LAMB or NovoGrad of a parameter that is sharded, ``differentiable=True``, a group with
            ``max_norm``, or what PyTorch's class refuses. The optimizer is as it was then.
        RuntimeError: at a step, naming the parameter: a gradient is sparse.
    """

    formula: "ClassVar[staticmethod[[Any], Formula]]"
    _step_supports_amp_scaling = True
    _constructed = True  # as what is copied or unpickled is

    def __init__(
        self, *args: Any, masters: str | None = None, compare_masters: bool = False, max_norm: float | None = None,
        norm_type: float = 2.0, error_if_nonfinite: bool = False, rounding: str = "nearest", seed: int = 0,
        **named: Any,
    ) -> None:  # fmt: skip
        where = type(self).__name__
        self._masters = chosen(f"{where}: masters", masters, options.MASTERS)
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
        """Have no plans yet."""
        self._buckets: list[Bucket] | None = None
        self._looked = False  # whether somebody may have got hold of the states
        self._of_graphs: list[Bucket] = []  # whose plans replays need
        self._given: tuple[Tensor, float] | None = None  # the norm of gradients, and to what the next step clips it
        self._multiplied = False  # whether plans read such a factor
        self._norm: Callable[[], Tensor] | None = None

    @property
    def masters(self) -> str | None:
        """What kind of masters parameters of 16 bits have, but for those of groups that say so themselves."""
        return self._masters

    @property
    def max_norm(self) -> float | None:
        """To what norm of all of them the gradients are clipped, if they are; the next step uses what is set."""
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

        Nobody waits for it before it is read. ``None`` before the first step, and without ``max_norm``.
        """
        return None if self._norm is None else self._norm()

    def clip_next(self, norm: Tensor, max_norm: float) -> None:
        """Have the next step clip the gradients to a norm, given that of these and others as they are, shape ()."""
        self._given = norm, max_norm

    def _checked_norm(self, max_norm: Any) -> float | None:
        return None if max_norm is None else number(f"{type(self).__name__}: max_norm", max_norm, 0)

    def add_param_group(self, param_group: Group) -> None:
        """As PyTorch's, for parameters that kernels can update. What is refused is not added.

        Raises:
            TypeError, ValueError: naming a parameter that is sparse, complex, of integers or not dense, or one that
                shares memory with another; or an option.
        """
        before = len(self.param_groups)
        try:
            super().add_param_group(param_group)
            self._check_group(before, self.param_groups[before])
        except BaseException:
            del self.param_groups[before:]
            raise

    def _check_group(self, k: int, group: Group) -> None:
        if self._rounding == "stochastic":
            group.setdefault("seed", self._seed)
        options.check(self._group_label(k), group, group, group["params"])
        formula = self._formula(k, group)
        for i, param in enumerate(group["params"]):
            self._check_param(k, i, param, formula)
        if self._constructed:  # or there may be a group for each parameter, and all are checked at the end
            self._check_apart()

    def _check_apart(self) -> None:
        """Refuse parameters that share memory."""
        where = ((k, i, param) for k, group in enumerate(self.param_groups) for i, param in enumerate(group["params"]))
        here = [(local(param), self._label(k, i)) for k, i, param in where if has_memory(param)]
        require_apart([param for param, _ in here], [label for _, label in here])

    def _check_param(self, k: int, i: int, param: Tensor, formula: Formula) -> None:
        because = refusal(param)
        if not because and param.dtype == torch.float16 and self._masters_of(self.param_groups[k]) == "remainder":
            because = "expected bfloat16 for masters='remainder', got float16"
        if not because and is_cut(param) and not ROUTINES[formula.routine].elementwise:
            because = f"expected a whole parameter, since {type(self).__name__} takes norms of it, got a shard"
        if because:
            raise TypeError(f"{self._label(k, i)}: {because}")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step: a launch or two per device, in the order of PyTorch's current stream.

        Args:
            closure: computes the loss and the gradients anew, if given.

        Returns:
            What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Compiled, it is a break in the graph: kernels and plans are not for Dynamo to look into.
        run = self._step_apart if torch.compiler.is_compiling() else self._step
        with torch.no_grad():
            run(getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        return loss

    @torch._disable_dynamo
    def _step_apart(self, scale: Tensor | None, found_inf: Tensor | None) -> None:
        self._step(scale, found_inf)

    def refresh(self) -> None:
        """Put the groups' numbers, such as a scheduler's lr, where the steps in captured graphs read them.

        A step does so itself; the replay of a graph does not. Other options are those of the capture.
        """
        if self._buckets is not None and not self._holds():
            raise RuntimeError(f"{type(self).__name__}: refresh: expected the parameters and choices of the last step")

    @torch.no_grad()
    def refresh_masters(self) -> None:
        """Have every master be that of its parameter as it stands, such as after a write through ``param.data``."""
        if self._buckets is None:
            self._build((False, False))
        for bucket in self._buckets or ():
            bucket.follow_all()

    def _step(self, scale: Tensor | None, found_inf: Tensor | None) -> None:
        gated = scale is not None, found_inf is not None
        self._multiplied |= self._given is not None
        if self._buckets is None or (*gated, self._multiplied) != self._gated or not self._holds():
            self._build(gated)
        assert self._buckets is not None
        moved = False
        for bucket in self._buckets:
            moved |= bucket.look()
        factor = None
        if self._max_norm is not None and not self._clips_here:
            norm = total_norm([param for group in self.param_groups for param in group["params"]], self._norm_type)
            self._norm = _unscaled(norm, scale).clone
            if self._error_if_nonfinite:
                require_finite(self._norm(), self._norm_type)
            factor = clipping(self._norm(), self._max_norm)
        elif self._given is not None:
            factor = clipping(_unscaled(self._given[0], scale), self._given[1])
        for gate in self._gates:
            gate.take(scale, found_inf, factor, self._max_norm, moved)
        if self._max_norm is not None and self._clips_here and self._gates:
            self._norm = self._gates[0].norm
            if self._error_if_nonfinite:
                require_finite(self._norm(), self._norm_type)
        for bucket in self._buckets:
            bucket.follow(self._compare_masters)
            bucket.step()
        self._given = None
        if self._rounding == "stochastic":
            for group in self.param_groups:
                group["seed"] = (group["seed"] + 1) % options.SEEDS

    def _build(self, gated: tuple[bool, bool]) -> None:
        """Sort the parameters that have a gradient or a state into buckets, each of which gets a plan."""
        for bucket in self._buckets or ():
            bucket.show(self._compare_masters)
        formulas = [self._checked_formula(k, group) for k, group in enumerate(self.param_groups)]
        kinds: dict[tuple, list[Member]] = {}
        dormant = []
        for k, group in enumerate(self.param_groups):
            masters = self._masters_of(group)
            for i, param in enumerate(group["params"]):
                if not has_memory(param) or (param.grad is None and not self._state.get(param)):
                    dormant += [param] if param.device.type != "meta" else []
                    continue
                formula = formulas[k]
                self._check_param(k, i, param, formula)  # its data may be others than at construction
                member = Member(param, self._label(k, i), k, self._state.of(param), masters)
                kinds.setdefault((param.device, real_dtype(param), formula.kind), []).append(member)
        self._clips_here = self._takes_norm_here(kinds)
        multiplied = self._multiplied or (self._max_norm is not None and not self._clips_here)
        buckets = [Bucket(members, formulas, self._looked) for members in kinds.values()]
        gates = []
        for device in dict.fromkeys(device for device, *_ in kinds):
            here = [bucket for bucket in buckets if bucket.params[0].device == device]
            clips = self._max_norm is not None and self._clips_here
            gates.append(Gate(device, [bucket.gradients for bucket in here], (*gated, multiplied), clips))
            for bucket in here:
                bucket.bind(gates[-1])
        self._give_up()
        for members, bucket in zip(kinds.values(), buckets, strict=True):
            bucket.commit()
            for member in members:
                if member.state:
                    self._state.put(member.param, member.state)
        self._state.keep()
        self._buckets, self._gates, self._gated = buckets, gates, (*gated, self._multiplied)
        self._dormant, self._formulas = dormant, formulas
        self._lists, self._same = [list(group["params"]) for group in self.param_groups], host.form().same
        self._keep_options(self._options_now())

    def _takes_norm_here(self, kinds: Mapping[tuple, list[Member]]) -> bool:
        """Whether one check of the gradients finds their norm: of one device and arithmetic type, all here."""
        places = {(device, real) for device, real, _ in kinds}
        parts = any(is_dtensor(member.param) for members in kinds.values() for member in members)
        return self._norm_type == 2 and len(places) <= 1 and not parts and self._given is None

    def _holds(self) -> bool:
        """Whether the buckets have the right parameters and states, and after this call the right numbers."""
        if self._state.changed or len(self.param_groups) != len(self._lists):
            return False
        for group, held in zip(self.param_groups, self._lists, strict=True):
            if not self._same(group["params"], held):
                return False
        if any(param.grad is not None for param in self._dormant if has_memory(param)):
            return False
        if not all(bucket.stands() for bucket in self._buckets or ()):
            return False
        groups = zip(self.param_groups, self._raw, strict=True)
        if all(self._same([*group, *group.values()], raw) for group, raw in groups):
            return True
        now = self._options_now()
        formulas = list(self._formulas)
        for k, (group, new, old) in enumerate(zip(self.param_groups, now, self._options, strict=True)):
            if new != old:
                if new.keys() != old.keys() or self._masters_of(new) != self._masters_of(old):
                    return False
                changed = [name for name, x in new.items() if x != old[name]]
                options.check(self._group_label(k), new, changed, group["params"])
                formulas[k] = self._formula(k, group)
                if formulas[k].kind != self._formulas[k].kind:
                    return False
        for bucket in self._buckets or ():
            bucket.set(formulas)
        self._formulas = formulas
        self._keep_options(now)
        return True

    def _keep_options(self, options: list[dict[str, Any]]) -> None:
        """Take note of what groups say, and of the objects that say so, which are quick to compare."""
        self._options = options
        # What may be written in place, such as a tensor, is never found: an object of its own stands for it.
        self._raw = [[*group, *(x if name in NO_OPTIONS or _is_constant(x) else object() for name, x in group.items())]
                     for group in self.param_groups]  # fmt: skip

    def _checked_formula(self, k: int, group: Group) -> Formula:
        """What a group's step is, whose options are checked."""
        options.check(self._group_label(k), group, group, group["params"])
        return self._formula(k, group)

    def _formula(self, k: int, group: Group) -> Formula:
        formula = type(self).formula(group)
        if self._rounding == "nearest":
            return formula
        if "rounding" not in ROUTINES[formula.routine].choices:
            expected = "expected 'nearest', since its kernels round stochastically nowhere"
            raise ValueError(f"{type(self).__name__}: rounding: {expected}, got {self._rounding!r}")
        choices = formula.choices | {"rounding": self._rounding}
        return formula._replace(choices=choices, numbers=formula.numbers | {"seed": group["seed"]})

    def _masters_of(self, group: Group) -> str | None:
        return group.get("masters", self._masters)

    def _options_now(self) -> list[dict[str, Any]]:
        """What the groups say."""
        return [{name: plain(x) for name, x in group.items() if name != "params"} for group in self.param_groups]

    def _group_label(self, k: int) -> str:
        return f"{type(self).__name__}: param_groups[{k}]"

    def _label(self, k: int, i: int) -> str:
        names = self.param_groups[k].get("param_names")
        return f"{self._group_label(k)}['params'][{i}]" + (f" ({names[i]})" if names else "")

    def _give_up(self) -> None:
        """Have no plans any more, but for those that replays need."""
        self._of_graphs += [bucket for bucket in self._buckets or () if bucket.captured]
        self._buckets = None

    @property
    def state(self) -> Any:
        """The states by parameter, in PyTorch's layout and up to date; the next step uses what is changed there."""
        self._looked = True
        for bucket in self._buckets or ():
            bucket.show(self._compare_masters)
            bucket.watch()
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        self._give_up()
        self._state = States(state)

    def state_dict(self) -> dict[str, Any]:
        """As PyTorch's, with plain dictionaries."""
        found = super().state_dict()
        return found | {"state": {i: dict(x) if isinstance(x, dict) else x for i, x in found["state"].items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As PyTorch's; masters and the fp32 states beside them keep their dtype.

        Raises:
            TypeError, ValueError: the states have masters of another kind than the optimizer, or an option of a group
                is none, or out of range. The optimizer is as it was then.
        """
        held: list[Mapping[str, Any]] = []

        def check(_: Optimizer, loaded: dict[str, Any]) -> None:
            self._check_loaded(loaded)
            held.append(loaded)

        kept = [{name: group[name] for name in ("masters", "seed") if name in group} for group in self.param_groups]
        hook = self.register_load_state_dict_pre_hook(check)
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        params = [param for group in self.param_groups for param in group["params"]]
        indices = [i for group in held[0]["param_groups"] for i in group["params"]]
        for group, own in zip(self.param_groups, kept, strict=True):  # PyTorch's have none
            for name, value in own.items():
                group.setdefault(name, value)
        masters = {param: self._masters_of(group) for group in self.param_groups for param in group["params"]}
        restore(self._state, dict(zip(indices, params, strict=True)), held[0]["state"], masters)

    def _check_loaded(self, loaded: Mapping[str, Any]) -> None:
        dtypes = {None: None, "fp32": torch.float32, "remainder": torch.uint16}
        masters: dict[Any, str | None] = {}
        for k, (group, own) in enumerate(zip(loaded["param_groups"], self.param_groups, strict=False)):
            options.check(self._group_label(k), group, group.keys() - {*NO_OPTIONS}, own["params"])
            masters |= dict.fromkeys(group["params"], group.get("masters", self._masters_of(own)))
        for i, state in loaded["state"].items():
            expected, got = masters.get(i, self._masters), state[MASTER].dtype if MASTER in state else None
            if MASTER in state and got != dtypes[expected]:
                said = f"expected masters={expected!r}, as the optimizer has, got one of {got}"
                less = f"without {MASTER!r} they begin from the parameters"
                raise ValueError(f"{type(self).__name__}: load_state_dict: state[{i}]: {said}; {less}")

    def __getstate__(self) -> dict[str, Any]:
        own = {name: getattr(self, f"_{name}") for name in (*OWN, "seed")}
        return super().__getstate__() | {"state": self.state} | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        rest = dict(state)
        if not hasattr(self, "_of_graphs"):
            self._begin()
        for name in (*OWN, "seed"):
            if name in rest:
                setattr(self, f"_{name}", rest.pop(name))
        if "state" in rest:
            self.state = rest.pop("state")
        super().__setstate__(rest)
        self._give_up()


def _is_constant(value: Any) -> bool:
    kinds = bool, int, float, str, type(None)
    return isinstance(value, kinds) or (type(value) is tuple and all(isinstance(x, kinds) for x in value))


def _unscaled(norm: Tensor, scale: Tensor | None) -> Tensor:
    """The norm of gradients that a scaler has made larger, as it would be without."""
    return norm if scale is None else norm / scale.to(norm.device)
