"""Storage: mixtures of dtypes, masters, remainders, and stochastic rounding."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from refopt.checks.dtypes import SIZES, arithmetic_name
from refopt.oracle.bound.bounded import Arithmetic
from refopt.oracle.bound.evaluate import evaluate
from refopt.oracle.broken import Broken
from refopt.oracle.cases import Dtypes
from refopt.oracle.exact.cases import Case, has, memory
from refopt.oracle.laws.law import Law, Try
from refopt.oracle.laws.step import times
from refopt.oracle.trial import Trial

SHAPES = 300, 45, 7
MANY = 20000
SIGMAS = 6.0
APART = 0x5EED  # of data that are independent of a generator that the step seeds with a small number
SIGMAS_OF_MANY = 8.0  # of as many products as there are elements
PARTS = 8  # of a unit in the last place


def mixtures(trial: Trial) -> Iterator[Try]:
    """Gradients of another dtype than the parameter, and states of the arithmetic type."""
    dtype, real = trial.dtype, arithmetic_name(trial.dtype)
    grads = [g for g in ("float16", "bfloat16", "float32", "float64") if SIZES[g] <= SIZES[real] and has(g)]
    for grad in grads:
        for state in dict.fromkeys((dtype, real)):
            if (grad, state) != (dtype, dtype):
                yield of_dtypes(trial, Dtypes(dtype, grad, state))
    if SIZES[dtype] == 2:  # squares of gradients are beyond the largest number of fp16
        of_limit = partial(trial.case, SHAPES, Dtypes(dtype, dtype, real), count=3)
        yield Try("large gradients", lambda: times(of_limit(), {"grads": 2.0**12}), trial.hold)
    yield from in_one_list(trial)


def in_one_list(trial: Trial) -> Iterator[Try]:
    """Tensors of several of the checked dtypes in one list."""
    others = [x for x in trial.dtypes if has(x) and x != trial.dtype]
    for other in others:
        rows = [trial.kinds(x) for x in (trial.dtype, other, trial.dtype, other)]
        make = partial(trial.case, (45, 7, 3, 20), rows, count=2)
        yield Try(f"{trial.dtype} and {other} in one list", make, trial.hold)


def masters(trial: Trial) -> Iterator[Try]:
    if SIZES[trial.dtype] == 2:
        for grad, state in ((trial.dtype, "float32"), ("float32", trial.dtype)):
            yield of_dtypes(trial, Dtypes(trial.dtype, grad, state, "float32"))
        if "lr" not in trial.fixed:
            yield Try("masters halfway between two parameters", partial(halfway, trial), trial.hold)
        if "norm_of" in trial.row.choices and "norm_of" not in trial.fixed:
            of_master = Dtypes(trial.dtype, trial.dtype, "float32", "float32")
            yield of_dtypes(trial, of_master, norm_of="master")


def halfway(trial: Trial) -> Case:
    """A first step with lr=0, which keeps the masters: each is halfway between two 16-bit numbers."""
    case = trial.case(SHAPES, Dtypes(trial.dtype, trial.dtype, "float32", "float32"), lr=0.0)
    half = 2**15 if trial.dtype == "bfloat16" else 2**12
    kept, words = ~np.uint32(2 * half - 1), [x.view(np.uint32) for x in case.slots["master_params"] or ()]
    return case.replace(master_params=[(x & kept | np.uint32(half)).view(np.float32) for x in words])


def remainders(trial: Trial) -> Iterator[Try]:
    if trial.dtype == "bfloat16":
        for grad, state in (("bfloat16", "float32"), ("float32", "bfloat16")):
            yield of_dtypes(trial, Dtypes("bfloat16", grad, state, "uint16"))


def of_dtypes(trial: Trial, dtypes: Dtypes, **choices: str) -> Try:
    label = ", ".join([str(dtypes), *(f"{name}={value}" for name, value in choices.items())])
    return Try(label, partial(trial.case, SHAPES, dtypes, count=3, choices=choices), trial.hold)


def by_chance(trial: Trial) -> Iterator[Try]:
    if trial.dtype != "bfloat16" or "rounding" not in trial.row.choices:
        return
    pairs = [Dtypes("bfloat16", "float32", "bfloat16"), Dtypes("bfloat16", "bfloat16", "float32")]
    for dtypes in pairs:
        yield Try(f"{dtypes}: a neighbour", partial(stochastic, trial, dtypes), trial.hold)
    yield Try("unbiased", partial(stochastic, trial, pairs[0], MANY), partial(unbiased, trial))
    yield Try("another seed", partial(stochastic, trial, pairs[0], MANY), partial(seeded, trial))


def stochastic(trial: Trial, dtypes: Dtypes, size: int = 300) -> Case:
    return trial.case([size], dtypes, count=2, choices={"rounding": "stochastic"}, seed=APART)


def unbiased(trial: Trial, case: Case) -> None:
    """The share of parameters rounded away from 0 matches the positions of the exact ones between neighbours.

    It does so among numbers of either sign and at any position, and no rounding depends on another one's.
    """
    got = abs(memory(trial.run(case)["params"][0]).astype(np.float64))
    bounds = evaluate(trial.row, case.tensor(0), case.numbers_of(0), case.choices, Arithmetic(trial.real))
    exact, signs = abs(bounds["params"].value), np.sign(bounds["params"].value)
    unit = 2.0 ** (np.floor(np.log2(np.maximum(exact, 2.0**-126))) - 7)
    share = exact / unit % 1
    off, spread = (got - exact) / unit, share * (1 - share)
    among = {"of positive numbers": signs > 0, "of negative numbers": signs < 0}
    among |= {f"at {k}/{PARTS} to {k + 1}/{PARTS} of a unit": (share * PARTS).astype(int) == k for k in range(PARTS)}
    for what, some in among.items():
        sigmas = np.sum(off[some]) / np.sqrt(np.sum(spread[some]))
        if not abs(sigmas) < SIGMAS:
            text = f"{abs(sigmas):.1f} standard deviations {'away from' if sigmas > 0 else 'towards'} 0"
            raise Broken(f"params[0]: expected rounding to preserve the mean {what}, got one {text}")
    alike = np.fft.irfft(abs(np.fft.rfft(off, 2 * off.size)) ** 2)[1 : off.size // 2] / np.sqrt(np.sum(spread**2))
    k = int(np.argmax(alike))
    if not alike[k] < SIGMAS_OF_MANY:
        raise Broken(f"params[0]: expected each element rounded by its own draw, got one that repeats after {k + 1}")


def seeded(trial: Trial, case: Case) -> None:
    """Another seed gives other bits, the same seed the same ones."""
    trial.need("seed")
    seeds = [case.replace(steps=[case.steps[0] | {"seed": seed}]) for seed in (1, 2, 1)]
    runs = [trial.run(one)["params"][0].tobytes() for one in seeds]
    if runs[0] == runs[1]:
        raise Broken("params[0]: expected other bits with another seed, got the same")
    if runs[0] != runs[2]:
        raise Broken("params[0]: expected the same bits with the same seed, got others")


LAWS = (
    Law("L10", "storage", "Gradients and states of another dtype than the parameter's, rounded once.", mixtures),
    Law("L11", "masters", "With fp32 masters, these are exact, and the parameters are rounded from them.", masters),
    Law("L12", "remainders", "bf16 parameters with 16-bit remainders instead of masters.", remainders),
    Law("L13", "chance", "Stochastic rounding gives a neighbour in bf16, and on average the number itself.", by_chance),
)
