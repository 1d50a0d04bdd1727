"""The picture of which threads touch which elements."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from refopt import simt
from refopt.simt import cuda


@cuda.jit
def kernel(x, y, counts):
    i = cuda.grid(1)
    part = cuda.shared.array(4, np.float32)
    part[cuda.threadIdx.x % 4] = 0
    y[i] += x[2 * i + 1]
    cuda.atomic.add(counts, i % 2, 1)


@pytest.fixture
def observed():
    x, y = cuda.to_device(np.arange(100, dtype=np.float32)), cuda.to_device(np.zeros((5, 8), np.float32))
    with simt.observe(profile=True) as log:
        kernel[2, 20](x, y.reshape(40), cuda.to_device(np.zeros(2, np.int32)))
        kernel[1, 1](x, y.reshape(40), cuda.to_device(np.zeros(2, np.int32)))
    return log, x, y


def marks(axis):
    """The elements and threads drawn, by the number of the marker's kind."""
    lines = [line for line in axis.get_lines() if line.get_linestyle() == "None"]
    return [sorted(zip(*map(list, line.get_data()), strict=True)) for line in lines]


def test_marks(observed):
    log, *_ = observed
    figure = simt.draw(log).figure
    shared, y, x, counts = figure.axes
    assert [axis.get_title()[:6] for axis in figure.axes] == ["shared", "y", "x", "counts"]
    assert marks(x) == [[(2 * i + 1, i) for i in range(40)], [], []]
    assert marks(y) == [[(i, i) for i in range(40)]] * 2 + [[]]
    assert marks(counts)[2] == sorted((i % 2, i) for i in range(40))
    assert marks(shared)[1] == sorted((i % 20 % 4, i) for i in range(40))
    assert y.get_xlabel() == "element, rows of 8 (bands: sectors of 32 bytes)"
    assert [(band.get_x(), band.get_width()) for band in x.patches] == [(16 * k - 0.5, 8) for k in range(5)]
    assert [(band.get_x(), band.get_width()) for band in shared.patches] == [(-0.5, 32)]
    assert figure.get_suptitle() == "Which threads of kernel touch which elements"
    assert figure.get_size_inches().tolist() == pytest.approx([14, 0.09 * 39 + 1.4])  # a place for each of 40 threads
    sizes = {line.get_markersize() for line in x.get_lines() if line.get_linestyle() == "None"}
    assert sorted(sizes) == pytest.approx([share * 46 * 0.09 * 39 / 40 for share in (0.6, 1, 1.4)])
    # Warps begin with each block: blocks are of 20 threads.
    assert sorted({line.get_ydata()[0] for line in x.get_lines() if line.get_linestyle() == "-"}) == [-0.5, 19.5, 39.5]


def test_words_and_file(observed, tmp_path):
    log, x, y = observed
    picture = simt.draw(log, arrays=[x, y])
    assert picture.alt == (
        "Which threads of the kernel kernel touch which elements. "
        "y: loads of 40 elements from 0 to 39, by 40 threads from 0 to 39; neighbouring threads are 1 apart. "
        "y: stores to 40 elements from 0 to 39, by 40 threads from 0 to 39; neighbouring threads are 1 apart. "
        "x: loads of 40 elements from 1 to 79, by 40 threads from 0 to 39; neighbouring threads are 2 apart.")
    for name in ("a.png", "a.svg", "a.pdf"):
        picture.save(tmp_path / name)
    assert b"neighbouring threads are 2 apart" in (tmp_path / "a.png").read_bytes()
    assert b"/Subject" in (tmp_path / "a.pdf").read_bytes()
    assert picture._repr_html_().startswith(f'<svg role="img" aria-label="{picture.alt}"')
    assert "y: loads of element 0, by thread 0." in simt.draw(log, launch=1).alt


def test_elements_that_lie_apart():
    """Bands of sectors are counted from the array's start; where there are many, none are drawn."""

    @cuda.jit
    def scattered(x, y, z):
        i = cuda.threadIdx.x
        y[1000 + i * i] = x[0] + x[1]
        z[2000 * i] = 1

    x, y, z = (cuda.to_device(np.zeros(n, np.float32)) for n in (2, 1010, 6001))
    with simt.observe(profile=True) as log:
        scattered[1, 4](x, y, z)
    picture = simt.draw(log)
    assert picture.alt.partition(". ")[2] == (
        "x: loads of 2 elements from 0 to 1, by 4 threads from 0 to 3. "
        "y: stores to 4 elements from 1000 to 1009, by 4 threads from 0 to 3. "
        "z: stores to 4 elements from 0 to 6000, by 4 threads from 0 to 3; neighbouring threads are 2000 apart.")
    _, near, far = picture.figure.axes
    assert [(band.get_x(), band.get_width()) for band in near.patches] == [(1007.5, 8)]
    assert near.get_xticks().tolist() == [*range(1000, 1016, 2)]
    assert not far.patches and far.get_xlabel() == "element"


def test_words_are_escaped():
    @cuda.jit
    def store(x):
        x[0] = 1

    x = cuda.to_device(np.zeros(1))
    x.name = '"x" & <y>'
    with simt.observe(profile=True) as log:
        store[1, 1](x)
    assert "&quot;x&quot; &amp; &lt;y&gt;: stores to element 0" in simt.draw(log)._repr_html_()


@pytest.mark.parametrize(("arguments", "words"), [
    ({"launch": 2}, "launch: expected a number below 2, got 2"),
    ({"arrays": []}, "expected 1 to 200000 accesses in a launch, got 0")])
def test_refused(observed, arguments, words):
    with pytest.raises(ValueError, match=words):
        simt.draw(observed[0], **arguments)
    with simt.observe() as log:
        pass
    with pytest.raises(ValueError, match="expected the log of observe"):
        simt.draw(log)


def test_bands_of_records():
    """A sector of 32 bytes is two and two thirds of 12 bytes each."""
    @cuda.jit
    def kernel(x):
        x[cuda.grid(1)].a = 1

    with simt.observe(profile=True) as log:
        kernel[1, 8](cuda.to_device(np.zeros(8, [("a", "f4"), ("b", "f8")])))
    [axis] = simt.draw(log).figure.axes
    found = [edge for band in axis.patches for edge in (band.get_x(), band.get_width())]
    assert found == pytest.approx([-1 / 2, 8 / 3, 16 / 3 - 1 / 2, 8 / 3])
