"""The laws of LARS as functions of an implementation, and fixed cases that cover every branch of it.

An implementation is a function of a case (`refopt.conformance.cases.runner` makes one of a merged step). A law
raises an AssertionError that names the clause of docs/numerics.md it found broken.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from refopt import cpu
from refopt.conformance.cases import Case, Run, assert_same, dtype_of, runner

reference = runner(cpu.merged_lars_momentum)


def same_bits_as_reference(run: Run, case: Case) -> None:
    """The result is the reference's, bit for bit (N3, N4, N6)."""
    assert_same(reference(case), run(case), "N4, equal bits")


def merged_is_one_at_a_time(run: Run, case: Case) -> None:
    """Merging changes no bit: each tensor comes out as it does in a list of its own (N11)."""
    together = run(case)
    for i in range(len(case.params)):
        alone = run(case.only([i]))
        assert_same(alone, {slot: [arrays[i]] for slot, arrays in together.items()}, f"N11, tensor {i} merged")


def order_is_free(run: Run, case: Case) -> None:
    """The order of the tensors changes no bit (N11)."""
    backwards = list(range(len(case.params)))[::-1]
    there = run(case)
    back = {slot: arrays[::-1] for slot, arrays in run(case.only(backwards)).items()}
    assert_same(there, back, "N11, order of tensors")


LAWS: tuple[Callable[[Run, Case], None], ...] = (same_bits_as_reference, merged_is_one_at_a_time, order_is_free)


def check_lars(merged_step: Callable[..., None]) -> None:
    """Hold an implementation of merged LARS to the laws, on fixed cases; raises an AssertionError if one is broken.

    ``merged_step`` takes NumPy arrays in the signature of `refopt.cpu.merged_lars_momentum` and works in place.
    Needs NumPy alone (and ml_dtypes for the bf16 cases, which are left out without it).
    """
    run = runner(merged_step)
    for name, case in examples():
        for law in LAWS:
            try:
                law(run, case)
            except AssertionError as error:
                raise AssertionError(f"case {name!r}: {error}") from None


def make(
    sizes: list[int],
    dtypes: tuple[str, ...] = ("float32",) * 3,
    seed: int = 0,
    steps: list[dict[str, Any]] | None = None,
    **choices: str,
) -> Case:
    """A case of flat tensors of normal values. ``dtypes`` are those of p, g, v and, if there is one, the master."""
    rng = np.random.default_rng([seed, *sizes])
    p, g, v, *m = (
        [rng.normal(size=n).astype(dtype_of(dtype)) for n in sizes] for dtype in dtypes
    )  # fmt: skip
    masters: Any = [x.astype(y.dtype) * y.dtype.type(1 + 2**-13) for x, y in zip(p, m[0], strict=True)] if m else None
    return Case(p, list(g), v, masters, [STEP] if steps is None else steps, {"adapt": "norms"} | choices)


STEP = dict(lr=0.5, mu=0.9, lars_coeff=0.7, lars_weight_decay=0.3, epsilon=0.11, rescale_grad=0.37)
SMALL = [3, 1, 0, 7, 260]


def examples() -> Iterator[tuple[str, Case]]:
    """Named cases, small, that between them tell apart everything the specification fixes."""
    yield "one tensor", make([5])
    yield "no tensor", make([])
    yield "an empty tensor last", make([1, 0])
    yield "tiles and tails", make([1023, 1024, 1025, 4100])
    yield "two steps, other numbers", make(SMALL, steps=[STEP, STEP | dict(lr=0.2, mu=0.5, rescale_grad=3.0)])
    yield "one lane each", one_lane_each()
    yield "a rate that overflows", rate_overflows()
    varied = dict(lr=[0.1, 2.0, 0.3, 0.0, 0.5], lars_weight_decay=[0.0, 0.5, 0.1, 0.2, 0.0])
    for adapt in ("norms", "decay", "decay_and_norms"):
        yield f"numbers per tensor, adapt={adapt}", make(SMALL, steps=[STEP | varied], adapt=adapt)
        for zeroed in ("p", "g", "p and g"):
            for wd in (0.0, 0.3):
                case = make([6], steps=[STEP | dict(lars_weight_decay=wd)], adapt=adapt)
                for name, array in (("p", case.params[0]), ("g", case.grads[0])):
                    if name in zeroed:
                        array[...] = 0  # type: ignore[index]
                yield f"{zeroed} zero, wd={wd}, adapt={adapt}", case
        for value in (np.inf, np.nan):
            for where in ("params", "grads"):
                case = make([6, 2], adapt=adapt)
                getattr(case, where)[0][2] = value
                yield f"{value} in {where}, adapt={adapt}", case
    case = make([4, 3])
    case.grads[0] = None
    yield "a gradient of None", case
    for scale, name in ((1e-20, "squares underflow"), (1e-42, "parameters subnormal"), (1e25, "squares overflow")):
        yield name, _scaled(make(SMALL), scale, "params")
    yield "everything subnormal", _scaled(make(SMALL), 1e-40, "params", "grads", "velocities")
    for dtypes in _storage():
        yield " ".join(dtypes), make(SMALL, dtypes, steps=[STEP, STEP | dict(lr=0.125)])
        if len(dtypes) == 4:
            yield " ".join(dtypes) + ", norm of the master", make(SMALL, dtypes, norm_of="master")
    yield "fp16 without a master, squares overflow fp16", _scaled(make([40], ("float16",) * 3), 400, "params")


def one_lane_each() -> Case:
    """Tensors with non-zero elements in a single lane, whose roundings the rest of the sum cannot hide."""
    case = make([769] * 12)
    lane = np.arange(769) % 256 == 0
    return case._replace(params=[x * lane for x in case.params], grads=[x * lane for x in case.grads])


def rate_overflows() -> Case:
    """Gradients so small, and a learning rate so large, that the local one is inf."""
    step = dict(lr=1e25, mu=0.5, lars_coeff=1.0, lars_weight_decay=0.0)
    return _scaled(make([5], steps=[step]), 1e-18, "grads")


def _storage() -> list[tuple[str, ...]]:
    both = [
        ("float64", "float64", "float64"),
        ("float64", "float32", "float64"),
        ("float16", "float16", "float16"),
        ("float16", "float16", "float32", "float32"),
        ("float32", "float16", "float32"),
    ]
    try:
        dtype_of("bfloat16")
    except ImportError:
        return both
    brain = ("bfloat16", "bfloat16", "float32")
    return [*both, brain, (*brain, "float32"), ("float16", "bfloat16", "float32", "float32")]


def _scaled(case: Case, factor: float, *slots: str) -> Case:
    """The case with every array of some slots multiplied."""
    scaled = {slot: [x * x.dtype.type(factor) for x in getattr(case, slot)] for slot in slots}
    return case._replace(**scaled)  # type: ignore[arg-type]
