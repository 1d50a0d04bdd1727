"""``refopt check``: check a step, given by module and name, against the laws."""

import argparse
import ast
import contextlib
import importlib
import importlib.util
import inspect
import os
import shlex
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from refopt.catalog import KNOWN
from refopt.checks.dtypes import numpy_dtype
from refopt.cli.output import DIFFERS, EQUAL, PAIRS, SEVERAL, Unusable, write
from refopt.cli.progress import Progress
from refopt.cli.report_file import Target
from refopt.oracle import ARRAYS, DEADLINE, DTYPES, FEW_BITS, LAWS, SYMMETRIES, Report, check, identify

SHORT = {"fp32": "float32", "fp64": "float64", "fp16": "float16", "bf16": "bfloat16"}
WIDTH = 80
NONE = "none"  # instead of a routine of the catalogue


def add_to(commands: Any) -> argparse.ArgumentParser:
    """Add the command and its arguments to those of ``refopt``."""
    command = commands.add_parser(
        "check",
        help="say whether an optimizer is right, and if not, what is wrong",
        description="Check an optimizer's step against the laws of a routine, and say what is wrong.",
        epilog="Exit status: 0 if it is right, 1 if it is wrong or could not be compared, 2 for arguments or files "
        "that cannot be used, 3 if the command itself fails; 130, 141 and 143 for Ctrl-C, a closed pipe and SIGTERM.",
    )
    add, dtypes, by_request = command.add_argument, [*SHORT, *DTYPES], [law.id for law in LAWS.values() if law.asked]
    add("step", nargs="?", metavar="STEP", help="module:name, or path/to/file.py:name")
    text = f"{', '.join(KNOWN)}; or {NONE}, for the laws that need no formula"
    add("--as", dest="routine", choices=[*KNOWN, NONE], metavar="ROUTINE", help=text)
    add("--with", dest="options", **PAIRS, help="the optimizer's own arguments")
    text = "numbers and choices that are built into the step, such as epsilon_at=uncorrected"
    add("--set", dest="fixed", **PAIRS, help=text)
    text = "what the optimizer calls its states and numbers, such as moment1=m step=t"
    add("--names", **PAIRS | {"metavar": "OURS=THEIRS"}, help=text)
    add("--arrays", choices=ARRAYS, metavar="A", help=f"arrays for a function: {', '.join(ARRAYS)}")
    add("--dtype", **SEVERAL, choices=dtypes, metavar="D", help=f"{', '.join(SHORT)}; default all")
    text = f"ids; default all but {', '.join(by_request)}; with --as {NONE}, those that need no formula"
    add("--law", **SEVERAL, choices=[*LAWS], metavar="L", help=text)
    text = f"symmetries that the optimizer claims: {', '.join(SYMMETRIES)}"
    add("--symmetry", **SEVERAL, choices=SYMMETRIES, default=[], metavar="S", help=text)
    add("--states", choices=[FEW_BITS], metavar="S", help=f"{FEW_BITS}: the step keeps its states in 8 bits")
    add("--tolerance", type=float, metavar="T", help="relative tolerance between runs; default measured")
    text = "laws of which more than a fifth of the cases may be skipped"
    add("--allow-skips", **SEVERAL, choices=[*LAWS], default=[], metavar="L", help=text)
    add("--list-laws", action="store_true", help="only list the laws")
    add("--identify", action="store_true", help="only say which routine and choices it is, if any")
    add("--examples", type=int, metavar="N", help="random cases of the step; default 5")
    add("--seed", type=int, default=0, metavar="N", help="seed of all data; default 0")
    add("--secret", type=int, metavar="N", help="seed of L21; default random")
    add("--device", metavar="D", help="where the arrays are, such as cuda")
    add("--exact", action="store_true", help="also compare with refopt.cpu bit for bit")
    text = 'laws that may fail: lines such as "L7 # why" and "L7-float32 # why"'
    add("--expected-failures", metavar="FILE", help=text)
    add("--skip-file", dest="skips", metavar="FILE", help="laws to skip, in the same format")
    text = f"seconds that a call of the step may take; default {DEADLINE:g}"
    add("--deadline", type=float, metavar="S", help=text)
    add("--in-place", action="store_true", help="run the step in this process, not in a separate one")
    add("--verbose", action="store_true", help="print every failure of every law, and everything skipped")
    add("--json", metavar="FILE", help="write a report in JSON; - for stdout, which then gets nothing else")
    return command


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run the command and return its status."""
    if args.list_laws:
        for law in [law for law in LAWS.values() if law.runs or args.routine != NONE]:
            by_request = " On request." if law.asked else ""
            write(_wrapped(f"{law.id:<4} {law.name}: {law.about}{by_request}", " " * 5) + "\n")
        return EQUAL
    if args.step is None:
        parser.error("expected a step, such as torch.optim:AdamW or kernels.py:step")
    if args.identify:
        return _identified(args, parser)
    if args.routine is None:
        parser.error(f"expected --as with the routine that it implements, one of {', '.join([*KNOWN, NONE])}")
    step, named = _named(args, parser)
    tried(parser, lambda: check(_routine(args), step, **named | {"dtypes": []}))  # before anything is written
    with Target(args.json) as target:
        report = _report(args, step, named)
        target.write(report.to_json() + "\n")
        if args.json != "-":
            write(readable(report.details() if args.verbose else report))
    return EQUAL if report.ok else DIFFERS


def _identified(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Identify which routine a step is."""
    own: dict[str, Any] = {"set": pairs("--set", args.fixed, parser), "names": pairs("--names", args.names, parser)}
    own |= {"arrays": args.arrays, "device": args.device, "seed": args.seed}
    step, options = with_arguments(args, parser, identify)
    return EQUAL if reported(args, parser, lambda: identify(step, **own, **options)).matches else DIFFERS


