"""The pages are short, and in the words that a native technical writer would use."""

import ast
import json
import re

import pytest

from benchmarks.record import ROOT

DOCS = sorted(ROOT.glob("docs/*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *DOCS,
         *sorted(ROOT.glob("docs/reports/*.md")), ROOT / "notebooks" / "exercises" / "README.md"]
NOTEBOOKS = [*sorted(ROOT.glob("notebooks/*.ipynb")), *sorted(ROOT.glob("notebooks/exercises/*.ipynb"))]
DOORS = sorted(ROOT.glob("refopt/*/__init__.py"))
# Written by `make maps` from the package, its docstrings and the tests.
GENERATED = {"interface", "specification", "evidence", "variants", "torch-options", "executor-names", "command-line"}
MOST = 60_000  # words of docs/*.md and README.md, generated tables included, as `wc -w` counts them
SECTION = re.compile(r"(?s)<!-- [\w -]+ -->\n.*?<!-- end -->")
REPORT = re.compile(r"(?s)```text\n.*?```")
CODE = re.compile(r"(?ms)^ *```.*?^ *```$|``[^`]+``|`[^`\n]+`|^    .*?$|\$[^$\n]+\$")

# What is never right, with what to write instead.
BANNED = {
    r"\b(?:have|has|had|having) the (?:same )?bits of\b": "match ... bit for bit; give the same bits as",
    r"\b(?:is|are|each) for (?:itself|themselves)\b": "independently",
    r"\b(?:dimension|tensor|element|thread) for itself\b": "separately",
    r"\b(?:has|have) for itself\b": "is built into",
    r"\b(?:hold|holds|held|holding) (?:\w+ ){0,4}to (?:(?:the|its|a|all|each) )?(?:law|bound|routine|table)s?\b":
        "check against, compare with",
    r"\b(?:is|are) not to\b": "must not, should not",
    r"\b(?:is|are) to be (?!\w+ly\b)\w+ed\b": "must be, is to",
    r"\bthat which\b|\bthose which\b": "what; the one that",
    r"\bwhat (?:\w+ ){1,3}lacks? to\b": "1 - beta",
    r"\b[Ww]hat (?:lies|stands|comes) (?:between|behind|before|beside|beyond|here|there)\b": "name the thing",
    r"\bhere and there\b|\bhang together\b": "say the relation",
    r"\bin the places? of\b": "instead of",
    r"\bof (?:Python|NumPy|PyTorch|Numba)'s(?: own)?(?=[,.;:]| and\b)": "PyTorch's class",
    r"\beach by itself\b": "separately",
    r"\bno whim\b": "deliberate",
    r"\bno way has\b|\btake other ways\b|\banother way than\b": "path, branch",
    r"\bahead of (?:its|their) turn\b": "early",
    r"\bwhich memory likes\b": "suits the memory system",
    r"\bWhoever\b|\bwhoever (?:uses|writes|has|tests)\b": "if you; users who",
    r"\bas many [^.;]{1,40} as can be\b": "say the limit",
    r"\bmust not (?:\w+ ){0,3}unseen\b|\bbreak it unseen\b": "should notice",
    r"\bsuch as has\b|\bnobody's\b|\bof one's own\b|\bone's own\b": "your own",
    r"\bis said by\b|\bis told (?:in|by|of)\b|\bsays the rest\b|\bsay the rest\b": "name the actor",
    r"\bwhat is (?:asked|told|said|there|gone|forgotten|right|wrong) (?:of|by|for|in) (?:it|them)\b": "name the thing",
    r"\b(?:they|it) (?:are|is) there as well\b": "also",
    r"\bdoes without\b|\bgoes without\b": "lacks",
    r"\bby (?:turns|request)\b": "in turn, alternately; on request",
    r"\bout of (?:its|their) order\b": "in another order",
    r"\bcome(?:s)? to the same\b|\bwhat (?:it|they) comes? to\b": "are equal; the result",
    r"\bthe whole of it\b|\ball of it that\b": "everything",
    r"\b(?:is|are) taken (?:for|still)\b": "is mistaken for; are still accepted",
    r"\bas it stands(?: there)?\b|\bstands (?:on|at|in|behind|above|below|beside) \w+": "is; appears",
    r"\bis no (?:access|page|part|rounding|traceback|clause|cell)\b": "is not a",
    r"\bare no (?:pages|parts|numbers|states)\b": "are not",
    r"\bbut for\b": "except",
    r"\bbeside(?:s)? (?:the|its|their) own\b(?! code)": "apart from",
    r"\bnot yet reported\b|\bready to be sent\b": "ready to send",
    r"\bwhat has (?:no|an?) \w+|\bwhat needs no\b": "name the thing",
    r"\b\w+alis(?:e|es|ed|ing|ation)\b|\bsynchronis\w+|\borthogonalis\w+": "American spelling, -ize",
}


def prose(path):
    """The text of a page without what records, catalogue and programs wrote."""
    if path.stem in GENERATED or path.stem.startswith("api-"):
        return ""
    text = SECTION.sub("", path.read_text())
    return REPORT.sub("", text) if path.stem == "executor-finds" else text


def found(text):
    """The phrases of a text that are banned, each with its line and with what to write."""
    text = " ".join(text.split())
    return [f"{hit[0]!r}: {instead}" for pattern, instead in BANNED.items() for hit in re.finditer(pattern, text)]


def test_the_pages_are_short():
    words = {path.name: len(path.read_text().split()) for path in [*DOCS, ROOT / "README.md"]}
    assert sum(words.values()) <= MOST, words


def by_hand(path):
    """What is written by hand: of a generated page its start, of a notebook its text, of a package its docstring."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        return "\n".join("".join(x["source"]) for x in json.loads(text)["cells"] if x["cell_type"] == "markdown")
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(text))
    return prose(path) or re.split(r"(?m)^(?:## |\| )", text, maxsplit=1)[0]


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS, *DOORS], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_phrase_is_banned(path):
    assert found(CODE.sub("`code`", by_hand(path))) == []


def test_a_banned_phrase_is_noticed():
    for text in ("An element of Adam is for itself.", "All versions but adam_0 have the bits of the reference.",
                 "what each beta lacks to 1", "held to the laws", "a change is not to break it", "in the place of it",
                 "laid out here and\nthere"):
        assert found(text), text
    assert not found("Adam updates each element independently. It is not too late.")


# Of the field, or of refopt: what the pages use and a reader may have to look up.
TERMS = re.findall(r"\S+", """
all-gather all-reduce amp atomic barrier bf16 block bound bucket catalogue chunk clause coalesced coalescing
collective contraction executor fence floor FMA form fp16 fused gate graph grid ladder lane latency law master merged
mutant occupancy op oracle owner pass plan program PTX race rank ratio reduce-scatter remainder routine row rule rung
sector shard signature slot state subnormal tile ULP upstream warp warpgroup""")


def test_a_term_has_one_entry_in_the_glossary():
    text = (ROOT / "docs" / "glossary.md").read_text()
    rows = re.findall(r"(?m)^- \*\*([^*]+)\*\*: \S", text[text.index("## Terms of") :])
    listed = [term for row in rows for term in row.split(", ")]
    assert len({*listed}) == len(listed) and {*TERMS} <= {*listed}, {*TERMS} - {*listed}
    pages = " ".join(prose(path) for path in PAGES if path.name != "glossary.md")
    unused = [term for term in TERMS if not re.search(rf"\b{term}", pages)]
    assert not unused


def test_a_version_is_told_in_a_page():
    """Each of the CHANGELOG has a date and at most 60 lines."""
    title, *versions = re.split(r"(?m)^## ", (ROOT / "CHANGELOG.md").read_text())
    assert title.startswith("# Changelog") and versions
    for text in versions:
        assert re.match(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d\n", text) and len(text.splitlines()) <= 60
