"""docs/torch-options.md: what each option of the classes of `refopt.torch` is. It takes PyTorch.

``python -m maps.torch_options``, with tests/ on the path, writes it. An option is tried with another value than its
default. What that changes is read from the formula of the parameter group, from the first states, or from the error.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from maps.collect import ROOT, Item, head

PAGE = ROOT / "docs" / "torch-options.md"
# Of every class, and described together.
SHARED = {"masters": None, "states": None, "sparse": None, "compare_masters": False, "max_norm": None,
          "norm_type": 2.0, "error_if_nonfinite": False, "rounding": "nearest", "seed": 0}
# Other values than the default, of options that do not take half of it.
OTHERS = {"ns_steps": 3, "adjust_lr_fn": "match_rms_adamw", "blocks": (2, 1, "matrix"),
          "restarts": (2, 4), "compute": "float16", "beta2": 0.9}
ABOUT = {
    "masters": '`"fp32"` keeps an fp32 master of each fp16 or bf16 parameter; `"remainder"` only the 16 bits that '
               'bf16 drops from fp32, `"remainder8"` the first 8 of them; the state calls it `master_param`',
    "states": '`"8bit"` keeps the states of elementwise routines in 8 bits',
    "sparse": '`"rows"` updates only the rows in sparse gradients, in SGD, Adam, AdamW and Adagrad',
    "compare_masters": "whether each step compares fp32 masters with their parameters, to notice writes through "
                       "`param.data`, which PyTorch's version counter misses",
    "max_norm": "clips the norm of all gradients together to this number, on the device",
    "norm_type": "the norm for `max_norm`: 2, `inf` or another",
    "error_if_nonfinite": "whether a norm of inf or NaN raises; if so, each step waits for the norm",
    "rounding": '`"stochastic"` rounds bf16 parameters without masters, their states and 8-bit states stochastically',
    "seed": "the seed of the first stochastically rounded step; each group stores the next one as an option"}


class Changed(NamedTuple):
    """What another value of an option changes: of each, the names."""

    numbers: frozenset = frozenset()
    choices: frozenset = frozenset()
    arguments: frozenset = frozenset()
    states: frozenset = frozenset()
    routine: str = ""
    first: frozenset = frozenset()
    by_step: frozenset = frozenset()
    values: frozenset = frozenset()
    error: str = ""


def page(items: Iterable[Item] = ()) -> str:
    """The page."""
    from refopt import torch as merged

    lines = [head(PAGE), "| option | default | what it is |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {default!r} | {ABOUT[name]} |" for name, default in SHARED.items()]
    sections = ["\n".join(section(getattr(merged, name))) for name in classes(merged)]
    said: dict[str, list[str]] = {}
    for name, _, what in ROW.findall("\n".join(sections)):
        said.setdefault(name, []).append(re.sub(r"“\w+: ", "“", what))
    common = {name: texts[0] for name, texts in said.items() if len(texts) > 2 and len({*texts}) == 1}
    lines += ["", "Common options, which mean the same in all classes:", "", "| option | what it is |", "| --- | --- |"]
    lines += [f"| `{name}` | {what} |" for name, what in common.items()]
    for text in sections:
        usual = ", ".join(f"`{name}={default}`" for name, default, _ in ROW.findall(text) if name in common)
        text = ROW.sub(lambda row: "" if row[1] in common else row[0], text).rstrip()
        lines += ["", text.replace("`.\n", f"`. Common options: {usual}.\n", 1) if usual else text]
    return "\n".join([*lines, ""])


ROW = re.compile(r"(?m)^\| `(\w+)` \| (.*?) \| (.*) \|$\n?")


def classes(merged: Any) -> list[str]:
    """The names of the optimizers."""
    return [name for name in merged.__all__ if hasattr(getattr(merged, name), "formula")]


def section(kind: Any) -> Iterator[str]:
    """The options of a class."""
    yield from (f"## {kind.__name__}", "")
    found = {name: {base: [changed(kind, dict(base), name, x) for x in others(name, parameter.default)]
                    for base in bases(kind)} for name, parameter in options(kind).items()}
    tried = [one for each in found.values() for tries in each.values() for one in tries]
    moving = {x for one in tried for x in one.choices | one.numbers | one.arguments}
    formula, _ = made(kind, {})
    fixed = {name: x for name, x in formula.choices.items() if name not in moving}
    said = f"The routine `{formula.routine}`"
    routines = {one.routine for one in tried} - {""}
    said += "".join(f", or `{routine}`" for routine in sorted(routines - {formula.routine}))
    said += f", with {', '.join(f'`{name}={x!r}`' for name, x in fixed.items())}" if fixed else ""
    yield from (f"{said}.", "", "| option | default | what it is |", "| --- | --- | --- |")
    for name, parameter in options(kind).items():
        usual = f"`{formula.routine}` if {parameter.default!r}"
        yield f"| `{name}` | {parameter.default!r} | {described(found[name], usual)} |"


def options(kind: Any) -> dict[str, inspect.Parameter]:
    """The arguments of a class beside its parameters, as PyTorch's class or its own has them."""
    found: dict[str, inspect.Parameter] = {}
    for own in (each for each in kind.__mro__ if "__init__" in vars(each) and each.__name__ != "Merged"):
        parameters = inspect.signature(own.__init__).parameters
        found |= {name: x for name, x in parameters.items()
                  if name not in ("self", "params", *SHARED) and x.kind not in (x.VAR_KEYWORD, x.VAR_POSITIONAL)}
        if not any(x.kind is x.VAR_POSITIONAL for x in parameters.values()):  # else those of the next class, too
            break
    return found


