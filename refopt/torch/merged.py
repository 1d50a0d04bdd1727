"""What all optimizers here have in common: PyTorch's interface around plans."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from refopt.checks.arguments import chosen, number, shown
from refopt.torch.arrays import overlap, refusal
from refopt.torch.bucket import Bucket, Member
from refopt.torch.formulas import Formula, plain
from refopt.torch.gate import Gate
from refopt.torch.states import MASTER, real_dtype, restore

MASTERS = None, "fp32", "remainder"
OF_ALL_GROUPS = "masters", "max_norm"
Group = dict[str, Any]


class Merged(Optimizer):
    """An optimizer of ``torch.optim`` whose step is refopt's merged kernels.

    Beside the arguments of PyTorch's class it takes:

    Args:
        masters: for parameters of fp16 and bf16, ``"fp32"`` for masters in fp32, or ``"remainder"``, for bf16 alone,
            for the 16 bits that an fp32 number has beyond its bf16; they are ``master_param`` in the state. Other
            states are of fp32 then. ``None`` for neither, as in PyTorch.
        max_norm: the gradients are clipped to this norm of all of them, as ``torch.nn.utils.clip_grad_norm_`` does,
            but by a scan that leaves them as they are and for which the host does not wait. Where one is NaN nothing
            is clipped, so the others keep their steps. ``None`` for no clipping.

    Both are of the whole optimizer, no options of a parameter group, and not in ``state_dict``. ``max_norm`` may be set
    between steps, ``masters`` may not.

    ``foreach`` and ``fused`` are taken and change nothing. An option that is a tensor is read in every step, for which
    the host waits if it is on a GPU.

    Raises:
        TypeError, ValueError: naming the argument or the parameter: complex, sparse and integer parameters,
            ``differentiable=True``, a group with ``masters`` or ``max_norm``, or what PyTorch's class refuses.
        RuntimeError: at a step, naming the parameter: a gradient is sparse.
    """

    formula: "ClassVar[staticmethod[[Any], Formula]]"
    _step_supports_amp_scaling = True

    def __init__(self, *args: Any, masters: str | None = None, max_norm: float | None = None, **named: Any) -> None:
        where = type(self).__name__
        self._masters = chosen(f"{where}: masters", masters, MASTERS)
        self._max_norm = self._checked_norm(max_norm)
        if named.get("differentiable"):
            expected = "expected False, since kernels are no part of autograd's graph"
            raise ValueError(f"{where}: differentiable: {expected}, got True")
        self._buckets: list[Bucket] | None = None
        self._of_graphs: list[Bucket] = []  # whose plans replays need
        super().__init__(*args, **named)

    @property
    def masters(self) -> str | None:
        """What kind of masters parameters of 16 bits have."""
        return self._masters

    @property
    def max_norm(self) -> float | None:
        """To what norm of all of them the gradients are clipped, if they are; the next step uses what is set."""
        return self._max_norm

    @max_norm.setter
    def max_norm(self, max_norm: float | None) -> None:
        before, self._max_norm = self._max_norm, self._checked_norm(max_norm)
        if self._max_norm != before:
            self._drop()

    def _checked_norm(self, max_norm: Any) -> float | None:
        return None if max_norm is None else number(f"{type(self).__name__}: max_norm", max_norm, 0)

    def add_param_group(self, param_group: Group) -> None:
        """As PyTorch's, for parameters that kernels can update.

        Raises:
            TypeError: naming a parameter that is sparse, complex, of integers or not dense.
            ValueError: naming an option that is not one of a group.
        """
        self._refuse_strays([param_group], len(self.param_groups))
        super().add_param_group(param_group)
        self._drop()
        number_of_group, group = len(self.param_groups) - 1, self.param_groups[-1]
        refusals = [(i, because) for i, param in enumerate(group["params"]) if (because := self._refusal(param))]
        if refusals:
            self.param_groups.pop()
            raise TypeError(f"{self._label(number_of_group, refusals[0][0])}: {refusals[0][1]}")
        on_gpu = [name for name, x in group.items() if isinstance(x, Tensor) and x.is_cuda]
        if group.get("capturable") and on_gpu:
            self.param_groups.pop()
            expected = "expected a number or a tensor on the CPU for capturable=True, since the host reads it"
            raise ValueError(f"{type(self).__name__}: {on_gpu[0]}: {expected}, got one on {group[on_gpu[0]].device}")

    def _refuse_strays(self, groups: Sequence[Any], first: int = 0) -> None:
        """Refuse an argument of the whole optimizer among a group's options, where it would change nothing."""
        for k, group in enumerate(groups, first):
            for name in OF_ALL_GROUPS:
                if isinstance(group, dict) and name in group:
                    where, got = f"{type(self).__name__}: param_groups[{k}]['{name}']", shown(group[name])
                    raise ValueError(f"{where}: expected none in a group, since it is of all of them, got {got}")

    def _refusal(self, param: Tensor) -> str:
        if self._masters == "remainder" and param.dtype == torch.float16:
            return "expected bfloat16 for masters='remainder', got float16"
        return refusal(param)

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

    def _step(self, scale: Tensor | None, found_inf: Tensor | None) -> None:
        gated = scale is not None, found_inf is not None
        if self._buckets is None or gated != self._gated or not self._holds():
            self._build(gated)
        assert self._buckets is not None
        moved = False
        for bucket in self._buckets:
            moved |= bucket.look()
        if any(bucket.needs_another_plan() for bucket in self._buckets):
            self._build(gated)
        for gate in self._gates:
            gate.take(scale, found_inf, moved)
        for bucket in self._buckets:
            bucket.step()

    def _build(self, gated: tuple[bool, bool]) -> None:
        """Sort the parameters that have a gradient or a state into buckets, each of which gets a plan."""
        self._drop()
        formulas = self._formulas_now()
        kinds: dict[tuple, list[Member]] = {}
        self._dormant = []
        for k, group in enumerate(self.param_groups):
            for i, param in enumerate(group["params"]):
                if param.grad is None and not self._state.get(param):
                    self._dormant.append(param)
                    continue
                if because := self._refusal(param):  # its data may be others than at construction
                    raise TypeError(f"{self._label(k, i)}: {because}")
                formula = formulas[k]
                keeps = formula.counts or formula.states or self._masters
                member = Member(param, self._label(k, i), k, self._state[param] if keeps else {})
                kinds.setdefault((param.device, real_dtype(param), formula.kind), []).append(member)
        self._check_one_norm(kinds)
        self._check_apart([member for members in kinds.values() for member in members])
        buckets = [Bucket(members, formulas, self._masters) for members in kinds.values()]
        gates = []
        for device in dict.fromkeys(device for device, *_ in kinds):
            here = [bucket for bucket in buckets if bucket.params[0].device == device]
            gates.append(Gate(device, [bucket.gradients for bucket in here], gated, self._max_norm))
            for bucket in here:
                bucket.bind(gates[-1])
        self._buckets, self._gates, self._gated = buckets, gates, gated
        self._kinds = [formula.kind for formula in formulas]
        self._options, self._lists = self._options_now(), [list(group["params"]) for group in self.param_groups]

    def _check_apart(self, members: list[Member]) -> None:
        """Refuse parameters that share memory, which one launch would write twice."""
        if both := overlap([member.param for member in members]):
            first, second = (members[i].label for i in both)
            raise ValueError(f"{second}: expected memory of its own, got some of {first.partition(': ')[2]}")

    def _check_one_norm(self, kinds: Iterable[tuple]) -> None:
        """Refuse to clip what has no one norm here."""
        places = {(device, real) for device, real, _ in kinds}
        if self._max_norm is not None and len(places) > 1:
            got = ", ".join(sorted(f"{str(real).removeprefix('torch.')} on {device}" for device, real in places))
            expected = "expected gradients of one arithmetic type on one device"
            raise RuntimeError(f"{type(self).__name__}: max_norm: {expected}, got {got}")

    def _holds(self) -> bool:
        """Whether the buckets have the right parameters, and after this call the right numbers."""
        if len(self.param_groups) != len(self._lists):
            return False
        for group, held in zip(self.param_groups, self._lists, strict=True):
            if len(group["params"]) != len(held) or not all(map(is_, group["params"], held)):
                return False
        if any(param.grad is not None for param in self._dormant):
            return False
        if not all(bucket.stands() for bucket in self._buckets or ()):
            return False
        options = self._options_now()
        if options == self._options:
            return True
        formulas = self._formulas_now()
        if [formula.kind for formula in formulas] != self._kinds:
            return False
        for bucket in self._buckets or ():
            bucket.set(formulas)
        self._options = options
        return True

    def _formulas_now(self) -> list[Formula]:
        """What the groups' steps are."""
        self._refuse_strays(self.param_groups)
        return [type(self).formula(group) for group in self.param_groups]

    def _options_now(self) -> list[list[Any]]:
        """What the groups say."""
        return [[plain(x) for name, x in group.items() if name != "params"] for group in self.param_groups]

    def _label(self, group: int, i: int) -> str:
        return f"{type(self).__name__}: param_groups[{group}]['params'][{i}]"

    def _drop(self) -> None:
        """Bring the states up to date and give up the plans: somebody may change what they were bound to."""
        for bucket in self._buckets or ():
            bucket.write()
        self._give_up()

    def _give_up(self) -> None:
        """Have no plans any more, but for those that replays need."""
        self._of_graphs += [bucket for bucket in self._buckets or () if bucket.captured]
        self._buckets = None

    @property
    def state(self) -> Any:
        """The states by parameter, in PyTorch's layout and up to date; the next step uses what is changed there."""
        self._drop()
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        self._give_up()
        self._state = state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As PyTorch's; masters and the fp32 states beside them keep their dtype.

        Raises:
            ValueError: the states have masters of another kind than the optimizer, or a group an option that is not one
                of a group.
        """
        held: list[Mapping[str, Any]] = []

        def check(_: Optimizer, loaded: dict[str, Any]) -> None:
            self._check_loaded(loaded)
            held.append(loaded)

        hook = self.register_load_state_dict_pre_hook(check)
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        params = [param for group in self.param_groups for param in group["params"]]
        indices = [i for group in held[0]["param_groups"] for i in group["params"]]
        restore(self._state, dict(zip(indices, params, strict=True)), held[0]["state"])

    def _check_loaded(self, loaded: Mapping[str, Any]) -> None:
        dtypes = {None: None, "fp32": torch.float32, "remainder": torch.uint16}
        for i, state in loaded["state"].items():
            got = state[MASTER].dtype if MASTER in state else None
            if MASTER in state and got != dtypes[self._masters]:
                expected = f"expected masters={self._masters!r}, as the optimizer has"
                raise ValueError(f"{type(self).__name__}: load_state_dict: state[{i}]: {expected}, got one of {got}")
        self._refuse_strays(loaded["param_groups"])

    def __getstate__(self) -> dict[str, Any]:
        own = {"masters": self._masters, "max_norm": self._max_norm}
        return super().__getstate__() | {"state": self.state} | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        rest = dict(state)
        self._masters = rest.pop("masters", getattr(self, "_masters", None))
        self._max_norm = rest.pop("max_norm", getattr(self, "_max_norm", None))
        self._buckets, self._of_graphs = getattr(self, "_buckets", None), getattr(self, "_of_graphs", [])
        if "state" in rest:
            self.state = rest.pop("state")
        super().__setstate__(rest)
        self._give_up()
