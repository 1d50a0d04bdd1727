"""Names for the functions of a listing: their own, and where several have the same, what they differ in."""

import builtins
import keyword
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count

from refopt.checks.dtypes import SIZES
from refopt.gpu.listing.parts import Named, Part, Parts
from refopt.gpu.vectors import POLICIES

VARIANTS = "full", "partial"  # access to all of a row, or to what there is of it
DTYPES = *SIZES, "joined"
Words = tuple[str, str, str]


def names_of(
    order: Sequence[Part], named: Iterable[Named], parts: Parts, fixed: Mapping[Part, str]
) -> dict[Part | Named, str]:
    """A name for each part and each constant, all different, none that of a local where it is used.

    Args:
        order: the functions, callees before callers.
        named: the constants' names that are used.
        parts: what the numbers in texts refer to.
        fixed: the functions that keep their names.
    """
    taken = set(fixed.values()) | set(dir(builtins)) | set(keyword.kwlist) | {"np", "cuda", "memory"}
    given = Names(fixed, taken, _hidden(order, parts))
    for one in named:
        dtype = getattr(getattr(one.value, "dtype", None), "name", "other")
        given.give(one, chain([one.base, f"{one.base}_{dtype}"], (f"{one.base}_{n}" for n in count(2))))
    words = _words(order, parts)
    groups: dict[str, list[Part]] = {}
    for part in reversed(order):  # callers before callees
        if part not in given.names:
            groups.setdefault(part.base, []).append(part)
    for group in (x for x in groups.values() if len(x) == 1):
        given.give(group[0], [group[0].base])
    for group in groups.values():
        left = [part for part in group if part not in given.names]
        for layer in _layers(left, group, words, parts):
            offered = {part: _choices(part, group, words) for part in layer}
            for part in layer:
                given.give(part, chain(_own(part, offered), (f"{part.base}_{n}" for n in count(2))))
    return given.names


def _hidden(order: Sequence[Part], parts: Parts) -> dict[Part | Named, set[str]]:
    """By what is used, the locals of where it is."""
    hidden: dict[Part | Named, set[str]] = {}
    for part in order:
        for number in part.numbers():
            hidden.setdefault(parts.all[number], set()).update(part.own)
    return hidden


class Names:
    """Names that are given one after the other, none twice."""

    def __init__(self, fixed: Mapping[Part, str], taken: set[str], hidden: Mapping[Part | Named, set[str]]) -> None:
        self.names: dict[Part | Named, str] = {part: name for part, name in fixed.items()}
        self._taken, self._hidden = taken, hidden

    def give(self, one: Part | Named, choices: Iterable[str]) -> None:
        """The first of some names that is free."""
        free = (name for name in choices if name not in self._taken and name not in self._hidden.get(one, ()))
        if (name := next(free, None)) is not None:
            self.names[one] = name
            self._taken.add(name)


def _layers(
    left: Sequence[Part], group: Sequence[Part], words: Mapping[Part, Words], parts: Parts
) -> Iterator[list[Part]]:
    """Functions of one name, the plainest first: of all variants the innermost, of one the outermost."""
    rank_of = {part: (not words[part][0], _depth(part, group, parts) * (1 if words[part][0] else -1)) for part in left}
    for rank in sorted(set(rank_of.values())):
        yield [part for part in left if rank_of[part] == rank]


def _own(part: Part, offered: Mapping[Part, list[str]]) -> Iterator[str]:
    """Names that no other function of the layer would take as early."""
    others = [names for other, names in offered.items() if other is not part]
    return (x for k, x in enumerate(offered[part]) if not any(x in names[: k + 1] for names in others))


def _choices(part: Part, group: Sequence[Part], words: Mapping[Part, Words]) -> list[str]:
    """Names from the plainest on."""
    base, variant = part.base, words[part][0]
    alias = next(iter(part.aliases)).rstrip("0123456789") if len(part.aliases) == 1 else base
    plain = [alias] if not variant and alias not in (*VARIANTS, *DTYPES) else [base]
    differing = [word if len({words[x][k] for x in group}) > 1 else "" for k, word in enumerate(words[part])]
    place = _place(part).removesuffix("_of")
    suffixes: list[Sequence[str]] = [(), (variant,), () if differing[2] else differing[:2], differing]
    if place not in ("", *VARIANTS):
        suffixes += [(place,), (place, *differing)]
    suffixes += [words[part][:2], words[part], (place, *words[part])]
    suffixed = ["_".join([base, *filter(None, suffix)]) for suffix in suffixes]
    return plain + suffixed


def _words(order: Sequence[Part], parts: Parts) -> dict[Part, Words]:
    """What tells each function from others of its name: the variant of access, the dtype and the cache policy."""
    words: dict[Part, Words] = {}
    callers: dict[Part, list[Part]] = {}
    for part in order:
        callees = [x for x in (parts.all[number] for number in part.numbers()) if isinstance(x, Part)]
        words[part] = _own_words(part, [words[x] for x in callees])
        for callee in callees:
            callers.setdefault(callee, []).append(part)
    for part in reversed(order):
        if not words[part][0] and len(of := {words[x][0] for x in callers.get(part, ())}) == 1:
            words[part] = (of.pop(), *words[part][1:])
    return words


def _own_words(part: Part, callees: Sequence[Words]) -> Words:
    """What its own name says, or else what all that it calls have in common."""
    own = {x for x in VARIANTS if x in part.aliases or x == _place(part)}
    combined = [own or {x[0] for x in callees}]
    for k, known in enumerate((DTYPES, tuple(POLICIES)), 1):
        said = {word for word in known if f"_{word}" in part.base}
        combined.append(said or {x[k] for x in callees})
    variant, dtype, policy = (x.pop() if len(x := each - {""}) == 1 else "" for each in combined)
    return variant, dtype, policy


def _place(part: Part) -> str:
    """The function that made it, if one did."""
    place, _, inner = part.function.__qualname__.partition(".<locals>")
    return place.strip("_") if inner else ""


def _depth(part: Part, group: Sequence[Part], parts: Parts) -> int:
    """How many of the group are called on the way to one of it, at most."""
    callers = [x for x in group if x is not part and _reaches(x, part, parts)]
    return max((1 + _depth(x, group, parts) for x in callers), default=0)


def _reaches(part: Part, other: Part, parts: Parts) -> bool:
    callees = {parts.all[number] for number in part.numbers()}
    return other in callees or any(isinstance(x, Part) and _reaches(x, other, parts) for x in callees)
