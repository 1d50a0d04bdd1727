"""docs/interface.md: every public name with its signature, and the rows of the tables that others rely on."""

import importlib
import inspect
import math
import re
import textwrap
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from maps import names
from maps.collect import ROOT, Item, head

from refopt.catalog import KNOWN, Hyper, Routine, Slot, Spec
from refopt.cpu.routine import SINGULAR
from refopt.state.peers import PEERS

PAGE = ROOT / "docs" / "interface.md"
PACKAGES = ("cpu", "gpu", "gpu.parts", "gpu.exactness", "program", "program.passes", "program.placement",
            "program.counts", "program.ops", "program.blocks", "comm", "state", "simt")
SIGNATURES = {"fp32": ("float32",) * 3, "fp64": ("float64",) * 3,
              "fp16, fp32 states": ("float16", "float16", "float32"),
              "fp16 with a master": ("float16", "float16", "float32", "float32"),
              "bf16 with a remainder": ("bfloat16", "bfloat16", "float32", "uint16")}


def page(items: Iterable[Item] = ()) -> str:
    """The page."""
    rows = (line for routine in KNOWN.values() for line in row(routine))
    lines = [head(PAGE), "## Routines", "", *rows, "## Launches and bytes", "", *costs(), ""]
    lines += ["## In PyTorch", "", *peers(), ""]
    for name in PACKAGES:
        module = importlib.import_module(f"refopt.{name}")
        known = by_others(signatures(module))
        others = (wrapped(line) for line in signatures(module) if line not in known)
        lines += [f"## {module.__name__}", "", "```python", *others, "```", ""]
        for what in dict.fromkeys(known.values()):
            names = ", ".join(f"`{line.partition('(')[0]}`" for line in known if known[line] == what)
            lines += [f"{what}: {names}.", ""]
    return "\n".join(lines)


def row(routine: Routine) -> list[str]:
    """What a routine takes."""
    lines = [f"### {routine.name}", "", f"{routine.source}.", ""]
    lines += [f"- arrays: {', '.join(map(slot, routine.slots))}"]
    lines += [f"- numbers: {', '.join(map(hyper, routine.hypers))}"]
    choices = (f"{name}: {' or '.join(map(str, values))}" for name, values in routine.choices.items())
    return [*lines, f"- {'; '.join(choices)}", ""]


def costs() -> Iterator[str]:
    """What the forms of each routine cost, those together that move as many bytes."""
    yield from (f"| routine | launches | {' | '.join(SIGNATURES)} |", "| --- " * 2 + "| ---: " * len(SIGNATURES) + "|")
    for routine in KNOWN.values():
        forms: dict[tuple[int, ...], list[str]] = {}
        for name, form in routine.forms.items():
            assert form.merged == (name != "separate")
            moved = tuple(bytes_of(routine, name, dtypes) for dtypes in SIGNATURES.values())
            more = f" plus {form.iterated} per iteration" if form.iterated else ""
            forms.setdefault(moved, []).append(f"{name} {form.launches}{more}")
        for moved, launches in forms.items():
            yield f"| {routine.name} | {', '.join(launches)} | {' | '.join(map(str, moved))} |"


def slot(x: Slot) -> str:
    """A slot, and what is special about it."""
    assert x.written == (x.name != "grads")
    return noted(x.name, ["optional"] * x.optional + ["never negative"] * (not x.signed)
                 + [f"shape (1,), initially {x.initial}"] * x.scalar)


def hyper(x: Hyper) -> str:
    """A number: its default, and its bounds if they are not the usual ones."""
    return noted(x.name if x.default is None else f"{x.name}={x.default!r}",
                 ["above 0"] * x.positive + [f"below {x.below!r}"] * (x.below < math.inf)
                 + ["integer"] * x.whole + ["a single value"] * (not x.per_tensor))


def noted(name: str, notes: list[str]) -> str:
    return f"`{name}`" + (f" ({', '.join(notes)})" if notes else "")


