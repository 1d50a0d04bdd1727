"""Gram matrices of Muon that have become indefinite: the singular values of a matrix before and after tell it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.rows import Routine
from refopt.cpu.muon import momentum
from refopt.cpu.newton_schulz import by_gram, normalized, schedule, takes_gram
from refopt.oracle.bound.iterations import BITS
from refopt.oracle.diagnosis.failure import Failure
from refopt.oracle.exact.cases import Case
from refopt.oracle.trial import Trial

GROWN = 1.25  # times the largest singular value that is expected
SHARE = 0.9  # of the squares of an error, where rounding errors of R are larger than its eigenvalues
SHOWN = 6


class Growth(NamedTuple):
    """Singular values of what is iterated, over its norm; of the update, over lr; and of the one that is expected."""

    shape: tuple[int, ...]
    before: np.ndarray
    after: np.ndarray
    expected: np.ndarray

    @property
    def ratio(self) -> float:
        return float(self.after[0] / self.expected[0])

    def __str__(self) -> str:
        one, two, three = (", ".join(f"{x:.2g}" for x in y[:: -(-len(y) // SHOWN)]) for y in self[1:])
        rows, columns = self.shape
        which = "" if len(self.before) <= SHOWN else "some "
        after = two if np.isfinite(self.after).all() else "not finite"
        return f"{which}singular values of {rows} x {columns}, {one} over its norm, become {after}, expected {three}"


def require_schedule(where: str, row: Routine, settings: Mapping[str, Any]) -> None:
    """Require that a routine of matrices can have the coefficients and restarts that are set, with its iterations.

    If a schedule has no bound of first order, the error shows a small matrix whose singular values it makes grow.
    """
    if not row.matrix_arguments:
        return
    every = {**row.defaults, **settings}
    own = {name: every[name] for name in ("coefficients", "restarts")}
    try:
        row.matrix_arguments(row, {name: [] for name in row.slot_names}, every, **own)
    except (TypeError, ValueError) as error:
        text = f"{where}: set: {str(error).partition(': ')[2]}"
        if "indefinite" in text:
            triples = schedule(f"{where}: set: coefficients", own["coefficients"], int(every["iterations"]))
            with np.errstate(all="ignore"):
                grown = [of_iterations(10.0**-k, triples, own["restarts"], every["compute"]) for k in range(2, 9)]
            text += f"; {max(grown, key=lambda x: (x.ratio < np.inf, x.ratio))}"
        raise type(error)(text) from None


def of_iterations(least: float, triples: Sequence[Any], restarts: tuple[int, ...], compute: str) -> Growth:
    """That of a matrix of 4 x 8 with singular values from ``least`` to 1, by refopt's own iterations."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((n, 4)))[0] for n in (4, 8))
    u = left * np.geomspace(1, least, 4) @ right.T
    x = normalized(u, epsilon=0.0, compute=compute)
    expected = before = np.geomspace(1, least, 4) / np.linalg.norm(np.geomspace(1, least, 4))
    for a, b, c in triples:
        expected = expected * (a + b * expected**2 + c * expected**4)
    y = by_gram(x, triples, restarts).astype(np.float64)
    after = np.linalg.svd(y, compute_uv=False) if np.isfinite(y).all() else np.full(4, np.inf)
    return Growth((4, 8), before, after, -np.sort(-expected))


def indefinite(trial: Trial, failures: Sequence[Failure]) -> str:
    """How Gram matrices without enough restarts explain all failures, with the worst matrix; empty if they do not."""
    grown = [x.broken.where and growth(trial, x.case, x.broken.where.tensor) for x in failures]
    worst = max((x for x in grown if x), key=lambda x: (x.ratio < np.inf, x.ratio), default=None)
    if worst is None or not all(grown) or max(x.ratio for x in grown if x) < GROWN:
        return ""
    why = "R is indefinite, and rounding errors grow beyond any bound of first order"
    return f"Gram matrices restarted too late or never: {why}; {worst}"


def growth(trial: Trial, case: Case, i: int) -> Growth | None:
    """That of a tensor; ``None`` if it is not iterated by Gram matrices, or grows where R is not indefinite."""
    before, numbers = case.tensor(i), case.numbers_of(i)
    p, g, v = (np.asarray(before[name], np.float64) for name in ("params", "grads", "velocities"))
    if not takes_gram(p.shape[0], p.shape[1], ()):
        return None
    choices = {name: case.choices[name] for name in ("use_nesterov", "average")}
    u = momentum(g, v, mu=numbers["mu"], **choices)[1]
    still = p * (1 - numbers["lr"] * numbers["weight_decay"])
    ends: list[Any] = [trial.run(case)["params"][i], trial.expected(case, i)["params"].value]
    moved = [(still - np.asarray(x, np.float64)) / numbers["lr"] for x in ends]
    u, got, right = (x.T if p.shape[0] > p.shape[1] else x for x in (u, *moved))
    left, sizes, _ = np.linalg.svd(u)
    sizes = sizes / np.linalg.norm(sizes)
    spectra = [np.linalg.svd(x, compute_uv=False) if np.isfinite(x).all() else np.full(len(x), np.inf)
               for x in (got, right)]
    grown = Growth(p.shape, sizes, *spectra)
    off = np.sum((left.T @ (got - right)) ** 2, 1)
    lost = sizes**2 < 2.0 ** -BITS[case.choices["compute"]][0]
    mine = lost.any() and (np.isnan(off).any() or off[lost].sum() > SHARE * off.sum())
    return grown if mine or grown.ratio < GROWN else None
