"""Results of an implementation in an npz file, for later comparison."""

import json
import zlib
from os import PathLike
from typing import Any
from zipfile import BadZipFile

import numpy as np

import refopt
from refopt.checks.dtypes import numpy_dtype
from refopt.checks.files import replaced
from refopt.oracle.comparison.data import Part
from refopt.oracle.exact.cases import Outcome
from refopt.oracle.running import Data, by_slot

SCHEMA = "refopt.record/1"


class Recorded:
    """A file of results, as `record` writes it.

    Attributes:
        name: of the implementation.
        dtypes, seed: of its cases.
    """

    def __init__(self, path: str | PathLike) -> None:
        """Raises ValueError if the file cannot be read, or is not a record."""
        where = f"compare: expected a record, of refopt.oracle.record, got {path}"
        try:
            with np.load(path, allow_pickle=False) as file:
                self.arrays = {name: file[name] for name in file.files}
            index = json.loads(str(self.arrays["index"]))
            if index["schema"] != SCHEMA:
                raise ValueError(index["schema"])
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            raise ValueError(f"{where}: {error}") from error
        self.name, self.dtypes, self.seed = index["subject"], index["dtypes"], index["seed"]
        self.cases: dict[str, Any] = index["cases"]

    def outcome(self, dtype: str, part: Part) -> Outcome:
        """The recorded results of a case; raises NotImplementedError if there are none."""
        key = f"{dtype}/{part.id}/{part.label}"
        case = self.cases.get(key)
        if case is None or case["of"] != digest(part.data):
            raise NotImplementedError("not recorded" if case is None else "recorded by another version on other data")
        if case["why"]:
            raise NotImplementedError(f"not recorded: {case['why']}")
        params = [self._array(f"{key}/{i}/params", dtype) for i in range(len(part.data))]
        states = [{name: self._array(f"{key}/{i}/state/{name}", kind) for name, kind in of.items()}
                  for i, of in enumerate(case["states"])]
        return by_slot(params, states)

    def _array(self, name: str, dtype: str) -> np.ndarray:
        x = self.arrays[name]
        return x.view(numpy_dtype(dtype)) if dtype == "bfloat16" else x


class Recorder:
    """Collects results for a file."""

    def __init__(self, subject: str, dtypes: list[str], seed: int) -> None:
        self.index: dict[str, Any] = {
            "schema": SCHEMA, "refopt": refopt.__version__, "subject": subject, "dtypes": dtypes, "seed": seed,
            "cases": {},
        }
        self.arrays: dict[str, Any] = {}

    def add(self, dtype: str, part: Part, came: Outcome | None, why: str = "") -> None:
        """Add a case with its results, or the reason for having none."""
        key = f"{dtype}/{part.id}/{part.label}"
        states: list[dict[str, str]] = [{} for _ in part.data.params] if came else []
        for name, arrays in (came or {}).items():
            for i, x in enumerate(arrays):
                if name != "params" and x is not None:
                    states[i][name] = x.dtype.name
                if x is not None:
                    self.arrays[f"{key}/{i}/{'' if name == 'params' else 'state/'}{name}"] = _plain(x)
        self.index["cases"][key] = {"of": digest(part.data), "why": why, "states": states}

    def save(self, path: str | PathLike) -> None:
        with replaced(path) as file:
            np.savez_compressed(file, index=np.array(json.dumps(self.index)), **self.arrays)


def _plain(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint16) if x.dtype.name == "bfloat16" else x


def digest(data: Data) -> int:
    """A checksum of the bytes of a case."""
    sum_ = 0
    for x in (*data.params, *(x for of in data.grads for x in of)):
        sum_ = zlib.crc32(np.ascontiguousarray(x).tobytes(), sum_)
    return sum_
