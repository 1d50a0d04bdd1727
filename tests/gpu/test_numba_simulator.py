"""Kernels in stock Numba, run by Numba's simulator: they have the bits of the executor."""

import contextlib
import os
import pickle
import subprocess
import sys
import zlib
from collections import defaultdict
from typing import Any, NamedTuple

import needs
import numpy as np
import pytest

from gpu.test_stock_numba import NUMBA, REFOPT, STOCK, launch_ladders, launch_others, launch_solutions
from refopt import gpu, simt
from refopt.gpu import cuda

needs.compiler()
pytestmark = pytest.mark.slow


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
        launch_solutions()
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
    for key, pasted in STOCK.items():
        path = folder / f"{'-'.join(key)}.py"
        path.write_text(f"{NUMBA}\n{pasted.text}")
        jobs[key] = str(path), [case[:3] for case in cases[key] if not case.why]
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


def test_sums_by_atomics_are_exact_here(cases, executor, tmp_path):
    """Or the simulator could have another one: with blocks and threads in reverse order they are the same."""
    found = [key for key in cases if "cuda.atomic.add" in STOCK[key].text]
    assert len(found) >= 2
    for key in found:
        kernel = STOCK[key].below(REFOPT, tmp_path)
        for case in cases[key]:
            args = [executor.to_device(x) if getattr(x, "ndim", 0) else x for x in case.before]
            with simt.observe(count=False, schedule="reverse"):
                kernel[case.grid, case.block](*args)
            assert bits(on_host(args)) == bits(case.after), key
