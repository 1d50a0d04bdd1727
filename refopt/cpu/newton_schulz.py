"""Newton-Schulz iterations of a matrix, which make it nearly orthogonal: the standard ones, and those by Gram matrices.

An iteration maps each singular value s of x to a s + b s^3 + c s^5. The standard one multiplies x itself::

    A  = x x^T
    B  = b A + c (A A)
    x  = a x + B x

If x has many more columns than rows, most of the work is in the first and in the last line. Gram Newton-Schulz (Dao-AI
Lab 2026, https://github.com/Dao-AILab/gram-newton-schulz) iterates the small square R = x x^T instead, and multiplies
the polynomials of all iterations into one matrix Q, which it applies to x in the end::

    R  = x x^T
    Z  = b R + c (R R)                   each iteration
    Q  = Z + a I                         in the first, afterwards  Q = a Q + Q Z
    T  = a R + R Z,  R = a T + Z T       unless it is the last: the Gram matrix of the next x
    x  = Q x

Rounding gives R eigenvalues of about -eta, the rounding error of its dtype, where x has singular values near 0. An
update of R multiplies these by a^2 or more, since b < 0 < c, and R is soon indefinite, which diverges. So some
iterations **restart**: x = Q x, R = x x^T, which is positive again. `LONGEST` is the number of iterations from one
restart to the next that a dtype allows.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from refopt.checks.arguments import chosen, listed, number, whole
from refopt.checks.dtypes import arithmetic, numpy_dtype
from refopt.cpu.cast import rounded
from refopt.cpu.matmul import matmul
from refopt.cpu.reduce import sum_of_squares

Triple = tuple[float, float, float]

# After the last iteration of a dtype's longest segment but one, an eigenvalue of -eta has become -eta a^2 for each
# update, which is about -1/8 with a = 4.
LONGEST = {"bfloat16": 2, "float16": 3, "float32": 6, "float64": 12}
ASPECT = 5, 4  # from 5 columns for 4 rows on, Gram matrices need less work

_POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)


def _safe(triples: tuple[Triple, ...], factor: float) -> tuple[Triple, ...]:
    """Triples for singular values that rounding has made larger than 1, by at most this factor."""
    return tuple((a / factor, b / factor**3, c / factor**5) for a, b, c in triples)


JORDAN: Triple = (3.4445, -4.7750, 2.0315)
PRESETS: dict[str, tuple[Triple, ...]] = {
    # Keller Jordan's, as in torch.optim.Muon: https://kellerjordan.github.io/posts/muon
    "jordan": (JORDAN,),
    # Amsel et al., arXiv:2505.16932, with the safety factor of gram-newton-schulz 0.1.6
    "polar_express": _safe(_POLAR_EXPRESS, 1.05),
    # Jiacheng You's, the other ones of gram-newton-schulz: https://x.com/YouJiacheng/status/1905861218138804534
    "you": ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046),
            (2.8366, -3.0525, 1.2012)),
}


def norm_of(u, epsilon):
    """The Frobenius norm of a matrix, summed in memory order, but at least epsilon."""
    return np.maximum(np.sqrt(sum_of_squares(u.ravel(order="K"))), epsilon)


def normalized(u, *, epsilon, compute, norm=norm_of):
    """A matrix divided by its norm, rounded once to the compute dtype."""
    return rounded(u / norm(u, epsilon), numpy_dtype(compute))


def takes_gram(rows: int, columns: int, restarts: tuple[int, ...] | None) -> bool:
    """Whether a matrix is iterated by Gram matrices: there are restarts, if only (), and it is not nearly square."""
    small, large = sorted((rows, columns))
    return restarts is not None and ASPECT[1] * large >= ASPECT[0] * small


def mirrored(square, dtype):
    """A square rounded to a dtype, with the elements below the diagonal also above it.

    The product of two symmetric matrices that commute is symmetric, but after rounding only nearly so.
    """
    lower = np.tril(square).astype(dtype)
    return np.where(np.tri(len(square), dtype=bool), lower, lower.T)


def applied(q, x, product):
    """x at a restart or at the end, and the matrix whose Gram matrix R is then, which is x."""
    x = product(q, x)
    return x, x


def by_gram(x, triples, restarts, restarted=applied, finished=applied, mirrored=mirrored):
    """`orthogonalized` by Gram matrices; an iteration whose number, from 0, is in ``restarts`` begins with a new one.

    The last three arguments are for rules with other ones.
    """
    real = arithmetic(x.dtype.name)

    def product(q, x):
        return matmul(q, x).astype(x.dtype)

    starts = {0, *restarts}
    q: Any = None
    for i, (a, b, c) in enumerate(np.asarray(triples, real)):
        if i in starts:
            x, of_r = (x, x) if q is None else restarted(q, x, product)
            r = matmul(of_r, of_r.T).astype(x.dtype)
        z = mirrored(b * r.astype(real) + c * matmul(r, r), x.dtype)
        if i in starts:
            q = z.copy()
            np.fill_diagonal(q, (z.diagonal().astype(real) + a).astype(x.dtype))
        else:
            q = mirrored(a * q.astype(real) + matmul(q, z), x.dtype)
        if i + 1 < len(triples) and i + 1 not in starts:
            t = mirrored(a * r.astype(real) + matmul(r, z), x.dtype)
            r = mirrored(a * t.astype(real) + matmul(z, t), x.dtype)
    return x if q is None else finished(q, x, product)[0]


def orthogonalized(x, triples, restarts=None, gram=by_gram):
    """The matrix after an iteration for each triple of coefficients, in its dtype."""
    if x.shape[0] > x.shape[1]:
        return orthogonalized(x.T, triples, restarts, gram).T
    if takes_gram(x.shape[0], x.shape[1], restarts):
        return gram(x, triples, restarts)
    real = arithmetic(x.dtype.name)
    for a, b, c in np.asarray(triples, real):
        square = matmul(x, x.T).astype(x.dtype)
        polynomial = (b * square.astype(real) + c * matmul(square, square)).astype(x.dtype)
        x = (a * x.astype(real) + matmul(polynomial, x)).astype(x.dtype)
    return x


def schedule(where: str, coefficients: Any, iterations: int) -> list:
    """A triple for each iteration, from one triple, one for each, or the name of a preset; raises, naming ``where``.

    Of a preset with several triples, these are the first ones; the last is repeated.
    """
    if isinstance(coefficients, str):
        preset = PRESETS[chosen(where, coefficients, PRESETS)]
        return [*preset, *preset[-1:] * iterations][:iterations]
    plain = coefficients.tolist() if isinstance(coefficients, np.ndarray) else coefficients
    entries = listed(where, plain, "numbers or of triples")
    several = any(isinstance(entry, list | tuple) for entry in entries)
    triples = [listed(f"{where}[{k}]", entry, "numbers") for k, entry in enumerate(entries)] if several else [entries]
    if several and len(triples) != iterations:
        raise ValueError(f"{where}: expected a triple for each of {iterations} iterations, got {len(triples)}")
    for k, triple in enumerate(triples):
        place = f"{where}[{k}]" if several else where
        if len(triple) != 3:
            raise ValueError(f"{place}: expected three numbers, got {len(triple)}")
        for j, x in enumerate(triple):
            number(f"{place}[{j}]", x, -3e38, 3e38)
    return triples if several else triples * iterations


def as_tuples(schedule: Any) -> Any:
    """Coefficients or restarts with tuples in the place of lists, so that they can be compared and hashed."""
    return tuple(map(as_tuples, schedule)) if isinstance(schedule, list | tuple) else schedule


def restarting(where: str, restarts: Any, iterations: int, compute: str) -> tuple[int, ...] | None:
    """The iterations at which Gram Newton-Schulz restarts, or None; raises if a dtype does not allow them."""
    if restarts is None:
        return None
    every = [whole(f"{where}[{k}]", x, 1) for k, x in enumerate(listed(where, restarts, "iterations, such as (2,)"))]
    for k, (before, after) in enumerate(pairwise(every), start=1):
        if after <= before:
            raise ValueError(f"{where}[{k}]: expected more than {before}, got {after}")
    most = LONGEST[compute]
    for start, stop in pairwise([0, *(x for x in every if x < iterations), iterations]):
        if stop - start > most:
            expected = f"expected one after at most {most} iterations in {compute}, before R is indefinite"
            raise ValueError(f"{where}: {expected}, got none from {start} to {stop}")
    return tuple(every)
