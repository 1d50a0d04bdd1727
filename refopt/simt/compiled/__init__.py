"""The arithmetic of compiled kernels: types are inferred as Numba infers them for CUDA, and conversions written out.

A kernel is typed when it is launched with arguments of new types, as Numba compiles it then. `specialize` reads its
source and the types of its arguments, and makes a copy in which each operation whose operands NumPy or Python would
promote otherwise converts them first (`convert`). What is explicit already stays as it is. `rules` has Numba's
promotions, `dynamic` what runs where a type is known only when the kernel runs.

`expressions`, `constants`, `comparisons`, `operations`, `library`, `calls`, `assignments`, `statements` and `loops` are
one visitor in layers: each adds to the one before it. `specialize` puts them to work on a function.
"""

from .specialize import Compiled, UntypedWarning, compiled, resolved
from .twin import ptx_twin

__all__ = ["Compiled", "UntypedWarning", "compiled", "ptx_twin", "resolved"]
