"""What `benchmarks.first_step` has fresh processes do: it imports nothing before the clock has started.

``python -m benchmarks.fresh WORKLOAD`` prints as JSON what each part has taken, in milliseconds, from an interpreter to
a step of AdamW that a GPU has done, and which compilers have been imported.
"""

import json
import sys
import time

clock = time.perf_counter
start, times = clock(), {}


def done(part: str) -> None:
    """A part ends here."""
    global start
    now = clock()
    times[part], start = (now - start) * 1e3, now


import numpy as np  # noqa: E402

done("numpy")
from refopt import gpu  # noqa: E402
from refopt.catalog import workloads  # noqa: E402

done("refopt")
shapes = [tensor.shape for tensor in workloads.load(sys.argv[1]).tensors]
host = [[np.full(shape, value, np.float32) for shape in shapes] for value in (1, 0.5, 0.25, 0.125)]
host += [[np.full(1, value, np.float32) for _ in shapes] for value in (0.9, 0.999)]
done("host arrays")
machine = gpu.device("gpu")
machine.synchronize()
done("device")
slots = [[machine.to_device(x) for x in values] for values in host]
done("arrays")
plan = gpu.plan("adamw", *slots, lr=1e-3)
done("plan")
plan()
machine.synchronize()
done("step")
imported = [name for name in ("numba", "numba_cuda", "llvmlite") if name in sys.modules]
print(json.dumps({"ms": times, "imported": imported, "numpy": np.__version__}))
