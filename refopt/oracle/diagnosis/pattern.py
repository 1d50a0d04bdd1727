"""Which elements are wrong: all, a tail, blocks, tensors from the k-th on, those that are unchanged."""

from collections.abc import Mapping, Sequence

import numpy as np

BLOCKS = 1024, 512, 256, 128, 64, 32, 16, 8, 4


def of_tensor(wrong: np.ndarray) -> str:
    """Which elements of a flat tensor are wrong, as text."""
    size, count = wrong.size, int(wrong.sum())
    if count == size:
        return "all elements" if size > 1 else "the only element"
    first, last = int(np.argmax(wrong)), size - 1 - int(np.argmax(wrong[::-1]))
    dense = last - first + 1 == count
    if dense and last == size - 1:
        tail = f"the last {count} of {size} elements" if count > 1 else f"the last of {size} elements"
        return tail + _after([b for b in BLOCKS if first % b == 0 and count < b])
    if regular := _regular(wrong, first, last):
        return regular
    if dense:
        return f"elements {first} to {last} of {size}" if count > 1 else f"element {first} of {size}"
    return f"{count} of {size} elements, scattered ({100 * count / size:.2g} %)"


def _regular(wrong: np.ndarray, first: int, last: int) -> str:
    """Whole blocks, or equally spaced elements; empty if neither."""
    size, count = wrong.size, int(wrong.sum())
    for block in BLOCKS:
        if size >= 2 * block and _in_blocks(wrong, block):
            number = len({k // block for k in np.flatnonzero(wrong)})
            return f"{number} of {-(-size // block)} blocks of {block} elements, from element {first} to {last}"
    for step in range(2, 65):
        if count > 2 and count == len(range(first, size, step)) and wrong[first::step].all():
            return f"every {_ordinal(step)} element from {first}"
    return ""


def _after(blocks: Sequence[int]) -> str:
    """The possible sizes of blocks before a tail."""
    ordered = sorted(blocks)
    sizes = f"{ordered[0]} to {ordered[-1]}" if len(ordered) > 2 else " or ".join(map(str, ordered))
    return f", a tail after whole blocks of {sizes}" if blocks else ""


def _in_blocks(wrong: np.ndarray, block: int) -> bool:
    """Whether each block is wrong as a whole or right as a whole."""
    whole = wrong[: wrong.size // block * block].reshape(-1, block)
    tail = wrong[whole.size :]
    return bool((whole.all(1) | ~whole.any(1)).all() and (tail.all() or not tail.any()))


def _ordinal(k: int) -> str:
    return {2: "second", 3: "third", 4: "fourth"}.get(k, f"{k}th")


def of_tensors(wrong: Sequence[bool], empty: Sequence[bool] = ()) -> str:
    """Which tensors of a list have wrong elements; ``empty`` ones cannot."""
    count, held = len(wrong), [k for k in range(len(wrong)) if not (empty and empty[k])]
    bad = [k for k in held if wrong[k]]
    if bad == held:
        return f"all {count} tensors" if count > 1 else "the tensor"
    first = bad[0]
    if bad == held[held.index(first) :]:
        return f"tensors from number {first} on, of {count}" if len(bad) > 1 else f"the last tensor of {count}"
    if len(bad) == 1:
        return f"tensor {first} of {count}"
    more = ", ..." if len(bad) > 5 else ""
    return f"{len(bad)} of {count} tensors: {', '.join(map(str, bad[:5]))}{more}"


def described(slots: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]]) -> str:
    """The pattern of a case.

    Args:
        slots: by slot, for each tensor which elements are wrong, what they are, and what they were, all flat.
    """
    right = [name for name, tensors in slots.items() if not any(x.any() for x, _, _ in tensors)]
    places: dict[str, list[str]] = {}
    for name, tensors in slots.items():
        if name not in right:
            places.setdefault(_of_slot(tensors), []).append(name)
    lines = [f"{', '.join(names)}: {place}" for place, names in places.items()]
    if right and lines:
        lines.append(f"right: {', '.join(right)}")
    return "; ".join(lines)


def _of_slot(tensors: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> str:
    """Where the tensors of a slot are wrong, separately for unchanged elements and others."""
    still = [x & (now == before) for x, now, before in tensors]
    moved = [x & (now != before) for x, now, before in tensors]
    parts = [(part, text) for part, text in ((still, ": unchanged"), (moved, "")) if any(x.any() for x in part)]
    texts = [_place(part) + text for part, text in parts]
    if len(parts) == 2 and all((x | ~y).all() for x, (y, *_) in zip(still, tensors, strict=True)):
        texts = texts[:1]
    return ", and ".join(texts)


def _place(masks: Sequence[np.ndarray]) -> str:
    """Which elements in a list of tensors are wrong."""
    which = of_tensors([bool(x.any()) for x in masks], [x.size == 0 for x in masks]) if len(masks) > 1 else ""
    bad = [x for x in masks if x.any()]
    places = dict.fromkeys(map(of_tensor, bad))
    inside = next(iter(places)) if len(places) == 1 else _common(bad)
    return f"{which}: {inside}" if which else inside


def _common(masks: Sequence[np.ndarray]) -> str:
    """What the wrong elements have in common in tensors of several sizes."""
    if all(x.all() for x in masks):
        return "all elements"
    tails = [x.size - int(np.argmax(x)) for x in masks]
    if all(x[-tail:].all() for x, tail in zip(masks, tails, strict=True)):
        for block in BLOCKS[::-1]:
            if all((x.size - tail) % block == 0 and tail < block for x, tail in zip(masks, tails, strict=True)):
                return f"the tail after whole blocks of {block}"
        return "the last elements"
    return f"{sum(int(x.sum()) for x in masks)} elements"
