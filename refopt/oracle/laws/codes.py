"""States in few bits: laws of steps from an optimizer's own states, for histories of gradients that show what is lost.

The oracle does not know the format. It compares how far parameters move with how far they move in fp32, and finds the
groups of elements that share a scale by which elements a large gradient affects. Cases of one step set states, so of
these only first steps are tried.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from refopt.oracle.broken import Caused, Skipped
from refopt.oracle.cases import alike, draw, usual
from refopt.oracle.differing import largest, wide
from refopt.oracle.exact.laws import reference
from refopt.oracle.laws.again import after
from refopt.oracle.laws.law import Law, Try, of_runs
from refopt.oracle.laws.symmetries import cut, permuted
from refopt.oracle.running import Data
from refopt.oracle.trial import NONE_FOUND, WITH_GROUPS, Trial

FEW_BITS = "8bit"
STEPS, SIZE, TAIL = 60, WITH_GROUPS[0] * WITH_GROUPS[1], 21
EVEN = np.arange(SIZE).reshape(WITH_GROUPS) % 2 == 0
SHARE, OF_SIGNS = 0.05, 0.25  # by which the rms movement may be off fp32's, unless a tolerance is declared
POWERS = -24, -20, -16, -12, -8, 8, 16, 20  # of 2, by which gradients are multiplied
ROOM = 2  # for what codes add to the largest step of Adam
FAR = 16  # times that: then only epsilon is left to divide by
AT = 5 * SIZE // 8 + 21  # the element whose gradient is large, or not finite


def history(trial: Trial, change: Callable[[int, np.ndarray], Any] = lambda t, g: g, shape: Any = WITH_GROUPS,
            steps: int = STEPS) -> Data:
    """A parameter of zeros, and gradients of N(0, 1), each changed by its step."""
    if not trial.coded:
        raise Skipped(f"states are not declared to be in few bits, {FEW_BITS!r}", lacks=True)
    if not trial.found:
        raise Skipped(NONE_FOUND)
    rng = np.random.default_rng(trial.seed)
    grads = [rng.standard_normal(shape).astype(trial.stored) for _ in range(steps)]
    return Data([np.zeros(shape, trial.stored)], [[np.asarray(change(t, g), g.dtype)] for t, g in enumerate(grads)])


def in_fp32(trial: Trial, data: Data) -> np.ndarray:
    """The parameter after the same steps with states as wide as the arithmetic."""
    numbers, shape = trial.numbers(usual), data.params[0].shape
    case = draw(trial.row, [shape], [alike(trial.dtype)], seed=0, numbers=numbers, choices=trial.choices(),
                optional=getattr(trial.subject, "always", ()))
    case = case.replace(params=[data.params[0].copy()])
    for count, grads in enumerate(data.grads, 1):
        case = case.replace(grads=list(grads), count=count)
        case = case.replace(**after(case, reference(case)))
    return np.ravel(case.params[0])


def bits(trial: Trial, data: Data) -> np.ndarray:
    """The parameter that a run leaves, flat."""
    x = np.asarray(trial.run(data)["params"][0]).reshape(-1)
    trial.compared += x.size
    return x


def told(shares: Sequence[tuple[float, str]], most: float) -> str:
    """By how much movements are off, each with when."""
    off = ", ".join(f"{f'{100 * x:.3g} %' if np.isfinite(x) else 'NaN'}{when}" for x, when in shares)
    return f"the movement is off that in fp32 by {off} (rms), expected at most {100 * most:.3g} %"


def movement(trial: Trial) -> Iterator[Try]:
    share = OF_SIGNS if trial.row.name == "lion" else SHARE  # a sign turns over, however little the number is off
    most = share if trial.given is None else trial.given

    def off(data: Data, first: int = 0) -> float:
        mine, plain = (wide(x)[first:] for x in (bits(trial, data), in_fp32(trial, data)))
        return float(np.sqrt(np.mean((mine - plain) ** 2) / np.mean(plain**2)))

    def close(data: Data, first: int = 0) -> None:
        if not (share := off(data, first)) <= most:
            raise Caused("states lose too much", told([(share, "")], most))

    def scaled() -> None:
        shares = {k: off(history(trial).each(lambda x, k=k: x * x.dtype.type(2.0**k))) for k in POWERS}  # type: ignore[misc]
        room = most + off(history(trial))
        if far := [k for k in POWERS if not shares[k] <= room]:
            ends = min(far) < 0, max(far) > 0
            cause = "scales in fp16" if all(ends) else f"scales have a {'least' if ends[0] else 'largest'} value"
            raise Caused(cause, told([(shares[k], f" for gradients times 2**{k}") for k in far], room))

    ended = partial(history, trial, lambda t, g: g * (1 if t < 20 else (t > 320) / 4), steps=360)
    if trial.eps > 2.0**-20 or trial.row.matrix_arguments:
        return  # rounding would hide what states lose; iterations on matrices take minutes
    yield Try("ordinary gradients", partial(history, trial), close)
    yield Try("a tail of ordinary gradients", partial(history, trial, shape=(SIZE + TAIL,)), partial(close, first=SIZE))
    yield of_runs("gradients times powers of 2", scaled)
    yield Try("zero gradients for 300 steps, then smaller ones", ended, close)


def zero(trial: Trial) -> Iterator[Try]:
    def stays(value: float, data: Data) -> None:
        x = bits(trial, data)[::2]
        if x.any():
            k = int(np.argmax(abs(x)))
            text = f"params[0], element {2 * k} of {SIZE}, with gradients of {value}: expected 0, got {float(x[k])!r}"
            raise Caused("zero does not stay zero", text)

    for value in (0.0, -0.0) if trial.row.elementwise else ():
        make = partial(history, trial, lambda t, g, value=value: np.where(EVEN, value, g))  # type: ignore[misc]
        yield Try(f"gradients of {value} beside others", make, partial(stays, value))


def vanishing(trial: Trial) -> Iterator[Try]:
    if trial.row.name not in ("adam", "adamw"):
        return
    numbers = trial.numbers(usual)
    beta1, beta2 = numbers["beta1"], numbers["beta2"]
    most = ROOM * numbers["lr"] * (1 - beta1) / np.sqrt((1 - beta2) * (1 - beta1**2 / beta2))

    def bounded(data: Data) -> None:
        run, before = trial.start(data.params), data.params[0]
        for t, grads in enumerate(data.grads, 1):
            trial.step(run, grads)
            (x,) = trial.tried(run.params)
            moved = np.nan_to_num(abs(wide(x) - wide(before)), nan=np.inf).reshape(-1)
            before, trial.compared = x, trial.compared + x.size
            if moved.max() > most + trial.eps * largest(wide(x)):
                k, lost = int(np.argmax(moved)), "rounds to 0" if moved.max() > FAR * most else "is too small"
                text = f"params[0], element {k} of {SIZE}, step {t}: expected a movement of at most {most:.3g}"
                raise Caused(f"the second moment {lost} where the first is not", f"{text}, got {moved[k]:.3g}")

    small = np.ldexp(1.0, -(np.arange(SIZE) // 2 % 17)).reshape(WITH_GROUPS)
    for until in (1, 50) if most > 0 else ():  # a longer average of gradients than of squares has no bound
        change = lambda t, g, until=until: np.where(EVEN, g * small * (t < until), g)  # noqa: E731
        yield Try(f"gradients that vanish after step {until}", partial(history, trial, change, steps=80), bounded)


def groups(trial: Trial) -> Iterator[Try]:
    def given(data: Data, at: int, value: float) -> Data:
        """The same with another gradient of an element in the second step."""
        other = data.each(np.copy)
        other.grads[1][0][at] = value
        return other

    def group(data: Data, at: int) -> np.ndarray:
        """Which elements share a scale with one: a power of 2 around those that its large gradient affects."""
        places, large = np.arange(SIZE), given(data, at, 2.0**15)
        reached = places[(bits(trial, data) != bits(trial, large)) | (places == at)]
        power = int(reached[0] ^ reached[-1]).bit_length()
        return places >> power == at >> power

    def contained(value: float, data: Data) -> None:
        near, lost = group(data, AT), given(data, AT, value)
        trial.groups, got = int(near.sum()), bits(trial, lost)
        if (beyond := ~near & (got != bits(trial, data))).any():
            text = f"{value} in element {AT} of {SIZE} reaches element {np.argmax(beyond)}"
            raise Caused("a bad gradient spoils more than its group", f"{text}, which a large number does not")
        if np.isfinite(got[AT]) and not np.isfinite(in_fp32(trial, lost)[AT]):
            raise Caused("a bad gradient is hidden", f"{value} in element {AT} of {SIZE} leaves it {float(got[AT])!r}")

    def halves(data: Data) -> None:
        """They may change places, or be tensors of their own."""
        if group(data, SIZE // 2 - 1)[SIZE // 2 :].any():
            raise Skipped("a group has elements of both halves of the tensor", lacks=True)
        permuted(trial, data, np.roll(np.arange(SIZE), SIZE // 2))
        cut(trial, [SIZE // 2], data)

    few = partial(history, trial, shape=(SIZE,), steps=6)
    if trial.row.elementwise:
        for value in (np.nan, np.inf, -np.inf):
            yield Try(f"{value} in a gradient", few, partial(contained, value))
        yield Try("the halves of a tensor", few, halves)


LAWS = (
    Law("L29", "movement", "Parameters move nearly as far as with states in fp32, whatever the size of gradients.",
        movement, declared=FEW_BITS),
    Law("L30", "zeros", "An element whose gradient is always 0 does not move, whatever its neighbors' are.",
        zero, declared=FEW_BITS),
    Law("L31", "vanishing", "After its gradient vanishes, no element moves further than Adam can (Cauchy-Schwarz).",
        vanishing, declared=FEW_BITS),
    Law("L32", "groups", "A bad gradient shows, and stays in its group; groups are independent.",
        groups, declared=FEW_BITS),
)
