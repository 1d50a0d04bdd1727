"""Fixed cases of LARS that together cover its branches."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from refopt.catalog import LARS_MOMENTUM
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.exact import build
from refopt.oracle.exact.build import SMALL, remainders, scaled, storages
from refopt.oracle.exact.cases import Case

STEP = dict(lr=0.5, mu=0.9, lars_coeff=0.7, lars_weight_decay=0.3, epsilon=0.11, rescale_grad=0.37)


def make(
    sizes: list[int], dtypes: tuple[str, ...] = ("float32",) * 3, seed: int = 0,
    steps: list[dict[str, Any]] | None = None, **choices: Any,
) -> Case:
    """A LARS case of flat tensors. ``dtypes`` are those of p, g, v and, if there is one, the master."""
    return build.make(LARS_MOMENTUM, sizes, dtypes, seed, [STEP] if steps is None else steps, **choices)


def gate(factor: float, found: float = 0.0, real: type = np.float32) -> dict[str, np.ndarray]:
    """The results of a gradient check, as arguments of a step."""
    return {"grad_factor": np.array([factor], real), "found_inf": np.array([found], np.float32)}


def gated() -> Iterator[tuple[str, Case]]:
    """Named cases of steps with a factor and a flag."""
    flags = {"taken first": (0, 1, 0, np.nan, 1, 0, 0), "skipped first": (1, 0, np.inf, 1, 0, 0, 1)}
    factors = (1, 0.3, 3, np.nan, 0.7, 1 / 65536, 2)
    for name, flag_values in flags.items():
        gates = [gate(*pair) for pair in zip(factors, flag_values, strict=True)]
        steps = [STEP | dict(lr=0.1 * k) | each for k, each in enumerate(gates, 1)]
        masters = ("float16", "float16", "float32", "float32"), *remainders()[:1]
        for dtypes in (("float32",) * 3, ("float64",) * 3, *masters):
            yield f"{' '.join(dtypes)}, {name}", make([*SMALL, 2100], dtypes, steps=steps)
    yield "a factor of fp64", make([5, 1100], ("float64",) * 3, steps=[STEP | gate(0.3, real=np.float64)])
    case = make([5, 1100], steps=[STEP | gate(0.0), STEP | gate(1.0)])
    case.grads[0][3] = np.nan
    yield "a factor of zero", case


def examples() -> Iterator[tuple[str, Case]]:
    """Named cases of its norms, beside those of every routine."""
    yield "one lane each", one_lane_each()
    yield "a rate that overflows", rate_overflows()
    for scale, name in ((1e-20, "small"), (1e-42, "subnormal"), (1e25, "large")):
        yield f"{name} parameters", scaled(make(SMALL), scale, "params")
    for stored in (x for x in storages() if len(x) == 4):
        yield f"{' '.join(stored)}, norm of the master", make(SMALL, stored, norm_of="master")
    for dtypes in remainders():
        for norm_of in ("param", "master"):
            steps = [STEP, STEP | dict(lr=0.125), STEP]
            yield f"{' '.join(dtypes)}, norm of the {norm_of}", make(SMALL, dtypes, steps=steps, norm_of=norm_of)
            yield f"{' '.join(dtypes)}, ties, norm of the {norm_of}", ties(dtypes, norm_of)
    yield "fp16 without a master, squares overflow fp16", scaled(make([40], ("float16",) * 3), 400, "params")


def one_lane_each() -> Case:
    """Tensors with non-zero elements in a single lane, so that the rest of the sum cannot hide its roundings."""
    case = make([769] * 12)
    lane = np.arange(769) % 256 == 0
    return case.replace(params=[x * lane for x in case.params], grads=[x * lane for x in case.grads])


def ties(dtypes: tuple[str, ...], norm_of: str) -> Case:
    """Exact parameters halfway between two bf16 numbers, the lower one even; all but each first one stay there."""
    case = make([300, 5], dtypes, steps=[STEP | dict(lars_weight_decay=0.0)] * 3, norm_of=norm_of)
    for p, g, v, r in zip(case.params, case.grads, case.velocities, case.master_params, strict=True):
        p[...] = ((p.view(np.uint16) & 0xFFFE) + 1).view(numpy_dtype(dtypes[0]))
        r[...] = np.array(-(2 ** (8 * r.itemsize - 1))).astype(r.dtype)  # the highest bit alone
        g[1:], v[1:] = 0, 0
    return case


def rate_overflows() -> Case:
    """Gradients so small, and a learning rate so large, that the local rate is inf."""
    step = dict(lr=1e25, mu=0.5, lars_coeff=1.0, lars_weight_decay=0.0)
    return scaled(make([5], steps=[step]), 1e-18, "grads")
