"""docs/command-line.md: the commands of ``refopt``, from their parsers."""

import argparse
from collections.abc import Iterable, Iterator

from maps.collect import ROOT, Item, head

from refopt.cli import commands

PAGE = ROOT / "docs" / "command-line.md"


def page(items: Iterable[Item] = ()) -> str:
    """The page."""
    _, by_name = commands.parsers()
    lines = [head(PAGE)]
    for name, (_, parser) in by_name.items():
        lines += [f"## refopt {name}", "", parser.description or "", "", *_rows(parser), ""]
    _, title, statuses = PAGE.read_text().partition("## Exit statuses")  # which is written there by hand
    return "\n".join([*lines, title + statuses])


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A line for each argument, those by position first."""
    actions = [x for x in parser._actions if x.dest != "help" and x.help is not argparse.SUPPRESS]
    for action in sorted(actions, key=lambda x: bool(x.option_strings)):
        text = action.help or ""
        text = text % {**vars(action), "prog": parser.prog} if "%" in text else text
        usual = action.default not in (None, False, argparse.SUPPRESS, []) and "default" not in text
        default = f"; default {_shown(action.default)}" if usual else ""
        yield f"- `{_spelled(action)}`: {_escaped(text)}{_choices(action)}{default}"


def _spelled(action: argparse.Action) -> str:
    """An argument as it is written, with a name for its value."""
    value = action.metavar or (action.dest if not action.option_strings else action.dest.upper())
    value = value if isinstance(value, str) else " ".join(value or ())
    value = f"{value} ..." if action.nargs in ("+", argparse.REMAINDER) else value
    if not action.option_strings:
        return value
    return " ".join([", ".join(action.option_strings), *([] if action.nargs == 0 else [value])])


def _choices(action: argparse.Action) -> str:
    """The values an argument may have, where its help does not name them."""
    names = [f"`{x}`" for x in action.choices or ()]
    if not names or all(name.strip("`") in (action.help or "") for name in names):
        return ""
    names[8:-1] = ["..."] * (len(names) > 9)
    return f"{'; ' if action.help else ''}one of {', '.join(names)}"


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
