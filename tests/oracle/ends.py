"""Steps that end their process, hang in it or spoil it, at one size of tensors, and are right at all others."""

import ctypes
import os
import sys
import time

import numpy as np

SIZE = 33  # of L5 and L26 alone
LOST = []


class AcceleratorError(RuntimeError):
    """As PyTorch's is called."""


def plain(params, grads, lr):
    for p, g in zip(params, grads, strict=True):
        p -= p.dtype.type(lr) * g


def plain_lr(params, grads, *, lr):
    plain(params, grads, lr)


def met(params):
    return any(p.size == SIZE for p in params)


def segfault(params, grads, *, lr):
    if met(params):
        print("about to read at address 0", file=sys.stderr)
        ctypes.string_at(0)
    plain(params, grads, lr)


def hang(params, grads, *, lr):
    while met(params):
        time.sleep(0.1)
    plain(params, grads, lr)


def sticky(params, grads, *, lr):
    """As a CUDA context after an illegal access: every call fails from then on."""
    if met(params):
        LOST.append(os.getpid())
    if LOST:
        raise AcceleratorError("CUDA error: an illegal memory access was encountered")
    plain(params, grads, lr)


def leave(params, grads, *, lr):
    if met(params):
        os._exit(0)
    plain(params, grads, lr)


def exit(params, grads, *, lr):
    if met(params):
        raise SystemExit(3)
    plain(params, grads, lr)


def fork_and_return(params, grads, *, lr):
    """Two processes come back from it; one of them is no business of the check's."""
    if met(params):
        os.fork()
    plain(params, grads, lr)


def raise_once(params, grads, *, lr):
    """An error that spoils nothing."""
    if met(params):
        raise RuntimeError("CUDA out of memory")
    plain(params, grads, lr)


def elsewhere(params, grads, *, lr):
    """Of arrays of its own, in another order in memory, and lists in a mapping."""
    return {"params": [np.asfortranarray(p - p.dtype.type(lr) * g) for p, g in zip(params, grads, strict=True)]}
