"""Bodies of kernels of `x`, `y` and `n` that Numba refuses, and odd ones that it compiles, for CUDA."""

import linecache
import textwrap

HEAD = """
import cmath
import math
import operator
from collections import namedtuple
from types import SimpleNamespace
import numpy as np
from refopt import simt
try:
    import numba
except ModuleNotFoundError:  # with its stub
    with simt.replace_numba():
        import numba
{imports}

prange = numba.prange

N = 8
NUMBERS = [1, 2, 3]
TRIPLE = (1, 2, 3)
WORDS = {{1: 2}}
TABLE = np.arange(4)
Pair = namedtuple("Pair", "first second")
SPACE = SimpleNamespace(size=4)

class Rate:
    def __init__(self, value=1):
        self.value = value

RATE = Rate()

def plain(a, b=2):
    return a + b

@cuda.jit(device=True)
def device(a, b=2):
    return a + b

@cuda.jit(device=True)
def in_local(a, size):
    part = cuda.local.array(size, np.float32)
    part[0] = a
    return part[0]

@cuda.jit(device=True)
def recursive(k):
    return k * recursive(k - 1)

@cuda.jit(device=True)
def applied(f, a):
    return f(a)

@cuda.jit(device=True)
def one_or_other(a):
    if a[0] > 1:
        return a
    return 1

@cuda.jit(device=True)
def with_try(a):
    try:
        return a + 1
    except Exception:
        return a

@cuda.jit(device=True)
def last(a, k):
    found = None
    for i in range(k):
        found = a[i]
    return found

@cuda.jit(device=True)
def first_of(*a):
    return a[0]

@cuda.jit(device=True)
def by_name(**a):
    return 1
"""

