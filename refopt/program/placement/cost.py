"""How long messages take, by two numbers: ``alpha``, seconds per message, and ``beta``, seconds per byte.

A message of n bytes takes ``alpha + beta * n`` (R. W. Hockney, "The communication challenge for MPP: Intel Paragon and
Meiko CS-2", Parallel Computing 20, 1994), regardless of other traffic; a device sends one and receives one at a time.
``gamma``, seconds per byte, is the time to add received data to a device's own. The formulae of collectives over p
devices are those of R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations in
MPICH", IJHPCA 19, 2005; they assume that p divides n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.arguments import RANKS, chosen, collected, is_number, number, shown, to_float, whole
from refopt.checks.arguments import names as listed_names
from refopt.checks.dtypes import ITEM_SIZES
from refopt.program.model import Op
from refopt.program.ops import of_way
from refopt.program.ops.collectives import calls
from refopt.program.program import Program, expect_program

ALGORITHMS = "tree", "scatter"  # of a broadcast, and of a reduction


class Link(NamedTuple):
    """A network. The formulae refuse one whose numbers are below 0 or not finite.

    Attributes:
        alpha: seconds per message, at least 0.
        beta: seconds per byte, at least 0: the inverse of the bandwidth.
        gamma: seconds per byte for the addition of a reduction, at least 0.
    """

    alpha: float
    beta: float
    gamma: float = 0.0


def send(link: Link, nbytes: float) -> float:
    """Seconds for one message: ``alpha + n * beta``."""
    link, nbytes, _ = _checked("send", link, nbytes)
    return link.alpha + nbytes * link.beta


def broadcast(link: Link, nbytes: float, devices: int, algorithm: str = "tree") -> float:
    """Seconds until all devices have the array of one.

    Args:
        link: the network.
        nbytes: n, of the array.
        devices: p.
        algorithm: ``"tree"``, a binomial tree: ``ceil(log2 p) * (alpha + n * beta)``; or ``"scatter"``, for long
            messages, a binomial scatter and then a ring that gathers:
            ``(ceil(log2 p) + p - 1) * alpha + 2 * (p - 1) / p * n * beta``.
    """
    link, nbytes, devices = _checked("broadcast", link, nbytes, devices)
    rounds, share = _rounds(devices), (devices - 1) / devices
    if chosen("broadcast: algorithm", algorithm, ALGORITHMS) == "tree":
        return rounds * (link.alpha + nbytes * link.beta)
    return (rounds + devices - 1) * link.alpha + 2 * share * nbytes * link.beta if devices > 1 else 0.0


def reduce(link: Link, nbytes: float, devices: int, algorithm: str = "tree") -> float:
    """Seconds until one device has the sum over all.

    Args:
        link: the network.
        nbytes: n, of the array.
        devices: p.
        algorithm: ``"tree"``, a binomial tree: ``ceil(log2 p) * (alpha + n * beta + n * gamma)``; or ``"scatter"``,
            Rabenseifner's, for long messages and p a power of two, a reduce-scatter by halves and then a gather:
            ``2 * log2 p * alpha + 2 * (p - 1) / p * n * beta + (p - 1) / p * n * gamma``.
    """
    link, nbytes, devices = _checked("reduce", link, nbytes, devices)
    rounds, share = _rounds(devices), (devices - 1) / devices
    if chosen("reduce: algorithm", algorithm, ALGORITHMS) == "tree":
        return rounds * (link.alpha + nbytes * (link.beta + link.gamma))
    if devices & (devices - 1):
        raise ValueError(f"reduce: devices: expected a power of two, which scatter is for, got {devices}")
    return 2 * rounds * link.alpha + 2 * share * nbytes * link.beta + share * nbytes * link.gamma


def all_reduce(link: Link, nbytes: float, devices: int) -> float:
    """Seconds until all devices have the sum over all, by a ring.

    A reduce-scatter and an all-gather, each of p - 1 messages of n / p bytes:
    ``2 * (p - 1) * alpha + 2 * (p - 1) / p * n * beta + (p - 1) / p * n * gamma``.
    """
    link, nbytes, devices = _checked("all_reduce", link, nbytes, devices)
    share = (devices - 1) / devices
    return 2 * (devices - 1) * link.alpha + 2 * share * nbytes * link.beta + share * nbytes * link.gamma


def reduce_scatter(link: Link, nbytes: float, devices: int) -> float:
    """Seconds until each device has its part of the sum over all, by a ring: the first half of `all_reduce`.

    p - 1 messages of n / p bytes, where n is for the whole array:
    ``(p - 1) * alpha + (p - 1) / p * n * (beta + gamma)``.
    """
    link, nbytes, devices = _checked("reduce_scatter", link, nbytes, devices)
    return (devices - 1) * link.alpha + (devices - 1) / devices * nbytes * (link.beta + link.gamma)


def all_gather(link: Link, nbytes: float, devices: int) -> float:
    """Seconds until all devices have the parts of all, by a ring: the second half of `all_reduce`.

    p - 1 messages of n / p bytes, where n is for the whole array: ``(p - 1) * alpha + (p - 1) / p * n * beta``.
    """
    link, nbytes, devices = _checked("all_gather", link, nbytes, devices)
    return (devices - 1) * link.alpha + (devices - 1) / devices * nbytes * link.beta


def batch(link: Link, kind: str, nbytes: Mapping[int, float], devices: int) -> float:
    """Seconds for broadcasts or reductions of different roots that are made at once.

    The slowest device decides. While a root sends its broadcast or receives its reduction, for the time T of a single
    one by a tree, it handles one message for each other root in the opposite direction:
    ``max over d of max(T(n_d), sum over roots r other than d of (alpha + n_r * beta))``. For two devices this is the
    longest of the single calls. For more it is too little if devices forward the data of others late.

    Args:
        link: the network, which carries as much in each direction when both are in use.
        kind: ``"broadcast"`` or ``"reduce"``.
        nbytes: by root, n of its array.
        devices: p.
    """
    single = {"broadcast": broadcast, "reduce": reduce}
    kind = chosen("batch: kind", kind, single)
    link, _, devices = _checked("batch", link, 0, devices)
    if not isinstance(nbytes, Mapping):
        raise TypeError(f"batch: nbytes: expected a mapping from roots, got {shown(nbytes)}")
    sizes = {
        whole("batch: nbytes: root", root, 0, devices - 1): number(f"batch: nbytes: {shown(root)}", n, 0)
        for root, n in nbytes.items()
    }
    own = [single[kind](link, n, devices) for n in sizes.values()]
    # All devices that are not roots are alike.
    some = [*sizes, *([None] if len(sizes) < devices else [])]
    others = [sum(send(link, n) for root, n in sizes.items() if root != device) for device in some]
    return max([*own, *others])


def fit(messages: Sequence[float], times: Sequence[float]) -> Link:
    """Alpha and beta of a link, by least squares over measured messages.

    Minimizes the sum of the squares of ``alpha + beta * n - t``, unweighted, so long messages have most influence.

    Args:
        messages: bytes, at least two different numbers.
        times: seconds, one for each.

    Returns:
        Beta is at least 0; alpha is that of the line, and may be below 0 if short messages are quick.

    Raises:
        ValueError: naming the argument, ``times`` if the line falls, which no link does.
    """
    n, t = _numbers("fit: messages", messages), _numbers("fit: times", times)
    if t.shape != n.shape:
        raise ValueError(f"fit: times: expected one for each of {n.shape} messages, got {t.shape}")
    for name, values in (("messages", n), ("times", t)):
        if not np.isfinite(values).all():
            raise ValueError(f"fit: {name}: expected finite numbers, got {values[~np.isfinite(values)][0]}")
        if (values < 0).any():
            raise ValueError(f"fit: {name}: expected numbers of at least 0, got {values.min()}")
    if np.unique(n).size < 2:
        raise ValueError(f"fit: messages: expected at least two different sizes, got {np.unique(n).size}")
    scale = np.abs(n).max()  # columns of similar size
    (alpha, beta), *_ = np.linalg.lstsq(np.stack([np.ones_like(n), n / scale], 1), t, rcond=None)
    if beta * (n.max() - n.min()) / scale < -1e-9 * t.max():  # more than rounding does to equal times
        expected = "expected them to grow with the messages"
        raise ValueError(f"fit: times: {expected}, got a line of {beta / scale:g} seconds a byte")
    return Link(float(alpha), max(float(beta / scale), 0.0))


def pipelined(stages: Sequence[float], count: int) -> float:
    """Seconds for ``count`` items, each of which passes through all stages in order, on one stream per stage.

    ``sum(stages) + (count - 1) * max(stages)``: the time of the first, then that of the longest stage for each other.
    With copies and compute as stages this is the time with overlapped copies; without overlap it is
    ``count * sum(stages)``.
    """
    times = collected("pipelined: stages", stages, "times")
    stages = [number(f"pipelined: stages[{k}]", s, 0) for k, s in enumerate(times)]
    if not stages:
        raise ValueError("pipelined: stages: expected some times of at least 0, got none")
    count = whole("pipelined: count", count, 0)
    to_float("pipelined: count", count)
    return sum(stages) + (count - 1) * max(stages) if count else 0.0


def of_op(program: Program, op: Op, link: Link, rate: float) -> float:
    """Seconds for an op of a placed program.

    Collectives take the time of their formulae, ``broadcast`` and ``reduce`` by a tree, and a ``batch`` of them that of
    `batch`; any other op reads its inputs and writes its outputs at the rate.

    Args:
        program: the op's program.
        op: not a message or barrier, whose time depends on the other traffic; not a copy between host and device, which
            is a message on the bus; and without sparse tensors.
        link: the network.
        rate: bytes per second of a device's memory, more than 0.
    """
    expect_program("of_op", program)
    if not isinstance(op, Op):
        raise TypeError(f"of_op: op: expected an Op, got {shown(op)}")
    expect_link("of_op: link", link)
    rate = number("of_op: rate", rate, above=0)
    sparse = any(program.vars[name].sparse for name in (*op.reads, *op.writes))
    if sparse or op.type in (*of_way("message"), *of_way("host")):
        raise ValueError(f"of_op: op: expected dense tensors and no message, got {op.type} of {', '.join(op.reads)}")
    if op.type == "batch":
        sent = {each.attrs["root"]: bytes_of(program, each.reads) for each in calls(op)}
        return batch(link, op.attrs["kind"], sent, op.attrs["ranks"])
    known = {"broadcast": broadcast, "reduce": reduce, "all_reduce": all_reduce, "reduce_scatter": reduce_scatter,
             "all_gather": all_gather}
    if op.type in known:
        whole_of_it = op.writes if op.type == "all_gather" else op.reads
        return known[op.type](link, bytes_of(program, whole_of_it), op.attrs["ranks"])
    return (bytes_of(program, op.reads) + bytes_of(program, op.writes)) / rate


def bytes_of(program: Program, names: Sequence[str]) -> int:
    """Bytes of variables; of a buffer, those of its tensors, without padding."""
    expect_program("bytes_of", program)
    for k, name in enumerate(listed_names("bytes_of: names", names)):
        if name not in program.vars:
            raise ValueError(f"bytes_of: names[{k}]: expected a variable of the program, got {name!r}")
    cells = [program.vars[cell] for name in names for cell in program.memory(name)]
    return sum(math.prod(var.shape) * ITEM_SIZES[var.dtype] for var in cells)


def _numbers(where: str, values: Any) -> np.ndarray:
    """Numbers as an array of fp64, (n,)."""
    entries = collected(where, values, "numbers")
    return np.array([number(f"{where}[{k}]", value) for k, value in enumerate(entries)], np.float64)


def _rounds(devices: int) -> int:
    """``ceil(log2 devices)``, exactly."""
    return (devices - 1).bit_length()


def _checked(where: str, link: Link, nbytes: float, devices: int = 1) -> tuple[Link, float, int]:
    """The arguments of a formula as Python numbers; raises if one is invalid, naming it."""
    expect_link(f"{where}: link", link)
    checked = Link(*(to_float(f"{where}: link: {name}", value) for name, value in link._asdict().items()))
    return checked, number(f"{where}: nbytes", nbytes, 0), whole(f"{where}: devices", devices, 1, RANKS)


def expect_link(where: str, link: Any) -> None:
    """Raise if the value is not a link, or has a number that is below 0 or not finite."""
    if not isinstance(link, Link):
        raise TypeError(f"{where}: expected a Link, got {shown(link)}")
    for name, value in link._asdict().items():
        if not is_number(value) or not 0 <= value < math.inf:
            raise ValueError(f"{where}: expected a finite {name} of at least 0, got {shown(value)}")