def by_others(lines: Iterable[str]) -> dict[str, str]:
    """The functions whose parameters follow from another's, and how."""
    known = {}
    ours = {line.partition("(")[0]: line for line in signatures(importlib.import_module("refopt.cpu"))}
    for line in (line for line in lines if line[:1] != " " and line[:6] != "class "):
        name = line.partition("(")[0]
        one, other = ours.get(name.removeprefix("merged_"), ""), ours.get(name, "")
        if other not in ("", line) and line.startswith(other[:-1]) and "(" not in line[len(other) :]:
            known[line] = f"As in `refopt.cpu`, plus `{line[len(other) - 1:].strip(', )')}`"
        elif name != line and f"merged_{one}" == re.sub(r"\w+", lambda word: SINGULAR.get(word[0], word[0]), line):
            known[line] = "As for one tensor, but with lists, which have the names of the arrays above"
    return known


def bytes_of(routine: Routine, form: str, dtypes: tuple[str, ...]) -> int:
    """Bytes that a step moves for each element, with all states that it may have."""
    master = dtypes[3] if len(dtypes) > 3 else None
    named = {"params": dtypes[0], "grads": dtypes[1], "master_params": master}
    spec = Spec(1, tuple(None if s.scalar else named.get(s.name, dtypes[2]) for s in routine.slots))
    return routine.bytes([spec], form)


def peers() -> Iterator[str]:
    """What ``torch.optim`` calls each routine's states and numbers."""

    def pairs(mapping: Any) -> str:
        return ", ".join(f"`{ours}`" + f" {theirs!r}" * (ours != theirs) for ours, theirs in mapping.items()) or "-"

    yield "| routine | states | numbers | required | switches | choices | counts steps |"
    yield "| --- " * 7 + "|"
    for name, peer in PEERS.items():
        columns = *map(pairs, peer[:5]), "yes" if peer.counts else "no"
        yield f"| {name} | {' | '.join(columns)} |"


def signatures(module: ModuleType, within: str = "") -> Iterator[str]:
    """A line for each public name of a module, those of the modules in it among them."""
    for name in sorted(module.__all__ if hasattr(module, "__all__") else own(module)):
        value, where = getattr(module, name), f"{within}{name}" if within else name
        if (within == "" and name in ("mpi", "nccl")) or (within == "cuda." and names.is_type(name)):
            continue  # which need what is not everywhere, or are in the page of the names
        if inspect.ismodule(value):
            yield from signatures(value, f"{where}.")
        elif inspect.isclass(value):
            yield f"class {where}{called(value)}"
            yield from (f"    {line}" for line in members(value))
        elif inspect.isroutine(value):
            yield f"{where}{called(value)}"
        elif isinstance(value, int | float | str | tuple):
            yield f"{where} = {value!r}"
        else:
            yield where


def wrapped(line: str) -> str:
    """A signature in lines that a page has room for."""
    within = " " * (len(line) - len(line.lstrip()) + 4)
    return "\n".join(textwrap.wrap(line, 96, subsequent_indent=within, break_on_hyphens=False)) or line


def own(module: ModuleType) -> list[str]:
    """The public functions and classes that a module defines."""
    there = vars(module).items()
    return [name for name, x in there if name[0] != "_" and getattr(x, "__module__", "") == module.__name__]


def members(of: type) -> Iterator[str]:
    """A line for each public method and property that a class defines."""
    for name, value in sorted(vars(of).items()):
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if name[0] != "_" and inspect.isfunction(plain):
            yield f"{name}{called(plain)}"
        elif name[0] != "_" and isinstance(value, property):
            yield f"{name}"


def called(function: Any) -> str:
    """How it is called: parameters and defaults, without annotations."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=plain, return_annotation=signature.empty))
    return re.sub(r"<(?:function|class) '?([\w.]+)'?(?: at \w+)?>", r"\1", text)
