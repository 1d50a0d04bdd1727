"""Kernels on disk: which are the same, what is found there, and that a process that finds its own needs no compiler."""

import enum
import hashlib
import json
import os
import subprocess
import sys
import threading
import warnings
from typing import NamedTuple

import needs
import numpy as np
import pytest

from benchmarks.capabilities import of_routine
from gpu.test_kept_ptx import CHANGES, constants, kernel
from refopt.catalog import ROUTINES
from refopt.gpu import cache, compiling, cuda, kernels
from refopt.gpu.compiler import Linked
from refopt.gpu.machine import Properties

HOPPER = Properties("a GPU", (9, 0), 132, 50 << 20)
KEY, CODE = "0123", Linked("entry", b"\x7fELF\n\n" + bytes(range(256)))
LIBRARIES = "numba", "numba_cuda", "llvmlite"


@cuda.jit(device=True)
def twice(x):
    return x + x


@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = twice(x[i])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where kernels are kept, and nothing has been said yet."""
    monkeypatch.setenv("REFOPT_CACHE", str(tmp_path / "kernels"))
    monkeypatch.setattr(cache, "_told", [])
    cache.origins.clear()
    yield tmp_path / "kernels"
    cache.origins.clear()


WARM = """
import hashlib, json, sys
from gpu.test_cache import HOPPER, LIBRARIES, double
from refopt.gpu import cache, driver, memory, runtime, staging, streams, timing
from refopt.cli.verify import command
code = double.linked(("float32[1]",), HOPPER)
print(json.dumps([code.entry, hashlib.sha256(code.cubin).hexdigest(), cache.origins,
                  [name for name in LIBRARIES if name in sys.modules]]))
"""


def test_a_process_that_finds_its_kernels_imports_no_compiler(folder):
    """The first compiles and links, without a GPU, too; the next has the same bytes, and has not imported Numba."""
    needs.compiler()
    double._linked.clear()
    code = double.linked(("float32[1]",), HOPPER)
    assert cache.origins == {"compiled": 1} and len(os.listdir(folder)) == 1
    path = os.pathsep.join(["tests", ".", *sys.path])
    done = subprocess.run([sys.executable, "-c", WARM], capture_output=True, text=True, timeout=200,
                          env=os.environ | {"PYTHONPATH": path})
    assert not done.returncode and not done.stderr, done.stderr
    assert json.loads(done.stdout) == [code.entry, hashlib.sha256(code.cubin).hexdigest(), {"kept": 1}, []]
    head, _, cubin = next(folder.iterdir()).read_bytes().partition(b"\n")
    assert json.loads(head)["kernel"] == "double" and cubin.startswith(b"\x7fELF")


@pytest.mark.gpu
def test_a_first_step_on_a_gpu_imports_no_compiler_once_its_kernels_are_kept(folder):
    """Of AdamW on ResNet-50; the process before it compiles them."""
    found = []
    for _ in range(2):
        command = [sys.executable, "-m", "benchmarks.fresh", "resnet50"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
        found.append(json.loads(done.stdout)["imported"])
    assert found == [[*LIBRARIES], []]


def entry(folder, key=KEY):
    return folder / f"{key}.kernel"


def moved(folder):
    entry(folder).rename(entry(folder, "4567"))


def rewritten(change):
    return lambda folder: entry(folder).write_bytes(change(entry(folder).read_bytes()))


def no_file(folder):
    entry(folder).unlink()
    entry(folder).mkdir()


SPOILT = {
    "cut off": rewritten(lambda old: old[:-1]), "another byte": rewritten(lambda old: old[:-1] + b"x"),
    "half a head": rewritten(lambda old: old[:20]), "empty": rewritten(lambda old: b""),
    "no head": rewritten(lambda old: old.partition(b"\n")[2]), "a number": rewritten(lambda old: b"1\n"),
    "a list": rewritten(lambda old: b"[]\n"), "null": rewritten(lambda old: b"null\n"),
    "no entry": rewritten(lambda old: old.replace(b'"entry"', b'"other"')), "no file": no_file,
    "of another kernel": moved, "pickled": rewritten(lambda old: b"\x80\x04N.")}


@pytest.mark.parametrize("how", SPOILT)
def test_what_is_no_entry_is_passed_over(folder, how):
    """With a word, said once; what is compiled then takes its place, where it can."""
    cache.write(KEY, "k", CODE)
    assert cache.read(KEY) == CODE and cache.read("89") is None and not cache.is_empty()
    assert not folder.stat().st_mode & 0o077  # nobody else puts kernels there
    SPOILT[how](folder)
    key = "4567" if how == "of another kernel" else KEY
    with pytest.warns(UserWarning, match=f"{key}.kernel is not used .*REFOPT_CACHE names another folder, or 0") as said:
        assert cache.read(key) is None and cache.read(key) is None
    assert len(said) == 1
    cache.write(key, "k", CODE)
    assert (cache.read(key) == CODE) == (how != "no file")
    assert [name for name in os.listdir(folder) if not name.endswith(".kernel")] == []


def test_a_folder_that_cannot_be_written(folder):
    folder.write_text("a file")
    with pytest.warns(UserWarning, match="kernels are not cached") as said:
        cache.write(KEY, "k", CODE)
        cache.write(KEY, "k", CODE)
    assert len(said) == 1 and folder.read_text() == "a file" and cache.is_empty()


def test_no_kernels_are_kept(folder, monkeypatch):
    cache.write(KEY, "k", CODE)
    monkeypatch.setenv("REFOPT_CACHE", "0")
    cache.write("4567", "k", CODE)
    assert cache.read(KEY) is None and cache.folder() is None and cache.is_empty() and len(os.listdir(folder)) == 1
    monkeypatch.setenv("REFOPT_CACHE", str(folder))
    cache.write("", "k", CODE)
    assert cache.read("") is None and len(os.listdir(folder)) == 1


@pytest.mark.parametrize(("given", "expected"), [
    ({"REFOPT_CACHE": "/a/b"}, "/a/b"), ({"REFOPT_CACHE": "b"}, os.path.join(os.getcwd(), "b")),
    ({"REFOPT_CACHE": "", "XDG_CACHE_HOME": "/c"}, "/c/refopt"),
    ({"XDG_CACHE_HOME": "/c"}, "/c/refopt"), ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/refopt"),
    ({}, "/home/me/.cache/refopt"), ({"HOME": "nowhere"}, "None")])
def test_where_kernels_are_kept(monkeypatch, given, expected):
    """XDG's folder, which counts if it is absolute; what the variable names comes before it."""
    for name in ("REFOPT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/home/me"} | given).items():
        monkeypatch.setenv(name, value)
    assert str(cache.folder()) == expected


