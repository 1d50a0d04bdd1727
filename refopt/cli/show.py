"""``refopt show``: print the files of a routine's kernels, or their PTX."""

import argparse
from typing import Any

from refopt.catalog import KNOWN
from refopt.catalog.data import DTYPES
from refopt.cli.check import pairs
from refopt.cli.output import EQUAL, PAIRS, SEVERAL, Unusable, write
from refopt.cli.report_file import save
from refopt.gpu.show import ptx, request, source
from refopt.gpu.target import INSTALL, no_compiler


def add_to(commands: Any) -> argparse.ArgumentParser:
    """Add the command and its arguments to those of ``refopt``."""
    command = commands.add_parser(
        "show",
        help="print the files of a routine's kernels",
        description="Print the code that a GPU runs for a routine: arrays, choices and launches, then the source files "
        "of its kernels, in calling order: the kernel, its rule, and the loads, stores and sums that it calls.",
        epilog="Exit status: 0, 2 for arguments or files that cannot be used, 3 if the command itself fails; 130, 141 "
        "and 143 for Ctrl-C, a closed pipe and SIGTERM.",
    )
    add = command.add_argument
    add("routine", choices=list(KNOWN), metavar="ROUTINE", help=", ".join(KNOWN))
    kinds = "amp: fp32 masters; +16, +8: remainders; -8: states in 8 bits; -8, sr: stochastic rounding"
    text = f"{', '.join(DTYPES)}; default fp32. {kinds}"
    add("--dtype", choices=list(DTYPES), default="fp32", metavar="D", help=text)
    add("--form", metavar="F", help="one of the routine's forms; default the one that plans use")
    text = "choices of the routine, such as epsilon_at=uncorrected; of muon also restarts, such as restarts=2,4"
    add("--set", dest="choices", **PAIRS, help=text)
    text = "optional states to include, such as moment2_max"
    add("--state", **SEVERAL, default=[], metavar="NAME", help=text)
    text = "Hopper's own kernels, where there are any: Muon's products of large matrices"
    add("--hopper", action="store_true", help=text)
    add("--ptx", action="store_true", help="print the compiler's PTX instead; needs no GPU")
    add("--out", metavar="FILE", help="write to a file")
    return command


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run the command and return its status.

    Raises:
        SystemExit: an argument is wrong, which is reported.
        Unusable: there is no compiler, or output cannot be written.
    """
    choices = pairs("--set", args.choices, parser)
    try:
        asked = request(args.routine, args.dtype, args.form, args.state, choices, args.hopper)
    except (TypeError, ValueError) as error:
        parser.error(str(error).removeprefix("show: "))
    if args.ptx and (reason := no_compiler()):
        raise Unusable(f"--ptx: {reason}; {INSTALL}")
    text = ptx(asked) if args.ptx else source(asked)
    if args.out is None:
        write(text)
    else:
        save(args.out, "--out", text)
    return EQUAL
