"""The elementwise work of a step of Muon, merged over all matrices: three launches apart from those of the products.

The first updates the momentum, stores the matrix to orthogonalize in the arithmetic type, and takes the norm of each
matrix, along the tree of `refopt.gpu.tiles`. The second divides by the norm and rounds to the dtype of the iterations.
The third updates the parameters.

A contiguous matrix is accessed four elements at a time. In other matrices, and at the ends, the kernels compute the
position of each element: element e, in memory order, is in row e // inner and column e % inner.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from refopt.checks.dtypes import SIZES, arithmetic
from refopt.cpu.reduce import TILE
from refopt.gpu import remainder, unroll, vectors
from refopt.gpu.gate import gate
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.muon.matrices import FIRST_X, INNER, INNER_STRIDE, LAST_X, LOOKAHEAD, OF_TENSOR, OFFSET, OUTER_STRIDE
from refopt.gpu.norms import NORM_BOUNDS, UPDATE_BOUNDS
from refopt.gpu.muon.sums import scale8, tile_sums
from refopt.gpu.products import padded_size
from refopt.gpu.rows import either, of_warp, own
from refopt.gpu.tables import ALIGNED, START, STOP, TENSOR
from refopt.gpu.target import cuda, device_function, sqrt, transposed
from refopt.gpu.tiles import ROW, chunk_sums
from refopt.gpu.unroll import named
from refopt.gpu.vectors import OFFSETS, SECOND

PARAMS, GRADS, VELOCITIES, MASTERS = range(4)  # rows of the addresses
LR, MU, DECAY, EPSILON, ITERATIONS, RESCALE = range(6)  # rows of the hyperparameters


@device_function
def index_of(place, e):
    """The distance of element e of a matrix from the first, in elements."""
    inner, outer_stride, inner_stride = place
    return e // inner * outer_stride + e % inner * inner_stride


@device_function
def index_of_x(inner, e):
    """The same in the memory of the iterations, where rows are `padded`."""
    return e // inner * padded_size(inner) + e % inner


@device_function
def element_of(first, n):
    """The index in the matrix of a thread's n-th element of the row at ``first``."""
    return own(first) + n % 4 + n // 4 * SECOND


def one_access(dtype: str) -> tuple[Callable, Callable]:
    """Load and store of one element."""
    return getattr(vectors, f"load_{dtype}"), getattr(vectors, f"store_{dtype}")


@factory
def momentum_kernel(dtypes: tuple, use_nesterov: bool, average: bool, factor: str | None) -> Kernel:
    """The first launch, a block for each chunk."""
    real: Any = arithmetic(dtypes[0])
    wide, zero, whole = np.dtype(real).name, real(0), real(1)
    g_size, v_size, u_size = SIZES[dtypes[GRADS]], SIZES[dtypes[VELOCITIES]], SIZES[wide]
    (load_g, _), (load_v, store_v), (_, store_u) = (one_access(x) for x in (*dtypes[1:3], wide))
    grads8, velocities8, wide8 = (vectors.access(x, real, False) for x in (*dtypes[1:3], wide))
    load_g8, load_v8, store_v8, store_u8 = grads8.load, velocities8.load, velocities8.store, wide8.store
    found, factor_of = gate(real, factor)

    @device_function
    def step(v, g, common):
        mu, rest, _ = common
        entering = rest * g if average else g
        v = mu * v + entering
        return v, mu * v + entering if use_nesterov else v

    step8 = unroll.map8(step, 2)

    @device_function
    def full(at, first, stop, common):
        g_at, v_at, u_at, _ = at
        i = own(first)
        g = scale8(common[2], load_g8(g_at, i, stop))
        v, u = transposed(step8(load_v8(v_at, i, stop), g, common))
        store_v8(v_at, i, stop, v)
        store_u8(u_at, i, stop, u)
        return (u,)

    @device_function
    def step_element(offset, i, stop, at, common):
        g_at, v_at, u_at, place = at
        if i + offset >= stop:
            return zero
        there = index_of(place, i + offset)
        v, u = step(real(load_v(v_at + v_size * there)), common[2] * real(load_g(g_at + g_size * there)), common)
        store_v(v_at + v_size * there, v)
        store_u(u_at + u_size * (i + offset), u)
        return u

    step_element8 = unroll.map8(step_element, 1)

    @device_function
    def partial(at, first, stop, common):
        return (step_element8(OFFSETS, own(first), stop, at, common),)

    tile = tile_sums("momentum", lambda by_element: partial if by_element else full, 1, real)
    sums_of = chunk_sums(tile, real, (0, 1))

    @kernel(NORM_BOUNDS)
    def merged_muon_momentum(
        addresses, places, chunks, nodes, counters, sums, norms, hyper, factor_at, found_at
    ):
        c = cuda.blockIdx.x
        if not found(found_at):
            matrix = chunks[c, TENSOR]
            tensor, offset = places[matrix, OF_TENSOR], places[matrix, OFFSET]
            place = places[matrix, INNER], places[matrix, OUTER_STRIDE], places[matrix, INNER_STRIDE]
            g_at = addresses[GRADS, tensor] + g_size * offset
            v_at = addresses[VELOCITIES, tensor] + v_size * offset
            mu = hyper[MU, tensor]
            common = mu, whole - mu, hyper[RESCALE, tensor] * factor_of(factor_at)
            at = g_at, v_at, places[matrix, LOOKAHEAD], place
            closes, squares = sums_of(c, at, chunks, nodes, counters, sums, common)
            if closes and cuda.threadIdx.x == 0:
                norm, epsilon = sqrt(squares[0]), hyper[EPSILON, tensor]
                norms[matrix] = epsilon if norm < epsilon else norm

    return merged_muon_momentum


