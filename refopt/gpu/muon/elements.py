"""The elementwise work of a step of Muon, merged over all matrices: three launches apart from those of the products.

`refopt.gpu.muon.rows` has two more of NorMuon, whose last launch takes a factor for each row from them.

The first updates the momentum, stores the matrix to orthogonalize in the arithmetic type, and takes the norm of each
matrix, along the tree of `refopt.gpu.tiles`. The second divides by the norm and rounds to the dtype of the iterations.
The third updates the parameters.

The elements of a matrix are numbered in memory order, and a warp takes a row of 256 of them; `refopt.gpu.rows` says
which eight a thread has. In a contiguous matrix it accesses four at a time. In other matrices, and at the ends, it
accesses them singly, and computes where each is: element n is in row n // inner and column n % inner.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from refopt.checks.dtypes import ITEM_SIZES, SIZES, arithmetic
from refopt.checks.rows import Routine
from refopt.cpu.reduce import TILE
from refopt.gpu.gate import gate
from refopt.gpu.instructions import sqrt
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.muon.matrices import FIRST_X, INNER, INNER_STRIDE, LAST_X, LOOKAHEAD, OF_TENSOR, OFFSET, OUTER_STRIDE
from refopt.gpu.norms import NORM_BOUNDS, UPDATE_BOUNDS
from refopt.gpu.products import padded
from refopt.gpu.remainder import JOINED
from refopt.gpu.rows import OFFSETS, ROW, SECOND, WHOLE, Slots, access, of_warp, own
from refopt.gpu.tables import ALIGNED, START, STOP, TENSOR
from refopt.gpu.target import cuda, device_function
from refopt.gpu.tiles import chunk_sums, tile_sums
from refopt.gpu.vectors import load_of, store_of

PARAMS, GRADS, VELOCITIES, BY_ROW = range(4)  # rows of the addresses; the last are the masters
LR, MU, DECAY, EPSILON, ITERATIONS, RESCALE, BETA2, ROW_EPSILON = range(8)  # rows of the hyperparameters
# Columns of the table of rows: the first of a matrix among all, and how their number grows with an element's in memory;
# and the numbers of each row.
FIRST, OUTER_ROW, INNER_ROW = range(3)
SQUARES, DIVISORS = range(2)


@device_function
def index_of(place, n):
    """The distance of element n of a matrix from the first, in elements."""
    inner, outer_stride, inner_stride = place
    return n // inner * outer_stride + n % inner * inner_stride


@device_function
def index_of_x(inner, n):
    """The same in the memory of the iterations, where rows are `padded`."""
    return n // inner * padded(inner) + n % inner


@factory
def momentum_kernel(dtypes: tuple, use_nesterov: bool, average: bool, factor: str | None) -> Kernel:
    """The first launch, a block for each chunk."""
    real: Any = arithmetic(dtypes[0])
    of_g, of_v, of_u = dtypes[GRADS], dtypes[VELOCITIES], np.dtype(real).name
    g_size, v_size, u_size, one = SIZES[of_g], SIZES[of_v], SIZES[of_u], real(1)
    (load8_g, _), (load8_v, store8_v), (_, store8_u) = (access(x, real) for x in (of_g, of_v, of_u))
    load_g, load_v, store_v, store_u = load_of(of_g), load_of(of_v), store_of(of_v), store_of(of_u)
    found, factor_of = gate(real, factor)

    @device_function
    def step(v, g, k):
        mu, rest, rescale = k
        g = rescale * g
        entering = rest * g if average else g
        v = mu * v + entering
        return v, mu * v + entering if use_nesterov else v

    @device_function
    def add_row(at, i, stop, whole, k, s):
        """Update eight velocities, and add the squares of what is orthogonalized to the thread's lanes s[0, 0:8].

        x[0] are the gradients, x[1] the velocities, and x[2] what is orthogonalized.
        """
        g_at, v_at, u_at, place = at
        if whole:
            x = cuda.local.array((3, 8), real)
            load8_g(g_at, i, stop, WHOLE, x, 0)
            load8_v(v_at, i, stop, WHOLE, x, 1)
            for e in range(8):
                x[1, e], x[2, e] = step(x[1, e], x[0, e], k)
            store8_v(v_at, i, stop, WHOLE, x, 1)
            store8_u(u_at, i, stop, WHOLE, x, 2)
            for e in range(8):
                s[0, e] = s[0, e] + x[2, e] * x[2, e]
        else:
            for e in range(8):
                n = i + OFFSETS[e]
                if n < stop:
                    there = index_of(place, n)
                    v, u = step(real(load_v(v_at + v_size * there)), real(load_g(g_at + g_size * there)), k)
                    store_v(v_at + v_size * there, v)
                    store_u(u_at + u_size * n, u)
                    s[0, e] = s[0, e] + u * u

    sums_of = chunk_sums(tile_sums(add_row, 1, real, stores=True), real, (0, 1))

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
            k = mu, one - mu, hyper[RESCALE, tensor] * factor_of(factor_at)
            at = g_at, v_at, places[matrix, LOOKAHEAD], place
            closes, squares = sums_of(c, at, chunks, nodes, counters, sums, k)
            if closes and cuda.threadIdx.x == 0:
                norm, epsilon = sqrt(squares[0]), hyper[EPSILON, tensor]
                norms[matrix] = epsilon if norm < epsilon else norm

    return merged_muon_momentum


@factory
def normalize_kernel(real: Any, compute: str, chunk_tiles: int) -> Kernel:
    """The second launch, a block for each tile: x = u / norm, rounded."""
    wide = np.dtype(real).name
    load8_u, store8_x = access(wide, real).load, access(compute, real).store
    load_u, store_x, u_size, x_size = load_of(wide), store_of(compute), SIZES[wide], SIZES[compute]

    @device_function
    def normalize(u_at, x_at, inner, i, stop, whole, norm):
        """Eight elements."""
        if whole:
            x = cuda.local.array((1, 8), real)
            load8_u(u_at, i, stop, WHOLE, x, 0)
            for e in range(8):
                x[0, e] = x[0, e] / norm
            store8_x(x_at, i, stop, WHOLE, x, 0)
        else:
            for e in range(8):
                n = i + OFFSETS[e]
                if n < stop:
                    store_x(x_at + x_size * index_of_x(inner, n), load_u(u_at + u_size * n) / norm)

    @kernel(UPDATE_BOUNDS)
    def merged_muon_normalize(places, chunks, norms):
        c, offset = cuda.blockIdx.x // chunk_tiles, cuda.blockIdx.x % chunk_tiles * TILE
        matrix = chunks[c, TENSOR]
        u_at, x_at, inner = places[matrix, LOOKAHEAD], places[matrix, FIRST_X], places[matrix, INNER]
        norm = norms[matrix]
        start = chunks[c, START] + offset
        stop = min(chunks[c, STOP], start + TILE)
        for first in of_warp(start, stop, ROW):
            whole = chunks[c, ALIGNED] != 0 and first + ROW <= stop
            normalize(u_at, x_at, inner, own(first), stop, whole, norm)

    return merged_muon_normalize


@factory
def diagonal_kernel(compute: str) -> Kernel:
    """The launch that adds ``numbers[0]`` I to squares, a block for each; ``squares`` has their addresses and sizes."""
    size, load, store = SIZES[compute], load_of(compute), store_of(compute)

    @kernel(UPDATE_BOUNDS)
    def merged_muon_diagonal(squares, numbers):
        at, small, a = squares[cuda.blockIdx.x, 0], squares[cuda.blockIdx.x, 1], numbers[0]
        for i in range(cuda.threadIdx.x, small, cuda.blockDim.x):
            here = at + size * (i * padded(small) + i)
            store(here, load(here) + a)

    return merged_muon_diagonal


def one_exact(param: str, master: str | None) -> tuple[Callable, Callable]:
    """Load and store of one exact parameter, by the addresses of parameter and master or remainder."""
    if master in JOINED:
        return JOINED[master].load, JOINED[master].store
    exact, has_master = master or param, master is not None
    load_exact, store_exact, store_rounded = load_of(exact), store_of(exact), store_of(param)

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
def update_kernel(routine: Routine, dtypes: tuple, compute: str, factor: str | None, chunk_tiles: int) -> Kernel:
    """The last launch, a block for each tile: it decays the parameter and moves it by x, of NorMuon times a factor."""
    slots, param, master = Slots(routine, dtypes), dtypes[PARAMS], dtypes[-1]
    masters, by_row = len(dtypes) - 1, any(slot.by_row for slot in routine.slots)
    real: Any = slots.real
    load8_p, store8_p = slots.load(["params"]), slots.store({"params": 0, "stored_params": 0})
    (load_p, store_p), load8_x, load_x = one_exact(param, master), access(compute, real).load, load_of(compute)
    p_size, x_size, m_size, one = SIZES[param], SIZES[compute], ITEM_SIZES[master or "float32"], real(1)
    zero = real(0)
    found, _ = gate(real, factor)

    @device_function
    def updated(p, x, k):
        return p * k[0] - k[1] * x

    @device_function
    def scaled(x, n, beyond, rows):
        """x times the factor of its row, that of the element ``beyond`` n, at most three."""
        numbers, share, first, place = rows
        row = first + index_of(place, n) + beyond * place[2]
        return (zero if numbers[SQUARES, row] == zero else share / numbers[DIVISORS, row]) * x

    @device_function
    def update(p_at, m_at, x_at, place, rows, i, stop, whole, k):
        """Eight elements: x[0] are the parameters, and x[1] what they are moved by."""
        if whole:
            x, at = cuda.local.array((2, 8), real), (p_at, 0, 0, m_at, m_at)  # the fourth slot, or the fifth
            load8_p(at, i, stop, WHOLE, x)
            load8_x(x_at, i, stop, WHOLE, x, 1)
            for e in range(8):
                if by_row:  # a matrix's rows in memory have a multiple of four elements here
                    x[1, e] = scaled(x[1, e], i + SECOND * (e // 4), e % 4, rows)
                x[0, e] = updated(x[0, e], x[1, e], k)
            store8_p(at, i, stop, WHOLE, x)
        else:
            for e in range(8):
                n = i + OFFSETS[e]
                if n < stop:
                    there = index_of(place, n)
                    p, m = p_at + p_size * there, m_at + m_size * there
                    x = real(load_x(x_at + x_size * index_of_x(place[0], n)))
                    store_p(p, m, updated(load_p(p, m), scaled(x, n, 0, rows) if by_row else x, k))

    @kernel(UPDATE_BOUNDS)
    def merged_muon_update(addresses, places, chunks, ratios, hyper, table, numbers, shares, found_at):
        c, offset = cuda.blockIdx.x // chunk_tiles, cuda.blockIdx.x % chunk_tiles * TILE
        if not found(found_at):
            matrix = chunks[c, TENSOR]
            tensor, origin = places[matrix, OF_TENSOR], places[matrix, OFFSET]
            place = places[matrix, INNER], places[matrix, OUTER_STRIDE], places[matrix, INNER_STRIDE]
            p_at, m_at = addresses[PARAMS, tensor] + p_size * origin, addresses[masters, tensor] + m_size * origin
            of = matrix if by_row else 0
            rows = numbers, shares[of], table[of, FIRST], (place[0], table[of, OUTER_ROW], table[of, INNER_ROW])
            x_at, lr = places[matrix, LAST_X], hyper[LR, tensor]
            k = one - lr * hyper[DECAY, tensor], lr * ratios[matrix]
            start = chunks[c, START] + offset
            stop = min(chunks[c, STOP], start + TILE)
            for first in of_warp(start, stop, ROW):
                whole = chunks[c, ALIGNED] != 0 and first + ROW <= stop
                update(p_at, m_at, x_at, place, rows, own(first), stop, whole, k)

    return merged_muon_update
