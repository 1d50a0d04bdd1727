"""Kernels written for numba-cuda-mlir, whose `cuda` has modules where numba-cuda's has classes, on the executor.

The package is not needed: stand-ins have its shape, the modules its objects come from and their attributes.
"""

import importlib
import sys
import types

import numpy as np
import pytest

from refopt import simt

PACKAGE = "numba_cuda_mlir"
HEAD = f'''\
import {PACKAGE}
from {PACKAGE} import cuda, types
from {PACKAGE}.cuda import atomic, float32, grid, shared, syncthreads

@cuda.jit(device=True)
def doubled(x):
    return x * 2

@cuda.jit
def lacking(x, y):
    cuda.experimental.consteval(x)
'''
KERNEL = '''

@cuda.jit
def {name}(x, y):
    i = {cuda}grid(1)
    s = {cuda}shared.array(4, {types}float32)
    s[i] = doubled(x[i])
    {cuda}syncthreads()
    y[i] = s[3 - i]
    {cuda}atomic.add(y, 4, y[i])
'''
PREFIXES = {
    "by_module": ("cuda.", "types."), "by_name": ("", ""), "by_package": (f"{PACKAGE}.cuda.", f"{PACKAGE}.types.")}


def stand_ins():
    """Modules of the shape of numba-cuda-mlir's, by name."""

    def of(module, **members):
        return type("Other", (), {"__module__": f"{PACKAGE}.{module}", **members})

    class Dispatcher:
        __module__ = f"{PACKAGE}.descriptor"

        def __init__(self, function):
            self.py_func = function

    class atomic:
        __module__ = f"{PACKAGE}.numba_cuda.stubs"

    def array(shape, dtype):
        """Compiled, never called."""

    def jit(function=None, **_):
        return jit if function is None else Dispatcher(function)

    atomic.add = type("add", (), {"__module__": f"{PACKAGE}.numba_cuda.stubs"})
    array.__module__ = f"{PACKAGE}.numba_cuda.stubs"
    intrinsic = of("numba_cuda.extending")
    names = PACKAGE, f"{PACKAGE}.cuda", f"{PACKAGE}.cuda.shared", f"{PACKAGE}.types", f"{PACKAGE}.cuda.experimental"
    package, cuda, shared, its_types, experimental = modules = [types.ModuleType(name) for name in names]
    vars(its_types).update(float32=of("numba_cuda.types.scalars", __str__=lambda self: "float32")())
    vars(shared).update(array=array)
    vars(experimental).update(consteval=intrinsic())
    vars(cuda).update(jit=jit, shared=shared, atomic=atomic, float32=its_types.float32, experimental=experimental)
    vars(cuda).update(grid=intrinsic(), syncthreads=intrinsic(), __path__=[])
    vars(package).update(cuda=cuda, types=its_types, __path__=[])
    return dict(zip(names, modules, strict=True))


@pytest.fixture
def written(tmp_path, monkeypatch):
    """What imports a module with the kernels."""
    text = HEAD + "".join(KERNEL.format(name=name, cuda=a, types=b) for name, (a, b) in PREFIXES.items())
    (tmp_path / "kernels_for_mlir.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda: importlib.import_module("kernels_for_mlir")
    sys.modules.pop("kernels_for_mlir", None)


def reversed_and_summed(kernel):
    x, y = np.arange(4, dtype=np.float32), np.zeros(5, np.float32)
    with simt.observe(watch=True):
        kernel[1, 4](x, y)
    return y.tolist() == [6, 4, 2, 0, 12]


@pytest.mark.parametrize("name", PREFIXES)
def test_kernels_run(written, monkeypatch, name):
    for module, stand_in in stand_ins().items():
        monkeypatch.setitem(sys.modules, module, stand_in)
    kernel = getattr(written(), name)
    assert type(kernel).__name__ == "Dispatcher" and reversed_and_summed(simt.run(kernel))


def test_what_is_missing_says_so(written, monkeypatch):
    for module, stand_in in stand_ins().items():
        monkeypatch.setitem(sys.modules, module, stand_in)
    with pytest.raises(simt.Unsupported, match=r"no cuda.experimental\n  in kernel lacking at .*_for_mlir.py:11"):
        simt.run(written().lacking)[1, 1](np.zeros(1), np.zeros(1))


@pytest.mark.parametrize("name", PREFIXES)
def test_the_package_is_replaced(written, name):
    with simt.replace_numba():
        kernel = getattr(written(), name)
    assert reversed_and_summed(kernel)
    assert PACKAGE not in sys.modules
