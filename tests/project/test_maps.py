"""The maps of the tests are those of the suite as it is, and nothing is missing from them."""

import json
import re

import pytest
from evidence.cells import cells
from maps import api, commands, evidence, finds, interface, names, non_finite, specification, stubs, variants
from maps.collect import ROOT, Item, described, suite
from mutation.covered import READERS

from .conftest import every_item


@pytest.fixture(scope="module")
def items(request):
    """Of this run, if it is of all tests, or as they are collected for this."""
    every = every_item(request.config)
    if every is None:
        return suite()
    every = [*every]
    request.config.pluginmanager.get_plugin("funcmanage").pytest_collection_modifyitems(every)  # the order of fixtures
    return [Item(**json.loads(json.dumps(described(item)))) for item in every]


def test_every_cell_has_evidence(items):
    """Each routine in each of its variants and precisions is held to something beside its own code."""
    without = evidence.missing(evidence.proofs(items))
    assert not without, f"no evidence of {'; '.join(map(str, without))}"


def test_every_clause_has_a_law(items):
    without = specification.missing(specification.tests(items))
    assert not without, f"no law of {', '.join(without)}"


@pytest.mark.parametrize("module", [commands, finds, interface, names, variants], ids=lambda module: module.PAGE.name)
def test_what_follows_from_the_package_is_up_to_date(module):
    """If this fails, run make maps."""
    assert module.PAGE.read_text() == module.page()


@pytest.mark.parametrize("module", [evidence, specification, non_finite], ids=lambda module: module.PAGE.name)
def test_pages_are_up_to_date(items, module):
    """If this fails, run make maps."""
    assert module.PAGE.read_text() == module.page(items)


def test_the_architecture_is_that_of_the_imports():
    """In its page and its picture; if this fails, run make maps."""
    pytest.importorskip("grimp")
    from maps import architecture

    assert architecture.PAGE.read_text() == architecture.page()
    assert architecture.PICTURE.read_text() == architecture.drawn()
    for file, name in re.findall(r"\]\(\.\./(\S+\.py)\) `(\w+)`", architecture.PAGE.read_text()):
        assert re.search(rf"(?m)^(?:(?:def|class) {name}\b|{name}\b.* = )", (ROOT / file).read_text()), (file, name)


def test_every_door_has_a_page():
    """If this fails, run make maps."""
    assert {path: path.read_text() for path in api.DOCS.glob("api-*.md")} == api.pages()


def test_types_are_those_of_the_catalogue():
    """If this fails, run make maps."""
    assert {path: path.read_text() for path in stubs.files()} == stubs.files()


# That these can fail.


def marked(marker, *args, **keywords):
    return item_of("test_x.py", {marker: [[list(args), keywords]]})


def item_of(file, markers, routine="z"):
    return Item(f"{file}::test_y[{routine}]", f"{file}::test_y", "X", "Y.", routine, markers)


def test_a_cell_without_evidence_is_named():
    every = [marked("evidence", *cell) for cell in cells()]
    assert len(set(cells())) == len(cells()) > 500 and not evidence.missing(evidence.proofs(every))
    assert evidence.missing(evidence.proofs(every[1:])) == cells()[:1]


@pytest.mark.parametrize("cell", [("adam", "default", "fp8"), ("adam", "of none", "fp32"), ("adam", "default")])
def test_evidence_of_what_is_no_cell_is_refused(cell):
    with pytest.raises(evidence.Unknown, match=r"test_y\[z\]: evidence.* is no cell"):
        evidence.proofs([marked("evidence", *cell)])


def law_of(*clauses, routine="z"):
    return item_of("tests/laws/test_x.py", {"clause": [[list(clauses), {}]]} if clauses else {}, routine)


def test_a_clause_without_a_law_is_named():
    """A test in another folder is none."""
    every = list(specification.clauses())
    assert every == [f"N{k}" for k in range(1, 23)]
    assert not specification.missing(specification.tests([law_of(*every)]))
    assert specification.missing(specification.tests([law_of(*every[1:]), marked("clause", *every)])) == ["N1"]


def test_what_reads_code_without_running_it_is_there():
    """The tests that the mutation run takes for lines that no test runs."""
    for file, _, name in (test.partition("::") for test in READERS.values()):
        assert f"\ndef {name or 'test_'}" in (ROOT / file).read_text()


def test_a_test_of_what_is_no_clause_is_refused():
    with pytest.raises(specification.Unknown, match=r"test_y\[z\]: N99 is no clause"):
        specification.tests([marked("clause", "N4", "N99")])
