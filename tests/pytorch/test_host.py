"""What steps ask of many tensors at once, in Python and in C++: one interface, the same answers, the same bits."""

import os
import runpy
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

from pytorch.subjects import LR, all_bits, torch
from pytorch.test_between_steps import CHANGES, SHAPES, run
from pytorch.test_replaced import LOOKS, REPLACED, outcome
from pytorch.trials import one, steps

host = pytest.importorskip("refopt.torch.host")


@pytest.fixture(scope="module")
def extension():
    """The extension, compiled if it has to be."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if not host.accelerate():
            pytest.skip(str(said[0].message) if said else f"{host.VARIABLE}=0")
    yield host.form()
    host.accelerate(False)


@pytest.fixture(params=["Python", "Python, one by one", "C++"])
def form(request, monkeypatch):
    """A form, which is in force during a test."""
    monkeypatch.setattr(host, "_is_on", bool(request.param == "C++" and request.getfixturevalue("extension")))
    if request.param == "Python, one by one":
        monkeypatch.setattr(host, "TensorGuards", None)
    elif host.TensorGuards is None and request.param == "Python":
        pytest.skip("this PyTorch has no such guards")
    return host.form()


def others_than(square, line):
    """Lists that differ from two tensors in shape, strides, dtype or sign bit."""
    return [[square.t(), line], [square, line.double()], [square[:2], line], [square, torch._neg_view(line)],
            [square, torch.ones(8)[::2]], [square, torch.ones(1).expand(4)], [square, torch.ones(5)]]


def test_steady(form):
    """Address, shape, strides, dtype and sign bit are looked at; neither numbers nor autograd's flags."""
    square, line = torch.ones(3, 3), torch.ones(4)
    steady = form.Steady([square, line])
    assert steady([square, line])
    square.fill_(float("nan"))
    line.requires_grad_()
    assert steady([square, line]) and steady([square, line.detach()])
    assert not any(steady(tensors) for tensors in others_than(square, line.detach()))
    assert not steady([square, line.detach().clone()]) and not steady([square]) and not steady([square, line, line])
    assert form.Steady([])([])


def test_a_reader_of_gradients(form):
    """It tells where gradients are, and keeps nothing of what it has not been told to expect."""
    params = [torch.nn.Parameter(torch.ones(shape)) for shape in ((3, 3), (4,), (0,))]
    reader = form.Reader(params)
    assert reader.compare() in (None, host.STAY) and not reader.present.any()
    for p in params:
        p.grad = torch.ones_like(p)
    assert reader.compare() is None
    reader.note([p.grad for p in params], [])
    first = [p.grad.data_ptr() for p in params]
    assert reader.places.tolist() == first and reader.present.all() and reader.compare() == host.STAY
    kept, params[0].grad = params[0].grad, torch.zeros(3, 3)
    assert reader.compare() == host.MOVED and reader.compare() == host.STAY
    assert reader.places.tolist() == [params[0].grad.data_ptr(), *first[1:]]
    params[0].grad = kept.clone().t()
    assert reader.compare() is None and reader.places[0] != params[0].grad.data_ptr()
    params[0].grad = kept
    assert reader.compare() == host.MOVED
    plain, params[1].grad = params[1].grad, torch._efficientzerotensor(4)
    assert reader.compare() is None
    params[1].grad = plain
    assert reader.compare() == host.STAY
    params[1].grad = None
    if reader.compare() is None:  # a form may want each set of gradients to be noted
        reader.note([p.grad for p in params], [])
    assert reader.present.tolist() == [True, False, True] and reader.places.tolist() == [first[0], 0, 0]
    params[1].grad = torch.ones(4).to_sparse()
    assert reader.compare() is None and not reader.present[1]
    params[1].grad = torch.ones(4)
    assert reader.compare() == host.OTHERS and reader.compare() == host.STAY and reader.present.all()
    grads = [p.grad for p in params]
    reader.note(grads, [1])
    assert reader.compare() is None and reader.compare([grads[0], None, grads[2]]) is not None


def test_what_a_reader_tells_apart(form):
    square, line = (torch.nn.Parameter(torch.ones(shape)) for shape in ((3, 3), (4,)))
    reader = form.Reader([square, line])
    reader.note([torch.ones(3, 3), torch.ones(4)], [])
    assert reader.compare([torch.zeros(3, 3), torch.full((4,), float("nan"))]) == host.MOVED
    assert all(reader.compare(grads) is None for grads in others_than(torch.ones(3, 3), torch.ones(4)))


def test_versions(form):
    tensors = [torch.ones(2), torch.ones(3)]
    before = form.versions(tensors)
    form.increment_version(tensors[:1])
    tensors[1].fill_(2)
    assert (form.versions(tensors) - before).tolist() == [1, 1] and form.versions([]).shape == (0,)


def test_same(form):
    a, b = torch.ones(1), torch.ones(1)
    assert form.same([a, b], [a, b]) and form.same([], [])
    assert not form.same([a, b], [b, a]) and not form.same([a], [a, a]) and not form.same([0.5], [float("0.5")])


@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__ for change in CHANGES])
def test_the_same_bits(extension, change, monkeypatch):
    """Whatever changes between steps."""
    found = []
    for is_on in False, True:
        monkeypatch.setattr(host, "_is_on", is_on)
        found.append(run("AdamW", change, looks=False))
    assert found[0] == found[1]


