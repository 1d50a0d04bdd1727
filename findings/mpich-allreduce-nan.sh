#!/usr/bin/env bash
# mpich 5.0.2 with mpi4py 4.1.2: after Allreduce with MAX, two ranks hold different numbers if one of them gave a NaN.
#
# If one rank gives NaN and the other 1.0, one of them receives NaN and the other 1.0. A clipping threshold or a scale
# from the largest absolute gradient then differs between the ranks, and so do the replicas of the parameters after
# the step: one is poisoned and the other goes on. MIN does the same, SUM does not.
#
# Expected: MPI requires that all processes of an all-reduce receive identical results, whatever MAX makes of a NaN.
#
#> MAX of nan and 1, of 1 and nan: rank 0 [1.0, nan], rank 1 [nan, 1.0]
#> MIN of nan and 1, of 1 and nan: rank 0 [1.0, nan], rank 1 [nan, 1.0]
#> SUM of nan and 1, of 1 and nan: rank 0 [nan, nan], rank 1 [nan, nan]
. "$(dirname "$0")/common.sh"
LAUNCH="mpiexec -n 2" finding mpich==5.0.2 mpi4py==4.1.2 numpy==2.4.6 <<'PY'
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
nan = float("nan")
mine = np.array([nan, 1] if world.rank == 0 else [1, nan], np.float32)
for name, operation in ("MAX", MPI.MAX), ("MIN", MPI.MIN), ("SUM", MPI.SUM):
    result = np.empty_like(mine)
    world.Allreduce(mine, result, operation)
    everybody = world.gather(result.tolist())
    if world.rank == 0:
        print(f"{name} of nan and 1, of 1 and nan:", ", ".join(f"rank {r} {x}" for r, x in enumerate(everybody)))
PY
