"""Run a ladder: compare each rung with NumPy bit for bit, and time it, a copy and what runs in production."""

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt import cpu, gpu
from refopt.catalog import workloads
from refopt.checks.dtypes import numpy_dtype
from refopt.gpu import timing

SCALED = 300  # elements of a tensor on the executor, which runs atomics thread by thread
SHAPES = {"gpu": [(1024, 1024)] * 8, "executor": [(8, 40), (72, 136)]}  # of the matrices that are multiplied
ADAM = dict(lr=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8)
POWERS = dict(beta1_pow=0.9, beta2_pow=0.999)
OPTIMIZERS = {  # the routine, its bytes per element, and its numbers in the order of the rungs
    "adam": ("adam", 28, ADAM | POWERS),
    "lars": ("lars_momentum", 28, dict(lr=1e-3, mu=0.9, lars_coeff=1e-3, lars_weight_decay=5e-4, epsilon=0.0)),
    "lamb": ("lamb", 40, ADAM | {"weight_decay": 0.01} | POWERS),
}


class Bench(NamedTuple):
    """The arguments of a ladder's rungs, and what to compare them with.

    Attributes:
        host: the arguments in NumPy: arrays, and lists of arrays.
        rest: the last argument: numbers, or shapes.
        reference: updates ``host`` in NumPy.
        production: plans what runs in production, for ``host`` on a device; ``None`` if a rung is what runs there.
        bytes: how many a step reads and writes.
    """

    host: list[Any]
    rest: Any
    reference: Callable[..., Any]
    production: Callable[..., Any] | None
    bytes: int


def each(function: Callable, values: Any) -> Any:
    """Apply a function to each array of nested lists."""
    return [each(function, x) for x in values] if isinstance(values, list) else function(values)


def flat(values: Any) -> list[Any]:
    """The arrays of nested lists."""
    return [array for x in values for array in flat(x)] if isinstance(values, list) else [values]


def bench_of(name: str, sizes: Sequence[int], dtype: str = "float32") -> Bench:
    """The arrays of a ladder: normally distributed, second moments positive.

    Args:
        name: of the ladder's module.
        sizes: elements of each tensor; products use `SHAPES` instead.
        dtype: of matrices that are multiplied, ``float32`` or ``bfloat16``.

    Raises:
        ValueError: if no ladder has that name.
    """
    random, elements = np.random.default_rng(0), sum(sizes)
    grads, params, *states = ([random.standard_normal(n, np.float32) for n in sizes] for _ in range(4))
    if name in OPTIMIZERS:
        routine, nbytes, numbers = OPTIMIZERS[name]
        powers = [[np.full(1, numbers[key], np.float32) for _ in sizes] for key in POWERS if key in numbers]
        kept = {key: float(np.float32(x)) for key, x in numbers.items() if key not in POWERS}
        host = [params, grads, states[0], *([each(np.abs, states[1])] if powers else [])]
        rest = tuple(map(np.float32, numbers.values()))

        def reference(*lists: Any) -> None:
            getattr(cpu, f"merged_{routine}")(*lists, *each(np.copy, powers), **kept)

        def production(*lists: Any) -> Any:
            return gpu.plan(routine, *lists, *each(gpu.to_device, powers), **kept)

        return Bench(host, rest, reference, production, nbytes * elements)
    if name == "global_norm":

        def norm(grads: Any, out: np.ndarray) -> None:
            found = cpu.check_gradients(grads, max_norm=1.0)
            out[:] = found.grad_norm[0], found.grad_factor[0]

        host, clip = [grads, np.zeros(2, np.float32)], (np.float32(1), np.float32(1e-6))
        return Bench(host, clip, norm, lambda grads, out: gpu.gradient_check(grads, max_norm=1.0), 4 * elements)
    if name == "coalesce":
        laid = cpu.coalesce_tensor([np.zeros(n, np.float16) for n in sizes], align_size=256)

        def gather(cast: Callable) -> Callable:
            places = list(zip(laid.offsets, sizes, strict=True))
            return lambda grads, buffer: cast(grads, [buffer[start : start + n] for start, n in places], scale=0.5)

        host = [grads, laid.buffer]
        return Bench(host, np.float32(0.5), gather(cpu.merged_cast), gather(gpu.cast_plan), 6 * elements)
    if name == "matmul":
        kind, bits = numpy_dtype(dtype), np.dtype("float32" if dtype == "float32" else "uint16")
        shapes = SHAPES[gpu.device().name]
        xs = [random.standard_normal(shape).astype(kind) for shape in shapes]

        def product(xs: Any, outs: Any) -> None:
            for x, out, shape in zip(xs, outs, shapes, strict=True):
                x = x.view(kind).reshape(shape)
                out[:] = cpu.matmul(x, x.T).astype(kind).view(bits).reshape(-1)

        host = [[x.view(bits).reshape(-1) for x in xs], [np.zeros(m * m, bits) for m, _ in shapes]]
        return Bench(host, tuple(shapes), product, None, sum(x.nbytes for x in flat(host)))
    raise ValueError(f"bench_of: name: expected {', '.join(OPTIMIZERS)}, global_norm, coalesce or matmul, got {name!r}")