def test_masters_follow_writes(form):
    """The versions that a step leaves are those that the next one expects: a write of somebody else moves them."""
    params, optimizer = one("AdamW", SHAPES, dtype=torch.bfloat16, masters="fp32")
    for step in range(3):
        steps(optimizer, params, [step])
        masters = [optimizer.state[p]["master_param"] for p in params]
        assert any(not torch.equal(m, p.float()) for m, p in zip(masters, params, strict=True))
        with torch.no_grad():
            params[0].fill_(step)
        optimizer.param_groups[0]["lr"] = 0.0
        optimizer.step()
        assert torch.equal(params[0], torch.full_like(params[0], step))
        optimizer.param_groups[0]["lr"] = LR


@pytest.mark.parametrize("replaced", REPLACED)
def test_a_parameter_that_is_replaced(extension, replaced, monkeypatch):
    """The same bits, or the same error, also if states are read in between."""
    found = []
    for is_on in False, True:
        monkeypatch.setattr(host, "_is_on", is_on)
        params, optimizer = one("AdamW", ((3, 4), (5, 3)))
        raised = outcome(optimizer, params, REPLACED[replaced], LOOKS["state_dict"])
        found.append((all_bits(params), raised))
    assert found[0] == found[1]


ASK = """
import warnings
warnings.simplefilter("ignore")
from refopt.torch import host
print(host.form() is not host, host.accelerate())
"""


@pytest.mark.parametrize(("variable", "compiler", "said"), [("0", "c++", "False False"), ("1", "false", "False False")])
def test_without(variable, compiler, said, tmp_path):
    """The variable turns it off, and a compiler that fails leaves steps in Python."""
    environment = {"TORCH_EXTENSIONS_DIR": str(tmp_path), "CXX": compiler, host.VARIABLE: variable}
    found = subprocess.run([sys.executable, "-c", ASK], env={**os.environ, **environment},
                           capture_output=True, text=True, check=True)
    assert found.stdout.strip() == said


@pytest.mark.parametrize(("variable", "times"), [("1", 1), ("0", 0), ("", 0)])
def test_an_import_compiles_if_the_variable_says_so(variable, times, monkeypatch, tmp_path):
    """In a folder that nobody else has: one where a process was killed has a lock that PyTorch waits for."""
    cpp_extension, folders = pytest.importorskip("torch.utils.cpp_extension"), []

    def load(name, *args, build_directory, **named):
        assert not os.listdir(build_directory)
        folders.append(build_directory)
        return sys.modules[__name__]

    monkeypatch.setattr(cpp_extension, "load", load)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "none yet"))
    monkeypatch.setenv(host.VARIABLE, variable)
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.run)
    runpy.run_path(host.__file__)
    assert len(folders) == times and not any(map(os.path.exists, folders))
    kept = [(x.suffix, x.read_bytes()) for x in tmp_path.rglob("*") if x.is_file()]
    assert kept == [(".so", Path(__file__).read_bytes())] * times


def test_what_was_compiled_before_is_loaded(extension, monkeypatch, tmp_path):
    """Unless the source is another."""
    monkeypatch.setattr(pytest.importorskip("torch.utils.cpp_extension"), "load", None)
    monkeypatch.setattr(host, "_compiled", None)
    assert host.accelerate() and host.form() is not host and host.form().Reader
    changed = tmp_path / host.SOURCE.name
    changed.write_bytes(host.SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(host, "SOURCE", changed)
    monkeypatch.setattr(host, "_compiled", None)
    with pytest.raises(TypeError, match="NoneType"):
        host.accelerate()
    host.accelerate(False)


def test_steps_do_not_wait_for_the_compiler(extension, monkeypatch, tmp_path):
    """An optimizer whose first step comes before it is done goes on with it, with the same bits."""
    kept, compiled = [], threading.Event()
    monkeypatch.setattr(host, "_extension", lambda *_: compiled.wait(60) and extension)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    for wait in (False, True):
        monkeypatch.setattr(host, "_compiled", None if not wait else extension)
        assert host.accelerate(wait=wait) == wait
        params, optimizer = one("AdamW")
        steps(optimizer, params, [0])
        assert optimizer._form is host.form()
        compiled.set()
        host.accelerate()
        steps(optimizer, params, [1, 2])
        assert optimizer._form is extension
        kept.append(all_bits(params, optimizer))
    assert kept[0] == kept[1]
    host.accelerate(False)


def test_an_installed_module_is_found(monkeypatch, tmp_path):
    """A wheel of one's own has it, for one source and one version of PyTorch."""
    (tmp_path / f"{host.extension_name()}.py").write_text("found = True")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(host, "_compiled", None)
    assert host.accelerate() and host.form().found
    del sys.modules[host.extension_name()]
    host.accelerate(False)


def test_the_reason_is_said(monkeypatch, tmp_path):
    """Where it cannot be compiled."""
    cpp_extension = pytest.importorskip("torch.utils.cpp_extension")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))

    def fails(*args, **named):
        raise RuntimeError("Ninja is required\nand more")

    monkeypatch.setattr(cpp_extension, "load", fails)
    monkeypatch.setattr(host, "_compiled", None)
    monkeypatch.delenv(host.VARIABLE, raising=False)
    with pytest.warns(RuntimeWarning, match=r"_host.cpp cannot be compiled: Ninja is required$"):
        assert not host.accelerate()
    assert host.form() is host


def test_it_can_be_turned_off(monkeypatch):
    monkeypatch.setattr(host, "_is_on", False)
    monkeypatch.setattr(host, "_compiled", extension := object())
    assert host.accelerate() and host.form() is extension
    assert not host.accelerate(False) and host.form() is host
