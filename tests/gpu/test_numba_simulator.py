"""Kernels in stock Numba, run by Numba's simulator: they have the bits of the executor."""

import contextlib
import importlib
import os
import pickle
import re
import subprocess
import sys
import zlib
from collections import defaultdict
from typing import Any, NamedTuple

import needs
import numpy as np
import pytest

from gpu import test_ladder_matmul
from gpu.test_ladder import CLIP, NUMBERS, adam_lists, normal, placed
from gpu.test_ladder_norms import LADDERS
from gpu.test_stock_numba import KERNELS, NUMBA, REFOPT, STOCK, launch_solutions
from refopt import gpu, simt
from refopt.gpu import cuda, ladder

needs.compiler()
pytestmark = pytest.mark.slow


def changed(module, name, old, new):
    """The text of a kernel with a mistake in it, by a key of its own."""
    key = f"{ladder.__name__}.{module}", name
    assert STOCK[key].text.count(old) == 1
    return (*key, re.sub(r"\W+", "-", new)), STOCK[key].text.replace(old, new)


CHANGED = dict([changed("adam", "adam_1", "(ONE - beta2)", "(ONE - beta1)"),
                changed("adam", "adam_1", "i < p.size", "i <= p.size"),
                changed("adam", "adam_2", "np.float32(math.sqrt(x))", "math.sqrt(x)"),
                changed("global_norm", "norm_2", "cuda.blockIdx.x * TILE", "cuda.blockIdx.x * LANES"),
                changed("lars", "lars_2_rate", "distance *= 2", "distance *= 4")])


# Their launches: what each leaves on the executor, and in the simulator.


class Case(NamedTuple):
    """A launch, and its arguments in host memory, before and after; or why there is nothing to compare."""

    grid: int
    block: int
    before: list[Any]
    after: list[Any]
    why: str


def on_host(args):
    return [x.copy_to_host() if isinstance(x, simt.DeviceArray) else x for x in args]


def dyadic(seed, sizes):
    """Parameters, gradients, and moments of which LAMB by DYADIC makes numbers of few bits, so that sums are exact."""
    rng = np.random.default_rng(seed)
    rows = []
    for n in sizes:
        root = rng.choice([1, 3, 7], n)  # of the new second moment
        p, m, g = rng.integers(-4, 5, n), rng.integers(-4, 5, n), rng.integers(-root, root + 1)
        rows.append([x.astype(np.float32) for x in (p, g, m, 2 * root**2 - g**2)])
    return [list(column) for column in zip(*rows, strict=True)]


DYADIC = tuple(map(np.float32, (0.1, 0.5, 0.5, 2, 0.5, 0.5, 0.75)))
SIZES = [1, 0, 300, 2100]  # of the tiles of three, one has no neighbour


def numbers_of(machine, name, rung, exact):
    """Arguments of a ladder's rung, with sums that are exact or any."""
    if name == "adam":
        return *placed(machine, adam_lists(SIZES[:3])), NUMBERS
    if name == "global_norm":
        grads = dyadic(1, SIZES)[1] if exact else normal(1, SIZES)
        return *placed(machine, [grads]), machine.to_device(np.zeros(2, np.float32)), CLIP
    if name == "matmul":
        return test_ladder_matmul.arguments(machine, rung, [(8, 40)])
    row = LADDERS[name]
    lists = dyadic(1, SIZES)[: len(row.slots)] if exact else row.lists(SIZES)
    numbers = tuple(map(np.float32, row.numbers.values()))
    return *placed(machine, lists), DYADIC if exact and name == "lamb" else numbers


def launch_ladders(machine):
    for page in dict.fromkeys(page for page, _ in STOCK if page.startswith(ladder.__name__)):
        for rung, make in importlib.import_module(page).RUNGS.items():
            for exact in (False, True):
                # Kept until they are launched: some launches know them by their addresses alone.
                given = numbers_of(machine, page.rpartition(".")[2], rung, exact)
                launches = make(*given)
                if not any("cuda.atomic.add" in by_name(launch) for launch in launches):
                    break
            for launch in launches:
                launch()


def by_name(launch):
    """The text of a launch's kernel, if it is one of the page's."""
    function = launch.kernel.function
    key = function.__module__, function.__name__
    return KERNELS[key].text if key in KERNELS else ""


def launch_others(machine, folder):
    """Kernels of notebooks and pages, each by two warps on arrays that are long enough for four elements a thread."""
    for (page, _), pasted in STOCK.items():
        if "." not in page:
            kernel = pasted.below(REFOPT, folder)
            names = kernel.function.__code__.co_varnames[: kernel.function.__code__.co_argcount]
            arrays = (np.linspace(-3, 5, 256, dtype=np.float32) for _ in names)
            args = [machine.to_device(x) if f"{name}[" in pasted.text else x[7]
                    for name, x in zip(names, arrays, strict=True)]
            kernel[1, 64](*args)


