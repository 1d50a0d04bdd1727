"""docs/variants.md: which routine each library's optimizer is, with which choices, and what its options change."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from maps.collect import ROOT, Item, head

from refopt.oracle.subjects import optax_peers, torch_peers
from refopt.oracle.variants import ROUTINES, about, added

PAGE = ROOT / "docs" / "variants.md"
FREE = {"torch.optim": torch_peers.FREE, "timm.optim": torch_peers.FREE, "optax": optax_peers.FREE}


class Entry(NamedTuple):
    """An optimizer of a library as a routine, with the row of its adapter's table."""

    library: str
    name: str
    routine: str
    peer: Any

    @property
    def arguments(self) -> dict[str, str]:
        """The options that are numbers or choices of the formula: refopt's names by theirs."""
        peer = self.peer
        ours_of = {theirs: ours for ours, theirs in (*peer.numbers.items(), *peer.switches.items())}
        if self.name == "Lars":
            ours_of |= {"always_adapt": "adapt"}
        betas = [theirs for theirs in ("beta1", "beta2") if theirs in ours_of and self.library != "optax"]
        for theirs in betas:
            ours_of.pop(theirs)
        ours_of |= {"betas": ", ".join(betas)} if betas else {}
        return {theirs: ours for theirs, ours in ours_of.items() if theirs not in self.without}

    @property
    def only(self) -> dict[str, Any]:
        """What options have to be that are none of the formula."""
        without = {*self.arguments, *self.without}
        return {theirs: value for theirs, value in self.peer.only.items() if theirs not in without}

    @property
    def without(self) -> Iterable[str]:
        """Arguments of the routine's that it has not; groups of AdamW have what the class has no option for."""
        if self.name == "AdamW":
            return ("decoupled_weight_decay",)
        return optax_peers.WITHOUT.get((self.name, self.routine), ()) if self.library == "optax" else ()


def entries() -> list[Entry]:
    """The rows of the tables."""
    found = [Entry("torch.optim", name, routine, torch_peers.TORCH[routine])
             for routine, name in torch_peers.CLASSES.items()]
    for name, routines in optax_peers.FUNCTIONS.items():
        found += [Entry("optax", name, routine, optax_peers.PEERS[routine]) for routine in routines]
    return found + [Entry("timm.optim", name, routine, peer) for (routine, name), peer in torch_peers.TIMM.items()]


NUMBERS = {"epsilon_root": "`sqrt(u / (1 - beta2_pow) + epsilon_root) + epsilon`, as in optax",
           "initial_accumulator": "the initial sum of squares, as in PyTorch and optax",
           "lr_decay": "`lr / (1 + (step_number - 1) * lr_decay)` instead of `lr`, as in PyTorch"}


def page(items: Iterable[Item] = ()) -> str:
    """The page."""
    lines = [head(PAGE)]
    for library, text in {"torch.optim": "PyTorch", "optax": "optax", "timm.optim": "timm"}.items():
        lines += [f"## {text}", "", *table([entry for entry in entries() if entry.library == library]), ""]
    return "\n".join([*lines, "## What the choices are", "", *choices(), ""])


def table(rows: list[Entry]) -> Iterator[str]:
    """A row for each optimizer and routine."""
    yield "| optimizer | routine | choices | options of the formula | another formula, unless |"
    yield "| --- " * 5 + "|"
    for entry in rows:
        free = FREE[entry.library]
        fixed = {name: x for name, x in entry.peer.choices.items() if name not in entry.peer.numbers}
        columns = (f"`{entry.name}`", f"`{entry.routine}`", _equal(fixed),
                   ", ".join(_option(*pair) for pair in entry.arguments.items() if pair[0] not in free) or "-",
                   _equal({name: x for name, x in entry.only.items() if name not in free}))
        yield f"| {' | '.join(columns)} |"


def _equal(values: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}={value!r}`" for name, value in values.items()) or "-"


def _option(theirs: str, ours: str) -> str:
    return f"`{theirs}`" + (f" (`{ours}`)" if ours != theirs else "")


def choices() -> Iterator[str]:
    """The choices and numbers that more than one formula of a routine comes from, each with its routines."""
    found: dict[bool, dict[str, list[str]]] = {False: {}, True: {}}
    for name, row in ROUTINES.items():
        known, beyond = about(name), added(name)
        for choice, values in row.choices.items():
            if choice not in ("rounding", "norm_of"):
                said = "; ".join(f"`{x!r}` {known.get(f'{choice}={x}', '')}".rstrip() for x in values)
                found[choice in beyond].setdefault(f"`{choice}`: {said}", []).append(name)
        for hyper in row.hypers:
            if hyper.name in beyond:
                said = f"`{hyper.name}`: a number, {hyper.default} by default: {NUMBERS[hyper.name]}"
                found[True].setdefault(said, []).append(name)
    for beyond, lines in found.items():
        yield from ("Only in the oracle:" if beyond else "In `refopt.cpu` and the oracle:", "")
        for said, names in lines.items():
            yield "- " + said.replace(":", f" of {', '.join(names)}:", 1)
        yield from [""] * (not beyond)