# By what is refused: the body, then a part of the reason.
REFUSED = {
    "a comprehension on a way that is not taken": ("if n > 100:\n    y[0] = [a for a in range(3)][0]", "comprehension"),
    "a set comprehension": ("y[0] = len({a for a in range(3)})", "set comprehension"),
    "a generator expression": ("y[0] = sum(a for a in range(3))", "generator expression"),
    "yield": ("yield n", "generator"),
    "a dict": ("d = {1: 2.0}\ny[0] = d[1]", "a dict"),
    "a set": ("s = {1, 2}\ny[0] = 1", "a set"),
    "try": ("try:\n    y[0] = x[0]\nexcept Exception:\n    y[0] = 1", "try"),
    "with": ("with open('a') as f:\n    y[0] = 1", "with statement"),
    "import": ("import math as m\ny[0] = m.sqrt(x[0])", "import"),
    "import on a way that is dropped": ("if N == 3:\n    import os\ny[0] = 1", "import"),
    "a class": ("class A:\n    pass\ny[0] = 1", "a class"),
    "an f-string": ('s = f"{n}"\ny[0] = 1', "f-string"),
    "text with a value": ('s = "%d" % n\ny[0] = 1', "% of text"),
    "str": ("s = str(n)\ny[0] = 1", "str"),
    "a list that is repeated": ("l = [0.0] * 4\ny[0] = l[n]", "a list"),
    "a list of the module": ("y[0] = NUMBERS[1]", "NUMBERS is a list"),
    "a dict of the module": ("y[0] = WORDS[1]", "WORDS is a dict"),
    "an object of the module": ("y[0] = RATE.value", "object of the class Rate"),
    "an object that is made": ("r = Rate(n)\ny[0] = 1", "Rate is a class"),
    "a namespace": ("y[0] = SPACE.size", "SimpleNamespace"),
    "a size that is an argument": ("a = cuda.shared.array(n, np.float32)\ny[0] = a[0]", "compile-time constant"),
    "the size of a block": ("a = cuda.shared.array(cuda.blockDim.x, np.float32)\ny[0] = a[0]", "cuda.blockDim.x"),
    "a size that is computed": ("a = cuda.shared.array(N * 2, np.float32)\ny[0] = a[0]", "N * 2"),
    "a size of two values": ("k = 4\nif n > 2:\n    k = 5\na = cuda.local.array(k, np.float32)\ny[0] = a[0]", "size k"),
    "a size that is warpsize": ("a = cuda.local.array(cuda.warpsize, np.float32)\ny[0] = a[0]", "cuda.warpsize"),
    "a size that is passed on": ("y[0] = in_local(x[0], n + 1)", "in_local uses as an array size"),
    "an array of Python's float": ("a = cuda.shared.array(4, float)\ny[0] = a[0]", "as the type of an array"),
    "a value that is returned": ("return x[0]", "a kernel that returns a value"),
    "an unknown method": ("if n > 100:\n    x.foo()", "has no foo"),
    "astype": ("z = x.astype(np.float64)\ny[0] = z[0]", "has no astype"),
    "a method of a number": ("y[0] = n.bit_length()", "has no bit_length"),
    "the dtype of a number": ("y[0] = x[0].dtype.itemsize", "has no dtype"),
    "a global that is set": ("global N\nN = 3\ny[0] = N", "the global N"),
    "a plain function on a way that is not taken": ("if n > 100:\n    y[0] = plain(x[0])", "plain Python function"),
    "recursion": ("y[0] = recursive(n)", "calls itself"),
    "a device function with try": ("y[0] = with_try(x[0])", "try"),
    "two types of results": ("y[0] = one_or_other(x)", "returns"),
    "a name that is no parameter": ("y[0] = device(x[0], c=3)", "unexpected keyword argument"),
    "** in a call": ("y[0] = device(**{'a': 1})", "** in a call"),
    "a function inside that calls itself": (
        "def f(a):\n    return a if a > 3 else f(a + 1)\ny[0] = f(1)", "f calls itself"),
    "del": ("a = 1.0\ndel a\ny[0] = 1", "del"),
    "raise from": (
        'if n < 0:\n    raise ValueError("a") from ValueError("b")\ny[0] = 1', "raise ... from"),
    "what is raised is a number": ("raise n", "not an exception"),
    "print with sep": ('print("n", n, sep=",")', "print with the keyword argument sep"),
    "print of an array": ("print(x)", "print of an array"),
    "isinstance of an array": ("y[0] = isinstance(x, np.ndarray)", "np.ndarray"),
    "list": ("a = list((1, 2))\ny[0] = 1", "list"),
    "range of an array": ("for i in range(x):\n    y[0] = i", "range of a whole array"),
    "enumerate by name": ("for i, a in enumerate(x, start=1):\n    y[0] = a", "with the keyword argument start"),
    "math of an array": ("y[0] = math.sqrt(x)", "math.sqrt of a whole array"),
    "log to a base": ("y[0] = math.log(x[0], 2)", "math.log with 2 arguments"),
    "np.sqrt": ("y[0] = np.sqrt(x[0])", "np.sqrt"),
    "np.where": ("y[0] = np.where(x[0] > 0, x[0], 0)", "np.where"),
    "np.zeros": ("z = np.zeros(4, np.float32)\ny[0] = z[0]", "np.zeros makes an array"),
    "np.random": ("y[0] = np.random.rand()", "np.random.rand"),
    "np.float128": ("y[0] = np.longdouble(1)", "np.longdouble"),
    "a sum of arrays": ("z = x + y\ny[0] = z[0]", "+ of a whole array"),
    "a view that is scaled": ("x[:] *= 2", "an operator on a view"),
    "a copy by slices": ("y[1:3] = x[1:3]", "a copy of a whole array"),
    "a mask": ("y[0] = x[x > 0][0]", "> of a whole array"),
    "the truth of an array": ("if x:\n    y[0] = 1", "the truth of a whole array"),
    "an index that is a float": ("y[n / 2] = 1", "an index of float64"),
    "too many indices": ("y[0] = x[0, 1]", "2 indices"),
    "an index of two parts": ("i = cuda.grid(2)\ny[i] = 1", "2 indices"),
    "an index into a number": ("y[0] = n[0]", "an index into a number"),
    "an index that a tuple has not": ("y[0] = TRIPLE[5]", "index 5 into a tuple of 3"),
    "an index into mixed parts": ("a = (1, 2.5)\ny[0] = a[n]", "a tuple of several types"),
    "a part of a tuple that is set": ("a = (1, 2)\na[0] = 3\ny[0] = 1", "an item of a tuple"),
    "a table that is set": ("TABLE[0] = 2", "because the kernel captures it"),
    "a tuple as an element": ("y[0] = (1, 2)", "a tuple of 2 for an element"),
    "an array or a number": ("if n < 0:\n    a = x\nelse:\n    a = x[0]\ny[0] = a[0]", "a is an array"),
    "arrays of two types": (
        "a = cuda.local.array(4, np.float32)\nif n > 0:\n    a = cuda.local.array(4, np.float64)\ny[0] = a[0]", "a is"),
    "a loop over a number": ("for i in n:\n    y[0] = 1", "a loop over a number"),
    "two names for a number": ("i, j = cuda.grid(1)\ny[0] = i", "2 names for a number"),
    "a starred name": ("a, *b = TRIPLE\ny[0] = a", "a starred name"),
    "a pattern with parts": ("match (n, n):\n    case (1, a):\n        y[0] = a", "a pattern with parts"),
    ":= within an expression": ("if (m := n + 1) > 2:\n    y[0] = m", ":="),
    "bits of a float": ("y[0] = x[0] & 1", "& of float32 and int64"),
    "~ of a float": ("y[0] = ~x[0]", "~ of float32"),
    "@": ("y[0] = x @ y", "@ of matrices"),
    "a name that is not defined": ("y[0] = nowhere", "nowhere is not defined"),
    "a name that math has not": ("y[0] = math.nothing(1)", "the module has no nothing"),
    "a name that cuda has not": ("y[0] = cuda.threadIdX.x", "there is no such name"),
    "a fourth dimension": ("y[0] = cuda.threadIdx.w", "there are only x, y and z"),
    "grid without a number": ("y[0] = cuda.grid(n)", "other than the number 1, 2 or 3"),
    "a host function": ("cuda.synchronize()", "is for the host"),
    "an atomic on a number": ("cuda.atomic.add(n, 0, 1)", "cuda.atomic.add of a number"),
    "an atomic with too few arguments": ("cuda.atomic.add(y, 0)", "missing a required argument"),
    "a call of a number": ("n()", "a call of a number"),
    "an unknown field": ("p = Pair(n, x)\ny[0] = p.third", "a Pair has no field third"),
    "a method of a namedtuple": ("p = Pair(n, 1)\ny[0] = p.count(1)", "a Pair has no field count"),
    "an attribute that is set with others": ("x.bar, a = 1, 2\ny[0] = a", "an assignment to .bar"),
    "an attribute in a chain": ("a = x.bar = 1\ny[0] = a", "an assignment to .bar"),
    "prange by its module": ("for i in numba.prange(4):\n    y[i] = 1", "numba.prange is for the threads"),
    "text for a type of NumPy's": ("y[0] = np.float32('1.5')", "np.float32 of text"),
    "text that is chosen and printed": ('print("a" if n else "b")', "print of text that is chosen"),
    "text in a tuple that is printed": ('print(("a", 1))', "print of text"),
    "a method of chosen text": ('s = "a" if n else "b"\ns.foo()', "text has no foo"),
    "chosen text and more": ('s = ("a" if n else "b") + "c"\ny[0] = s == "ac"', "+ of text that is chosen"),
    "the greatest from None on": (
        "a = None\nfor i in range(n):\n    if a is None or a + 1 < x[i]:\n        a = x[i]\ny[0] = 1", "None"),
    "None before a while loop, as an index": (
        "a = None\nwhile n > 0:\n    a = n\n    n -= 1\ny[a] = 1", "None before its loop"),
    "None before a loop, then an array": (
        "a = None\nfor i in range(n):\n    a = x\nif a is not None:\n    y[0] = a[0]", "None before its loop"),
    "None before a loop, converted": (
        "a = None\nfor i in range(n):\n    a = x[i]\ny[0] = float(a)", "None before its loop"),
    "None before a loop, tested": ("a = None\nfor i in range(n):\n    a = x[i]\nif a:\n    y[0] = 1", "None before"),
    "an index in a tuple of an atomic": ("cuda.atomic.add(y, (0,), 1)", "with 1 of 1 indices"),
    "an array as an index": ("y[0] = x[TABLE][1]", "an array as index"),
    "a function with a ** parameter": ("y[0] = by_name(a=1)", "by_name has a ** parameter"),
    "a ** parameter inside": ("def f(**a):\n    return 1\ny[0] = f()", "a ** parameter"),
    "a keyword-only parameter inside": ("def f(a, *, b=1):\n    return a + b\ny[0] = f(1)", "keyword-only parameters"),
    "a decorator inside": ("@device\ndef f(a):\n    return a\ny[0] = f(1)", "a decorator inside a kernel"),
    "a method of a type": ("y[0] = int.bit_count(n)", "int.bit_count: a Python type has no methods"),
    "a sum along an axis": ("y[0] = x.sum(axis=0)", "sum of an array with arguments"),
    "a function of NumPy's by name": ("np.sin(x, out=y)", "np.sin with out"),
    "a shuffle of 16 bits": ("y[0] = cuda.shfl_sync(-1, np.int16(n), 0)", "cuda.shfl_sync of int16 and int64"),
    "the greatest of a bool": ("y[0] = max(n > 1, 2)", "max of bool and int64"),
    "a number of 65 bits": ("y[0] = n + 2**64", "has more than 64 bits"),
    "one of two types": ("y[0] = cuda.selp(n > 1, x[0], 1)", "cuda.selp of bool and float32 and int64"),
    "an integer divided in place": ("k = n\nk /= 2\ny[0] = k", "/= of int64 and int64"),
    "the bits of a bool": ("y[0] = (n > 1).view(np.int8)", "view of bool"),
    "an index into a vector": ("v = cuda.float32x2(1, 2)\ny[0] = v[0]", "an index into"),
    "pow with three arguments": ("y[0] = pow(n, 2, 3)", "pow with 3 arguments"),
    "int with a base": ("y[0] = int(n, 8)", "int with 2 arguments"),
    "too few names": ("a, b = TRIPLE\ny[0] = a", "2 names for a tuple of 3"),
    "an exception with a sum": ("if n < 0:\n    raise ValueError(n + 1)\ny[0] = 1", "not constant"),
    "two functions, tested": ("f = math.sqrt\nif n:\n    f = math.sin\nif f:\n    y[0] = 1", "f is the function sin"),
    "the count of a tuple": ("y[0] = TRIPLE.count(1)", "TRIPLE.count: a tuple in a kernel has no count"),
    "a sum with a module": ("y[0] = n + math", "+ of the module math"),
    "a sum with the thread's indices": ("y[0] = cuda.threadIdx + 1", "+ of indices of three axes"),
    "text that is compared with a number": ("y[0] = 'a' < n", "< of text"),
    "a field of an array without any": ("y[0] = x['a']", "the field 'a' of an array without fields"),
    "an array without a type, by name": ("a = cuda.local.array(shape=4)\ny[0] = 1", "without a size or a type"),
    "a shape with an argument, by a variable": (
        "k = 4, n\na = cuda.local.array(k, np.float32)\ny[0] = a[0, 0]", "the size k of an array"),
    "a host class": ("y[0] = isinstance(x, cuda.Out)", "cuda.Out is for the host"),
    "a captured variable that is passed on": ("y[0] = applied(lambda a: a + n, 1)", "is passed on"),
    "a shuffle of 8 bits at first": (
        "v = np.uint8(n)\nfor i in range(n):\n    v = cuda.shfl_sync(-1, v, 0) + 1\ny[0] = v", "shfl_sync of uint8"),
    "a loop over an array and a number": ("for i in [x, 1]:\n    y[0] = 1", "a tuple of several types")}

