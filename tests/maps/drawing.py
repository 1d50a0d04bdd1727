"""A picture of who imports whom, as SVG: a box for each package, each above what it imports."""

from collections.abc import Mapping

WIDE, HIGH, GAP, SPACE, EDGE = 150, 38, 70, 34, 12  # of a box, between columns, between rows, and around all
STYLE = ("rect.box{fill:#e8f0f8;stroke:#0072b2;stroke-width:1.5}"
         "text{font:600 15px ui-monospace,Menlo,Consolas,monospace;fill:#1a1a1a;text-anchor:middle}"
         "path{stroke:#555;stroke-width:1.5;fill:none}")


def drawing(arrows: Mapping[str, list[str]], label: str) -> str:
    """The text of an SVG file; ``arrows`` has what each package points at, and each package itself."""
    levels = {name: _level(name, arrows) for name in arrows}
    top = max(levels.values())
    places: dict[str, tuple[int, int]] = {}
    for level in range(top + 1):
        for column, name in enumerate(x for x in arrows if levels[x] == level):
            places[name] = EDGE + column * (WIDE + GAP), EDGE + (top - level) * (HIGH + SPACE)
    width = max(x for x, _ in places.values()) + WIDE + EDGE
    height = max(y for _, y in places.values()) + HIGH + EDGE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{label}">', f"<title>{label}</title><style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#555;stroke:none"/></marker></defs>',
        f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>']
    lines += [f'<path d="{_way(places[name], places[other])}" marker-end="url(#head)"/>'
              for name, below in arrows.items() for other in below]
    for name, (x, y) in places.items():
        lines.append(f'<rect class="box" x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="6"/>')
        lines.append(f'<text x="{x + WIDE // 2}" y="{y + 25}">{name}</text>')
    return "\n".join([*lines, "</svg>\n"])


def _way(start: tuple[int, int], end: tuple[int, int]) -> str:
    """An arrow from the bottom of a box to the top of another; out at the side where it has to pass by others."""
    (x, y), (to, down) = start, end
    if to > x and down > y + HIGH + SPACE:
        return f"M{x + WIDE} {y + HIGH // 2}H{to + WIDE // 2}V{down}"
    return f"M{x + WIDE // 2} {y + HIGH}L{to + WIDE // 2} {down}"


def _level(name: str, arrows: Mapping[str, list[str]]) -> int:
    """How many packages lie below one, in the longest row of arrows."""
    return max((1 + _level(below, arrows) for below in arrows[name]), default=0)
