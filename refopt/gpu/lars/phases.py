"""The two phases of LARS over a range of elements, which every rung of the ladder puts together.

Norms: the sum of squares of each tile of p and of g. Update: velocity and parameter, once the tensor's
local learning rate is known. Both come full, for aligned elements that are all there, and partial.
"""

from functools import lru_cache
from types import SimpleNamespace

from refopt.cpu.reduce import TILE
from refopt.gpu import vectors
from refopt.gpu.lars.exact import first_load, stored8
from refopt.gpu.lars.rule import G, M, P, Signature, V, rule8
from refopt.gpu.target import cuda, device_function
from refopt.gpu.tiles import ROW, ROWS, add_squares, lane_tree, lane_tree_2, rows_of, scale8

# Launch bounds: threads of a block, and blocks to fit on a multiprocessor. Measured best on an H200; without
# them the compiler saves registers, and has fewer loads under way.
NORM_BOUNDS = 128, 4
UPDATE_BOUNDS = 64, 14
UPDATE_AND_NORM_BOUNDS = 64, 8


@lru_cache
def phases(signature: Signature) -> SimpleNamespace:
    """The phases for a signature, each for a warp that takes a tile (`update`: a row)."""
    full, partial = _variant(signature, False), _variant(signature, True)

    @device_function
    def norms(p, m, g, first, stop, aligned, rescale):
        """The sums of squares of the tile at ``first``: of p in even threads of the warp, of g in odd ones."""
        i = first + 4 * (cuda.threadIdx.x % 32)
        if aligned and first + TILE <= stop:
            return full.norms(p, m, g, i, stop, ROWS, rescale)
        return partial.norms(p, m, g, i, stop, rows_of(first, stop), rescale)

    @device_function
    def norm(g, first, stop, aligned, rescale):
        """The sum of squares of the tile of g at ``first``, in every thread of the warp."""
        i = first + 4 * (cuda.threadIdx.x % 32)
        if aligned and first + TILE <= stop:
            return full.norm(g, i, stop, ROWS, rescale)
        return partial.norm(g, i, stop, rows_of(first, stop), rescale)

    @device_function
    def update(p, g, v, m, first, stop, aligned, rescale, rate, mu, wd):
        """Update the row at ``first``."""
        i = first + 4 * (cuda.threadIdx.x % 32)
        if aligned and first + ROW <= stop:
            full.update(p, g, v, m, i, stop, rescale, rate, mu, wd)
        else:
            partial.update(p, g, v, m, i, stop, rescale, rate, mu, wd)

    @device_function
    def update_and_norm(p, g, v, m, first, stop, aligned, rescale, rate, mu, wd):
        """Update the tile at ``first``; the sum of squares of the new p it stores, in every thread."""
        i = first + 4 * (cuda.threadIdx.x % 32)
        if aligned and first + TILE <= stop:
            return full.update_and_norm(p, g, v, m, i, stop, ROWS, rescale, rate, mu, wd)
        return partial.update_and_norm(p, g, v, m, i, stop, rows_of(first, stop), rescale, rate, mu, wd)

    return SimpleNamespace(norms=norms, norm=norm, update=update, update_and_norm=update_and_norm)


def _variant(signature: Signature, partial: bool) -> SimpleNamespace:
    """The work of one thread: ``i`` is its first element of the first row."""
    real = signature.real
    exact = vectors.exact_access(signature[P], signature[M], real, partial)
    velocity = vectors.access(signature[V], real, partial)
    load_g, load_v, load_exact = vectors.access(signature[G], real, partial).load, velocity.load, exact.load
    store_v, store_exact = velocity.store, exact.store
    # What the norms read, the update reads again, but for a parameter that has a master.
    first_g = vectors.access(signature[G], real, partial, "keep").load
    first_p = first_load(signature, partial)
    stored, kept = stored8(signature), vectors.kept8(real, partial)
    zeros = (real(0),) * 8

    @device_function
    def norms(p, m, g, i, stop, rows, rescale):
        p_sums, g_sums = zeros, zeros
        for row in range(rows):
            p_sums = add_squares(p_sums, first_p(p, m, i + ROW * row, stop))
            g_sums = add_squares(g_sums, scale8(rescale, first_g(g, i + ROW * row, stop)))
        return lane_tree_2(p_sums, g_sums)

    @device_function
    def norm(g, i, stop, rows, rescale):
        sums = zeros
        for row in range(rows):
            sums = add_squares(sums, scale8(rescale, first_g(g, i + ROW * row, stop)))
        return lane_tree(sums)

    @device_function
    def update(p, g, v, m, i, stop, rescale, rate, mu, wd):
        x = load_exact(p, m, i, stop)
        x, y = rule8(x, scale8(rescale, load_g(g, i, stop)), load_v(v, i, stop), rate, mu, wd)
        store_v(v, i, stop, y)
        store_exact(p, m, i, stop, x, x)
        return x

    @device_function
    def update_and_norm(p, g, v, m, i, stop, rows, rescale, rate, mu, wd):
        sums = zeros
        for row in range(rows):
            x = update(p, g, v, m, i + ROW * row, stop, rescale, rate, mu, wd)
            sums = add_squares(sums, kept(stored(x), i + ROW * row, stop))
        return lane_tree(sums)

    return SimpleNamespace(norms=norms, norm=norm, update=update, update_and_norm=update_and_norm)