def reported(args: argparse.Namespace, parser: argparse.ArgumentParser, make: Callable[[], Any]) -> Any:
    """Make a report, and print it or write it as JSON."""
    with Target(args.json) as target:
        report = tried(parser, make)
        target.write(report.to_json() + "\n")
        if args.json != "-":
            write(readable(report))
    return report


def tried(parser: argparse.ArgumentParser, make: Callable[[], Any]) -> Any:
    """What a function returns; what it prints goes to stderr, and arguments that it refuses are reported."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return make()
    except (TypeError, ValueError) as error:
        parser.error(str(error))


def with_arguments(args: argparse.Namespace, parser: argparse.ArgumentParser, of: Callable) -> tuple[Any, Any]:
    """The step, and the optimizer's own arguments; the step has those already whose names a function has itself."""
    options, step = pairs("--with", args.options, parser), found(args.step)
    taken = inspect.signature(of).parameters.keys() - {"options"}
    bound = {name: options.pop(name) for name in [*options] if name in taken}
    if bound and not isinstance(step, type):
        parser.error(f"argument --with: expected one of the optimizer's own arguments, got {next(iter(bound))}")
    return partial(step, **bound) if bound else step, options


def _named(args: argparse.Namespace, parser: argparse.ArgumentParser) -> tuple[Any, dict[str, Any]]:
    """The step, and the arguments of `check` that were given."""
    if args.secret is None and args.routine != NONE:
        args.secret = int.from_bytes(os.urandom(6))  # so that the command that reproduces a failure includes it
    named: dict[str, Any] = {"seed": args.seed, "exact": args.exact, "set": pairs("--set", args.fixed, parser)}
    optional = {
        "dtypes": args.dtype and full(args.dtype), "laws": args.law, "states": args.states,
        "examples": args.examples, "secret": args.secret, "device": args.device, "deadline": args.deadline,
        "expected_failures": args.expected_failures, "process": False if args.in_place else None,
        "skips": args.skips, "arrays": args.arrays, "names": pairs("--names", args.names, parser) or None,
        "symmetries": args.symmetry or None, "tolerance": args.tolerance, "allow_skips": args.allow_skips or None,
    }
    step, options = with_arguments(args, parser, check)
    return step, named | {name: x for name, x in optional.items() if x is not None} | options


