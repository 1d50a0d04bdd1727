"""Parameter lists of real models: names and shapes, in the order of the framework's ``parameters()``.

>>> from refopt.catalog import workloads
>>> resnet = workloads.load("resnet50")
>>> len(resnet), resnet.elements
(161, 25557032)
>>> resnet.tensors[0]
Parameter(name='conv1.weight', shape=(64, 3, 7, 7))
>>> resnet.scaled(1000).tensors[0]
Parameter(name='conv1.weight', shape=(42, 1, 4, 4))
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from inspect import getdoc
from math import prod
from typing import NamedTuple

from .resnet import resnet50
from .transformers import bert_large, gpt2_xl, llama_3_8b

__all__ = ["WORKLOADS", "Parameter", "Workload", "load"]

WORKLOADS: dict[str, Callable[[], Iterable[tuple[str, tuple[int, ...]]]]] = {
    "resnet50": resnet50,
    "bert-large": bert_large,
    "gpt2-xl": gpt2_xl,
    "llama-3-8b": llama_3_8b,
}


class Parameter(NamedTuple):
    name: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Workload:
    name: str
    tensors: tuple[Parameter, ...]
    source: str

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def elements(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)

    def matrices(self) -> "Workload":
        """The tensors of two axes or more: matrices, or tensors such as convolution kernels that can be reshaped."""
        return replace(self, tensors=tuple(tensor for tensor in self.tensors if len(tensor.shape) > 1))

    def scaled(self, max_elements: int) -> "Workload":
        """The same tensors with at most `max_elements` elements each: for machines without a GPU.

        Number, order, names and ranks are unchanged. A tensor that fits is unchanged, so that small and odd sizes are
        real; the extents of a larger one shrink by a common ratio, to at least 1.
        """
        if max_elements < 1:
            raise ValueError(f"scaled: max_elements must be at least 1, got {max_elements}")
        tensors = tuple(Parameter(name, _shrink(shape, max_elements)) for name, shape in self.tensors)
        return replace(self, tensors=tensors)


def load(name: str) -> Workload:
    """The workload with a name in WORKLOADS."""
    if name not in WORKLOADS:
        raise ValueError(f"unknown workload {name!r}; known: {', '.join(WORKLOADS)}")
    model = WORKLOADS[name]
    return Workload(name, tuple(Parameter(*tensor) for tensor in model()), getdoc(model) or "")


def _shrink(shape: tuple[int, ...], max_elements: int) -> tuple[int, ...]:
    if prod(shape) <= max_elements:
        return shape
    largest = max(shape)

    def shrunk(n: int) -> tuple[int, ...]:  # by n / largest, in integers
        return tuple(max(1, extent * n // largest) for extent in shape)

    # The size never falls as n grows, so the largest n that fits is the number of n that fit.
    return shrunk(bisect_right(range(1, largest + 1), max_elements, key=lambda n: prod(shrunk(n))))
