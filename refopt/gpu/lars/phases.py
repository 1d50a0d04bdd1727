"""The two phases of LARS over a range of elements, which every rung of the ladder puts together.

Norms: the sum of squares of each tile of p and of g. Update: velocity and parameter, once the tensor's
local learning rate is known. Both take a tile to a warp, as ``gpu/tiles.py`` describes.
"""

from functools import lru_cache
from types import SimpleNamespace

from refopt.cpu.reduce import TILE
from refopt.dtypes import arithmetic
from refopt.gpu import vectors
from refopt.gpu.target import cuda, device_function, sqrt
from refopt.gpu.tiles import (
    ROW,
    ROWS,
    add_squares,
    joiner,
    lane_tree,
    lane_tree_2,
    rows_of,
    scale8,
)
from refopt.gpu.vectors import SECOND

# Bound on the registers of the kernels that take norms; without it the compiler takes up to 128.
NORM_REGISTERS = 96

# Rows of the address table, which are the routine's slots, and of the hyperparameter block.
P, G, V, M = range(4)
LR, MU, COEFF, DECAY, EPSILON, RESCALE = range(6)
# Values of `adapt`.
NORMS, DECAY_ONLY, DECAY_AND_NORMS = range(3)
# Rows of the table of rates: local learning rate and weight decay of each tensor.
RATE, WD = range(2)


@device_function
def rule(p, g, v, rate, mu, wd):
    """One element: the new parameter and the new velocity."""
    v = mu * v + rate * (g + wd * p)
    return p - v, v


@device_function
def rule8(p, g, v, rate, mu, wd):
    """Eight elements."""
    p0, v0 = rule(p[0], g[0], v[0], rate, mu, wd)
    p1, v1 = rule(p[1], g[1], v[1], rate, mu, wd)
    p2, v2 = rule(p[2], g[2], v[2], rate, mu, wd)
    p3, v3 = rule(p[3], g[3], v[3], rate, mu, wd)
    p4, v4 = rule(p[4], g[4], v[4], rate, mu, wd)
    p5, v5 = rule(p[5], g[5], v[5], rate, mu, wd)
    p6, v6 = rule(p[6], g[6], v[6], rate, mu, wd)
    p7, v7 = rule(p[7], g[7], v[7], rate, mu, wd)
    return (p0, p1, p2, p3, p4, p5, p6, p7), (v0, v1, v2, v3, v4, v5, v6, v7)


@device_function
def local_lr(p_squares, g_squares, lr, coeff, wd, epsilon, adapt):
    """The learning rate of one tensor, from its two sums of squares."""
    p_norm, g_norm = sqrt(p_squares), sqrt(g_squares)
    norms = p_norm > 0 and g_norm > 0
    decays = wd > 0
    if (adapt == NORMS and norms) or (adapt == DECAY_ONLY and decays) or (adapt == DECAY_AND_NORMS and norms and decays):
        return lr * coeff * p_norm / (g_norm + wd * p_norm + epsilon)
    return lr


@device_function
def hyper_of(hyper, where, name, tensor):
    """A hyperparameter of a tensor: stride 0 where all tensors share one value."""
    return hyper[where[name, 0] + tensor * where[name, 1]]


class Signature(tuple):
    """The dtypes of p, g, v and the master (None if there is none), and which of p and master is normed."""

    def __new__(cls, dtypes: tuple, norm_of: str) -> "Signature":
        return super().__new__(cls, (*dtypes, norm_of))

    @property
    def real(self) -> type:
        return arithmetic(self[0])

    @property
    def normed(self) -> int:
        """The slot whose norm is taken."""
        return M if self[M] and self[4] == "master" else P