def bases(kind: Any) -> list[tuple]:
    """What is given beside an option: nothing, and momentum, without which some options mean nothing."""
    return [(), (("momentum", 0.5),)] if "momentum" in options(kind) else [()]


def others(name: str, default: Any) -> list[Any]:
    """Values to try in the place of the default."""
    if name in OTHERS:
        return [OTHERS[name]]
    if default is None or isinstance(default, bool):
        return [True] if not default else [False]
    if isinstance(default, tuple):
        return [tuple(x / 2 if k == at else x for k, x in enumerate(default)) for at in range(len(default))]
    return [default / 2 + 0.125]


def made(kind: Any, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The formula of a class with these options, and the states that it begins with."""
    import torch

    param = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = kind([param], **given)
    state = {key: x.tolist() for key, x in optimizer.state.get(param, {}).items()}
    return kind.formula(optimizer.param_groups[0]), state


def changed(kind: Any, base: dict[str, Any], name: str, value: Any) -> Changed:
    """What a value of an option changes."""
    before, first = made(kind, base)
    try:
        after, begun = made(kind, base | {name: value})
    except (TypeError, ValueError) as error:
        return Changed() if name not in base and "momentum" in str(error) else Changed(error=f"{error}")
    given = [one.numbers | one.choices | {"blocks": one.blocks} for one in (before, after)]
    names, row = differing(*given) & given[1].keys(), after.row
    numbers = names & {hyper.name for hyper in row.hypers}
    return Changed(numbers, names & row.choices.keys(), names - numbers - row.choices.keys(),
                   frozenset(after.states.values()) - frozenset(before.states.values()),
                   after.routine if after.routine != before.routine else "",
                   frozenset(f"{key}={after.first[key]:g}" for key in differing(before.first, after.first)),
                   frozenset(after.by_step) - frozenset(before.by_step), differing(first, begun))


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> frozenset:
    """The keys under which two mappings have other values."""
    nothing = object()
    return frozenset(key for key in {*one, *other} if one.get(key, nothing) != other.get(key, nothing))


def described(found: Mapping[tuple, list[Changed]], usual: str) -> str:
    """What an option is, by what it changed; ``usual`` is the routine without it."""
    tries = [one for each in found.values() for one in each]
    if errors := [one.error for one in tries if one.error]:
        return f"refused: “{errors[0]}”"
    said = []
    if routines := [one.routine for one in tries if one.routine]:
        said.append(f"the routine: {usual}, else `{routines[0]}`")
    plain = [one for one in tries if not one.routine]
    said += _named("number", plain, "numbers") + _named("choice", plain, "choices")
    said += _named("argument", plain, "arguments")
    said += _named("state", tries, "states") + _named("the first value of", plain, "values")
    said += [f"{text} in a tensor's first step" for text in _named("always", plain, "first")]
    said += [f"{text} in each step" for text in _named("changes", plain, "by_step")]
    return "; ".join(said) or "no effect"


def _named(what: str, tries: Iterable[Changed], field: str) -> list[str]:
    names = list(dict.fromkeys(name for one in tries for name in sorted(getattr(one, field))))
    if not names:
        return []
    many = what + "s" if len(names) > 1 and what in ("number", "choice", "argument", "state") else what
    return [f"{many} {', '.join(f'`{name}`' for name in names)}"]


if __name__ == "__main__":
    PAGE.write_text(page())
