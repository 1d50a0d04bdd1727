"""docs/architecture.md: the packages, who imports whom, what to read in which order, and where to find what."""

import ast
import tomllib
from collections.abc import Iterable, Iterator
from functools import lru_cache

import grimp
from maps.collect import ROOT, Item, head
from maps.drawing import drawing

PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "architecture.svg"
LABEL = "Which package of refopt imports which: arrows point down"


def page(items: Iterable[Item] = ()) -> str:
    """The page; what to read in which order, and where what is, is written there by hand."""
    text = PAGE.read_text()
    return "\n".join([head(PAGE), *rooms(), text[text.index("\n## ") :]])


def write() -> None:
    """The page and its picture."""
    PAGE.write_text(page())
    PICTURE.write_text(drawn())


def drawn() -> str:
    """The picture: packages from top to bottom."""
    return drawing({name: reduced(name) for name in layers()}, LABEL)


def rooms() -> Iterator[str]:
    """A row for each package: what it is for, and what it imports."""
    yield "| package | | imports |"
    yield "| --- | --- | --- |"
    for name in layers():
        about = ast.get_docstring(ast.parse((ROOT / "refopt" / name / "__init__.py").read_text())) or ""
        of = ", ".join(x for x in layers() if x in arrows()[name])
        yield f"| [`{name}`](../refopt/{name}) | {about.splitlines()[0]} | {of} |"


@lru_cache
def layers() -> list[str]:
    """The packages, from the top one down."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    names = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    return [x for name in names for x in name.split(" | ") if x != "__main__"]


@lru_cache
def arrows() -> dict[str, set[str]]:
    """Which packages each package imports."""
    graph = grimp.build_graph("refopt", cache_dir=None)
    found: dict[str, set[str]] = {name: set() for name in layers()}
    for module in graph.modules - {"refopt", "refopt.__main__"}:
        own = module.split(".")[1]
        found[own] |= {x.split(".")[1] for x in graph.find_modules_directly_imported_by(module) if "." in x} - {own}
    return found


def reduced(name: str) -> list[str]:
    """What a package imports, without what one of these imports in turn."""

    def below(of: str) -> set[str]:
        return arrows()[of].union(*map(below, arrows()[of]))

    further = set().union(*map(below, arrows()[name]))
    return [x for x in layers() if x in arrows()[name] - further]
