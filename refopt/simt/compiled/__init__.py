"""The arithmetic of compiled kernels: infers types as Numba does for CUDA, and makes conversions explicit.

A kernel is typed when it is launched with arguments of new types, which is when Numba compiles it. From the source and
the types of the arguments, `specialize` makes a copy in which operands that NumPy or Python would promote differently
are converted first (`base.conversions`). `base.record` has the types that Numba's compiler gave for each operator and
call, and `dynamic` the operations on values whose types are known only when the kernel runs.

`expressions`, `constants`, `comparisons`, `operations`, `library`, `calls`, `assignments`, `statements` and `loops` are
layers of one visitor: each adds to the one before it. `specialize` applies it to a function.
"""

from .specialize import Compiled, UntypedWarning, compiled
from .twin import ptx_twin

__all__ = ["Compiled", "UntypedWarning", "compiled", "ptx_twin"]