def walk(row: Callable) -> Callable:
    """``over_rows(c, offset, chunks, at, common)``: calls ``row`` for each row of a tile, a warp for each."""

    @device_function
    def over_rows(c, offset, chunks, at, common):
        start = chunks[c, START] + offset
        stop = min(chunks[c, STOP], start + TILE)
        for first in of_warp(start, stop, ROW):
            row(at, first, stop, chunks[c, ALIGNED], common)

    return named(over_rows, "over_rows_to", row.__name__)


@factory
def normalize_kernel(real: Any, compute: str, chunk_tiles: int) -> Kernel:
    """The second launch: x = u / norm, rounded."""
    wide = np.dtype(real).name
    load_u8, store_x8 = vectors.access(wide, real, False).load, vectors.access(compute, real, False).store
    load_u, store_x, u_size, x_size = one_access(wide)[0], one_access(compute)[1], SIZES[wide], SIZES[compute]

    @device_function
    def divided(u, norm):
        return u / norm

    divided8 = unroll.map8(divided, 1)

    @device_function
    def full(at, first, stop, norm):
        u_at, x_at, _ = at
        i = own(first)
        store_x8(x_at, i, stop, divided8(load_u8(u_at, i, stop), norm))

    @device_function
    def partial(at, first, stop, norm):
        u_at, x_at, inner = at
        for n in range(8):
            e = element_of(first, n)
            if e < stop:
                store_x(x_at + x_size * index_of_x(inner, e), load_u(u_at + u_size * e) / norm)

    over_rows = walk(either("normalize", lambda by_element: partial if by_element else full, ROW))

    @kernel(UPDATE_BOUNDS)
    def merged_muon_normalize(places, chunks, norms):
        c, offset = cuda.blockIdx.x // chunk_tiles, cuda.blockIdx.x % chunk_tiles * TILE
        matrix = chunks[c, TENSOR]
        at = places[matrix, LOOKAHEAD], places[matrix, FIRST_X], places[matrix, INNER]
        over_rows(c, offset, chunks, at, norms[matrix])

    return merged_muon_normalize


def exact_one(param: str, master: str | None) -> tuple[Callable, Callable]:
    """Load and store of one exact parameter, by the addresses of parameter and master or remainder."""
    if master == "uint16":
        return remainder.load_joined, remainder.store_joined
    load_exact, store_exact = one_access(master or param)
    store_rounded, has_master = one_access(param)[1], master is not None

    @device_function
    def load_param(param_at, master_at):
        return load_exact(master_at if has_master else param_at)

    @device_function
    def store_param(param_at, master_at, value):
        store_rounded(param_at, value)
        if has_master:
            store_exact(master_at, value)

    return load_param, store_param


@factory
def update_kernel(param: str, master: str | None, compute: str, factor: str | None, chunk_tiles: int) -> Kernel:
    """The last launch: it decays the parameter and moves it by x."""
    real: Any = arithmetic(param)
    exact8, narrow8 = vectors.exact_access(param, master, real, False), vectors.access(compute, real, False)
    load_p8, store_p8, load_x8 = exact8.load, exact8.store, narrow8.load
    (load_p, store_p), load_x = exact_one(param, master), one_access(compute)[0]
    p_size, x_size, m_size, one = SIZES[param], SIZES[compute], 2 if master == "uint16" else 4, real(1)
    found, _ = gate(real, factor)

    @device_function
    def updated(p, x, common):
        return p * common[0] - common[1] * x

    updated8 = unroll.map8(updated, 2)

    @device_function
    def full(at, first, stop, common):
        p_at, m_at, x_at, _ = at
        i = own(first)
        p = updated8(load_p8(p_at, m_at, i, stop), load_x8(x_at, i, stop), common)
        store_p8(p_at, m_at, i, stop, p, p)

    @device_function
    def partial(at, first, stop, common):
        p_at, m_at, x_at, place = at
        for n in range(8):
            e = element_of(first, n)
            if e < stop:
                there = index_of(place, e)
                p, m = p_at + p_size * there, m_at + m_size * there
                store_p(p, m, updated(load_p(p, m), load_x(x_at + x_size * index_of_x(place[0], e)), common))

    over_rows = walk(either("update", lambda by_element: partial if by_element else full, ROW))

    @kernel(UPDATE_BOUNDS)
    def merged_muon_update(addresses, places, chunks, ratios, hyper, found_at):
        c, offset = cuda.blockIdx.x // chunk_tiles, cuda.blockIdx.x % chunk_tiles * TILE
        if not found(found_at):
            matrix = chunks[c, TENSOR]
            tensor, first = places[matrix, OF_TENSOR], places[matrix, OFFSET]
            place = places[matrix, INNER], places[matrix, OUTER_STRIDE], places[matrix, INNER_STRIDE]
            lr = hyper[LR, tensor]
            at = (addresses[PARAMS, tensor] + p_size * first, addresses[MASTERS, tensor] + m_size * first,
                  places[matrix, LAST_X], place)
            over_rows(c, offset, chunks, at, (one - lr * hyper[DECAY, tensor], lr * ratios[matrix]))

    return merged_muon_update
