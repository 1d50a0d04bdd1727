"""``refopt compare``: compare two implementations of an optimizer."""

import argparse
from typing import Any

from refopt.cli.check import SHORT, found, full, pairs, reported, tried
from refopt.cli.output import DIFFERS, EQUAL, PAIRS, SEVERAL
from refopt.oracle import ARRAYS, DEADLINE, DTYPES, compare


def add_to(commands: Any) -> argparse.ArgumentParser:
    """Add the command and its arguments to those of ``refopt``."""
    command = commands.add_parser(
        "compare",
        help="compare two implementations of an optimizer",
        description="Compare two implementations of an optimizer, by bits or within a tolerance.",
        epilog="Exit status: 0 if there is no difference, 1 if there is one or nothing could be compared, 2 for "
        "arguments or files that cannot be used, 3 if the command itself fails.",
    )
    add = command.add_argument
    add("a", metavar="A", help="module:name, or path/to/file.py:name")
    add("b", metavar="B", help="module:name, or path/to/file.py:name")
    add("--within", default="bits", metavar="W", help="bits, measured, or a tolerance; default bits")
    for name, what in (("", "both"), ("-a", "A"), ("-b", "B")):
        text = f"arguments of {what}, such as fused=True"
        add(f"--with{name}", dest=f"options{name.replace('-', '_')}", **PAIRS, help=text)
    add("--set", dest="fixed", **PAIRS, help="numbers and choices that are built into functions")
    add("--dtype", **SEVERAL, choices=[*SHORT, *DTYPES], metavar="D", help=", ".join(SHORT))
    add("--arrays", choices=ARRAYS, metavar="A", help=f"arrays for functions: {', '.join(ARRAYS)}")
    add("--device", metavar="D", help="where the arrays are, such as cuda")
    add("--seed", type=int, default=0, metavar="N", help="seed of all data; default 0")
    add("--expected-failures", metavar="FILE", help='parts that may differ: lines such as "C4 # why"')
    text = f"seconds that a call of a step may take; default {DEADLINE:g}"
    add("--deadline", type=float, metavar="S", help=text)
    add("--in-place", action="store_true", help="run the steps in this process, not in separate ones")
    add("--json", metavar="FILE", help="write a report in JSON; - for stdout")
    return command


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run the command and return its status."""
    named: dict[str, Any] = {"set": pairs("--set", args.fixed, parser), "arrays": args.arrays, "device": args.device}
    named |= {"dtypes": args.dtype and full(args.dtype), "expected_failures": args.expected_failures}
    named |= {"deadline": args.deadline} if args.deadline is not None else {}
    named |= {"process": False} if args.in_place else {}
    both = pairs("--with", args.options, parser)
    within = args.within if args.within in ("bits", "measured") else tried(parser, lambda: float(args.within))
    named |= {"options_a": both | pairs("--with-a", args.options_a, parser), "within": within}
    named |= {"options_b": both | pairs("--with-b", args.options_b, parser), "seed": args.seed}
    report = reported(args, parser, lambda: compare(found(args.a), found(args.b), **named))
    return EQUAL if report.ok else DIFFERS
