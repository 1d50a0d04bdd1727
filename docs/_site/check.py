"""What is wrong with the built pages: links and anchors that lead nowhere, and what would be fetched from elsewhere.

python docs/_site/check.py build/site
"""

import os
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself to show a page; links that a reader follows may lead anywhere.
FETCHED = {("object", "data"), *((tag, "src") for tag in ("script", "img", "iframe", "source", "video"))}
RELATIONS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "modulepreload"}


class Page(HTMLParser):
    """The ids of a page, and what it links to and fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag has."""
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values and tag != "meta"}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        if tag == "link" and RELATIONS & set(values.get("rel", "").split()):
            self.fetched.add(values.get("href", ""))
        self.fetched |= {values[name] for of, name in FETCHED if of == tag and name in values}


def problems(folder: Path) -> Iterator[str]:
    """A line for each thing that is wrong."""
    files = sorted(folder.rglob("*.html"))
    pages = {path.resolve(): Page(path.read_text()) for path in files}
    if not pages:
        yield f"{folder}: no pages"
    for path, page in pages.items():
        where = path.relative_to(folder.resolve())
        for link in sorted(page.links | page.fetched):
            wrong = _wrong(path, link, pages, link in page.fetched)
            if wrong:
                yield f"{where}: {link[:120]}: {wrong}"
    for style in sorted(folder.rglob("*.css")):
        if "url(http" in style.read_text().replace('"', "").replace("'", ""):
            yield f"{style.relative_to(folder)}: fetches from elsewhere"


def _wrong(path: Path, link: str, pages: dict[Path, Page], is_fetched: bool) -> str:
    parts = urlsplit(link)
    if parts.scheme in ("http", "https") or link.startswith("//"):
        return "is fetched from elsewhere" if is_fetched else ""
    if parts.scheme in ("data", "mailto"):
        return ""
    target = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
    if not target.is_file():
        return "leads nowhere"
    anchor = unquote(parts.fragment)
    return "has no such anchor" if anchor and target in pages and anchor not in pages[target].ids else ""


def main(folder: str) -> int:
    """Print what is wrong; the status is 1 if anything is."""
    lines = list(problems(Path(folder)))
    print("\n".join(lines) or "every link leads somewhere, and nothing is fetched from elsewhere")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
