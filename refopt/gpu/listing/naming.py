"""Names for the functions of a listing: their own, and where several have the same, what they differ in."""

import builtins
import keyword
from collections.abc import Iterable, Mapping, Sequence
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
    hidden: dict[Part | Named, set[str]] = {}  # locals of where it is used
    for part in order:
        for number in part.numbers():
            hidden.setdefault(parts.all[number], set()).update(part.own)
    names: dict[Part | Named, str] = {part: name for part, name in fixed.items()}

    def free(name: str, of: Part | Named) -> bool:
        return name not in taken and name not in hidden.get(of, ())

    for one in named:
        dtype = getattr(getattr(one.value, "dtype", None), "name", "other")
        choices = chain([one.base, f"{one.base}_{dtype}"], (f"{one.base}_{n}" for n in count(2)))
        names[one] = next(name for name in choices if free(name, one))
        taken.add(names[one])
    words = _words(order, parts)
    groups: dict[str, list[Part]] = {}
    for part in reversed(order):  # callers before callees
        if part not in names:
            groups.setdefault(part.base, []).append(part)
    for group in (x for x in groups.values() if len(x) == 1):
        if free(group[0].base, group[0]):
            names[group[0]] = group[0].base
            taken.add(group[0].base)
    for group in groups.values():
        left = [part for part in group if part not in names]
        depths = {part: _depth(part, group, parts) for part in left}
        # Among functions of all variants, the innermost is the plainest; among those of one, the outermost.
        order_of = {part: (not words[part][0], depths[part] * (1 if words[part][0] else -1)) for part in left}
        for rank in sorted(set(order_of.values())):
            layer = [part for part in left if order_of[part] == rank]
            offered = {part: _choices(part, group, words) for part in layer}
            for part in layer:
                others = [offered[other] for other in layer if other is not part]
                plain = (
                    name for k, name in enumerate(offered[part])
                    if free(name, part) and not any(name in other[: k + 1] for other in others)
                )  # fmt: skip
                numbered = (f"{part.base}_{n}" for n in count(2))
                names[part] = next(chain(plain, (name for name in numbered if free(name, part))))
                taken.add(names[part])
    return names


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
        own = {x for x in VARIANTS if x in part.aliases or x == _place(part)}
        combined = [own or {words[x][0] for x in callees}]
        for k, known in enumerate((DTYPES, tuple(POLICIES)), 1):
            said = {word for word in known if f"_{word}" in part.base}
            combined.append(said or {words[x][k] for x in callees})
        variant, dtype, policy = (x.pop() if len(x := each - {""}) == 1 else "" for each in combined)
        words[part] = variant, dtype, policy
        for callee in callees:
            callers.setdefault(callee, []).append(part)
    for part in reversed(order):
        if not words[part][0] and len(of := {words[x][0] for x in callers.get(part, ())}) == 1:
            words[part] = (of.pop(), *words[part][1:])
    return words


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
