"""Public names of before: each works, warns, and has the same bits. An internal use is an error, by pyproject.toml."""

import pickle
import re

import numpy as np
import pytest
from sharding_cases import bits as bits_of
from sharding_cases import history, step

from refopt import cli, cpu, gpu
from refopt.catalog import workloads
from refopt.checks import renamed
from refopt.cpu.gradient_check import GradientCheck
from refopt.program import Op

GRADS = [np.array([3, 4, -1], np.float32), np.full((2, 700), 0.01, np.float32)]


def warns(name):
    """Of a name of before."""
    return pytest.warns(DeprecationWarning, match=rf"{name} has been renamed: use ")


def bits(check):
    """What a gradient check leaves, on either side."""
    arrays = [getattr(check, name) for name in GradientCheck._fields]
    return [(x if isinstance(x, np.ndarray) else x.copy_to_host()).tobytes() for x in arrays]


def test_reference():
    with warns(r"refopt\.cpu\.scan_gradients") as seen:
        before = cpu.scan_gradients
    assert [x.filename for x in seen] == [__file__]
    assert bits(before(GRADS, max_norm=1.0)) == bits(cpu.check_gradients(GRADS, max_norm=1.0))


def test_kernels():
    with gpu.use("executor"):
        there = [gpu.to_device(g) for g in GRADS]
        with warns(r"refopt\.gpu\.scan"):
            before = gpu.scan(there, max_norm=1.0)
        with warns(r"refopt\.gpu\.GradientScan"):
            assert isinstance(before, gpu.GradientScan)
    before()
    assert bits(before) == bits(cpu.check_gradients(GRADS, max_norm=1.0))


@pytest.mark.parametrize("name", renamed.OPS)
def test_ops(name):
    with warns(f"Op: {name}") as seen:
        op = Op(name, {"x": ["a"]})
    assert [x.filename for x in seen] == [__file__]
    assert op.type == renamed.OPS[name] and op == Op(renamed.OPS[name], {"x": ["a"]})
    with warns(f"Op: {name}"):
        assert Op("all_reduce", {"x": ["a"]}).replace(type=name) == op


def test_saved_programs():
    """One with the types of before is read, bound, and has the same bits."""
    program = step(max_norm=0.5)
    saved = pickle.dumps(program, 0)  # a protocol of text
    for before, now in renamed.OPS.items():
        assert saved.count(f"V{now}\n".encode()) == 1
        saved = saved.replace(f"V{now}\n".encode(), f"V{before}\n".encode())
    with warns("Op: (scan_gradients|finish_scan)"):
        read = pickle.loads(saved)
    assert read == program
    before, now = (list(map(bits_of, history([x])[0])) for x in (read, program))
    assert before == now and len(now) == 3


def test_word_of_the_command(monkeypatch, capsys):
    monkeypatch.setitem(workloads.WORKLOADS, "tiny", lambda: iter([("a", (8, 3)), ("b", (5,))]))
    command = ["verify", "--workload", "tiny", "--device", "executor", "--dtype", "fp32", "--routine"]

    def output():
        return re.sub(r"\d+\.\d s\b", "? s", capsys.readouterr().out)

    assert cli.main([*command, "check_gradients"]) == 0
    expected = output()
    with warns("refopt verify: --routine scan_gradients"):
        assert cli.main([*command, "scan_gradients"]) == 0
    assert "check_gradients" in expected and output() == expected


def test_other_names():
    """One that never was is no attribute, and a warning of use in this package would be an error."""
    for module in (cpu, gpu):
        with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'scam'"):
            module.scam  # noqa: B018
    with pytest.raises(DeprecationWarning):
        cpu.scan_gradients  # noqa: B018
