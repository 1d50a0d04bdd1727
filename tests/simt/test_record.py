"""The record of Numba's types: the executor infers all of it, and Numba's compiler gives it again."""

import itertools
import re
from importlib.metadata import version

import numpy as np
import pytest
from texts import executed

from refopt import simt
from refopt.simt import cuda
from refopt.simt.base import record
from refopt.simt.compiled import specialize
from refopt.simt.compiled.kinds import Known, Range, any_number, array_of, items_of, scalar

TEXTS = list(record.read()["expressions"])
LONG = [text for text in TEXTS if "c" in re.findall(r"\b[abcA]\b", text)]  # with three operands


def function_of(text):
    """The function of an expression's operands, and their names."""
    names = [name for name in "aAbc" if re.search(rf"\b{name}\b", text)]
    in_place = re.fullmatch(r"a [^<>=!]+= b", text)
    body = f"    {text}\n    return a\n" if in_place else f"    return {text}\n"
    if text == "unified":
        names, body = ["a", "b"], "    v = a\n    if cuda.laneid > 3:\n        v = b\n    return v\n"
    elif text == "A[0] = b":
        body = f"    {text}\n"
    scope = dict(cuda=cuda, np=np, **{name: record.spaces[name] for name in ("math", "cmath")})
    return executed(f"def f({', '.join(names)}):\n{body}", **scope)["f"], names


def spelled(kind):
    """The type of a kind, as the record has it."""
    if isinstance(kind, Range):
        return kind.item.name
    if isinstance(kind, Known) and kind.value is None:
        return "none"
    if (items := items_of(kind)) is not None:
        return ",".join(map(spelled, items))
    return scalar(kind).name if scalar(kind) else str(kind)


@pytest.mark.parametrize("text", [pytest.param(text, marks=[pytest.mark.slow] * (text in LONG)) for text in TEXTS])
def test_types_are_those_of_the_record(text):
    function, names = function_of(text)
    wrong = []
    for types in itertools.product(record.NAMES[:12] if len(names) > 2 else record.NAMES, repeat=len(names)):
        pairs = zip(names, types, strict=True)
        kinds = [array_of(type_, 1) if name == "A" else any_number(type_) for name, type_ in pairs]
        try:
            typed = specialize._typed(function, tuple(kinds))
            found = typed.untyped or spelled(typed.result)
        except simt.CompileError:
            found = None
        if found != record.result(text, *types):
            wrong.append((types, found, record.result(text, *types)))
    assert not wrong, (len(wrong), wrong[:6])


@pytest.mark.parametrize("text", [
    pytest.param(text, marks=[pytest.mark.slow] * (n % 40 > 0 or text in LONG)) for n, text in enumerate(TEXTS)])
def test_numba_gives_the_record_again(text):
    numba_types = pytest.importorskip("benchmarks.numba_types")
    if record.read()["versions"] != {name: version(name) for name in ("numba", "numba-cuda")}:
        pytest.skip("the record is of another version of Numba")
    numba_types.start()
    assert numba_types.table(text) == record.read()["expressions"][text]


def test_the_record_has_every_expression():
    """Expressions that Numba refuses for all operands, such as ``np.add(a, b)``, are in no table."""
    assert {"unified", "a + b", "cuda.fma(a, b, c)", "cuda.atomic.cas(A, 0, b, b)", "np.maximum(a, b)"} <= {*TEXTS}
    assert record.result("np.add(a, b)", "int64", "int64") is None and not record.has("np.add(a, b)")
    assert record.signature("a + b", "uint8", "int16") == ("uint64", "int64", "int64")
    assert record.accepted("cuda.ffs(a)", "bool").startswith("convert it: int32, int64, uint32, uint64 are")
