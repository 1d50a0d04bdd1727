"""``refopt compare``: compare two implementations of an optimizer."""

import argparse
import contextlib
import inspect
import os
import sys
from typing import Any

from refopt.catalog import KNOWN
from refopt.cli.check import SHORT, found, full, pairs, readable
from refopt.cli.output import DIFFERS, EQUAL, SEVERAL, Unusable, write
from refopt.cli.report_file import Target
from refopt.oracle import ARRAYS, DEADLINE, DTYPES, compare, record


def add_to(commands: Any) -> argparse.ArgumentParser:
    """Add the command and its arguments to those of ``refopt``."""
    command = commands.add_parser(
        "compare",
        help="compare two implementations of an optimizer",
        description="Compare two implementations of an optimizer, by bits or within a tolerance.",
        epilog="Exit status: 0 if there is no difference, 1 if there is one or nothing could be compared, 2 for "
        "arguments or files that cannot be used, 3 if the command itself fails.",
    )
    command.add_argument("a", metavar="A", help="module:name, path/to/file.py:name, or a file of --record")
    command.add_argument("b", nargs="?", metavar="B", help="module:name, or path/to/file.py:name")
    command.add_argument("--record", metavar="FILE", help="write the results of A to a file, to compare with later")
    command.add_argument(
        "--within", default="bits", metavar="W", help="bits, measured, bound, or a tolerance; default bits"
    )
    command.add_argument(
        "--as", dest="routine", choices=list(KNOWN), metavar="ROUTINE", help="the routine, for --within bound"
    )
    for name, what in (("--with", "both"), ("--with-a", "A"), ("--with-b", "B")):
        dest = name.strip("-").replace("-", "_").replace("with", "options")
        told = f"arguments of {what}, such as fused=True"
        command.add_argument(name, dest=dest, help=told, **SEVERAL, metavar="NAME=VALUE", default=[])
    text = "numbers and choices that are built into functions"
    command.add_argument("--set", dest="fixed", help=text, **SEVERAL, metavar="NAME=VALUE", default=[])
    command.add_argument("--dtype", help=", ".join(SHORT), **SEVERAL, choices=[*SHORT, *DTYPES], metavar="D")
    command.add_argument("--arrays", choices=ARRAYS, metavar="A", help=f"arrays for functions: {', '.join(ARRAYS)}")
    command.add_argument("--device", metavar="D", help="where the arrays are, such as cuda")
    command.add_argument("--seed", type=int, metavar="N", help="seed of all data; default 0, or that of the file")
    command.add_argument("--expected-failures", metavar="FILE", help='parts that may differ: lines such as "C4 # why"')
    command.add_argument(
        "--deadline", type=float, metavar="S", help=f"seconds that a call of a step may take; default {DEADLINE:g}"
    )
    command.add_argument("--in-place", action="store_true", help="run the steps in this process, not in separate ones")
    command.add_argument("--json", metavar="FILE", help="write a report in JSON; - for stdout")
    return command


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run the command and return its status."""
    named: dict[str, Any] = {"set": pairs("--set", args.fixed, parser), "arrays": args.arrays, "device": args.device}
    named |= {"dtypes": args.dtype and full(args.dtype)}
    named |= {"deadline": args.deadline} if args.deadline is not None else {}
    named |= {"process": False} if args.in_place else {}
    options = pairs("--with", args.options, parser)
    for name in options.keys() & (inspect.signature(compare).parameters.keys() - {"options"}):
        parser.error(f"argument --with: expected one of the optimizer's own arguments, got {name}")
    a = args.a if os.path.isfile(args.a) else found(args.a)
    try:
        if args.record is not None:
            return _recorded(args, parser, a, named | options)
        if args.b is None:
            parser.error("expected two implementations, or --record")
        with Target(args.json) as target:
            own: dict[str, Any] = {"options_a": pairs("--with-a", args.options_a, parser)}
            own |= {"options_b": pairs("--with-b", args.options_b, parser)}
            within = args.within if args.within in ("bits", "measured", "bound") else float(args.within)
            with contextlib.redirect_stdout(sys.stderr):
                report = compare(
                    a, found(args.b), within=within, routine=args.routine, seed=args.seed,
                    expected_failures=args.expected_failures, **own, **named, **options,
                )
            target.write(report.to_json() + "\n")
            if args.json != "-":
                write(readable(report))
            return EQUAL if report.ok else DIFFERS
    except (TypeError, ValueError) as error:
        parser.error(str(error))


def _recorded(args: argparse.Namespace, parser: argparse.ArgumentParser, a: Any, named: dict[str, Any]) -> int:
    if args.b is not None or isinstance(a, str):
        parser.error("argument --record: expected one implementation")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            record(a, args.record, seed=args.seed or 0, **named, **pairs("--with-a", args.options_a, parser))
    except OSError as error:
        raise Unusable(f"--record: cannot write to {args.record!r}: {error.strerror}") from error
    return EQUAL
