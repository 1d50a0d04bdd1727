"""``refopt vectors``: write test vectors of a routine, for code in any language."""

import argparse
from typing import Any

from refopt.catalog import KNOWN
from refopt.cli.check import SHORT, full, pairs, tried
from refopt.cli.output import EQUAL, PAIRS, SEVERAL, write
from refopt.cli.report_file import save
from refopt.oracle import DTYPES, vectors


def add_to(commands: Any) -> argparse.ArgumentParser:
    """Add the command and its arguments to those of ``refopt``."""
    command = commands.add_parser(
        "vectors",
        help="write test vectors of a routine for other languages",
        description="Write test vectors of a routine: inputs in hexadecimal, the expected results, and a bound "
        "for each element.",
    )
    add = command.add_argument
    add("routine", choices=list(KNOWN), metavar="ROUTINE", help=", ".join(KNOWN))
    add("--to", metavar="FILE", help="default standard output")
    add("--dtype", **SEVERAL, choices=[*SHORT, *DTYPES], metavar="D", help=f"{', '.join(SHORT)}; default fp32 fp64")
    add("--set", dest="fixed", **PAIRS, help="numbers and choices of every case, such as epsilon_at=uncorrected")
    add("--examples", type=int, default=5, metavar="N", help="additional cases of each dtype; default 5")
    add("--seed", type=int, default=0, metavar="N", help="seed of all data; default 0")
    return command


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run the command and return its status."""
    fixed, dtypes = pairs("--set", args.fixed, parser), full(args.dtype or ("fp32", "fp64"))
    made = tried(parser, lambda: vectors(
        args.routine, dtypes=dtypes, set=fixed, examples=args.examples, seed=args.seed))
    if args.to is None:
        write(made.to_json())
    else:
        save(args.to, "--to", made.to_json())
    return EQUAL