# Odd, and compiled.
RIGHT = {
    "a list to loop over": "for a in [1, n, 3]:\n    y[a] = a",
    "constant sizes":
        "k = 4\na = cuda.shared.array((k, N), np.float32)\nb = cuda.local.array(N, 'float32')\nb[0] = a[0, 0]",
    "a folded size": "a = cuda.local.array(4 * 4, np.float32)\na[0] = 1",
    "a size from a tuple": "a = cuda.local.array(TRIPLE[1], x.dtype)\na[0] = 1",
    "a size on two ways": "if n > 1:\n    k = 4\nelse:\n    k = 4\na = cuda.local.array(k, np.float32)\na[0] = 1",
    "a size that is passed on": "y[0] = in_local(x[0], 4)",
    "sizes that are unpacked": "k, m = 4, N\na = cuda.local.array((k, m), np.float32)\na[0, 0] = 1",
    "a size by ndim": "a = cuda.local.array(x.ndim, np.float32)\na[0] = 1",
    "return None": "if n > 3:\n    return None\ny[0] = 2",
    "a comprehension on a way that is dropped": "if N == 3:\n    z = [i for i in range(3)]\ny[0] = 1",
    "a dict that nothing comes to": "y[0] = 1\nreturn\nd = {1: 2}",
    "cmath": "y[0] = cmath.sqrt(complex(x[0], 1)).real",
    "functions inside": "def f(a, k=2):\n    def g(b):\n        return b + 1\n    return g(a) * k\ny[0] = f(x[0], k=3)",
    "calls by name and by stars": "y[0] = device(b=3, a=x[0]) + device(*(x[0], 1)) + first_of(x[0], 2)",
    "a function under two names": "f = device\ng = cuda.grid\ny[g(1)] = f(x[0])",
    "assertions and exceptions": 'assert n >= 0, "n"\nif n > 100:\n    raise ValueError("big", 1, 2.0)\ny[0] = 1',
    "print": 'print("x is", x[0], n, True, (1, 2))\nprint()',
    "match":
        "match n:\n    case 1 | 2:\n        y[0] = 1\n"
        "    case k if k > 2:\n        y[0] = k\n    case _:\n        y[0] = 2",
    ":= of a name": "if (m := n) > 2:\n    y[0] = m\ny[1] = (k := n + 1)\ny[2] = k",
    "steps of slices": "y[::2] = 1\ny[0] = x[0:4:2][1] + x[::-1][0] + x[1:][:2][0] + x[-1]",
    "reductions": "y[0] = x.sum() + x.mean() + x.argmax() + sum(x) + min(x) + max((1, 2, n)) + np.sum(x)",
    "views": "z = x.reshape(2, 4)\ny[0] = z[0, 1] + x.view(np.int32)[0] + x.T[0]\ny.fill(0)",
    "loops of NumPy's": "for i, a in np.ndenumerate(x):\n    y[i] = a\nfor i in np.ndindex(x.shape):\n    y[i] = 1",
    "a variable of two types that nothing reads": "if n < 0:\n    a = x\nelse:\n    a = 1\ny[0] = 1",
    "None before a loop, then more":
        "a = None\nfor i in range(n):\n    a = x[i]\nif n > 3:\n    a = 1.0\ny[0] = a\ny[1] = last(x, n)",
    "None before a loop that has a break":
        "a = None\nwhile n:\n    n -= 1\n    a = x[n]\n    if a > 3:\n        break\nelse:\n    a = x[0]\ny[0] = a",
    "parts of namedtuples":
        "p = Pair(second=n, first=2)\na, b = p\ny[0] = a + b + p[1] + len(p)\nif n:\n    p = Pair(1, 3)\n"
        "y[1] = p.second\nfor c in p:\n    y[c] = c",
    "text that is chosen": 's = "a" if n else "bc"\ny[0] = (s == "a") + len(s) + s.find("a")\ny[1] = s < "b"',
    "tuples": "a = (*TRIPLE, n)\nb = (1, 2) + (3,)\ny[0] = a[n] + b[2] + ((1, 2) * 2)[3]\n(c, d), e = (1, 2), 3",
    "for and while with else":
        "for i in range(3):\n    if i == n:\n        break\nelse:\n    y[0] = 2\n"
        "while n:\n    n -= 1\nelse:\n    y[1] = 1",
    "complex numbers": "c = complex(1, 2) * 1j\ny[0] = c.real + c.imag + abs(c)",
    "isinstance": "if isinstance(n, int):\n    y[0] = 1\ny[1] = hasattr(x, 'size')",
    "text that is compared": "s = 'abc'\nif s == 'abc' and len(s) == 3:\n    y[0] = 1",
    "a global declaration": "global N\ny[0] = N",
    "an annotation": "i: int = 3\nk: float\ny[0] = i",
    "methods of numbers": "y[0] = x[0].item() + n.real + x[0].conjugate() + x[0].view(np.int32) + n.item()",
    "NumPy's functions":
        "y[0] = np.maximum(x[0], 0) + np.sin(x[0]) + np.isnan(x[0]) + np.arctan2(x[0], 1)\nnp.sin(x, y)",
    "operator":
        "y[0] = operator.add(n, 2) + operator.mul(x[0], 2) + operator.neg(n) + operator.iadd(n, 1)\n"
        "y[1] = 1 if operator.lt(n, 2) and operator.contains(TRIPLE, n) else operator.getitem(x, 1)",
    "what functions inside capture":
        "k = n\ndef f(a, b=k):\n    return a * b + x[0]\ng = f\ny[0] = g(2) + g(2, 3)\n"
        "y[1] = applied(lambda a: a + 1, x[1]) + (lambda a: f(a) - k)(2)",
    "parts and sizes by NumPy":
        "y[0] = np.angle(x[0] + 1j) + np.angle(n, True) + np.sinc(x[0]) + np.real(n) + np.imag(1j)\n"
        "y[1] = np.nan_to_num(n) + np.size(x) + np.shape(x)[0]",
    "a type that is right in a later pass":
        "v = np.uint8(n)\nfor i in range(n):\n    y[i] = cuda.ffs(v)\n    v = v + 1",
    "iter and next": "i = iter(x)\ny[0] = next(i)",
    "and and or of numbers": "y[0] = n and x[0]\ny[1] = n or 2.5\ny[n > 2 and 1 or 0] = 1",
    "chained names": "a = b = c = x[0]\ny[0], y[1] = y[1], y[0]\nx, y = y, x\ny[0] = a + b + c",
    "an async function inside": "async def f(a):\n    return a\ny[0] = 1",
    "ranges to a float": "for i in range(2.5):\n    y[i] = i",
    "a shape in a variable that is set twice":
        "k = 2, 3\nif n:\n    k = 2, 3\na = cuda.local.array(k, np.float32)\na[0, 0] = 1",
    "if 0": "if 0:\n    z = [i for i in range(3)]\nelse:\n    y[0] = 1"}


def loaded(body, cuda, imports, name="kernel"):
    """The kernel of a body, with a source that can be read; `cuda` is bound in its module, as `imports` says."""
    head = HEAD.format(imports=imports)
    text = f"{head}\n\n@cuda.jit\ndef {name}(x, y, n):\n{textwrap.indent(body, '    ')}\n"
    file = f"<{abs(hash(text))} of {imports}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    scope = {"__name__": "kernels", "cuda": cuda}
    exec(compile(text, file, "exec"), scope)
    return scope[name]
