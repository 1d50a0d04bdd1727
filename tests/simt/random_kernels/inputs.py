"""Random elements, among them those at the limits of a type."""

import numpy as np

COUNT = 192  # elements of an array
SIGNED = ["int8", "int16", "int32", "int64"]
INTEGERS = [*SIGNED, "uint8", "uint16", "uint32", "uint64"]
FIELDS = [("x", np.float32), ("y", np.int32), ("z", np.float64), ("w", np.int8), ("v", np.uint16)]
RECORD = np.dtype(FIELDS, align=True)


def family_of(dtype):
    """I for integers, F for fp32 and fp64, H for fp16, B for booleans."""
    return "B" if dtype == "bool" else "H" if dtype == "float16" else "I" if "int" in dtype else "F"


def elements(dtype, rng):
    """An array of a type."""
    dtype = np.dtype(dtype)
    if dtype.names:
        made = np.zeros(COUNT, dtype)
        for name in dtype.names:
            made[name] = elements(dtype[name], rng)
        return made
    if dtype == np.bool_:
        return rng.integers(0, 2, COUNT).astype(bool)
    return {"i": _integers, "u": _integers, "f": _floats, "c": _complex}[dtype.kind](dtype, rng)


def _integers(dtype, rng):
    info, signed = np.iinfo(dtype), dtype.kind == "i"
    limits = [0, 1, 2, 3, 5, 7, info.max, info.max - 1, info.min, info.min + 1, info.max // 2 + 1]
    limits += [-1, -2, -3, -7] if signed else [10, 100]
    wide = rng.integers(info.min, info.max, COUNT, dtype=dtype, endpoint=True)
    small = rng.integers(-20 if signed else 0, 20, COUNT).astype(dtype)
    special = np.array(limits, dtype)[rng.integers(0, len(limits), COUNT)]
    return np.where(rng.random(COUNT) < 0.3, wide, np.where(rng.random(COUNT) < 0.5, small, special)).astype(dtype)


def _floats(dtype, rng):
    info = np.finfo(dtype)
    tiny = info.smallest_subnormal
    limits = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, info.tiny, -info.tiny, tiny, -tiny, tiny * 3, info.max,
                       -info.max, 1, -1, 0.5, 1.5, 2.5, -0.5, -1.5, 1 + info.eps, 3, 1e-3, 100], dtype)
    special = limits[rng.integers(0, len(limits), COUNT)]
    normal = (rng.standard_normal(COUNT) * 10.0 ** rng.integers(-2, 4, COUNT)).astype(dtype)
    return np.where(rng.random(COUNT) < 0.35, special, normal).astype(dtype)


def _complex(dtype, rng):
    made = np.zeros(COUNT, dtype)
    for part in (made.real, made.imag):
        values = _floats(np.dtype(f"f{dtype.itemsize // 2}"), rng)
        part[:] = np.nan_to_num(values, posinf=3, neginf=-3) % 1000
    return made