@contextlib.contextmanager
def recorded():
    """Note the launches of kernels that stock Numba has."""
    cases, original = defaultdict(list), cuda.Launch.__call__

    def call(launch, stream=0):
        key = launch.kernel.function.__module__, launch.kernel.function.__name__
        if key not in STOCK or launch.kernel.contract:  # adam_0 is adam_1 on the executor
            return original(launch, stream)
        before, why = on_host(launch.args), ""
        try:
            with simt.observe(count=False, watch=True, doubles="report") as log:
                original(launch, stream)
            why = "fp64" if log.doubles else ""
        except (simt.BarrierDivergence, simt.DataRace) as error:
            why = type(error).__name__
        cases[key].append(Case(launch.grid, launch.block, before, on_host(launch.args), why))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda.Launch, "__call__", call)
        yield cases


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """The launches of each kernel of the ladders and solutions, and one of each that a notebook or a page has."""
    with gpu.use("executor") as machine, recorded() as found:
        launch_ladders(machine)
        launch_solutions([*dict.fromkeys(page for page, _ in STOCK if page.startswith("solutions."))])
        launch_others(machine, tmp_path_factory.mktemp("refopt"))
    return found


SIMULATE = """
import copy, os, pickle, re, sys, warnings
from numba import config, cuda
from numba.cuda.simulator.kernelapi import FakeCUDAModule

assert config.ENABLE_CUDASIM
if hasattr(os, "sched_setaffinity"):  # a thread of Python for each of CUDA: they are faster on one core than on two
    os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
warnings.simplefilter("ignore")  # a NaN is a number here
has = FakeCUDAModule((1, 1, 1), (1, 1, 1), 0)
results = {}
for key, (path, cases) in pickle.load(open(sys.argv[1], "rb")).items():
    cases = copy.deepcopy(cases)
    text = open(path).read()
    absent = set(re.findall(r"\\bcuda\\.(\\w+)", text)) - {"jit", *dir(has)}
    if absent:
        results[key] = f"the simulator has no {', '.join(sorted(absent))}"
        continue
    scope = {"__name__": key[0]}
    try:
        exec(compile(text, path, "exec"), scope)
        for grid, block, args in cases:
            scope[key[1]][grid, block](*args)
        results[key] = [args for _, _, args in cases]
    except Exception as error:
        results[key] = f"{type(error).__name__}: {error}"
pickle.dump(results, open(sys.argv[2], "wb"))
"""


@pytest.fixture(scope="module")
def simulation(cases, tmp_path_factory):
    """Numba's simulator at work on all cases, in a process of its own, and where it leaves what it comes to."""
    folder, jobs = tmp_path_factory.mktemp("simulated"), {}
    for key, text in ({key: pasted.text for key, pasted in STOCK.items()} | CHANGED).items():
        path = folder / f"{'-'.join(key)}.py"
        path.write_text(f"{NUMBA}\n{text}")
        jobs[key] = str(path), [case[:3] for case in cases[key[:2]] if not case.why]
    (folder / "jobs").write_bytes(pickle.dumps(jobs))
    process = subprocess.Popen([sys.executable, "-c", SIMULATE, folder / "jobs", folder / "results"],
                               env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}, stderr=subprocess.PIPE, text=True)
    yield process, folder / "results"
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def simulated(simulation):
    """The arguments of all cases as the simulator leaves them, or why it cannot run a kernel."""
    process, results = simulation
    _, errors = process.communicate(timeout=120)
    assert not process.returncode, errors
    return pickle.loads(results.read_bytes())


# Their bits.


def bits(args):
    """Of each argument, short enough to be told."""
    return [zlib.crc32(np.asarray(x).tobytes()) for x in args]


@pytest.mark.parametrize("key", STOCK, ids="-".join)
def test_the_simulator_has_the_bits_of_the_executor(key, cases, simulated):
    """But for what is a mistake on a page, for fp64, where NumPy has other types, and for what the simulator lacks."""
    compared, got = [case for case in cases[key] if not case.why], simulated[key]
    assert cases[key], "nothing launches it"
    if "." not in key[0] and not compared:  # a page shows what goes wrong, and the executor says so
        assert cases[key][0].why
        return
    assert len(compared) == len(cases[key])
    if "shfl_xor_sync" in STOCK[key].text:
        assert got == "the simulator has no shfl_xor_sync"
        return
    assert not isinstance(got, str), got
    assert [bits(case.after) for case in compared] == list(map(bits, got))
    assert any(bits(case.before) != bits(case.after) for case in compared)


@pytest.mark.parametrize("key", CHANGED, ids="-".join)
def test_a_mistake_is_seen(key, cases, simulated):
    got = simulated[key]
    assert isinstance(got, str) or [bits(case.after) for case in cases[key[:2]]] != list(map(bits, got))


def test_sums_by_atomics_are_exact_here(cases, executor, tmp_path):
    """Or the simulator could have another one: with blocks and threads in reverse order they are the same."""
    found = [key for key in cases if "cuda.atomic.add" in STOCK[key].text]
    assert len(found) >= 4
    for key in found:
        kernel = STOCK[key].below(REFOPT, tmp_path)
        for case in cases[key]:
            args = [executor.to_device(x) if getattr(x, "ndim", 0) else x for x in case.before]
            with simt.observe(count=False, schedule="reverse"):
                kernel[case.grid, case.block](*args)
            assert bits(on_host(args)) == bits(case.after), key
