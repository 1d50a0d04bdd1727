"""accelerated-computing-hub: the Numba kernels of its notebooks."""

from typing import Any

import numpy as np
from foreign.cases import case, watched
from foreign.source import kernels

from refopt import simt

NAME = "NVIDIA/accelerated-computing-hub"
GUIDE = "Accelerated_Python_User_Guide/notebooks"
TUTORIAL = "tutorials/accelerated-python/notebooks/kernels"


@case(NAME, "guide 5: first kernel", NameError, "it asks for an_array, which is defined nowhere")
def first() -> None:
    """The first form of foo."""
    foo = kernels(NAME, f"{GUIDE}/Chapter_05_CUDA_Kernels_with_Numba.ipynb", ["foo"]).foo
    foo[1, 32](np.arange(10), np.zeros(10))


@case(NAME, "guide 5: with grid, watched")
def second() -> None:
    """The second form of foo."""
    foo = kernels(NAME, f"{GUIDE}/Chapter_05_CUDA_Kernels_with_Numba.ipynb", ["foo"], 1).foo
    y = np.zeros(10)
    watched(lambda: foo[1, 10](np.arange(10), y))
    np.testing.assert_array_equal(y, np.arange(10))


@case(NAME, "guide 5: a grid-stride loop", NameError, "it asks for x, which is defined nowhere in that cell")
def stride() -> None:
    """The sum."""
    add = kernels(NAME, f"{GUIDE}/Chapter_05_CUDA_Kernels_with_Numba.ipynb", ["add"]).add
    add[1, 32](np.arange(10), np.arange(10) * 2, np.zeros(10))


@case(NAME, "guide 10: sum of vectors, watched")
def vector_sum() -> None:
    """The kernel that is profiled."""
    add = kernels(NAME, f"{GUIDE}/Chapter_10_Developer_Tools.ipynb", ["vecadd"]).vecadd
    a, c = np.arange(100.0), np.zeros(100)
    watched(lambda: add[2, 64](a, a, c))
    np.testing.assert_array_equal(c, 2 * a)


def copy(path: str, name: str) -> None:
    """A copy by threads of several elements each."""
    kernel = getattr(kernels(NAME, path, [name]), name)
    source = np.arange(512)
    target = np.zeros_like(source)
    watched(lambda: kernel[4, 32](source, target, 4))
    np.testing.assert_array_equal(target, source)


SOLUTION = f"{TUTORIAL}/solutions/40__kernel_authoring__copy__SOLUTION.ipynb"
case(NAME, "40: blocked copy, watched")(lambda: copy(SOLUTION, "copy_blocked"))
case(NAME, "40: optimized copy, watched")(lambda: copy(SOLUTION, "copy_optimized"))


def histogram(path: str) -> None:
    """A histogram of bytes."""
    kernel = kernels(NAME, path, ["histogram_global"], items_per_thread=8).histogram_global
    values = np.random.default_rng(0).integers(0, 16, 512).astype(np.uint8)
    counts = np.zeros(256, np.int32)
    watched(lambda: kernel[2, 32](values, counts))
    np.testing.assert_array_equal(counts, np.bincount(values, minlength=256))


case(
    NAME, "41: histogram without atomics, watched", simt.DataRace, "it is the exercise: threads count by load and store"
)(lambda: histogram(f"{TUTORIAL}/41__kernel_authoring__book_histogram.ipynb"))
case(NAME, "41: histogram with atomics, watched")(
    lambda: histogram(f"{TUTORIAL}/solutions/41__kernel_authoring__book_histogram__SOLUTION.ipynb"))


@case(NAME, "41: histogram by cuda.coop", simt.Unsupported, "it links cuda.coop's code in CUDA C++")
def localized() -> None:
    """The solution that loads by blocks."""
    path = f"{TUTORIAL}/solutions/41__kernel_authoring__book_histogram__SOLUTION.ipynb"

    class block_load:
        files = ("a.ltoir",)

    kernels(NAME, path, ["histogram_localized"], block_load=block_load)


def picture(name: str, path: str) -> Any:
    """A filter of a small picture, in float32 with four channels."""
    im = np.random.default_rng(0).random((20, 24, 4)).astype(np.float32)
    output = np.zeros_like(im)
    kernel = getattr(kernels(NAME, path, [name]), name)
    if name == "blur":
        watched(lambda: kernel[(10, 2, 1), (2, 16, 4)](im, output))
    else:
        watched(lambda: kernel[(2, 2), (16, 16)](im, output))
    return im, output


@case(NAME, "42: blur, watched", simt.OutOfBounds, "pixels at the edges read their neighbours outside the picture")
def blur() -> None:
    """Nine pixels around each."""
    picture("blur", f"{TUTORIAL}/42__kernel_authoring__gaussian_blur.ipynb")


@case(NAME, "43: black and white, watched")
def black_white() -> None:
    """The mean of three channels."""
    path = f"{TUTORIAL}/solutions/43__kernel_authoring__black_and_white__SOLUTION.ipynb"
    im, output = picture("black_white", path)
    np.testing.assert_allclose(output[..., :3], im[..., :3].mean(-1, keepdims=True).repeat(3, -1), rtol=1e-6)
    np.testing.assert_array_equal(output[..., 3], im[..., 3])
