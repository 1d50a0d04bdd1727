"""What a kernel's PTX is made from, and that a test of it is left out only where none of that has changed."""

import json
import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gpu import kept_ptx
from refopt.gpu import notes, target
from refopt.gpu.kernels import Kernel

SIGNATURE = ["float32[1]", "int64"]
GLOBAL = np.float32(2)
constants = ModuleType("constants")
constants.factor = constants.share = 2.0


class Typed:
    """A type of Numba's, as far as it is spelled."""

    def __init__(self, word):
        self.dtype, self.ndim = word.rstrip("]").split("[")

    def __str__(self):
        return self.dtype


def kernel(held=1.5, asm="mov.f32 $0, $1;", before=None, bounds=(64, 4), contract=False, body="one", same=True,
           table=(0, 1), kind=int, since=(8, 0), name="kernel",
           more=0):
    """A kernel of a device function, an intrinsic in a namespace, a function within it, and values of all kinds."""

    @target.intrinsic(asm, "=f,f", "f", "f", since=since, before=before)
    def moved(x):
        return x

    first, second = (target.device_function(lambda x, more=more: x + held + more) for _ in range(2))
    other = first if same else second
    within, array = SimpleNamespace(moved=moved, factor=table), np.array([held], np.float32)

    def one(x, n):
        add = lambda y: y + 1  # noqa: E731
        x[0] = within.moved(first(x[n])) * GLOBAL + other(x[0]) + constants.factor + array[0] + kind(add(n))

    def less(x, n):
        add = lambda y: y + 1  # noqa: E731
        x[0] = within.moved(first(x[n])) - GLOBAL + other(x[0]) + constants.factor + array[0] + kind(add(n))

    def inner(x, n):
        add = lambda y: y - 1  # noqa: E731
        x[0] = within.moved(first(x[n])) * GLOBAL + other(x[0]) + constants.factor + array[0] + kind(add(n))

    def named(x, n):
        add = lambda y: y + 1  # noqa: E731
        x[0] = within.moved(first(x[n])) * GLOBAL + other(x[0]) + constants.share + array[0] + kind(add(n))

    function = {"one": one, "less": less, "inner": inner, "named": named}[body]
    function.__name__ = name
    return Kernel(function, bounds, contract)


def made_from(kernel, words=SIGNATURE):
    return notes.made_from(kernel, tuple(Typed(word) if "[" in word else word for word in words))


def test_the_same_kernel_is_made_from_the_same():
    """Also where a device function was made twice, as one is that a cache has forgotten."""
    assert made_from(kernel()) == made_from(kernel()) == made_from(kernel(same=False))


CHANGES = [{"held": 1.25}, {"held": True}, {"asm": "neg.f32 $0, $1;"}, {"before": "mov.f32 $0, $1;"},
           {"bounds": (64, 5)}, {"bounds": None}, {"contract": True}, {"body": "less"}, {"table": (1, 0)},
           {"since": (8, 6)}, {"name": "another"}, {"body": "named"}, {"more": 1}]


@pytest.mark.parametrize("other", CHANGES, ids=str)
def test_whatever_changes_makes_another(other):
    assert made_from(kernel(**other)) != made_from(kernel())


def test_types_and_globals_make_another(monkeypatch):
    before = made_from(kernel())
    assert made_from(kernel(), ["float32[2]", "int64"]) != before != made_from(kernel(), ["float64[1]", "int64"])
    monkeypatch.setattr(sys.modules[__name__], "GLOBAL", np.float64(2))
    assert made_from(kernel()) != before


def test_it_is_the_same_in_every_process():
    program = "from gpu.test_kept_ptx import kernel, made_from; print(made_from(kernel()))"
    path = os.pathsep.join(["tests", ".", *sys.path])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                          env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": path})
    assert done.stdout == made_from(kernel()) + "\n"


def test_notes_of_all_processes_are_read_each_once(tmp_path):
    for process, lines in enumerate(('{"name": "b"}\n{"name": "a"}\n', '{"name": "a"}\n{"name": "c"}\n')):
        (tmp_path / f"{process}.jsonl").write_text(lines)
    assert notes.read(tmp_path) == [{"name": name} for name in "abc"]


@pytest.fixture
def kept(tmp_path, monkeypatch, request):
    """What is known of a test of one kernel: digests for this compiler and these tests."""
    monkeypatch.setattr(kept_ptx, "FILE", tmp_path / "ptx.json")
    monkeypatch.setattr(kept_ptx, "WRITES", False)
    types = tuple(Typed(word) if "[" in word else word for word in SIGNATURE)
    monkeypatch.setattr(Kernel, "ptx", lambda self, signature: "ret;")

    def ask(what=None, head=None, always=False, **changes):
        digests = {"k": [made_from(kernel()), notes.digest("ret;")]} if what is None else what
        test = f"{request.node.path.name}::{request.node.name}"
        kept_ptx.FILE.write_text(json.dumps(kept_ptx.head() | (head or {}) | {"kernels": {test: digests}}))
        kept_ptx.known.cache_clear()
        return kept_ptx.tested(request, {"k": (kernel(**changes), types)}, always)

    yield ask
    kept_ptx.known.cache_clear()


def test_a_kernel_that_has_not_changed_is_left_out(kept):
    assert kept() and not kept(held=2.5) and not kept(what={})
    assert not kept(what={"k": [made_from(kernel()), ""], "l": ["", ""]})
    for head in ({"compiler": {}}, {"bytecode": ""}, {"tests": {}}):
        assert not kept(head=head)


def test_one_that_is_always_compiled_has_the_ptx_that_it_had(kept):
    assert not kept(always=True)
    with pytest.raises(AssertionError, match="k: other PTX of the same code"):
        kept(what={"k": [made_from(kernel()), "another"]}, always=True)


def test_digests_number_shared_arrays_as_they_are_used():
    array = ".visible .shared .b8 _cudapy_smem_{}"
    text = f"{array}[4];\n{array}[8];\n.entry k() {{{{ ld _cudapy_smem_{{}}; }}}}"
    one = notes.digest(text.format(1, 2, 1))
    assert one == notes.digest(text.format(5, 6, 5)) != notes.digest(text.format(1, 2, 2))
    first, second, entry = text.format(7, 9, 7).splitlines()
    assert notes.digest("\n".join([second, first, entry])) == one