@lru_cache
def phases(signature: Signature) -> SimpleNamespace:
    """The phases for a signature: tile by tile, and chunk by chunk."""
    real = signature.real
    slots = [vectors.access(dtype, real) if dtype else None for dtype in signature[:4]]
    normed, exact = signature.normed, M if signature[M] else P
    has_master = exact == M
    rounded = vectors.rounded8(signature[normed])
    zero = real(0)
    zeros = (zero,) * 8

    def norms_with(load_p, load_g):
        @device_function
        def tile_norms(p, g, first, stop, rows, rescale):
            p_sums, g_sums = zeros, zeros
            for row in range(rows):
                i = first + ROW * row
                p_sums = add_squares(p_sums, load_p(p, i, stop))
                g_sums = add_squares(g_sums, scale8(rescale, load_g(g, i, stop)))
            return lane_tree_2(p_sums, g_sums)

        return tile_norms

    def norm_with(load_g):
        @device_function
        def tile_norm(g, first, stop, rows, rescale):
            sums = zeros
            for row in range(rows):
                sums = add_squares(sums, scale8(rescale, load_g(g, first + ROW * row, stop)))
            return lane_tree(sums)

        return tile_norm

    def update_with(load, store, kept):
        load_p, load_g, load_v = load(exact), load(G), load(V)
        store_p, store_v, store_m = store(P), store(V), store(exact)

        def update(carry):
            @device_function
            def tile_update(p, g, v, m, first, stop, rows, rescale, rate, mu, wd):
                sums = zeros
                for row in range(rows):
                    i = first + ROW * row
                    x = load_p(m if has_master else p, i, stop)
                    g8 = scale8(rescale, load_g(g, i, stop))
                    x, v8 = rule8(x, g8, load_v(v, i, stop), rate, mu, wd)
                    store_v(v, i, stop, v8)
                    store_p(p, i, stop, x)
                    if has_master:
                        store_m(m, i, stop, x)
                    if carry:
                        sums = add_squares(sums, kept(rounded(x), i, stop))
                return lane_tree(sums) if carry else zero

            return tile_update

        return update

    @device_function
    def all_kept(x, first, stop):
        return x

    @device_function
    def some_kept(x, first, stop):
        return (
            x[0] if first < stop else zero,
            x[1] if first + 1 < stop else zero,
            x[2] if first + 2 < stop else zero,
            x[3] if first + 3 < stop else zero,
            x[4] if first + SECOND < stop else zero,
            x[5] if first + SECOND + 1 < stop else zero,
            x[6] if first + SECOND + 2 < stop else zero,
            x[7] if first + SECOND + 3 < stop else zero,
        )

    full_norms = norms_with(slots[normed].load, slots[G].load)
    part_norms = norms_with(slots[normed].load_partial, slots[G].load_partial)
    full_norm, part_norm = norm_with(slots[G].load), norm_with(slots[G].load_partial)
    full_update = update_with(lambda s: slots[s].load, lambda s: slots[s].store, all_kept)
    part_update = update_with(lambda s: slots[s].load_partial, lambda s: slots[s].store_partial, some_kept)

    @device_function
    def norms(p, g, first, stop, aligned, rescale):
        """The sums of squares of the tile at ``first``: that of p in even threads of the warp, of g in odd ones."""
        i = first + 4 * (cuda.threadIdx.x % 32)
        if aligned and first + TILE <= stop:
            return full_norms(p, g, i, stop, ROWS, rescale)
        return part_norms(p, g, i, stop, rows_of(first, stop), rescale)

    @device_function
    def norm(g, first, stop, aligned, rescale):
        """The sum of squares of the tile of g at ``first``, in every thread of the warp."""
        i = first + 4 * (cuda.threadIdx.x % 32)
        if aligned and first + TILE <= stop:
            return full_norm(g, i, stop, ROWS, rescale)
        return part_norm(g, i, stop, rows_of(first, stop), rescale)

    full_row, part_row = full_update(False), part_update(False)

    @device_function
    def update_row(p, g, v, m, first, stop, aligned, rescale, rate, mu, wd):
        """Update the row at ``first``."""
        i = first + 4 * (cuda.threadIdx.x % 32)
        if aligned and first + ROW <= stop:
            full_row(p, g, v, m, i, stop, 1, rescale, rate, mu, wd)
        else:
            part_row(p, g, v, m, i, stop, 1, rescale, rate, mu, wd)

    def updater(carry):
        full, part = full_update(carry), part_update(carry)

        @device_function
        def update(p, g, v, m, first, stop, aligned, rescale, rate, mu, wd):
            """Update the tile at ``first``; with ``carry``, the sum of squares of the new p it stores."""
            i = first + 4 * (cuda.threadIdx.x % 32)
            if aligned and first + TILE <= stop:
                return full(p, g, v, m, i, stop, ROWS, rescale, rate, mu, wd)
            return part(p, g, v, m, i, stop, rows_of(first, stop), rescale, rate, mu, wd)

        return update

    return SimpleNamespace(
        real=real, normed=normed, norms=norms, norm=norm, update_row=update_row, update=updater(False), update_and_norm=updater(True),
        join=joiner(real).join, climb=joiner(real).climb,
    )  # fmt: skip