def test_what_was_used_longest_ago_goes(folder, monkeypatch):
    """Unfinished files of others, too; whatever else is in the folder stays."""
    folder.mkdir()
    (folder / "notes").write_bytes(bytes(10_000))
    (folder / "0.part").write_bytes(bytes(10_000))
    assert cache.is_empty()
    os.utime(folder / "0.part", (50, 50))
    for k in range(4):
        cache.write(f"{k}", "k", CODE)
        os.utime(entry(folder, f"{k}"), (100 + k, 100 + k))
    assert cache.read("0") == CODE  # which has been used now
    monkeypatch.setattr(cache, "MOST", 3 * entry(folder, "0").stat().st_size)
    cache.write("4", "k", CODE)
    assert sorted(os.listdir(folder)) == ["0.kernel", "3.kernel", "4.kernel", "notes"]


def test_who_reads_while_others_write_has_a_whole_entry(folder):
    """Of one or the other; a key is written by several processes that compile the same kernel."""
    codes = [Linked("one", bytes(200_000)), Linked("two", b"1" * 100_000)]
    cache.write(KEY, "k", codes[0])
    stop = threading.Event()

    def write(code):
        while not stop.is_set():
            cache.write(KEY, "k", code)

    threads = [threading.Thread(target=write, args=(code,)) for code in codes * 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for thread in threads:
            thread.start()
        found = {cache.read(KEY) for _ in range(100)}
        stop.set()
        for thread in threads:
            thread.join()
    assert found <= set(codes) and os.listdir(folder) == [f"{KEY}.kernel"]


def key(signature=("float32[1]", "int64"), capability=(9, 0), **changes):
    return cache.key(kernel(**changes), signature, capability)


@pytest.mark.parametrize("other", [*CHANGES, {"body": "inner"}, {"kind": float}, {"signature": ("float64[1]", "int64")},
                                   {"capability": (8, 0)}], ids=str)
def test_whatever_changes_makes_another(other):
    assert len({key(), key(), key(**other)}) == 2 and key()


def test_the_compiler_and_what_it_is_told_make_another(monkeypatch):
    import importlib.metadata

    before = key()
    monkeypatch.setattr(constants, "factor", 3.0)
    keys = {before, key()}
    monkeypatch.undo()
    packages = "numba", "numba-cuda", "llvmlite", "cuda-core", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-runtime"
    files = "by_numba.py", "target.py"

    def but(function, changed, other):
        return lambda x: other if getattr(x, "name", x) == changed else function(x)

    changes = [
        lambda patch: patch.setenv("NUMBA_OPT", "2"), lambda patch: patch.setenv("CUDA_HOME", "/opt/cuda"),
        lambda patch: patch.setenv("CUDA_PATH", "/opt/another"), lambda patch: patch.setattr(cache, "__version__", "9"),
        lambda patch: patch.setattr(cache, "FORMAT", 9), lambda patch: patch.setattr(sys, "version_info", (3, 99, 0)),
        *(lambda patch, name=name: patch.setattr(
            importlib.metadata, "version", but(importlib.metadata.version, name, "9")) for name in packages),
        *(lambda patch, name=name: patch.setattr(
            cache.Path, "read_bytes", but(cache.Path.read_bytes, name, b"")) for name in files)]
    monkeypatch.delenv("CUDA_HOME", raising=False)
    for change in changes:
        with monkeypatch.context() as patch:
            change(patch)
            cache._made_by.cache_clear()
            keys.add(key())
    cache._made_by.cache_clear()
    assert len(keys) == 2 + len(changes) and key() == before


class Colour(enum.Enum):
    a = 1


Pair, Turned = NamedTuple("Pair", [("a", int), ("b", int)]), NamedTuple("Turned", [("b", int), ("a", int)])
KINDS = [np.dtype("i4"), np.dtype([("a", "i4")]), np.dtype([("b", "i4")]), np.float32, np.float64, int, cuda.float32,
         cuda.float64, Pair(1, 2), Turned(1, 2), np.zeros(1, [("a", "i4")]), np.zeros(1, [("b", "i4")]), 1, 1.0, True]


def test_values_of_each_kind_are_told_apart():
    def holding(held):
        def function(x):
            x[0] = held.a

        return cache.key(kernels.Kernel(function), ("float32[1]",), (9, 0))

    keys = [holding(held) for held in KINDS]
    assert all(keys) and len({*keys}) == len(KINDS) and keys == [holding(held) for held in KINDS]


@pytest.mark.parametrize("held", [{"a": 1}, object(), Colour, Colour.a, pytest],
                         ids=["a dict", "an object", "a class", "a member", "a module"])
def test_what_holds_what_is_not_known_is_not_kept(held):
    """A module is known by what the kernel names in it."""

    def function(x):
        x[0] = held.a

    assert bool(cache.key(kernels.Kernel(function), ("float32[1]",), (9, 0))) == (held is pytest)


@pytest.mark.parametrize("routine", ROUTINES)
def test_kernels_of_routines_are_kept(routine):
    for case in of_routine(ROUTINES[routine], "fp32", ROUTINES[routine].merged_form):
        assert cache.key(case.kernel, case.signature, (9, 0)), case.label


class Compiler:
    """One that makes a kernel of anything."""

    cuda, oldest = None, staticmethod(lambda: (7, 5))

    def linked(self, function, signature, wanted):
        return CODE


def test_who_watches_is_told_once_that_it_compiles(folder, monkeypatch, capsys):
    for module in (compiling, kernels):
        monkeypatch.setattr(module, "no_compiler", lambda: "")
    monkeypatch.setattr(compiling, "compiler", Compiler)
    monkeypatch.setattr(kernels, "oldest", Compiler.oldest)
    monkeypatch.setattr(kernels.Kernel, "form", lambda self: self.function)
    kernel(held=7.5).linked(("float32[1]", "int64"), HOPPER)
    assert capsys.readouterr() == ("", "") and cache.origins == {"compiled": 1}
    cache.origins.clear()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for held in (1.5, 2.5, 7.5):
        one = kernel(held=held)
        assert one.linked(("float32[1]", "int64"), HOPPER) is one.linked(("float32[1]", "int64"), HOPPER)
    assert capsys.readouterr() == ("", "\r\033[Krefopt: compiling kernels, which takes some seconds\n")
    assert cache.origins == {"compiled": 2, "kept": 1}
