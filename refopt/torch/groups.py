"""Parameter groups whose options and parameters are checked, however they are set."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from refopt.checks.arguments import chosen
from refopt.cpu.lazy import LAZY
from refopt.torch import coded, options
from refopt.torch.arrays import has_memory, refusal, require_apart, unusable
from refopt.torch.formulas import Formula, plain
from refopt.torch.masters import DTYPES, MASTER
from refopt.torch.sharded import is_cut, local
from refopt.torch.states import check_loaded, restore

Group = dict[str, Any]
NO_OPTIONS = "params", "param_names"  # entries of a group
# Options that PyTorch's classes do not have.
OPTIONS = ("masters", "states", "sparse", "seed", "blocks", "restarts", "compute", "beta2", "use_muon", "betas",
           "amsgrad", "maximize")


class Grouped(Optimizer):
    """A PyTorch optimizer that refuses groups that kernels cannot update."""

    formula: "ClassVar[staticmethod[[Any], Formula]]"
    _masters: str | None
    _states: str | None
    _sparse: str | None
    _rounding: str
    _seed: int
    _state: Any
    _constructed = True  # as what is copied or unpickled is

    def add_param_group(self, param_group: Group) -> None:
        """Like PyTorch's, for parameters that kernels can update. A refused group is not added.

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
        formula = self._checked_formula(k, group)
        for i, param in enumerate(group["params"]):
            self._check_param(k, i, param, formula)
        if self._constructed:  # or there may be a group for each parameter, and all are checked at the end
            self._check_apart()

    def _check_apart(self) -> None:
        """Refuse parameters that share memory."""
        where = ((k, i, param) for k, group in enumerate(self.param_groups) for i, param in enumerate(group["params"]))
        require_apart([(param, self._label(k, i)) for k, i, param in where if has_memory(param)])

    def _check_param(self, k: int, i: int, param: Tensor, formula: Formula) -> None:
        because = refusal(param) or (formula.coded and coded.refusal(param))
        if not because and param.dtype == torch.float16 and formula.masters not in (None, "fp32"):
            because = f"expected bfloat16 for masters={formula.masters!r}, got float16"
        apart = param.ndim - 2 if formula.blocks and formula.blocks.of == "experts" else 0  # axes of whole matrices
        if not because and is_cut(param, apart) and not formula.row.elementwise:
            because = f"expected a whole parameter, since {type(self).__name__} needs its norms, got a shard"
        if because:
            raise TypeError(f"{self._label(k, i)}: {because}")

    def _checked_formula(self, k: int, group: Group) -> Formula:
        """The step of a group, after a check of its options."""
        options.check(self._group_label(k), group, group, group["params"])
        return self._formula(k, group)

    def _formula(self, k: int, group: Group) -> Formula:
        masters, states, sparse = (group.get(x, getattr(self, f"_{x}")) for x in ("masters", "states", "sparse"))
        formula = type(self).formula(group)._replace(masters=masters, coded=states is not None, lazy=sparse is not None)
        for name, given, usual in (("rounding", self._rounding, "nearest"), ("states", states, None)):
            if given != usual and not formula.row.elementwise:
                expected = f"expected {usual!r}, since {formula.routine} is not elementwise"
                raise ValueError(f"{self._group_label(k)}: {name}: {expected}, got {given!r}")
        if formula.lazy:
            of_lazy = {"routine": (formula.routine, LAZY), "masters": (masters, (None, "fp32")),
                       "states": (states, (None,)), "rounding": (self._rounding, ("nearest",))}
            for name, (given, known) in of_lazy.items():
                chosen(f"{self._group_label(k)}: {name} beside sparse={sparse!r}", given, known)
        if self._rounding == "nearest":
            return formula
        choices = formula.choices | {"rounding": self._rounding}
        return formula._replace(choices=choices, numbers=formula.numbers | {"seed": group["seed"]})

    def _group_label(self, k: int) -> str:
        return f"{type(self).__name__}: param_groups[{k}]"

    def _label(self, k: int, i: int) -> str:
        names = self.param_groups[k].get("param_names")
        return f"{self._group_label(k)}['params'][{i}]" + (f" ({names[i]})" if names else "")

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Like PyTorch's, except that states are copies, and stay wider than their parameters if they are, and that an
        option that a group of the file lacks stays.

        With ``states="8bit"``, floats are rounded to the nearest codes; without it, codes become fp32. PyTorch's
        classes cast codes to the parameter's dtype, which loses none: they load as codes.

        Raises:
            TypeError, ValueError: the states have a different kind of masters than the optimizer, lack an entry, are
                wider than any that kernels take, or neither floats nor of as many bytes as in 8 bits, or an option of a
                group is invalid or out of range. The optimizer is unchanged then.
        """
        held: list[tuple[Mapping[str, Any], Mapping[Any, Formula]]] = []
        # Distributed checkpoints have no options of a group without parameters; other keys are the schedulers'.
        kept = [{k: x for k, x in group.items() if k in {*OPTIONS, *self.defaults} or not group["params"]}
                for group in self.param_groups]

        def check(_: Optimizer, loaded: dict[str, Any]) -> dict[str, Any]:
            if len(loaded["param_groups"]) == len(kept):
                loaded = {**loaded, "param_groups": [a | b for a, b in zip(kept, loaded["param_groups"], strict=True)]}
            held.append((loaded, self._check_loaded(loaded)))
            return loaded

        def take(_: Optimizer) -> None:
            loaded, formulas = held[0]
            for group, given in zip(self.param_groups, loaded["param_groups"], strict=True):
                for i, param in zip(given["params"], group["params"], strict=True):
                    if saved := loaded["state"].get(i):
                        restore(self._state[param], param, saved, formulas[i])

        # Between a caller's hooks: the dictionary as they leave it, and before those that follow a load.
        hooks = [self.register_load_state_dict_pre_hook(check),
                 self.register_load_state_dict_post_hook(take, prepend=True)]
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()

    def _check_loaded(self, loaded: Mapping[str, Any]) -> dict[Any, Formula]:
        """Refuse what cannot be loaded; returns the step of each parameter, by its index."""
        formulas: dict[Any, Formula] = {}
        for k, (own, group) in enumerate(zip(self.param_groups, loaded["param_groups"], strict=False)):
            options.check(self._group_label(k), group, group.keys() - {*NO_OPTIONS}, own["params"])
            if own.get("beta2") is not None and group.get("beta2", 0) is None:
                expected = "expected a number, as the optimizer has, since NorMuon continues from averages of rows"
                raise ValueError(f"{self._group_label(k)}['beta2']: {expected}, got None")
            formula = self._formula(k, own | group)
            formulas |= dict.fromkeys(group["params"], formula)
            needed = [*formula.states.values(), *(["step"] if formula.counts else [])]
            for i, param in zip(group["params"], own["params"], strict=False):
                state, where = loaded["state"].get(i, {}), f"{type(self).__name__}: load_state_dict: state[{i}]"
                check_state(where, state, formula)
                # Without an entry, steps would begin from 0 without a word.
                if missing := [key for key in needed if state and key not in state]:
                    said = f"expected {missing[0]!r}, which its steps need, got {', '.join(map(str, state))}"
                    raise ValueError(f"{where}: {said}")
                for key in formula.states.values():
                    check_loaded(f"{where}[{key!r}]", state.get(key), param)
                if MASTER in state and (got := state[MASTER].dtype) != DTYPES.get(formula.masters):
                    kind = next((f"masters={x!r}" for x, dtype in DTYPES.items() if dtype == got), f"one of {got}")
                    said = f"expected masters={formula.masters!r}, as the optimizer has, got {kind}"
                    raise ValueError(f"{where}: {said}; without {MASTER!r} they begin from the parameters")
        return formulas


def check_state(where: str, state: Mapping[str, Any], formula: Formula) -> None:
    """Raise TypeError, naming the entry, if kernels or the host cannot read a tensor of a parameter's state."""
    for key in (*formula.states.values(), "step", MASTER):
        held = local(state.get(key))
        if isinstance(held, Tensor) and (because := unusable(held, in_state=True)):
            raise TypeError(f"{where}[{key!r}]: {because}")