def rows(bench: Bench, rungs: dict[str, Callable]) -> list[tuple[str, int, int | None, float]]:
    """Each rung's name, launches, count of elements that differ from NumPy's, and milliseconds; then production's."""
    expected = each(np.copy, bench.host)
    found: list[tuple[str, int, int | None, float]] = []
    bench.reference(*expected)
    for name, launches_of in rungs.items():
        device = each(gpu.to_device, bench.host)
        launches = launches_of(*device, bench.rest)
        for launch in launches:
            launch()
        pairs = zip(flat(expected), flat(each(lambda x: x.copy_to_host(), device)), strict=True)
        wrong = sum(int(np.count_nonzero(x.view(f"u{x.itemsize}") != y.view(f"u{x.itemsize}"))) for x, y in pairs)
        found.append((name, len(launches), wrong, timing.milliseconds_of(launches)))
    if bench.production:
        plan = bench.production(*each(gpu.to_device, bench.host))
        plan()  # which compiles
        found.append(("production", plan.launches, None, timing.milliseconds(plan)))
    return found


def run(name: str) -> int:
    """Print the table of a ladder: ``python -m refopt.gpu.ladder.adam``.

    On a GPU the tensors are those of ResNet-50, and times are compared with a copy of as many bytes and with
    production. On the executor the tensors are scaled down, and the times are those of this CPU.

    Returns:
        The exit status: 1 if a rung that should equal NumPy does not, else 0.
    """
    module, machine = importlib.import_module(f"refopt.gpu.ladder.{name}"), gpu.device()
    on_gpu, model = machine.name == "gpu", workloads.load("resnet50")
    sizes = [x.elements for x in (model if on_gpu else model.scaled(SCALED)).tensors]
    rungs, plain = dict(module.RUNGS), getattr(module, "PLAIN", ())
    if on_gpu and machine.properties.capability == (9, 0):
        rungs |= getattr(module, "HOPPER", {})
    kinds = {"float32": plain or tuple(rungs)}
    if plain:
        kinds["bfloat16"] = tuple(x for x in rungs if x not in plain)
    print(f"{name} on {machine.properties.name if on_gpu else 'the executor, on this CPU'}:",
          "products of matrices" if plain else f"{len(sizes)} tensors, {sum(sizes):,} elements")
    shares = f"{'% of a copy':>14}{'% of production':>17}" * on_gpu
    print(f"{'version':12}{'launches':>9}{'elements that differ':>22}{'ms':>10}{shares}")
    failed = False
    for dtype, names in kinds.items():
        bench = bench_of(name, sizes, dtype)
        found = rows(bench, {x: rungs[x] for x in names})
        copy = timing.copy_milliseconds(bench.bytes) if on_gpu else 0.0
        for rung, launches, wrong, ms in found:
            shares = f"{copy / ms:>14.0%}{found[-1][-1] / ms:>17.0%}" * on_gpu
            print(f"{rung:12}{launches:>9}{'' if wrong is None else f'{wrong:,}':>22}{ms:>10.3f}{shares}")
            failed |= bool(wrong) and rung not in getattr(module, "OTHER_BITS", ())
    return int(failed)


def main(name: str) -> None:
    """`run` as a command; status 2 if a library is missing."""
    try:
        sys.exit(run(name))
    except ImportError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
