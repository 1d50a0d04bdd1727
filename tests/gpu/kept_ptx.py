"""Which PTX has been tested: a kernel is compiled again only if what it is made from has changed.

``ptx.json`` has, for each test, digests of what its kernels are made from and of their PTX. They hold for one compiler,
one bytecode of Python and one text of the tests; for another, everything is compiled. ``make ptx`` compiles everything
and writes the file, and nothing else does.
"""

import importlib.util
import json
import os
from functools import cache
from pathlib import Path

from benchmarks.record import ROOT, digests
from benchmarks.records import compiler
from refopt.gpu import notes

FILE = Path(__file__).with_name("ptx.json")
TESTS = ("tests/gpu/kept_ptx.py", "tests/gpu/test_matmul.py", "tests/gpu/test_products.py", "tests/gpu/test_ptx.py",
         "tests/gpu/test_ptx_lars.py", "refopt/gpu/exactness.py")
WRITES = os.environ.get("REFOPT_PTX") == "write"
written = {}


def head():
    """What the digests hold for."""
    magic = importlib.util.MAGIC_NUMBER.hex()
    return {"compiler": compiler(), "bytecode": magic, "tests": digests(ROOT / name for name in TESTS)}


@cache
def known():
    """By test and kernel, the two digests; none if they were made by another compiler or for other tests."""
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    return kept.get("kernels", {}) if {name: kept.get(name) for name in head()} == head() else {}


def tested(request, kernels, always=False):
    """Whether a test has passed on these kernels before, so that they need not be compiled; by name, as `Recorder` has.

    ``always`` is for kernels that are compiled in any case: then their PTX must be what it was.
    """
    test = f"{request.node.path.name}::{request.node.name}"
    made = {name: notes.made_from(kernel, signature) for name, (kernel, signature) in kernels.items()}
    if WRITES:
        ptx = {name: notes.digest(kernel.ptx(signature)) for name, (kernel, signature) in kernels.items()}
        request.addfinalizer(lambda: passed(request, test, {name: [made[name], ptx[name]] for name in made}))
        return False
    before = known().get(test, {})
    if {name: digests[0] for name, digests in before.items()} != made:
        return False
    if always:
        for name, (kernel, signature) in kernels.items():
            assert notes.digest(kernel.ptx(signature)) == before[name][1], f"{name}: other PTX of the same code"
    return not always


def passed(request, test, digests):
    """Note the digests of a test that has passed."""
    if not request.session.testsfailed:
        written[test] = digests


def write():
    """Write the file, once all have passed."""
    text = json.dumps(head() | {"kernels": {}}, indent=1).removesuffix("{}\n}")
    rows = (f"  {json.dumps(test)}: {json.dumps(digests)}" for test, digests in sorted(written.items()))
    FILE.write_text(text + "{\n" + ",\n".join(rows) + "\n }\n}\n")