def pairs(what: str, texts: list[str], parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Names and values; a value that is not a Python literal is text."""
    pairs: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            parser.error(f"argument {what}: expected NAME=VALUE, got {text!r}")
        known = {"true": True, "false": False, "none": None}
        try:
            pairs[name] = known[value.lower()] if value.lower() in known else ast.literal_eval(value)
        except (ValueError, SyntaxError):
            pairs[name] = value
    return pairs


def full(dtypes: Sequence[str]) -> list[str]:
    """The names of requested dtypes in full; raises ImportError if NumPy lacks one in this installation."""
    return list(dict.fromkeys(numpy_dtype(SHORT.get(x, x)).name for x in dtypes))


def found(spec: str) -> Any:
    """The object that ``module:name`` or ``path/to/file.py:name`` refers to.

    Raises:
        Unusable: the module, file or name does not exist, or importing it fails.
    """
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise Unusable(f"check: expected module:name or path/to/file.py:name, got {spec!r}")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            module = _of_file(place) if place.endswith(".py") else _of_name(place)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an import can raise anything
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise Unusable(f"check: {place}: cannot be imported: {text}{_line_of(error)}") from error
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise Unusable(f"check: {place}: expected something named {name}, got none")
        value = getattr(value, part)
    return value


def _line_of(error: BaseException) -> str:
    """Where a module raised an error; empty if it was not found or parsed, since then the error says where."""
    frames = [x for x in traceback.extract_tb(error.__traceback__) if os.path.exists(x.filename)]
    own = [x for x in frames if os.path.realpath(x.filename) != os.path.realpath(__file__)]
    own = [x for x in own if f"{os.sep}importlib{os.sep}" not in x.filename]
    return f" ({os.path.basename(own[-1].filename)}, line {own[-1].lineno})" if own else ""


def _of_name(name: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return importlib.import_module(name)


def _of_file(path: str) -> Any:
    if not Path(path).is_file():
        raise FileNotFoundError("no such file")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)
    sys.path.insert(0, str(Path(path).resolve().parent))
    spec.loader.exec_module(module)
    return module


def _report(args: argparse.Namespace, step: Any, named: dict[str, Any]) -> Report:
    """The report, with a command that reproduces each failure."""
    with Progress(sys.stderr, 1) as progress, contextlib.redirect_stdout(sys.stderr):

        def show(done: int, total: int, what: str) -> None:
            progress.done, progress.total = done, total
            progress.show(what)

        report = check(_routine(args), step, progress=show, **named)
    for i, item in enumerate(report.items):
        if item.command:  # of the function's call, which tries tensors of several dtypes in L10 alone
            dtypes = report.dtypes if item.law == "L10" else [item.dtype]
            report.items[i] = item._replace(command=_command(args, dtypes, item.law))
    return report


def _routine(args: argparse.Namespace) -> str | None:
    return None if args.routine == NONE else args.routine


def _command(args: argparse.Namespace, dtypes: Sequence[str], law: str) -> str:
    """The command that tries a law again, in dtypes."""
    short = [name for name, long in SHORT.items() if long in dtypes]
    words = ["refopt", "check", args.step, "--as", args.routine, "--dtype", *short, "--law", law]
    secret = args.secret if LAWS[law].secret else None
    options = {
        "--with": args.options, "--set": args.fixed, "--names": args.names, "--seed": args.seed or None,
        "--examples": args.examples, "--secret": secret, "--arrays": args.arrays, "--device": args.device,
        "--tolerance": args.tolerance, "--states": args.states, "--deadline": args.deadline,
        "--symmetry": args.symmetry, "--allow-skips": args.allow_skips,
    }
    for name, value in options.items():
        if value not in (None, []):
            words += [name, *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words + ["--exact"] * args.exact + ["--in-place"] * args.in_place)


def readable(report: object) -> str:
    """A report in 80 columns; commands stay on one line, so that they can be copied."""
    lines = []
    for line in str(report).splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        lines.append(line if line.lstrip().startswith("again: ") else _wrapped(line, indent))
    return "\n".join(lines) + "\n"


def _wrapped(line: str, indent: str) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
