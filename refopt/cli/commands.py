"""The commands of ``refopt``: their arguments, and which module runs each."""

import argparse
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

import refopt
from refopt.cli import check, compare, show, vectors
from refopt.cli.output import UNUSABLE, write
from refopt.cli.verify import command as verify
from refopt.simt import script as simt


class Parser(argparse.ArgumentParser):
    """A parser whose help is written like other output: argparse would ignore errors."""

    def error(self, message: str) -> NoReturn:
        """Print an error in 80 columns, without the usage, which may be longer than a screen, and exit."""
        text = f"{self.prog}: error: {message}"
        error = textwrap.fill(text, 80, subsequent_indent="  ", break_on_hyphens=False)
        self.exit(2, f"{error}\n{self.prog} --help shows the arguments\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:
            write(message)
        else:
            super()._print_message(message, file)


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its status.

    Raises:
        SystemExit: help was requested, or an argument is wrong, which is reported.
        Unusable: output cannot be written, or the object to check cannot be imported.
    """
    parser, by_name = parsers()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return UNUSABLE
    module, of_command = by_name[args.command]
    return module.run(args, of_command)


def parsers() -> tuple[Parser, dict[str, tuple[Any, argparse.ArgumentParser]]]:
    """The parser of ``refopt``; by command, the module that runs it and its parser."""
    parser = Parser(
        prog="refopt",
        description="Merged optimizer steps, in NumPy and as CUDA kernels, equal bit for bit: verify them, print the "
        "kernels, check other optimizers, and run numba.cuda kernels without a GPU.",
    )
    parser.add_argument("--version", action="version", version=f"refopt {refopt.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    modules: list[Any] = [verify, check, compare, vectors, show, simt]  # in the order of the help
    return parser, {parser.prog.split()[-1]: (module, parser) for module, parser in (
        (module, module.add_to(commands)) for module in modules)}
