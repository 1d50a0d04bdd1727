"""Break lines that names have made too long, at brackets, as a formatter would."""

import re

OPENING, CLOSING = "([{", ")]}"


def wrapped(text: str, width: int) -> str:
    """A text whose lines of code are within a width."""
    return "\n".join(piece for line in text.split("\n") for piece in _broken(line, width))


def _broken(line: str, width: int) -> list[str]:
    if len(line) <= width or line.lstrip().startswith("#"):
        return [line]
    code, hash_, comment = line.partition("  # ")
    if hash_:
        indent = code[: len(code) - len(code.lstrip())]
        return [f"{indent}# {comment}", *_broken(code, width)]
    head = re.match(r"\s*(return|[\w, ]+ =) ", line)
    is_tuple = head is not None and len(_at_commas(line[head.end() :])) > 1
    if head and is_tuple:
        line = f"{head[0]}({line[head.end() :]})"
    place = _last_brackets(line)
    if place is None:
        return [line]
    first, stop = place
    indent = line[: len(line) - len(line.lstrip())]
    inside = line[first + 1 : stop].strip()
    if len(indent) + 4 + len(inside) <= width and not is_tuple:
        body = [inside]
    else:
        body = [f"{x}," for x in _at_commas(inside)]
    return [line[: first + 1], *(f"{indent}    {x}" for x in body), indent + line[stop:]]


def _last_brackets(line: str) -> tuple[int, int] | None:
    """The last outermost brackets that are not empty."""
    depth, first, last = 0, 0, None
    for k, character in enumerate(line):
        if character in OPENING:
            first, depth = (k, 1) if depth == 0 else (first, depth + 1)
        elif character in CLOSING:
            depth -= 1
            if depth == 0 and k > first + 20:
                last = first, k
    return last


def _at_commas(text: str) -> list[str]:
    depth, parts = 0, [""]
    for character in text:
        depth += (character in OPENING) - (character in CLOSING)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [x.strip() for x in parts if x.strip()]
