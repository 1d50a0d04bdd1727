"""The maps of the tests are those of the suite as it is, and nothing is missing from them."""

import pytest
from evidence.cells import cells
from maps import clauses, evidence, interface, non_finite, variants
from maps.collect import Item, suite


@pytest.fixture(scope="module")
def items():
    return suite()


def test_every_cell_has_evidence(items):
    """Each routine in each of its variants and precisions is held to something beside its own code."""
    without = evidence.missing(evidence.proofs(items))
    assert not without, f"no evidence of {'; '.join(map(str, without))}"


def test_every_clause_has_tests(items):
    without = clauses.missing(clauses.tests(items))
    assert not without, f"no test of {', '.join(without)}"


@pytest.mark.parametrize("module", [interface, variants], ids=lambda module: module.PAGE.name)
def test_what_follows_from_the_package_is_up_to_date(module):
    """If this fails, run make maps."""
    assert module.PAGE.read_text() == module.page()


@pytest.mark.parametrize("module", [evidence, clauses, non_finite], ids=lambda module: module.PAGE.name)
def test_pages_are_up_to_date(items, module):
    """If this fails, run make maps."""
    assert module.PAGE.read_text() == module.page(items)


# That these can fail.


def marked(marker, *args, **keywords):
    return Item("test_x.py::test_y[z]", "test_x.py::test_y", "X", {marker: [[list(args), keywords]]})


def test_a_cell_without_evidence_is_named():
    every = [marked("evidence", *cell) for cell in cells()]
    assert not evidence.missing(evidence.proofs(every))
    assert evidence.missing(evidence.proofs(every[1:])) == cells()[:1]


@pytest.mark.parametrize("cell", [("adam", "default", "fp8"), ("adam", "no decay", "fp32"), ("adam", "default")])
def test_evidence_of_what_is_no_cell_is_refused(cell):
    with pytest.raises(evidence.Unknown, match=r"test_y\[z\]: evidence.* is no cell"):
        evidence.proofs([marked("evidence", *cell)])


def test_evidence_is_called_after_its_file_or_by_its_marker():
    items = [marked("evidence", *cells()[0]), marked("evidence", *cells()[0], by="paddle")]
    assert list(evidence.proofs(items)[cells()[0]]) == ["x", "paddle"]
    assert "| default | paddle, x |" in evidence.page(items)


def test_a_clause_without_a_test_is_named():
    every = list(clauses.clauses())
    assert every == [f"N{k}" for k in range(1, 17)]
    assert not clauses.missing(clauses.tests([marked("clause", *every)]))
    assert clauses.missing(clauses.tests([marked("clause", *every[1:])])) == ["N1"]


def test_a_test_of_what_is_no_clause_is_refused():
    with pytest.raises(clauses.Unknown, match=r"test_y\[z\]: N17 is no clause"):
        clauses.tests([marked("clause", "N4", "N17")])


def test_cells_are_many_and_different():
    assert len(set(cells())) == len(cells()) > 500
