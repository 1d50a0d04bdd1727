"""The examples in docstrings give what they say."""

import doctest
import importlib

import needs
import pytest

from benchmarks.record import ROOT
from refopt import gpu

# refopt.torch's examples need PyTorch: tests/pytorch runs them.
FILES = sorted(path for path in (ROOT / "refopt").rglob("*.py")
               if ">>> " in path.read_text() and ROOT / "refopt" / "torch" not in path.parents)
NAMES = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in FILES]
DOORS = ["catalog", "comm", "cpu", "gpu", "oracle", "program", "simt", "state"]


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name):
    if name == "refopt.gpu.exactness":
        needs.compiler()
    with gpu.use("executor"):
        result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0 < result.attempted


@pytest.mark.parametrize("package", DOORS)
def test_a_package_has_an_example(package):
    assert f"refopt.{package}" in NAMES
