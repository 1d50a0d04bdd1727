"""``refopt check``: check a step, given by module and name, against the laws."""

import argparse
import ast
import contextlib
import importlib
import importlib.util
import os
import shlex
import sys
import textwrap
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refopt.catalog import KNOWN
from refopt.checks.dtypes import numpy_dtype
from refopt.cli.output import DIFFERS, EQUAL, SEVERAL, Unusable, write
from refopt.cli.progress import Progress
from refopt.cli.report_file import Target, save
from refopt.oracle import ARRAYS, DEADLINE, DTYPES, LAWS, SYMMETRIES, Report, check, current_id, identify

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
    command.add_argument("step", nargs="?", metavar="STEP", help="module:name, or path/to/file.py:name")
    command.add_argument(
        "--as", dest="routine", choices=[*KNOWN, NONE], metavar="ROUTINE",
        help=f"{', '.join(KNOWN)}; or {NONE}, for the laws that need no formula",
    )
    command.add_argument(
        "--with", dest="options", **SEVERAL, default=[], metavar="NAME=VALUE", help="the optimizer's own arguments"
    )
    command.add_argument(
        "--set", dest="fixed", **SEVERAL, default=[], metavar="NAME=VALUE",
        help="numbers and choices that are built into the step, such as epsilon_at=uncorrected",
    )
    command.add_argument(
        "--names", **SEVERAL, default=[], metavar="OURS=THEIRS",
        help="what the optimizer calls its states and numbers, such as moment1=m step=t",
    )
    command.add_argument("--arrays", choices=ARRAYS, metavar="A", help=f"arrays for a function: {', '.join(ARRAYS)}")
    dtypes, by_request = [*SHORT, *DTYPES], [law.id for law in LAWS.values() if law.asked]
    command.add_argument("--dtype", **SEVERAL, choices=dtypes, metavar="D", help=f"{', '.join(SHORT)}; default all")
    usual = f"ids; default all but {', '.join(by_request)}; with --as {NONE}, those that need no formula"
    command.add_argument("--law", **SEVERAL, type=current_id, choices=[*LAWS], metavar="L", help=usual)
    command.add_argument(
        "--symmetry", **SEVERAL, choices=SYMMETRIES, default=[], metavar="S",
        help=f"symmetries that the optimizer claims: {', '.join(SYMMETRIES)}",
    )
    command.add_argument(
        "--tolerance", type=float, metavar="T", help="relative tolerance between runs; default measured"
    )
    command.add_argument(
        "--allow-skips", **SEVERAL, type=current_id, choices=[*LAWS], default=[], metavar="L",
        help="laws of which more than a fifth of the cases may be skipped",
    )
    command.add_argument("--list-laws", action="store_true", help="only list the laws")
    command.add_argument("--identify", action="store_true", help="only say which routine and choices it is, if any")
    command.add_argument("--examples", type=int, metavar="N", help="random cases of the step; default 5")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all data; default 0")
    command.add_argument("--secret", type=int, metavar="N", help="seed of L21; default random")
    command.add_argument("--device", metavar="D", help="where the arrays are, such as cuda")
    command.add_argument("--exact", action="store_true", help="also compare with refopt.cpu bit for bit")
    command.add_argument(
        "--expected-failures", metavar="FILE",
        help='laws that may fail: lines such as "L7 # why" and "L7-float32 # why"',
    )
    command.add_argument("--skip-file", dest="skips", metavar="FILE", help="laws to skip, in the same format")
    command.add_argument(
        "--deadline", type=float, metavar="S", help=f"seconds that a call of the step may take; default {DEADLINE:g}"
    )
    command.add_argument("--in-place", action="store_true", help="run the step in this process, not in a separate one")
    command.add_argument(
        "--verbose", action="store_true", help="print every failure of every law, and everything skipped"
    )
    command.add_argument("--script", metavar="FILE", help="write a script that reproduces the failure without refopt")
    command.add_argument(
        "--json", metavar="FILE", help="write a report in JSON; - for stdout, which then gets nothing else"
    )
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
    named = _named(args, parser)
    step = found(args.step)
    _checked(args, parser, step, named)
    with Target(args.json) as target:
        report = _report(args, step, named)
        target.write(report.to_json() + "\n")
        if args.json != "-":
            write(readable(report.details() if args.verbose else report))
        if args.script and report.failed_laws:
            save(args.script, "--script", report.script())
    return EQUAL if report.ok else DIFFERS


