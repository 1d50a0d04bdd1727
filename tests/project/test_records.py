"""Records of measurements: what makes one stale, and what does not."""

import json
import sys

import numpy as np
import pytest

pytest.importorskip("numba.cuda", exc_type=ImportError)

from benchmarks import record, records
from refopt import gpu
from refopt.catalog import ROUTINES
from refopt.gpu import elementwise, kernels, notes
from refopt.gpu.compiler import Linked
from refopt.oracle.exact import build
from refopt.oracle.exact.build import step_of
from refopt.oracle.exact.lars import make
from refopt.oracle.exact.placed import PlacedCase

from .stand_ins import noting

NAME, HERE = "merged_adam", "refopt.gpu.elementwise"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return noting(tmp_path / "kernels", monkeypatch)


CASES = [*((routine, form) for routine in ROUTINES.values() for form in routine.forms)]


@pytest.mark.parametrize(("routine", "form"), CASES, ids=lambda x: getattr(x, "name", x))
def test_every_kernel_can_be_made_again_from_its_note(machine, routine, form):
    """The factory gives the very kernel that was noted."""
    for dtypes in (("float32",) * 3, ("float16", "float16", "float32", "float32")):
        case = build.make(routine, [5], dtypes) if routine.name != "lars_momentum" else make([5], dtypes)
        PlacedCase(machine, case).plan(form, **step_of(case.routine))
        found = notes.read(machine.folder)
        assert found and all(note["made_by"] for note in found)
        for note in found:
            kernel, signature = notes.rebuilt(json.loads(json.dumps(note)))
            assert notes.note(kernel, signature) == note
            if kernel.origin:
                make_it, args = kernel.origin
                assert getattr(sys.modules[make_it.__module__], make_it.__name__)(*args) is kernel


def test_kernels_around_a_step_can_be_made_again(machine):
    arrays = [machine.to_device(np.ones(5, dtype)) for dtype in (np.float32, np.float16, np.float32)]
    gpu.gradient_check(arrays)
    gpu.cast_plan(arrays[:1], arrays[1:2], scale=2.0)
    gpu.cast_plan(arrays[:1], arrays[2:])
    gpu.loss_scaling(*(machine.to_device(np.ones(1, dtype)) for dtype in (np.float32, np.float32, np.int32, np.int32)))
    gpu.lazy_plan("sgd", [arrays[0].reshape(5, 1)], [machine.to_device(np.zeros(1, int))],
                  [machine.to_device(np.ones((1, 1), np.float32))])
    names = {note["name"] for note in notes.read(machine.folder)}
    assert names >= {"check_gradients", "finish_check", "merged_cast", "merged_move", "update_loss_scaling"}
    assert names >= {"mark_rows", "merged_lazy_sgd"}
    for note in notes.read(machine.folder):
        assert notes.note(*notes.rebuilt(note)) == note


def test_a_kernel_is_noted_when_it_is_compiled_for_a_gpu(tmp_path, monkeypatch):
    """And by nothing else: not without the variable, not a second time."""
    code, machine, one = Linked("entry", b"cubin"), gpu.device("executor").properties, kernels.kernel()(lambda x: None)
    monkeypatch.setattr(kernels.Kernel, "_kept_or_compiled", lambda *_: code)
    monkeypatch.delenv("REFOPT_KERNELS", raising=False)
    one.linked(("float32[1]",), machine)
    assert notes.read(tmp_path) == []
    monkeypatch.setenv("REFOPT_KERNELS", str(tmp_path))
    for _ in range(2):
        assert one.linked(("float32[2]", "int64"), machine) == code
    (note,) = notes.read(tmp_path)
    assert note["signature"] == ["float32[2]", "int64"] and note["made_by"] is None


def test_a_kernel_of_a_page_has_no_module():
    assert not records.rebuildable({"module": None, "name": "x"})
    assert not records.needs_ptx({"kernels": [{"module": None, "name": "x"}]}, always=True)


# Digests of PTX.


def note_of(name):
    """The note of an elementwise routine's kernel in fp32."""
    routine = ROUTINES[name]
    dtypes = [None if slot.optional else "float32" for slot in routine.slots]
    choices = sorted([choice, values[0]] for choice, values in routine.choices.items())
    return {"module": HERE, "name": f"merged_{name}", "made_by": "merged_update",
            "args": [{"routine": name}, dtypes, choices, "float32"],
            "signature": ["int64[2]", "int64[2]", "float32[2]", "float32[3]", *["int64"] * 4]}


@pytest.mark.parametrize(("types", "why"), [([], "TypeError: Signature mismatch"), (["float32"], "TypingError: ")])
def test_a_kernel_that_takes_other_arguments_is_not_made(types, why):
    """Its record must be made again."""
    note = note_of("adam")
    made = records.ptx_digest(note | {"signature": [*types, *note["signature"][1:]]})
    assert made.startswith(f"none: it no longer compiles for these arguments: {why}")


