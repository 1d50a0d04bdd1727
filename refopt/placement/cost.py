"""How long messages take, by two numbers: ``alpha``, seconds a message, and ``beta``, seconds a byte.

A message of n bytes takes ``alpha + beta * n`` (R. W. Hockney, "The communication challenge for MPP: Intel Paragon and
Meiko CS-2", Parallel Computing 20, 1994), whatever else is under way; a device sends one and receives one at a time.
``gamma``, seconds a byte, is what it takes to add what has come to what is there. The formulae of collectives over p
devices are those of R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations in
MPICH", IJHPCA 19, 2005; they are for n that p divides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from refopt.checks.arguments import is_number
from refopt.dtypes import ITEM_SIZES
from refopt.placement.kinds import BARRIERS, COPIES, MESSAGES
from refopt.program import Op, Program, batches


class Link(NamedTuple):
    """A network. The formulae refuse one whose numbers are below 0 or not finite.

    Attributes:
        alpha: seconds a message, at least 0.
        beta: seconds a byte, at least 0: the inverse of the bandwidth.
        gamma: seconds a byte for the addition of a reduction, at least 0.
    """

    alpha: float
    beta: float
    gamma: float = 0.0


def send(link: Link, nbytes: float) -> float:
    """Seconds for one message: ``alpha + n * beta``."""
    _check("send", link, nbytes)
    return link.alpha + nbytes * link.beta


def broadcast(link: Link, nbytes: float, devices: int, algorithm: str = "tree") -> float:
    """Seconds until all devices have what one has.

    Args:
        link: the network.
        nbytes: n, of the array.
        devices: p.
        algorithm: ``"tree"``, a binomial tree: ``ceil(log2 p) * (alpha + n * beta)``; or ``"scatter"``, for long
            messages, a binomial scatter and then a ring that gathers:
            ``(ceil(log2 p) + p - 1) * alpha + 2 * (p - 1) / p * n * beta``.
    """
    _check("broadcast", link, nbytes, devices)
    rounds, share = _rounds(devices), (devices - 1) / devices
    if _known("broadcast", algorithm, "tree", "scatter") == "tree":
        return rounds * (link.alpha + nbytes * link.beta)
    return (rounds + devices - 1) * link.alpha + 2 * share * nbytes * link.beta if devices > 1 else 0.0


def reduce(link: Link, nbytes: float, devices: int, algorithm: str = "tree") -> float:
    """Seconds until one device has the sum of what all have.

    Args:
        link: the network.
        nbytes: n, of the array.
        devices: p.
        algorithm: ``"tree"``, a binomial tree: ``ceil(log2 p) * (alpha + n * beta + n * gamma)``; or ``"scatter"``,
            Rabenseifner's, for long messages and p a power of two, a reduce-scatter by halves and then a gather:
            ``2 * log2 p * alpha + 2 * (p - 1) / p * n * beta + (p - 1) / p * n * gamma``.
    """
    _check("reduce", link, nbytes, devices)
    rounds, share = _rounds(devices), (devices - 1) / devices
    if _known("reduce", algorithm, "tree", "scatter") == "tree":
        return rounds * (link.alpha + nbytes * (link.beta + link.gamma))
    if devices & (devices - 1):
        raise ValueError(f"reduce: devices: expected a power of two, which scatter is for, got {devices}")
    return 2 * rounds * link.alpha + 2 * share * nbytes * link.beta + share * nbytes * link.gamma


def all_reduce(link: Link, nbytes: float, devices: int) -> float:
    """Seconds until all devices have the sum of what all have, by a ring.

    A reduce-scatter and an all-gather, each of p - 1 messages of n / p bytes:
    ``2 * (p - 1) * alpha + 2 * (p - 1) / p * n * beta + (p - 1) / p * n * gamma``.
    """
    _check("all_reduce", link, nbytes, devices)
    share = (devices - 1) / devices
    return 2 * (devices - 1) * link.alpha + 2 * share * nbytes * link.beta + share * nbytes * link.gamma


def batch(link: Link, kind: str, nbytes: Mapping[int, float], devices: int) -> float:
    """Seconds for broadcasts or reductions of different roots that are made at once.

    That of the device that takes longest. While a root sends its broadcast, or receives its reduction, which takes what
    the formula of a single one says, by a tree, it does one message for each other root in the other direction:
    ``max over d of max(T(n_d), sum over roots r other than d of (alpha + n_r * beta))``. For two devices that is the
    longest of the single calls. For more it is too little where devices that pass on what is of others are late.

    Args:
        link: the network, which carries as much in both directions as in one.
        kind: ``"broadcast"`` or ``"reduce"``.
        nbytes: by root, n of its array.
        devices: p.
    """
    single = {"broadcast": broadcast, "reduce": reduce}
    if kind not in single:
        raise ValueError(f"batch: kind: expected one of {', '.join(single)}, got {kind!r}")
    _check("batch", link, 0, devices)
    for root in nbytes:
        if not 0 <= root < devices:
            raise ValueError(f"batch: nbytes: expected roots from 0 to {devices - 1}, got {root!r}")
    own = [single[kind](link, n, devices) for n in nbytes.values()]
    others = [sum(send(link, n) for root, n in nbytes.items() if root != device) for device in range(devices)]
    return max([*own, *others])


def fit(messages: Sequence[float], times: Sequence[float]) -> Link:
    """Alpha and beta of a link, by least squares over measured messages.

    The sum of the squares of ``alpha + beta * n - t`` is least; nothing is weighed, so long messages have most to say.

    Args:
        messages: bytes, at least two different numbers.
        times: seconds, one for each.

    Returns:
        Beta is at least 0; alpha is what the line says, so where short messages are quick it may be below 0.

    Raises:
        ValueError: naming the argument, ``times`` if the line falls: that is no link.
    """
    n, t = np.asarray(messages, np.float64), np.asarray(times, np.float64)
    if n.ndim != 1 or t.shape != n.shape:
        raise ValueError(f"fit: times: expected one for each of {n.shape} messages, got {t.shape}")
    for name, values in (("messages", n), ("times", t)):
        if not np.isfinite(values).all():
            raise ValueError(f"fit: {name}: expected finite numbers, got {values[~np.isfinite(values)][0]}")
        if (values < 0).any():
            raise ValueError(f"fit: {name}: expected numbers of at least 0, got {values.min()}")
    if np.unique(n).size < 2:
        raise ValueError(f"fit: messages: expected at least two different sizes, got {np.unique(n).size}")
    scale = np.abs(n).max()  # columns of like size, since bytes and ones are far apart
    (alpha, beta), *_ = np.linalg.lstsq(np.stack([np.ones_like(n), n / scale], 1), t, rcond=None)
    if beta * (n.max() - n.min()) / scale < -1e-9 * t.max():  # beyond what rounding makes of equal times
        expected = "expected them to grow with the messages"
        raise ValueError(f"fit: times: {expected}, got a line of {beta / scale:g} seconds a byte")
    return Link(float(alpha), max(float(beta / scale), 0.0))


def pipelined(stages: Sequence[float], count: int) -> float:
    """Seconds for so many items, each of which passes through all stages in order, on a stream for each stage.

    ``sum(stages) + (count - 1) * max(stages)``: the time of one, and then one more for every turn of the longest. With
    copies and compute as stages this is how long overlapped copies take; without overlap it is
    ``count * sum(stages)``.
    """
    if not stages or any(not s >= 0 for s in stages):
        raise ValueError(f"pipelined: stages: expected some times of at least 0, got {list(stages)}")
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ValueError(f"pipelined: count: expected an integer of at least 0, got {count!r}")
    return sum(stages) + (count - 1) * max(stages) if count else 0.0


def of_op(program: Program, op: Op, link: Link, rate: float) -> float:
    """Seconds for an op of a placed program.

    Collectives take what their formulae say, ``broadcast`` and ``reduce`` by a tree, and a ``batch`` of them what
    `batch` says; anything else reads its inputs and writes its outputs at a rate.

    Args:
        program: whose op it is.
        op: no message or barrier, since what they take depends on what is under way; no copy between host and device,
            which is a message of the bus; and none whose tensors are sparse.
        link: the network.
        rate: bytes a second of a device's memory, more than 0.
    """
    if not rate > 0:
        raise ValueError(f"of_op: rate: expected more than 0 bytes a second, got {rate!r}")
    if op.type in (*MESSAGES, *BARRIERS, *COPIES) or any(program.vars[name].sparse for name in (*op.reads, *op.writes)):
        raise ValueError(f"of_op: op: expected dense tensors and no message, got {op.type} of {', '.join(op.reads)}")
    if op.type == "batch":
        sent = {each.attrs["root"]: bytes_of(program, each.reads) for each in batches.calls(op)}
        return batch(link, op.attrs["kind"], sent, op.attrs["ranks"])
    known = {"broadcast": broadcast, "reduce": reduce, "all_reduce": all_reduce}
    if op.type in known:
        return known[op.type](link, bytes_of(program, op.reads), op.attrs["ranks"])
    return (bytes_of(program, op.reads) + bytes_of(program, op.writes)) / rate


def bytes_of(program: Program, names: Sequence[str]) -> int:
    """Bytes of variables; of a buffer, those of its tensors, without padding."""
    cells = [program.vars[cell] for name in names for cell in program.memory(name)]
    return sum(math.prod(var.shape) * ITEM_SIZES[var.dtype] for var in cells)


def _rounds(devices: int) -> int:
    """``ceil(log2 devices)``, exactly."""
    return (devices - 1).bit_length()


def _known(where: str, value: str, *known: str) -> str:
    if value not in known:
        raise ValueError(f"{where}: algorithm: expected one of {', '.join(known)}, got {value!r}")
    return value


def _check(where: str, link: Link, nbytes: float, devices: int = 1) -> None:
    for name, value in link._asdict().items():
        if not is_number(value) or not 0 <= value < math.inf:
            raise ValueError(f"{where}: link: expected a finite {name} of at least 0, got {value!r}")
    if not nbytes >= 0:
        raise ValueError(f"{where}: nbytes: expected at least 0, got {nbytes!r}")
    if not isinstance(devices, int) or isinstance(devices, bool) or devices < 1:
        raise ValueError(f"{where}: devices: expected an integer of at least 1, got {devices!r}")
