"""accelerated-computing-hub: the Numba kernels of its notebooks."""

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


@case(NAME, "guide 5: a grid-stride loop", NameError, "it asks for x, which is defined nowhere in that cell")
def stride() -> None:
    """The sum."""
    add = kernels(NAME, f"{GUIDE}/Chapter_05_CUDA_Kernels_with_Numba.ipynb", ["add"]).add
    add[1, 32](np.arange(10), np.arange(10) * 2, np.zeros(10))


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


@case(NAME, "42: blur, watched", simt.OutOfBounds, "pixels at the edges read their neighbours outside the picture")
def blur() -> None:
    """Nine pixels around each, in float32 with four channels."""
    kernel = kernels(NAME, f"{TUTORIAL}/42__kernel_authoring__gaussian_blur.ipynb", ["blur"]).blur
    picture = np.random.default_rng(0).random((20, 24, 4)).astype(np.float32)
    watched(lambda: kernel[(10, 2, 1), (2, 16, 4)](picture, np.zeros_like(picture)))