PTX = """//
// Cuda compilation tools, release 13.4
.version 9.4
.target sm_90
.common .global .align 8 .u64 _ZN08NumbaEnv6refopt3gpuB2v1;
.visible .entry _ZN6refopt3gpu6mergedB2v1(
.file 1 "/home/x/elementwise.py"
.loc 1 2 3
\tadd.rn.f32 %f1, %f2, %f3;
"""


@pytest.mark.parametrize(("was", "becomes", "same"), [
    ("13.4\n", "12.0\n", True), (".version 9.4", ".version 8.0", True),
    ("_ZN6refopt3gpu6mergedB2v1", "_ZN6refopt3gpu6mergedB4v17", True),
    ("NumbaEnv6refopt3gpuB2v1;\n", "NumbaEnv6refopt3gpuB2v1;\n.common .global .u64 _ZN08NumbaEnv4gpuB3v2;\n", True),
    ("/home/x", "/tmp", True), (".loc 1 2 3", ".loc 1 20 3", True), ("\tadd", "    add", True),
    ("add.rn", "sub.rn", False), ("%f3;", "%f2;", False), ("sm_90", "sm_80", False)])
def test_what_the_digest_of_ptx_is_of(was, becomes, same):
    assert was in PTX and (notes.digest(PTX.replace(was, becomes)) == notes.digest(PTX)) == same


# Digests of sources.

SOURCE = '''"""A benchmark."""
import math
REPEATS = 3  # of them
def measure(x):
    """What it measures."""
    return math.sqrt(x) * REPEATS
class Row:
    """A row."""
'''


@pytest.mark.parametrize(("was", "becomes", "same"),
                         [('"""A benchmark."""', '"""Another text."""', True),
                          ('    """What it measures."""\n', "", True), ("  # of them", "", True),
                          ("* REPEATS\n", "* REPEATS\n\n\n# The end.\n", True), ("REPEATS = 3", "REPEATS = 4", False),
                          ("math.sqrt", "math.exp", False), ('"""A row."""', "x = 1", False)])
def test_what_the_digest_of_a_source_is_of(was, becomes, same):
    assert was in SOURCE
    assert (record.source_digest(SOURCE.replace(was, becomes)) == record.source_digest(SOURCE)) == same


def test_sources_are_those_a_benchmark_imports():
    names = {path.name for path in record.closure("benchmarks.lars")}
    assert names >= {"lars.py", "measure.py", "tensors.py", "peers_lars.py", "plans.py"}
    assert not names & {"record.py", "optimizers.py", "readme.py", "run.py"}
    needed = {"lamb.py", "radam.py", "vectors.py", "tiles.py", "reduce.py", "target.py"}
    assert {path.name for path in record.closure("refopt.gpu.norms")} >= needed


