"""Kernels written against `numba.cuda` run as they are, decorated or not, and what is missing says so."""

import math
import types

import numba
import numba.cuda
import numpy as np
import pytest
from numba import cuda, float32, njit
from numba.cuda import atomic, grid, shared, syncthreads, threadIdx

from refopt import simt

HELPERS = types.ModuleType("helpers")
N = 8


@cuda.jit(device=True)
def scaled(x, factor):
    return x * factor + math.sqrt(0.0)


@cuda.jit
def undecorated_as_device(x):
    return scaled(x, np.float32(2)) + local_lane()


@cuda.jit(device=True)
def local_lane():
    return cuda.threadIdx.x - numba.cuda.threadIdx.x


@njit
def halved(x):
    return x * np.float32(0.5)


@cuda.jit(device=True)
def factorial(n):
    product = 1
    while n > 1:
        product *= n
        n -= 1
    return product


@simt.cuda.jit
def two_more(n):
    return n + 2


def by_module(x, y):
    s = cuda.shared.array(N, float32)
    i = cuda.grid(1)
    s[i] = x[i]
    cuda.syncthreads()
    y[i] = s[N - 1 - i]


def by_closure(module, element):
    def kernel(x, y):
        s = module.shared.array(N, element)
        i = module.grid(1)
        s[i] = x[i]
        module.syncthreads()
        y[i] = s[N - 1 - i]

    return kernel


def by_name(x, y):
    s = shared.array(N, float32)
    i = grid(1)
    s[threadIdx.x] = x[i]
    syncthreads()
    y[i] = s[N - 1 - i]


def by_inner_function_and_package(x, y):
    def position():
        return numba.cuda.grid(1)

    y[position()] = numba.float32(x[N - 1 - position()])


REVERSES = [by_module, by_name, by_closure(cuda, float32), by_inner_function_and_package]


@pytest.mark.parametrize("decorate", [lambda f: f, cuda.jit, lambda f: simt.run(f)], ids=["plain", "jit", "run"])
@pytest.mark.parametrize("kernel", REVERSES, ids=lambda f: f.__qualname__)
def test_the_names_of_numba(kernel, decorate):
    x, y = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    with simt.observe(watch=True):
        simt.run(decorate(kernel))[1, N](x, y)
    assert y.tolist() == x[::-1].tolist()


def test_the_function_stays_as_it_is():
    before = dict(by_module.__globals__)
    simt.run(by_module)[1, N](np.zeros(N, np.float32), np.zeros(N, np.float32))
    assert by_module.__globals__ == before and by_module.__globals__["cuda"] is cuda


def test_functions_that_a_kernel_calls():
    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        x[i] = halved(undecorated_as_device(x[i])) + factorial(i)
        atomic.add(x, 0, np.float32(1))

    x = np.arange(4, dtype=np.float32)
    simt.run(kernel)[1, 4](x)
    assert x.tolist() == [0 + 1 + 4, 1 + 1, 2 + 2, 3 + 6]


@cuda.jit(device=True)
def falling(n):
    return rising(n - 1) + two_more(0) if n > 0 else float32(0)


@cuda.jit(device=True)
def rising(n):
    return falling(n - 1) + 10 if n > 0 else float32(1)


def test_functions_that_call_each_other():
    def kernel(x):
        x[0], x[1] = rising(3), falling(2)

    with pytest.raises(simt.CompileError, match=r"falling and rising call each other"):
        simt.run(kernel)[1, 1](np.zeros(2, np.float32))


def test_functions_in_modules_and_tuples():
    HELPERS.scaled, HELPERS.index = scaled, cuda.jit(device=True)(lambda: cuda.grid(1))
    functions = (halved, scaled)

    def kernel(x):
        x[HELPERS.index()] = functions[1](HELPERS.scaled(x[0], 3), 2) + functions[0](np.float32(1))

    x = np.ones(1, np.float32)
    simt.run(kernel)[1, 1](x)
    assert x[0] == 6.5 and HELPERS.scaled is scaled


fast, double = cuda.libdevice.fast_sinf, cuda.from_cuda_array_interface
MISSING = {
    "cuda.libdevice": lambda x: cuda.libdevice.fast_sinf(x[0]), "cuda.bfloat16": lambda x: cuda.bfloat16(1),
    "numba.cuda.libdevice.fast_sinf": lambda x: fast(x[0]),
    "cuda.from_cuda_array_interface": lambda x: double(x[0])}


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_says_so(what):
    kernel = MISSING[what]
    with pytest.raises(simt.Unsupported) as error:
        simt.run(kernel)[1, 1](np.zeros(1, np.float32))
    assert str(error.value).startswith(f"the executor has no {what}\n  in kernel <lambda> at {__file__}")
    assert (error.value.kernel, error.value.line) == ("<lambda>", kernel.__code__.co_firstlineno)
    assert isinstance(error.value, AttributeError)


@pytest.mark.parametrize("name", ["inspect_ptx", "nothing"])
def test_a_kernel_lacks_attributes(name):
    assert not hasattr(simt.run(by_module), name)


def test_what_needs_a_compiler_says_so():
    with pytest.raises(simt.Unsupported, match="no inspect_asm of kernels: it compiles nothing"):
        simt.run(by_module).inspect_asm()


@pytest.mark.parametrize("junk", [3, "kernel", None, len, int], ids=str)
def test_what_is_no_kernel(junk):
    with pytest.raises(TypeError, match=r"^run: kernel: expected a function or a kernel of numba.cuda, got "):
        simt.run(junk)


def test_signatures_of_numba_are_kept():
    dispatcher = cuda.jit(by_module)
    dispatcher.overloads[float32[:], float32[:]] = None
    dispatcher._can_compile = False
    with pytest.raises(TypeError, match=r"x: array.float32, 1d, A. expected, got float64"):
        simt.run(dispatcher)[1, N](np.zeros(N), np.zeros(N, np.float32))
    dispatcher.overloads.clear()


def test_device_functions_need_no_device():
    @simt.cuda.jit
    def twice(x):
        return 2 * x

    @simt.cuda.jit
    def kernel(x):
        x[0] = twice(x[0])

    x = np.ones(1)
    kernel[1, 1](x)
    assert x[0] == 2
    with pytest.raises(simt.LaunchError, match="kernel twice needs a launch configuration"):
        twice(1)


def test_an_object_that_no_module_shows_is_told_by_its_name():
    elsewhere = {"__module__": "numba.cuda.elsewhere"}
    float32x2, float32x5 = (type(name, (), elsewhere) for name in ("float32x2", "float32x5"))

    def kernel(x):
        x[0] = float32x2(1, 2).y

    def missing(x):
        x[0] = float32x5(1)

    x = np.zeros(1)
    simt.run(kernel)[1, 1](x)
    assert x[0] == 2
    with pytest.raises(simt.Unsupported, match=r"the executor has no numba\.cuda\.elsewhere\.float32x5"):
        simt.run(missing)[1, 1](x)