class Recorded:
    """The options and parameters of groups when plans were made for them."""

    def __init__(self, groups: list[Group], form: Any) -> None:
        """Record their options and parameters."""
        self._same, self._params = form.same, [list(group["params"]) for group in groups]
        self.keep(groups, options_of(groups))

    def keep(self, groups: list[Group], options: list[dict[str, Any]]) -> None:
        """Record their options."""
        self.options = options
        # The objects are quick to compare. One that may be written in place, such as a tensor, is replaced by a new
        # object, so that it never compares equal.
        self._objects: list[Any] = []
        for group in groups:
            values = (x if name in NO_OPTIONS or _is_constant(x) else object() for name, x in group.items())
            self._objects += [*group["params"], *group, *values]

    def same_params(self, groups: list[Group]) -> bool:
        """Whether groups have the same parameters."""
        return len(groups) == len(self._params) and all(
            self._same(group["params"], held) for group, held in zip(groups, self._params, strict=True))

    def same_objects(self, groups: list[Group]) -> bool:
        """Whether parameters and options are the same objects as recorded."""
        objects: list[Any] = []
        for group in groups:
            objects += [*group["params"], *group, *group.values()]
        return self._same(objects, self._objects)


def options_of(groups: list[Group]) -> list[dict[str, Any]]:
    """The options of groups, as values that cannot be written in place."""
    return [{name: tuple(map(plain, x)) if isinstance(x, list | tuple) else plain(x)
             for name, x in group.items() if name not in NO_OPTIONS} for group in groups]


def _is_constant(value: Any) -> bool:
    kinds = bool, int, float, str, type(None)
    return isinstance(value, kinds) or (type(value) is tuple and all(isinstance(x, kinds) for x in value))