def _identified(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Identify which routine a step is."""
    options = pairs("--with", args.options, parser)
    own: dict[str, Any] = {"set": pairs("--set", args.fixed, parser)}
    own |= {"names": pairs("--names", args.names, parser), "arrays": args.arrays}
    own |= {"device": args.device, "seed": args.seed}
    for name in options.keys() & own.keys():
        parser.error(f"argument --with: expected one of the optimizer's own arguments, got {name}")
    step = found(args.step)
    with Target(args.json) as target:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                identity = identify(step, **own, **options)
        except (TypeError, ValueError) as error:
            parser.error(str(error))
        target.write(identity.to_json() + "\n")
        if args.json != "-":
            write(readable(identity))
    return EQUAL if identity.matches else DIFFERS


def _named(args: argparse.Namespace, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """The arguments of `check` that were given."""
    if args.secret is None and args.routine != NONE:
        args.secret = int.from_bytes(os.urandom(6))  # so that the command that reproduces a failure includes it
    named: dict[str, Any] = {"seed": args.seed, "exact": args.exact}
    named["set"] = pairs("--set", args.fixed, parser)
    optional = {
        "dtypes": args.dtype and full(args.dtype), "laws": args.law,
        "examples": args.examples, "secret": args.secret, "device": args.device, "deadline": args.deadline,
        "expected_failures": args.expected_failures, "process": False if args.in_place else None,
        "skips": args.skips, "arrays": args.arrays, "names": pairs("--names", args.names, parser) or None,
        "symmetries": args.symmetry or None, "tolerance": args.tolerance, "allow_skips": args.allow_skips or None,
    }
    if args.routine == NONE and args.script:
        parser.error(f"argument --script: expected none with --as {NONE}, got {args.script}")
    options = pairs("--with", args.options, parser)
    for name in options.keys() & {*named, *optional}:
        parser.error(f"argument --with: expected one of the optimizer's own arguments, got {name}")
    return named | {name: x for name, x in optional.items() if x is not None} | options


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


def _checked(args: argparse.Namespace, parser: argparse.ArgumentParser, step: Any, named: dict[str, Any]) -> None:
    """Refuse bad arguments before anything is written."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            check(_routine(args), step, **named | {"dtypes": []})
    except (TypeError, ValueError) as error:
        parser.error(str(error))


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
    for name, values in (("--with", args.options), ("--set", args.fixed), ("--names", args.names)):
        words += [name, *values] if values else []
    options = {"--seed": args.seed or None, "--examples": args.examples}
    options |= {"--secret": args.secret if LAWS[law].secret else None}
    options |= {"--arrays": args.arrays, "--device": args.device, "--tolerance": args.tolerance}
    options |= {"--deadline": args.deadline}
    for name, value in options.items():
        words += [name, str(value)] if value is not None else []
    words += ["--symmetry", *args.symmetry] if args.symmetry else []
    words += ["--allow-skips", *args.allow_skips] if args.allow_skips else []
    return shlex.join(words + ["--exact"] * args.exact + ["--in-place"] * args.in_place)


def readable(report: object) -> str:
    """A report in 80 columns; commands stay on one line, so that they can be copied."""
    lines = []
    for line in str(report).splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        lines.append(line if line.lstrip().startswith("again: ") else _wrapped(line, indent))
    return "\n".join(lines) + "\n"


def _wrapped(line: str, indent: str) -> str:
    return textwrap.fill(
        line, WIDTH, subsequent_indent=indent, break_long_words=True, break_on_hyphens=False, drop_whitespace=True
    )