# Staleness.


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of one benchmark, one record of it on one kernel, and what is checked of it."""
    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.setattr(records, "ROOT", tmp_path)
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    source = tmp_path / "bench" / "speed.py"
    source.parent.mkdir()
    source.write_text(SOURCE)
    kernels = tmp_path / "refopt" / "gpu" / "elementwise.py"
    kernels.parent.mkdir(parents=True)
    kernels.write_text("x = 1\n")
    made = {"ptx": "one"}
    monkeypatch.setattr(records, "ptx_digests", lambda wanted: {records.key_of(n): made["ptx"] for n in wanted})
    note = {"module": HERE, "name": NAME, "made_by": "merged_update", "args": [], "signature": ["int64"]}
    record._code_digest.cache_clear()  # of the sources of the project itself
    about = {"sources": record.digests(record.closure("bench.speed")), "kernels": [note],
             "code": record.code_digest([note])}
    out = tmp_path / "results" / "speed-h200.json"
    record.write(about, out)

    class Project:
        bench, gpu, ptx, path = source, kernels, made, out

        def measures(self, text):
            source.write_text(text)

        def compiles(self, text, ptx):
            kernels.write_text(text)
            made["ptx"] = ptx

        def check(self, always=False):
            record._code_digest.cache_clear()
            return records.checked([out], always)[out.name]

    yield Project()
    record._code_digest.cache_clear()


def test_kernels_of_no_module_are_not_refopts():
    """Such as one that a page defines, which a test executes."""
    notes = [{"module": module} for module in (HERE, None, "__main__")]
    assert record.code_digest(notes) == record.code_digest(notes[:1])


def test_a_record_is_sealed_once_and_holds(project):
    assert project.check() == []
    (note,) = json.loads(project.path.read_text())["kernels"]
    assert note["ptx"] == "one" and project.check(always=True) == []


NOTED = "kernel merged_adam (int64) of refopt.gpu.elementwise"
CHANGES = {"a comment": (lambda p: p.measures(SOURCE.replace("  # of them", "")), []),
           "a docstring": (lambda p: p.measures(SOURCE.replace('"""A row."""', '"""Row."""')), []),
           "a constant": (lambda p: p.measures(SOURCE.replace("REPEATS = 3", "REPEATS = 4")),
                          ["bench/speed.py has changed"]),
           "no benchmark": (lambda p: p.bench.unlink(), ["bench/speed.py is gone"]),
           "a comment of a kernel": (lambda p: p.compiles("x = 1  # one\n", "not asked for"), []),
           "the same PTX": (lambda p: p.compiles("x = 2\n", "one"), []),
           "other PTX": (lambda p: p.compiles("x = 2\n", "two"), [f"{NOTED} has other PTX"]),
           "no PTX": (lambda p: p.compiles("x = 2\n", "none: it is gone"), [f"{NOTED}: none: it is gone"])}


@pytest.mark.parametrize("change", CHANGES)
def test_what_makes_a_record_stale(project, change):
    project.check()
    CHANGES[change][0](project)
    assert project.check() == CHANGES[change][1]


def test_a_record_is_not_sealed_after_its_kernels_have_changed(project):
    project.gpu.write_text("x = 2\n")
    (why,) = project.check()
    assert "had not been written into it" in why and "ptx" not in json.loads(project.path.read_text())["kernels"][0]


def test_a_record_of_another_compiler(project, monkeypatch):
    project.check()
    monkeypatch.setattr(records, "compiler", lambda: {"numba-cuda": "9"})
    assert project.check() == []  # the sources are the same
    project.gpu.write_text("x = 2\n")
    (why,) = project.check()
    assert why.startswith("made for another compiler: numba 0") and why.endswith("here numba-cuda 9")


def test_a_record_made_of_another(project):
    other = project.path.with_name("source.json")
    record.write({"rows": [1], "kernels": []}, other)
    about = json.loads(project.path.read_text()) | {"reports": {"source.json": record.data_digest(other)}}
    record.write(about, project.path)
    assert project.check() == []
    record.write({"rows": [1], "kernels": [], "compiler": {}}, other)
    assert project.check() == []
    record.write({"rows": [2], "kernels": []}, other)
    assert project.check() == ["it was made of another source.json"]


@pytest.mark.parametrize("name", ["old.json", "old.txt"])
def test_a_record_without_digests_is_stale(tmp_path, name):
    path = tmp_path / name
    path.write_text("{}")
    expected = ["it has no digest of the benchmark's source", "it has no digest of the kernels that it ran"]
    assert records.checked([path]) == {name: expected}


@pytest.mark.slow  # a compiler, twice
def test_a_record_that_begins_here(tmp_path, monkeypatch):
    """Head, digests and kernels are in what is saved, and it holds."""
    monkeypatch.setenv("REFOPT_KERNELS", str(tmp_path / "kernels"))
    about = record.begin("benchmarks.simulator", "a command") | {"rows": [1.0, float("nan")]}
    made, signature = notes.rebuilt(note_of("adam"))
    notes.append(made, signature, tmp_path / "kernels")
    record.save(about, tmp_path / "x.json")
    found = json.loads((tmp_path / "x.json").read_text())
    assert found["command"] == "a command" and found["versions"]["numpy"] == np.__version__ and found["date"]
    assert found["rows"] == [1, "nan"] and found["kernels"] == [note_of("adam")] and found["code"]
    assert not list(tmp_path.glob("*.part"))
    here = lambda wanted: {records.key_of(n): records.ptx_digest(n) for n in wanted}  # noqa: E731
    monkeypatch.setattr(records, "ptx_digests", here)
    assert records.checked([tmp_path / "x.json"]) == {"x.json": []}
    monkeypatch.setattr(elementwise, "resident", lambda real, states: 1)  # a bound that stands in the PTX
    elementwise.merged_update.cache_clear()
    (why,) = records.checked([tmp_path / "x.json"], always=True)["x.json"]
    elementwise.merged_update.cache_clear()
    assert "kernel merged_adam" in why and why.endswith("has other PTX")


@pytest.mark.parametrize("noted", [[], [{"name": "a", "args": [1, [None]]}, {"name": "b", "args": None}]])
def test_what_is_written_can_be_read(tmp_path, noted):
    """A kernel takes a line, since there may be thousands."""
    about = {"kernels": noted, "rows": [{"a": {"b": [1]}}], "code": "x"}
    record.write(about, tmp_path / "x.json")
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text) == about and sum('"name"' in line for line in text.splitlines()) == len(noted)


@pytest.mark.parametrize(("here", "got"), [(None, "none, which the extra cuda13"), ("0.1", "0.1")])
def test_another_compiler_is_refused(tmp_path, monkeypatch, here, got):
    """Its PTX would tell of changes that are none; a machine may have no compiler at all."""
    note = {"name": NAME, "module": HERE, "signature": [], "ptx": "x"}
    (tmp_path / "x.json").write_text(json.dumps({"kernels": [note], "code": "other"}))
    monkeypatch.setattr(records, "version_of", lambda name: here)
    with pytest.raises(SystemExit, match=f"records: expected numba-cuda 0.30.4, whose PTX is compared, got {got}"):
        records.checked([tmp_path / "x.json"])
