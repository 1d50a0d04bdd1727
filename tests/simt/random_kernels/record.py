"""What a GPU makes of the kernels: `h200.npz`, and the command that writes it on a GPU, `make random-kernels`.

    python -m simt.random_kernels.record [--seeds 0 400] [--processes 12] [--out FILE]

The kernels are compiled by numba-cuda, with NVVM's contraction of ``a * b + c`` off, as on the executor.
"""

import argparse
import importlib.metadata
import json
import multiprocessing
from pathlib import Path
from typing import NamedTuple

import numpy as np
from texts import executed

from benchmarks.left_open import stock
from benchmarks.record import machine
from simt.random_kernels.inputs import COUNT
from simt.random_kernels.kernels import make

FILE = Path(__file__).with_name("h200.npz")
AT_ONCE = 6  # kernels that one process compiles; a fault on the GPU ends its process


class Record(NamedTuple):
    """What a GPU has made of each seed.

    Attributes:
        left: by seed, the bytes of all outputs, in the order of the arguments.
        refused: by seed, why numba-cuda does not compile the kernel.
        about: the device, the driver and versions.
    """

    left: dict[int, bytes]
    refused: dict[int, str]
    about: dict

    def save(self, file):
        ends = np.cumsum([len(left) for left in self.left.values()])
        head = json.dumps({"about": self.about, "seeds": [*self.left], "refused": self.refused})
        np.savez_compressed(
            file, head=np.array(head), ends=ends, left=np.frombuffer(b"".join(self.left.values()), np.uint8))


def load(file=FILE):
    with np.load(file) as stored:
        head, ends, left = json.loads(str(stored["head"])), stored["ends"], stored["left"].tobytes()
    starts = [0, *ends[:-1]]
    parts = [left[start:end] for start, end in zip(starts, ends, strict=True)]
    refused = {int(seed): why for seed, why in head["refused"].items()}
    return Record(dict(zip(head["seeds"], parts, strict=True)), refused, head["about"])


def differing(got, left):
    """The outputs of which elements differ from a record's bytes: a text, empty if none does. Two NaN are equal."""
    found, at = [], 0
    for name, x in got.items():
        there = np.frombuffer(left, x.dtype, x.size, at)
        at += x.nbytes
        wrong = np.flatnonzero(~np.logical_and.reduce([_equal(x[f], there[f]) for f in x.dtype.names or [()]]))
        if wrong.size:
            k = int(wrong[0])
            found.append(f"{name}: {wrong.size} of {x.size}, the first at {k}: {x[k]!r}, not {there[k]!r}")
    return "; ".join(found)


def _equal(x, y):
    if x.dtype.kind == "c":
        return _equal(x.real, y.real) & _equal(x.imag, y.imag)
    bits = f"u{x.dtype.itemsize}"
    return (np.ascontiguousarray(x).view(bits) == np.ascontiguousarray(y).view(bits)) | ((x != x) & (y != y))


# On a GPU.


def measured(seeds):
    """What the GPU makes of some seeds: bytes, or why it is refused. A fault of the GPU leaves the others out."""
    found = {}
    with stock() as (cuda, jit):
        for seed in seeds:
            case = make(seed)
            try:
                kernel, arrays = jit(executed(case.source)["kernel"].py_func), case.on_device(cuda)
                kernel[case.launch](*arrays, COUNT)
                found[seed] = b"".join(x.tobytes() for x in case.outputs(arrays).values())
            except Exception as error:
                text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
                if "CUDA_ERROR" in text:
                    print(f"seed {seed}: {text}", flush=True)
                    break
                found[seed] = text
    return found


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 400), metavar=("START", "STOP"))
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    seeds, found = range(*options.seeds), {}
    parts = [seeds[k : k + AT_ONCE] for k in range(0, len(seeds), AT_ONCE)]
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=1) as pool:
        for part in pool.imap_unordered(measured, parts):
            found |= part
            print(f"{len(found)} of {len(seeds)}", flush=True)
    left, refused = ({k: found[k] for k in seeds if isinstance(found.get(k), kind)} for kind in (bytes, str))
    versions = {name: importlib.metadata.version(name) for name in ("numba-cuda", "numba", "numpy")}
    Record(left, refused, machine() | versions).save(options.out)
    print(f"{len(left)} ran, {len(refused)} refused, {len(seeds) - len(found)} missing: {options.out}")


if __name__ == "__main__":
    main()
