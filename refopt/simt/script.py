"""Runs a whole script on the executor instead of `numba.cuda`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from . import rules
from .base.tracebacks import message_of, traceback_text
from .machine.claims import DEVICES, claim
from .names.replace import replace_numba
from .watch.log import Log
from .watch.observe import observe

ABOUT = """Run a Python script, or with -m a module, on the executor instead of numba.cuda. It needs neither a GPU nor
Numba. An exception ends the script, and so does a report of the executor, unless
--keep-going lists them."""
ENDS = "Exit status: the script's; 1 if an exception ends it or a defect is listed, 2 if there is no such script."


def add_to(commands: Any) -> argparse.ArgumentParser:
    """Add the command and its arguments to another command's."""
    command = commands.add_parser(
        "simt", help="run a numba.cuda script without a GPU, watched on request", description=ABOUT, epilog=ENDS
    )
    add_arguments(command)
    return command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options, the script, and its own arguments."""
    parser.add_argument("--watch", action="store_true", help="look for data races and uninitialized reads; slower")
    names = sorted(rules.ON | rules.OFF)
    rule: dict[str, Any] = {"metavar": "RULE", "action": "append", "choices": names, "default": []}
    parser.add_argument("--strict", **rule, help="watch, with one more rule of simt.rules; repeat for several")
    parser.add_argument("--lenient", **rule, help="a rule to turn off")
    doubles = "do not launch a kernel that computes in doubles without an fp64 array"
    parser.add_argument("--doubles", choices=("ignore", "refuse"), default="ignore", help=f"refuse: {doubles}")
    ptx = "compile each kernel to PTX before its launch, if numba-cuda is installed"
    parser.add_argument("--compile", action="store_true", help=ptx)
    parser.add_argument("--keep-going", action="store_true", help="watch, continue after a defect, and list all")
    more = "watch, in N random orders besides forward and reverse"
    parser.add_argument("--orders", type=int, default=0, metavar="N", help=more)
    schedules = ("forward", "reverse", "random")
    parser.add_argument("--schedule", choices=schedules, help="the only order of blocks and threads to run")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random schedule, and of the first of --orders")
    devices = ", ".join(DEVICES)
    parser.add_argument("--device", metavar="NAME", choices=DEVICES, help=f"the device to claim to be: {devices}")
    parser.add_argument("-m", dest="module", action="store_true", help="the script is the name of a module")
    parser.add_argument("script", help="a Python file, or a module with -m")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the script's own arguments")


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run the script to its end and return its exit status."""
    argv, path, log = sys.argv, list(sys.path), None
    with ExitStack() as stack:
        stack.enter_context(replace_numba())
        sys.path.insert(0, os.getcwd() if args.module else os.path.dirname(os.path.abspath(args.script)))
        if args.device is not None:
            stack.enter_context(claim(args.device))
        watch = bool(args.watch or args.strict or args.keep_going or args.orders)
        if watch or args.compile or args.lenient or args.schedule or args.doubles != "ignore":
            options = "schedule", "seed", "strict", "lenient", "doubles", "compile", "orders", "keep_going"
            try:
                log = stack.enter_context(observe(False, watch, **{name: getattr(args, name) for name in options}))
            except ValueError as error:
                parser.error(str(error))
        sys.argv, status = [args.script, *args.args], 0
        try:
            if not (_is_module(args.script) if args.module else _is_script(args.script)):
                parser.error(f"no {'module' if args.module else 'script'} {args.script}")
            if args.module:
                runpy.run_module(args.script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(args.script, run_name="__main__")
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception as error:
            print(traceback_text(error), end="", file=sys.stderr)
            status = 1
        finally:
            sys.argv, sys.path[:] = argv, path
            for name, result in (log.compiled or {}).items() if log is not None else ():
                print(f"kernel {name}: {result}", file=sys.stderr)
        return status if log is None else _listed(log, not status) or status


def _listed(log: Log, well: bool) -> int:
    """Print the defects of a log, or what it tolerated if all went well; return 1 if there are defects, else 0."""
    for one in log.tolerated if well else ():
        print(f"refopt simt: {one}", file=sys.stderr)
    found = log.found
    if not found.goes_on:
        return 0
    for number, (error, times) in enumerate(zip(found.listed, found.times, strict=True), 1):
        again = f" ({times} times)" if times > 1 else ""
        print(f"\n{number} of {len(found.listed)}{again}: {message_of(error)}", file=sys.stderr)
    if found.more:
        print(f"\nand {found.more} more", file=sys.stderr)
    return int(bool(found.listed))


def _is_script(name: str) -> bool:
    """Whether a file of this name exists, or a folder with a __main__.py."""
    return os.path.isfile(name) or os.path.isfile(os.path.join(name, "__main__.py"))


def _is_module(name: str) -> bool:
    """Whether a module exists. Its parent packages are imported, so Numba must be replaced before."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            return False
        raise


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m refopt.simt``; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m refopt.simt", description=ABOUT, epilog=ENDS)
    add_arguments(parser)
    return run(parser.parse_args(argv), parser)
