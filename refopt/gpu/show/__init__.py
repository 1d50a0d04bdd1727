"""Readable kernels: all code that a GPU runs for a routine, as one text in plain Python.

A kernel is assembled from functions of several files, specialized for dtypes and choices. `listing` writes each of them
once, callers first, under its name in the source, with the values that it was made for, without the branches that
these values make dead, and with the comments of the source. `refopt show` is the command, ``Kernel.source`` lists one
kernel, and the folder ``kernels`` of the repository has the fp32 kernels of every routine.
"""

from collections.abc import Iterable
from typing import Any

from refopt.gpu.listing.text import Listing, listing
from refopt.gpu.show.header import header
from refopt.gpu.show.kernels import Request, launches_of, request
from refopt.gpu.target import signature_of

__all__ = ["Listing", "Request", "listing", "ptx", "request", "source", "whole"]


def source(
    routine: str, dtype: str = "fp32", form: str | None = None, states: Iterable[str] = (), hopper: bool = False,
    **choices: Any,
) -> str:
    """The listing of all kernels of a routine, as ``refopt show`` prints it.

    Args:
        routine: a name of `refopt.catalog.KNOWN`.
        dtype: fp32, fp64, fp16, bf16; fp16-amp and bf16-amp, with fp32 masters; bf16+16, with remainders; bf16-sr,
            rounded stochastically.
        form: one of the routine's forms; the default of plans if not given.
        states: optional states that are given, such as moment2_max.
        hopper: the kernels that Hopper has in place of those for every GPU, by which Muon multiplies large matrices.
        choices: values of the routine's choices; the first of each if not given.

    Raises:
        ValueError, TypeError: the routine has no such dtypes, form, states or choices.
    """
    return whole(request(routine, dtype, form, states, choices, hopper))


def whole(asked: Request) -> str:
    """The listing for a request."""
    launches = launches_of(asked)
    return listing(launches.kernels, header(asked, launches)).text


def ptx(asked: Request) -> str:
    """The PTX of each kernel of a request, once; it needs a compiler, but no GPU."""
    kernels = {x.kernel: x.args for x in launches_of(asked).prepared}
    return "\n".join(f"// {kernel.name}\n{kernel.ptx(signature_of(args))}" for kernel, args in kernels.items())
