# refopt.gpu: merged_muon, form merged
#
# arrays: params float32, grads float32, velocities float32
# choices: use_nesterov=True, average=True, adjust_lr=original, compute=bfloat16
# rows of addresses: 0 params, 1 grads, 2 velocities
# rows of hyper: 0 lr, 1 mu, 2 weight_decay, 3 epsilon, 5 rescale_grad
#
# Launches for the matrices of resnet50, as kernel[blocks, threads]:
# in a step: merged_muon_momentum[3116, 128], merged_muon_normalize[24928, 64], 5 times products_square_symmetric[869,
#            128], 5 times products_symmetric_added[869, 128], 5 times products_added[6239, 128],
#            merged_muon_update[24928, 64]
#
# The compiler inlines every function into its kernel and rounds a * b + c twice. Where a function has PTX above it, the
# GPU runs the PTX instead. The executor runs this text unchanged, with the same bits. launch_bounds are the most
# threads per block and the blocks that should fit on a multiprocessor at a time; they tell the compiler how many
# registers a thread may use.

import math
from struct import Struct

import numpy as np

from refopt.gpu.tensor_core import ldmatrix4, ldmatrix4_transposed, mma_bfloat16
from refopt.simt import cuda, memory, ptx_twin, vectors

# Columns of the chunk table: the tensor, the first element and the last + 1, the slot of the first tile's sum, the node
# that counts the chunk, and whether vectors can access all arrays of the tensor.
TENSOR, START, STOP, SLOT, NODE, ALIGNED = range(6)
# Columns of the table of matrices.
OF_TENSOR, OFFSET, INNER, OUTER_STRIDE, INNER_STRIDE, LOOKAHEAD, FIRST_X, LAST_X = range(8)
PARAMS, GRADS, VELOCITIES, MASTERS = range(4)  # rows of the addresses
LR, MU, DECAY, EPSILON, ITERATIONS, RESCALE = range(6)  # rows of the hyperparameters
# Columns of the node table: the slot of the first child's sum, the number of children, the slot of the node's own sum,
# the number of arrivals that it waits for, and its parent or -1.
FIRST_CHILD, CHILDREN, OWN_SUM, ARRIVALS, PARENT = range(5)
WHOLE_WARP = 0xFFFFFFFF
TILE = 1024
ROW = 256
LANES = 256
ROWS = TILE // LANES
SECOND = 128  # from a thread's first four elements of a row to its other four
OFFSETS = 0, 1, 2, 3, SECOND, SECOND + 1, SECOND + 2, SECOND + 3  # from a thread's first element of a row to its eight
ZERO = np.float32(0)
# Columns of the table of products: the fields of a `Product`. Columns of the table of tiles: product, row and column.
A, B, OUT, ADDED, M, N, K, ALONG = range(8)
STAGES = 3
STEP, CHUNK = 32, 8  # the step of k; the elements in 16 bytes, which a thread copies at a time
PART = 32  # rows and columns of a warp's part of the tile
THREADS = 128
_word = Struct("=I").unpack
# All bf16 numbers as fp32, by bit pattern: on the executor a look-up takes a twentieth of the time of a view.
WIDENED = (np.arange(2**16, dtype=np.uint32) << np.uint32(16)).view(np.float32)

whole = np.float32(1)
one = np.float32(1)
zero = np.float32(0)
zeros = (np.float32(0),) * 8


@cuda.jit(launch_bounds=(128, 4))  # refopt/gpu/muon/elements.py
def merged_muon_momentum(addresses, places, chunks, nodes, counters, sums, norms, hyper, factor_at, found_at):
    c = cuda.blockIdx.x
    if not found(found_at):
        matrix = chunks[c, TENSOR]
        tensor, offset = places[matrix, OF_TENSOR], places[matrix, OFFSET]
        place = places[matrix, INNER], places[matrix, OUTER_STRIDE], places[matrix, INNER_STRIDE]
        g_at = addresses[GRADS, tensor] + 4 * offset
        v_at = addresses[VELOCITIES, tensor] + 4 * offset
        mu = hyper[MU, tensor]
        common = mu, whole - mu, hyper[RESCALE, tensor] * factor_of(factor_at)
        at = g_at, v_at, places[matrix, LOOKAHEAD], place
        closes, squares = sums_of_momentum(c, at, chunks, nodes, counters, sums, common)
        if closes and cuda.threadIdx.x == 0:
            norm, epsilon = sqrt(squares[0]), hyper[EPSILON, tensor]
            norms[matrix] = epsilon if norm < epsilon else norm


@cuda.jit(device=True)  # refopt/gpu/gate.py
def factor_of(factor_at):
    return one


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def sums_of_momentum(c, at, chunks, nodes, counters, sums, common):
    node = chunks[c, NODE]
    # How many chunks the node counts. Loaded early, since the last block to finish would have to wait for it.
    arrivals = nodes[node, ARRIVALS]
    over_tiles_of_momentum(c, chunks, at, chunks[c, START], chunks[c, STOP], chunks[c, SLOT], sums, common)
    # The last block to finish under a node of the tree joins its sums, so none waits for another.
    closes, x = climb(node, arrivals, nodes, counters, sums)
    if closes:
        return True, (x, cuda.shfl_xor_sync(WHOLE_WARP, x, 1))
    return False, (zero, zero)


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def over_tiles_of_momentum(c, chunks, at, start, stop, slot, sums, common):
    lane = cuda.threadIdx.x % 32
    for first in of_warp(start, stop, TILE):
        x = tile_of_momentum(at, first, stop, chunks[c, ALIGNED], common)
        if 0 <= lane < 1:
            sums[lane, slot + (first - start) // TILE] = x


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def tile_of_momentum(at, first, stop, aligned, common):
    return lane_tree(*lanes_of_momentum(at, first, stop, aligned, common))


@cuda.jit(device=True)  # refopt/gpu/tiles.py
def lane_tree(s):
    """The sum of 256 lanes. Thread t has lanes 4t to 4t + 3, and the four that are 128 further.

    It takes 6 shuffles, not 10: from the first level on, even threads compute the tree of lanes 0 to 127 and
    odd threads that of the others.
    """
    odd = cuda.threadIdx.x & 1
    x = swap_join(odd, (s[0] + s[1]) + (s[2] + s[3]), (s[4] + s[5]) + (s[6] + s[7]), 1)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 2)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 4)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 8)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 16)
    return x + cuda.shfl_xor_sync(WHOLE_WARP, x, 1)


@cuda.jit(device=True)  # refopt/gpu/rows.py
def lanes_of_momentum(at, first, stop, aligned, common):
    if aligned and first + 1024 <= stop:
        return lanes_of_momentum_full(at, first, stop, common)
    return lanes_of_momentum_partial(at, first, stop, common)


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def lanes_of_momentum_full(at, first, stop, common):
    sums = zeros
    for n in range(all_rows(first, stop)):
        sums = add_squares(sums, momentum_full(at, first + ROW * n, stop, common)[0])
    return (sums,)


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def all_rows(first, stop):
    return ROWS


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def momentum_full(at, first, stop, common):
    g_at, v_at, u_at, _ = at
    i = own(first)
    g = scale8(common[2], load8_float32(g_at, i, stop))
    v, u = transposed(step8(load8_float32(v_at, i, stop), g, common))
    store8_float32(v_at, i, stop, v)
    store8_float32(u_at, i, stop, u)
    return (u,)


@cuda.jit(device=True)  # refopt/gpu/tiles.py
def scale8(factor, x):
    return (
        factor * x[0],
        factor * x[1],
        factor * x[2],
        factor * x[3],
        factor * x[4],
        factor * x[5],
        factor * x[6],
        factor * x[7],
    )


@cuda.jit(device=True)  # refopt/gpu/target.py
def transposed(rows):
    """The columns of a tuple of tuples. On a GPU it moves nothing, and only renames registers."""
    return tuple(zip(*rows))


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def step8(vs, gs, common):
    return (
        step(vs[0], gs[0], common),
        step(vs[1], gs[1], common),
        step(vs[2], gs[2], common),
        step(vs[3], gs[3], common),
        step(vs[4], gs[4], common),
        step(vs[5], gs[5], common),
        step(vs[6], gs[6], common),
        step(vs[7], gs[7], common),
    )


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def lanes_of_momentum_partial(at, first, stop, common):
    sums = zeros
    for n in range(rows_of(first, stop)):
        sums = add_squares(sums, momentum_partial(at, first + ROW * n, stop, common)[0])
    return (sums,)


@cuda.jit(device=True)  # refopt/gpu/tiles.py
def rows_of(first, stop):
    """How many rows of the tile at ``first`` hold elements before ``stop``."""
    return min((stop - first + ROW - 1) // ROW, ROWS)


@cuda.jit(device=True)  # refopt/gpu/tiles.py
def add_squares(sums, x):
    return (
        sums[0] + x[0] * x[0],
        sums[1] + x[1] * x[1],
        sums[2] + x[2] * x[2],
        sums[3] + x[3] * x[3],
        sums[4] + x[4] * x[4],
        sums[5] + x[5] * x[5],
        sums[6] + x[6] * x[6],
        sums[7] + x[7] * x[7],
    )


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def momentum_partial(at, first, stop, common):
    return (step_element8(OFFSETS, own(first), stop, at, common),)


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def step_element8(offsets, i, stop, at, common):
    return (
        step_element(offsets[0], i, stop, at, common),
        step_element(offsets[1], i, stop, at, common),
        step_element(offsets[2], i, stop, at, common),
        step_element(offsets[3], i, stop, at, common),
        step_element(offsets[4], i, stop, at, common),
        step_element(offsets[5], i, stop, at, common),
        step_element(offsets[6], i, stop, at, common),
        step_element(offsets[7], i, stop, at, common),
    )


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def step_element(offset, i, stop, at, common):
    g_at, v_at, u_at, place = at
    if i + offset >= stop:
        return zero
    there = index_of(place, i + offset)
    v, u = step(
        np.float32(load_float32(v_at + 4 * there)), common[2] * np.float32(load_float32(g_at + 4 * there)), common
    )
    store_float32(v_at + 4 * there, v)
    store_float32(u_at + 4 * (i + offset), u)
    return u


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def step(v, g, common):
    mu, rest, _ = common
    entering = rest * g
    v = mu * v + entering
    return v, mu * v + entering


@cuda.jit(device=True)  # refopt/gpu/tiles.py
def climb(node, arrivals, nodes, counters, sums):
    """Join upwards from a node that waits for ``arrivals`` arrivals.

    Returns whether this block has computed the sums of the tensor, and if so the sums.
    """
    x = zero
    while node >= 0:
        if not is_last(node, arrivals, counters):
            return False, zero
        x = join_sums(sums, nodes[node, FIRST_CHILD], nodes[node, CHILDREN])
        if cuda.threadIdx.x < 2:
            sums[cuda.threadIdx.x, nodes[node, OWN_SUM]] = x
        node = nodes[node, PARENT]
        if node >= 0:
            arrivals = nodes[node, ARRIVALS]
    return True, x


@cuda.jit(device=True)  # refopt/gpu/tiles.py
def is_last(node, arrivals, counters):
    """Whether this block is the last under the node; if so, it sees the sums that the others have written."""
    last = cuda.shared.array(1, np.int32)
    cuda.syncthreads()
    if arrivals == 1:
        return True
    if cuda.threadIdx.x == 0:
        fence()
        # The last arrival resets the counter to 0 for the next step.
        last[0] = cuda.atomic.inc(counters, node, arrivals - 1) == arrivals - 1
        fence()
    cuda.syncthreads()
    return last[0] != 0


# PTX
#     fence.acq_rel.gpu;
@ptx_twin()  # refopt/gpu/target.py
def fence():
    """Order memory between blocks around an atomic: a lighter ``cuda.threadfence()``."""
    cuda.threadfence()


@cuda.jit(device=True)  # refopt/gpu/tiles.py
def join_sums(sums, first, count):
    """The tree over at most 1024 sums: each warp joins 32 at a time, then every warp joins the results."""
    joined = cuda.shared.array((2, 32), np.float32)
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    for group in range(warp, (count + 31) // 32, cuda.blockDim.x // 32):
        i = group * 32 + lane
        here = i < count
        x = warp_tree_2(sums[0, first + i] if here else zero, sums[1, first + i] if here else zero)
        if lane < 2:
            joined[lane, group] = x
    cuda.syncthreads()
    here = lane * 32 < count
    x = warp_tree_2(joined[0, lane] if here else zero, joined[1, lane] if here else zero)
    cuda.syncthreads()
    return x


@cuda.jit(device=True)  # refopt/gpu/tiles.py
def warp_tree_2(x, y):
    """The sum over a warp, neighbouring threads first: of x on even threads, of y on odd ones."""
    x = swap_join(cuda.threadIdx.x & 1, x, y, 1)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 2)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 4)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 8)
    return x + cuda.shfl_xor_sync(WHOLE_WARP, x, 16)


@cuda.jit(device=True)  # refopt/gpu/tiles.py
def swap_join(odd, x, y, distance):
    """One level of two trees in one shuffle: even threads continue with x, odd ones with y."""
    mine, theirs = (y, x) if odd else (x, y)
    return mine + cuda.shfl_xor_sync(WHOLE_WARP, theirs, distance)


@cuda.jit(device=True)  # refopt/gpu/target.py
def sqrt(x):
    """The square root, rounded once: ``sqrt.rn`` in the kernel."""
    return math.sqrt(x)


@cuda.jit(launch_bounds=(64, 14))  # refopt/gpu/muon/elements.py
def merged_muon_normalize(places, chunks, norms):
    c, offset = cuda.blockIdx.x // 8, cuda.blockIdx.x % 8 * TILE
    matrix = chunks[c, TENSOR]
    at = places[matrix, LOOKAHEAD], places[matrix, FIRST_X], places[matrix, INNER]
    over_rows_to_normalize(c, offset, chunks, at, norms[matrix])


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def over_rows_to_normalize(c, offset, chunks, at, common):
    start = chunks[c, START] + offset
    stop = min(chunks[c, STOP], start + TILE)
    for first in of_warp(start, stop, ROW):
        normalize(at, first, stop, chunks[c, ALIGNED], common)


@cuda.jit(device=True)  # refopt/gpu/rows.py
def normalize(at, first, stop, aligned, common):
    if aligned and first + 256 <= stop:
        return normalize_full(at, first, stop, common)
    return normalize_partial(at, first, stop, common)


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def normalize_full(at, first, stop, norm):
    u_at, x_at, _ = at
    i = own(first)
    store8_bfloat16(x_at, i, stop, divided8(load8_float32(u_at, i, stop), norm))


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def store8_bfloat16(address, i, stop, values):
    begin = moved_bfloat16(address, i)
    store4_bfloat16(begin, values[:4])
    store4_bfloat16(moved_bfloat16(begin, SECOND), values[4:])


# PTX: $0 to $4 are passed; from compute capability 8.0 on, before it as below
#     { .reg .b32 w0, w1; .reg .b16 h0, h1, h2, h3;
#     cvt.rn.bf16.f32 h0, $1; cvt.rn.bf16.f32 h1, $2; cvt.rn.bf16.f32 h2, $3; cvt.rn.bf16.f32 h3, $4;
#     mov.b32 w0, {h0, h1}; mov.b32 w1, {h2, h3};
#     st.global.v2.b32 [$0], {w0, w1}; }
# PTX before 8.0:
#     { .reg .b32 w0, w1; .reg .b16 h0, h1, h2, h3; { .reg .b32 n, o; .reg .b16 l; .reg .pred q;
#     mov.b32 n, $1;
#     shr.u32 o, n, 16;
#     and.b32 o, o, 1;
#     add.u32 o, o, 0x7fff; add.u32 n, n, o;
#     setp.nan.f32 q, $1, $1;
#     selp.b32 n, 0x7fff0000, n, q;
#     mov.b32 {l, h0}, n; } { .reg .b32 n, o;
#     .reg .b16 l; .reg .pred q;
#     mov.b32 n, $2;
#     shr.u32 o, n, 16;
#     and.b32 o, o, 1;
#     add.u32 o, o, 0x7fff; add.u32 n, n, o;
#     setp.nan.f32 q, $2, $2;
#     selp.b32 n, 0x7fff0000, n, q;
#     mov.b32 {l, h1}, n; } { .reg .b32 n, o;
#     .reg .b16 l; .reg .pred q;
#     mov.b32 n, $3;
#     shr.u32 o, n, 16;
#     and.b32 o, o, 1;
#     add.u32 o, o, 0x7fff; add.u32 n, n, o;
#     setp.nan.f32 q, $3, $3;
#     selp.b32 n, 0x7fff0000, n, q;
#     mov.b32 {l, h2}, n; } { .reg .b32 n, o;
#     .reg .b16 l; .reg .pred q;
#     mov.b32 n, $4;
#     shr.u32 o, n, 16;
#     and.b32 o, o, 1;
#     add.u32 o, o, 0x7fff; add.u32 n, n, o;
#     setp.nan.f32 q, $4, $4;
#     selp.b32 n, 0x7fff0000, n, q;
#     mov.b32 {l, h3}, n; } mov.b32 w0, {h0, h1};
#     mov.b32 w1, {h2, h3};
#     st.global.v2.b32 [$0], {w0, w1}; }
@ptx_twin()  # refopt/gpu/vectors.py
def store4_bfloat16(address, values):
    memory.store(address, np.uint16, tuple(narrow_bfloat16(x) for x in values))


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def divided8(us, norm):
    return (
        divided(us[0], norm),
        divided(us[1], norm),
        divided(us[2], norm),
        divided(us[3], norm),
        divided(us[4], norm),
        divided(us[5], norm),
        divided(us[6], norm),
        divided(us[7], norm),
    )


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def divided(u, norm):
    return u / norm


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def normalize_partial(at, first, stop, norm):
    u_at, x_at, inner = at
    for n in range(8):
        e = element_of(first, n)
        if e < stop:
            store_bfloat16(x_at + 2 * index_of_x(inner, e), load_float32(u_at + 4 * e) / norm)


@cuda.jit(launch_bounds=(128, 4))  # refopt/gpu/products.py
def products_square_symmetric(tiles, table, alpha, beta):
    tile_a = cuda.shared.array(6144, np.uint16, alignment=16)
    tile_b = cuda.shared.array(6144, np.uint16, alignment=16)
    sums = cuda.local.array(32, np.float32)
    for i in range(32):
        sums[i] = ZERO
    top, left, lane = part()
    i, row, column = tiles[cuda.blockIdx.x, 0], tiles[cuda.blockIdx.x, 1], tiles[cuda.blockIdx.x, 2]
    a, b, m, n = table[i, A], table[i, B], table[i, M], table[i, N]
    height, pitch, depth = padded_size(m), padded_size(n), padded_size(table[i, K])
    if table[i, ALONG]:
        add_up_along_along(sums, tile_a, tile_b, a, b, row, column, height, pitch, depth, top, left, lane)
    else:
        add_up_across_across(sums, tile_a, tile_b, a, b, row, column, height, pitch, depth, top, left, lane)
    out, added = table[i, OUT], table[i, ADDED]
    store_mirrored(sums, row + top, column + left, lane, out, m, n, row != column, alpha, beta, added)


@cuda.jit(device=True)  # refopt/gpu/matmul.py
def add_up_along_along(sums, tile_a, tile_b, a, b, row, column, m, n, depth, top, left, lane):
    inside = row + top < m and column + left < n  # at least one element of the warp's part
    for stage in range(STAGES - 1):
        begin_along(tile_a, stage * 2048, a, row, m, stage * STEP, depth)
        begin_along(tile_b, stage * 2048, b, column, n, stage * STEP, depth)
        end_group()
    for first in range(0, depth, STEP):
        # A thread waits for its own copies, and at the barrier for those of the others. After the barrier all warps
        # have also multiplied the previous step's tiles, which the next copies overwrite.
        wait()
        cuda.syncthreads()
        ahead, stage = first + (STAGES - 1) * STEP, first // STEP % STAGES
        free = ahead // STEP % STAGES
        begin_along(tile_a, free * 2048, a, row, m, ahead, depth)
        begin_along(tile_b, free * 2048, b, column, n, ahead, depth)
        end_group()
        if inside:
            multiply_along_along(tile_a, stage * 2048, tile_b, stage * 2048, sums, top, left, lane)


@cuda.jit(device=True)  # refopt/gpu/matmul.py
def multiply_along_along(tile_a, base_a, tile_b, base_b, sums, top, left, lane):
    odd, late = lane // 8 % 2 * 8, lane // 16 * 8
    x0 = fragment_along(tile_a, base_a, top + 0, 0, odd, late)
    x16 = fragment_along(tile_a, base_a, top + 16, 0, odd, late)
    y = fragment_along(tile_b, base_b, left + 0, 0, late, odd)
    sums[0], sums[1], sums[2], sums[3] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[0], y[1]), (sums[0], sums[1], sums[2], sums[3])
    )
    sums[4], sums[5], sums[6], sums[7] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[2], y[3]), (sums[4], sums[5], sums[6], sums[7])
    )
    sums[16], sums[17], sums[18], sums[19] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[0], y[1]), (sums[16], sums[17], sums[18], sums[19])
    )
    sums[20], sums[21], sums[22], sums[23] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[2], y[3]), (sums[20], sums[21], sums[22], sums[23])
    )
    y = fragment_along(tile_b, base_b, left + 16, 0, late, odd)
    sums[8], sums[9], sums[10], sums[11] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[0], y[1]), (sums[8], sums[9], sums[10], sums[11])
    )
    sums[12], sums[13], sums[14], sums[15] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[2], y[3]), (sums[12], sums[13], sums[14], sums[15])
    )
    sums[24], sums[25], sums[26], sums[27] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[0], y[1]), (sums[24], sums[25], sums[26], sums[27])
    )
    sums[28], sums[29], sums[30], sums[31] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[2], y[3]), (sums[28], sums[29], sums[30], sums[31])
    )
    x0 = fragment_along(tile_a, base_a, top + 0, 16, odd, late)
    x16 = fragment_along(tile_a, base_a, top + 16, 16, odd, late)
    y = fragment_along(tile_b, base_b, left + 0, 16, late, odd)
    sums[0], sums[1], sums[2], sums[3] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[0], y[1]), (sums[0], sums[1], sums[2], sums[3])
    )
    sums[4], sums[5], sums[6], sums[7] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[2], y[3]), (sums[4], sums[5], sums[6], sums[7])
    )
    sums[16], sums[17], sums[18], sums[19] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[0], y[1]), (sums[16], sums[17], sums[18], sums[19])
    )
    sums[20], sums[21], sums[22], sums[23] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[2], y[3]), (sums[20], sums[21], sums[22], sums[23])
    )
    y = fragment_along(tile_b, base_b, left + 16, 16, late, odd)
    sums[8], sums[9], sums[10], sums[11] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[0], y[1]), (sums[8], sums[9], sums[10], sums[11])
    )
    sums[12], sums[13], sums[14], sums[15] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[2], y[3]), (sums[12], sums[13], sums[14], sums[15])
    )
    sums[24], sums[25], sums[26], sums[27] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[0], y[1]), (sums[24], sums[25], sums[26], sums[27])
    )
    sums[28], sums[29], sums[30], sums[31] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[2], y[3]), (sums[28], sums[29], sums[30], sums[31])
    )


@cuda.jit(device=True)  # refopt/gpu/matmul.py
def add_up_across_across(sums, tile_a, tile_b, a, b, row, column, m, n, depth, top, left, lane):
    inside = row + top < m and column + left < n  # at least one element of the warp's part
    for stage in range(STAGES - 1):
        begin_across(tile_a, stage * 2048, a, row, m, stage * STEP, depth)
        begin_across(tile_b, stage * 2048, b, column, n, stage * STEP, depth)
        end_group()
    for first in range(0, depth, STEP):
        # A thread waits for its own copies, and at the barrier for those of the others. After the barrier all warps
        # have also multiplied the previous step's tiles, which the next copies overwrite.
        wait()
        cuda.syncthreads()
        ahead, stage = first + (STAGES - 1) * STEP, first // STEP % STAGES
        free = ahead // STEP % STAGES
        begin_across(tile_a, free * 2048, a, row, m, ahead, depth)
        begin_across(tile_b, free * 2048, b, column, n, ahead, depth)
        end_group()
        if inside:
            multiply_across_across(tile_a, stage * 2048, tile_b, stage * 2048, sums, top, left, lane)


@cuda.jit(device=True)  # refopt/gpu/matmul.py
def multiply_across_across(tile_a, base_a, tile_b, base_b, sums, top, left, lane):
    odd, late = lane // 8 % 2 * 8, lane // 16 * 8
    x0 = fragment_across(tile_a, base_a, top + 0, 0, odd, late)
    x16 = fragment_across(tile_a, base_a, top + 16, 0, odd, late)
    y = fragment_across(tile_b, base_b, left + 0, 0, late, odd)
    sums[0], sums[1], sums[2], sums[3] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[0], y[1]), (sums[0], sums[1], sums[2], sums[3])
    )
    sums[4], sums[5], sums[6], sums[7] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[2], y[3]), (sums[4], sums[5], sums[6], sums[7])
    )
    sums[16], sums[17], sums[18], sums[19] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[0], y[1]), (sums[16], sums[17], sums[18], sums[19])
    )
    sums[20], sums[21], sums[22], sums[23] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[2], y[3]), (sums[20], sums[21], sums[22], sums[23])
    )
    y = fragment_across(tile_b, base_b, left + 16, 0, late, odd)
    sums[8], sums[9], sums[10], sums[11] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[0], y[1]), (sums[8], sums[9], sums[10], sums[11])
    )
    sums[12], sums[13], sums[14], sums[15] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[2], y[3]), (sums[12], sums[13], sums[14], sums[15])
    )
    sums[24], sums[25], sums[26], sums[27] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[0], y[1]), (sums[24], sums[25], sums[26], sums[27])
    )
    sums[28], sums[29], sums[30], sums[31] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[2], y[3]), (sums[28], sums[29], sums[30], sums[31])
    )
    x0 = fragment_across(tile_a, base_a, top + 0, 16, odd, late)
    x16 = fragment_across(tile_a, base_a, top + 16, 16, odd, late)
    y = fragment_across(tile_b, base_b, left + 0, 16, late, odd)
    sums[0], sums[1], sums[2], sums[3] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[0], y[1]), (sums[0], sums[1], sums[2], sums[3])
    )
    sums[4], sums[5], sums[6], sums[7] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[2], y[3]), (sums[4], sums[5], sums[6], sums[7])
    )
    sums[16], sums[17], sums[18], sums[19] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[0], y[1]), (sums[16], sums[17], sums[18], sums[19])
    )
    sums[20], sums[21], sums[22], sums[23] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[2], y[3]), (sums[20], sums[21], sums[22], sums[23])
    )
    y = fragment_across(tile_b, base_b, left + 16, 16, late, odd)
    sums[8], sums[9], sums[10], sums[11] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[0], y[1]), (sums[8], sums[9], sums[10], sums[11])
    )
    sums[12], sums[13], sums[14], sums[15] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[2], y[3]), (sums[12], sums[13], sums[14], sums[15])
    )
    sums[24], sums[25], sums[26], sums[27] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[0], y[1]), (sums[24], sums[25], sums[26], sums[27])
    )
    sums[28], sums[29], sums[30], sums[31] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[2], y[3]), (sums[28], sums[29], sums[30], sums[31])
    )


@cuda.jit(device=True)  # refopt/gpu/products.py
def store_mirrored(sums, row, column, lane, out, m, n, mirror, alpha, beta, added):
    row, column = row + lane // 4, column + lane % 4 * 2
    put_mirrored(sums[0], sums[1], row + 0, column + 0, out, m, n, mirror, alpha, beta, added)
    put_mirrored(sums[2], sums[3], row + 8, column + 0, out, m, n, mirror, alpha, beta, added)
    put_mirrored(sums[4], sums[5], row + 0, column + 8, out, m, n, mirror, alpha, beta, added)
    put_mirrored(sums[6], sums[7], row + 8, column + 8, out, m, n, mirror, alpha, beta, added)
    put_mirrored(sums[8], sums[9], row + 0, column + 16, out, m, n, mirror, alpha, beta, added)
    put_mirrored(sums[10], sums[11], row + 8, column + 16, out, m, n, mirror, alpha, beta, added)
    put_mirrored(sums[12], sums[13], row + 0, column + 24, out, m, n, mirror, alpha, beta, added)
    put_mirrored(sums[14], sums[15], row + 8, column + 24, out, m, n, mirror, alpha, beta, added)
    put_mirrored(sums[16], sums[17], row + 16, column + 0, out, m, n, mirror, alpha, beta, added)
    put_mirrored(sums[18], sums[19], row + 24, column + 0, out, m, n, mirror, alpha, beta, added)
    put_mirrored(sums[20], sums[21], row + 16, column + 8, out, m, n, mirror, alpha, beta, added)
    put_mirrored(sums[22], sums[23], row + 24, column + 8, out, m, n, mirror, alpha, beta, added)
    put_mirrored(sums[24], sums[25], row + 16, column + 16, out, m, n, mirror, alpha, beta, added)
    put_mirrored(sums[26], sums[27], row + 24, column + 16, out, m, n, mirror, alpha, beta, added)
    put_mirrored(sums[28], sums[29], row + 16, column + 24, out, m, n, mirror, alpha, beta, added)
    put_mirrored(sums[30], sums[31], row + 24, column + 24, out, m, n, mirror, alpha, beta, added)


@cuda.jit(device=True)  # refopt/gpu/products.py
def put_mirrored(x, y, row, column, out, m, n, mirror, alpha, beta, added):
    if row < m and column < n:
        pitch, both = padded_size(n), column + 1 < n
        here = row * pitch + column
        store2_bfloat16(out + 2 * here, (x, y if both else ZERO))
        if mirror:
            store_bfloat16(out + 2 * (column * pitch + row), x)
            if both:
                store_bfloat16(out + 2 * ((column + 1) * pitch + row), y)


@cuda.jit(launch_bounds=(128, 4))  # refopt/gpu/products.py
def products_symmetric_added(tiles, table, alpha, beta):
    tile_a = cuda.shared.array(6144, np.uint16, alignment=16)
    tile_b = cuda.shared.array(6144, np.uint16, alignment=16)
    sums = cuda.local.array(32, np.float32)
    for i in range(32):
        sums[i] = ZERO
    top, left, lane = part()
    i, row, column = tiles[cuda.blockIdx.x, 0], tiles[cuda.blockIdx.x, 1], tiles[cuda.blockIdx.x, 2]
    a, b, m, n = table[i, A], table[i, B], table[i, M], table[i, N]
    height, pitch, depth = padded_size(m), padded_size(n), padded_size(table[i, K])
    add_up_across_along(sums, tile_a, tile_b, a, b, row, column, height, pitch, depth, top, left, lane)
    out, added = table[i, OUT], table[i, ADDED]
    store_added_mirrored(sums, row + top, column + left, lane, out, m, n, row != column, alpha, beta, added)


@cuda.jit(device=True)  # refopt/gpu/products.py
def store_added_mirrored(sums, row, column, lane, out, m, n, mirror, alpha, beta, added):
    row, column = row + lane // 4, column + lane % 4 * 2
    put_added_mirrored(sums[0], sums[1], row + 0, column + 0, out, m, n, mirror, alpha, beta, added)
    put_added_mirrored(sums[2], sums[3], row + 8, column + 0, out, m, n, mirror, alpha, beta, added)
    put_added_mirrored(sums[4], sums[5], row + 0, column + 8, out, m, n, mirror, alpha, beta, added)
    put_added_mirrored(sums[6], sums[7], row + 8, column + 8, out, m, n, mirror, alpha, beta, added)
    put_added_mirrored(sums[8], sums[9], row + 0, column + 16, out, m, n, mirror, alpha, beta, added)
    put_added_mirrored(sums[10], sums[11], row + 8, column + 16, out, m, n, mirror, alpha, beta, added)
    put_added_mirrored(sums[12], sums[13], row + 0, column + 24, out, m, n, mirror, alpha, beta, added)
    put_added_mirrored(sums[14], sums[15], row + 8, column + 24, out, m, n, mirror, alpha, beta, added)
    put_added_mirrored(sums[16], sums[17], row + 16, column + 0, out, m, n, mirror, alpha, beta, added)
    put_added_mirrored(sums[18], sums[19], row + 24, column + 0, out, m, n, mirror, alpha, beta, added)
    put_added_mirrored(sums[20], sums[21], row + 16, column + 8, out, m, n, mirror, alpha, beta, added)
    put_added_mirrored(sums[22], sums[23], row + 24, column + 8, out, m, n, mirror, alpha, beta, added)
    put_added_mirrored(sums[24], sums[25], row + 16, column + 16, out, m, n, mirror, alpha, beta, added)
    put_added_mirrored(sums[26], sums[27], row + 24, column + 16, out, m, n, mirror, alpha, beta, added)
    put_added_mirrored(sums[28], sums[29], row + 16, column + 24, out, m, n, mirror, alpha, beta, added)
    put_added_mirrored(sums[30], sums[31], row + 24, column + 24, out, m, n, mirror, alpha, beta, added)


@cuda.jit(device=True)  # refopt/gpu/products.py
def put_added_mirrored(x, y, row, column, out, m, n, mirror, alpha, beta, added):
    if row < m and column < n:
        pitch, both = padded_size(n), column + 1 < n
        here = row * pitch + column
        low, high = load2_bfloat16(added + 2 * here)
        x, y = beta * low + alpha * x, beta * high + alpha * y
        store2_bfloat16(out + 2 * here, (x, y if both else ZERO))
        if mirror:
            store_bfloat16(out + 2 * (column * pitch + row), x)
            if both:
                store_bfloat16(out + 2 * ((column + 1) * pitch + row), y)


# PTX: $0 and $1 are passed; from compute capability 8.0 on, before it as below
#     { .reg .b16 h, z;
#     mov.b16 z, 0;
#     cvt.rn.bf16.f32 h, $1;
#     st.global.b16 [$0], h; }
# PTX before 8.0:
#     { .reg .b16 h, z;
#     mov.b16 z, 0;
#     { .reg .b32 n, o; .reg .b16 l; .reg .pred q;
#     mov.b32 n, $1;
#     shr.u32 o, n, 16;
#     and.b32 o, o, 1;
#     add.u32 o, o, 0x7fff; add.u32 n, n, o;
#     setp.nan.f32 q, $1, $1;
#     selp.b32 n, 0x7fff0000, n, q;
#     mov.b32 {l, h}, n; } st.global.b16 [$0], h; }
@ptx_twin()  # refopt/gpu/vectors.py
def store_bfloat16(address, value):
    memory.store(address, np.uint16, (narrow_bfloat16(value),))


@cuda.jit(launch_bounds=(128, 4))  # refopt/gpu/products.py
def products_added(tiles, table, alpha, beta):
    tile_a = cuda.shared.array(6144, np.uint16, alignment=16)
    tile_b = cuda.shared.array(6144, np.uint16, alignment=16)
    sums = cuda.local.array(32, np.float32)
    for i in range(32):
        sums[i] = ZERO
    top, left, lane = part()
    i, row, column = tiles[cuda.blockIdx.x, 0], tiles[cuda.blockIdx.x, 1], tiles[cuda.blockIdx.x, 2]
    a, b, m, n = table[i, A], table[i, B], table[i, M], table[i, N]
    height, pitch, depth = padded_size(m), padded_size(n), padded_size(table[i, K])
    add_up_across_along(sums, tile_a, tile_b, a, b, row, column, height, pitch, depth, top, left, lane)
    out, added = table[i, OUT], table[i, ADDED]
    store_added(sums, row + top, column + left, lane, out, m, n, row != column, alpha, beta, added)


@cuda.jit(device=True)  # refopt/gpu/matmul.py
def part():
    """Row and column of the warp's part in a tile, and the lane."""
    warp = cuda.threadIdx.x // 32
    return warp // 2 * PART, warp % 2 * PART, cuda.threadIdx.x % 32


@cuda.jit(device=True)  # refopt/gpu/matmul.py
def add_up_across_along(sums, tile_a, tile_b, a, b, row, column, m, n, depth, top, left, lane):
    inside = row + top < m and column + left < n  # at least one element of the warp's part
    for stage in range(STAGES - 1):
        begin_across(tile_a, stage * 2048, a, row, m, stage * STEP, depth)
        begin_along(tile_b, stage * 2048, b, column, n, stage * STEP, depth)
        end_group()
    for first in range(0, depth, STEP):
        # A thread waits for its own copies, and at the barrier for those of the others. After the barrier all warps
        # have also multiplied the previous step's tiles, which the next copies overwrite.
        wait()
        cuda.syncthreads()
        ahead, stage = first + (STAGES - 1) * STEP, first // STEP % STAGES
        free = ahead // STEP % STAGES
        begin_across(tile_a, free * 2048, a, row, m, ahead, depth)
        begin_along(tile_b, free * 2048, b, column, n, ahead, depth)
        end_group()
        if inside:
            multiply_across_along(tile_a, stage * 2048, tile_b, stage * 2048, sums, top, left, lane)


@cuda.jit(device=True)  # refopt/gpu/matmul.py
def begin_across(tile, base, x, first, extent, k, depth):
    top, left, height, width = (first, k, extent, depth)
    # The same, eight elements at a time. A row has a multiple of eight elements, so all eight are inside, or none.
    for n in range(2):
        i = cuda.threadIdx.x + n * THREADS
        r, c = i // 4, i % 4
        inside = top + r < height and left + c * CHUNK < width
        start = (top + r) * width + left + c * CHUNK if inside else 0
        begin_copy16(tile, base + spot_across(r, c), x + 2 * start, 16 if inside else 0)


@cuda.jit(device=True)  # refopt/gpu/matmul.py
def begin_along(tile, base, x, first, extent, k, depth):
    top, left, height, width = (k, first, depth, extent)
    # The same, eight elements at a time. A row has a multiple of eight elements, so all eight are inside, or none.
    for n in range(2):
        i = cuda.threadIdx.x + n * THREADS
        r, c = i // 8, i % 8
        inside = top + r < height and left + c * CHUNK < width
        start = (top + r) * width + left + c * CHUNK if inside else 0
        begin_copy16(tile, base + spot_along(r, c), x + 2 * start, 16 if inside else 0)


# PTX: $0 to $2 are passed; from compute capability 8.0 on, before it nothing
#     cp.async.cg.shared.global [$0], [$1], 16, $2;
@ptx_twin()  # refopt/gpu/tensor_core.py
def begin_copy16(array, index, address, nbytes):
    """Begin to copy up to 16 bytes from an address to an element of shared memory; the rest of the 16 become 0."""
    count = int(nbytes) // array.itemsize
    kind = np.dtype(f"u{array.itemsize}")
    values = np.zeros(16 // array.itemsize, kind)
    values[:count] = memory.load(address, kind, count) if count else ()
    vectors.copy_async(array, index, values)


# PTX: from compute capability 8.0 on, before it nothing
#     cp.async.commit_group;
@ptx_twin()  # refopt/gpu/tensor_core.py
def end_group():
    """Make the copies that the thread has begun a group."""
    vectors.commit_copies()


# PTX: from compute capability 8.0 on, before it nothing
#     cp.async.wait_group 1;
@ptx_twin()  # refopt/gpu/tensor_core.py
def wait():
    vectors.wait_for_copies(1)


@cuda.jit(device=True)  # refopt/gpu/matmul.py
def multiply_across_along(tile_a, base_a, tile_b, base_b, sums, top, left, lane):
    odd, late = lane // 8 % 2 * 8, lane // 16 * 8
    x0 = fragment_across(tile_a, base_a, top + 0, 0, odd, late)
    x16 = fragment_across(tile_a, base_a, top + 16, 0, odd, late)
    y = fragment_along(tile_b, base_b, left + 0, 0, late, odd)
    sums[0], sums[1], sums[2], sums[3] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[0], y[1]), (sums[0], sums[1], sums[2], sums[3])
    )
    sums[4], sums[5], sums[6], sums[7] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[2], y[3]), (sums[4], sums[5], sums[6], sums[7])
    )
    sums[16], sums[17], sums[18], sums[19] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[0], y[1]), (sums[16], sums[17], sums[18], sums[19])
    )
    sums[20], sums[21], sums[22], sums[23] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[2], y[3]), (sums[20], sums[21], sums[22], sums[23])
    )
    y = fragment_along(tile_b, base_b, left + 16, 0, late, odd)
    sums[8], sums[9], sums[10], sums[11] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[0], y[1]), (sums[8], sums[9], sums[10], sums[11])
    )
    sums[12], sums[13], sums[14], sums[15] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[2], y[3]), (sums[12], sums[13], sums[14], sums[15])
    )
    sums[24], sums[25], sums[26], sums[27] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[0], y[1]), (sums[24], sums[25], sums[26], sums[27])
    )
    sums[28], sums[29], sums[30], sums[31] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[2], y[3]), (sums[28], sums[29], sums[30], sums[31])
    )
    x0 = fragment_across(tile_a, base_a, top + 0, 16, odd, late)
    x16 = fragment_across(tile_a, base_a, top + 16, 16, odd, late)
    y = fragment_along(tile_b, base_b, left + 0, 16, late, odd)
    sums[0], sums[1], sums[2], sums[3] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[0], y[1]), (sums[0], sums[1], sums[2], sums[3])
    )
    sums[4], sums[5], sums[6], sums[7] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[2], y[3]), (sums[4], sums[5], sums[6], sums[7])
    )
    sums[16], sums[17], sums[18], sums[19] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[0], y[1]), (sums[16], sums[17], sums[18], sums[19])
    )
    sums[20], sums[21], sums[22], sums[23] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[2], y[3]), (sums[20], sums[21], sums[22], sums[23])
    )
    y = fragment_along(tile_b, base_b, left + 16, 16, late, odd)
    sums[8], sums[9], sums[10], sums[11] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[0], y[1]), (sums[8], sums[9], sums[10], sums[11])
    )
    sums[12], sums[13], sums[14], sums[15] = mma_bfloat16(
        (x0[0], x0[1], x0[2], x0[3], y[2], y[3]), (sums[12], sums[13], sums[14], sums[15])
    )
    sums[24], sums[25], sums[26], sums[27] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[0], y[1]), (sums[24], sums[25], sums[26], sums[27])
    )
    sums[28], sums[29], sums[30], sums[31] = mma_bfloat16(
        (x16[0], x16[1], x16[2], x16[3], y[2], y[3]), (sums[28], sums[29], sums[30], sums[31])
    )


@cuda.jit(device=True)  # refopt/gpu/matmul.py
def fragment_across(tile, base, first, k, apart, k_apart):
    # Each lane gives the address of a row of one of four matrices of 8 x 8.
    line = cuda.threadIdx.x % 8
    return ldmatrix4(tile, base + spot_across(first + apart + line, (k + k_apart) // CHUNK))


@cuda.jit(device=True)  # refopt/gpu/matmul.py
def spot_across(row, chunk):
    # Eight rows that a warp loads together must be in different banks of shared memory, which repeat every 128
    # bytes: so chunks change places from row to row, or from pair to pair of rows if a row has 64 bytes.
    return row * 32 + (chunk ^ (row // 2 % 4)) * CHUNK


@cuda.jit(device=True)  # refopt/gpu/matmul.py
def fragment_along(tile, base, first, k, apart, k_apart):
    # Each lane gives the address of a row of one of four matrices of 8 x 8.
    line = cuda.threadIdx.x % 8
    return ldmatrix4_transposed(tile, base + spot_along(k + k_apart + line, (first + apart) // CHUNK))


@cuda.jit(device=True)  # refopt/gpu/matmul.py
def spot_along(row, chunk):
    # Eight rows that a warp loads together must be in different banks of shared memory, which repeat every 128
    # bytes: so chunks change places from row to row, or from pair to pair of rows if a row has 64 bytes.
    return row * 64 + (chunk ^ (row % 8)) * CHUNK


@cuda.jit(device=True)  # refopt/gpu/products.py
def store_added(sums, row, column, lane, out, m, n, mirror, alpha, beta, added):
    row, column = row + lane // 4, column + lane % 4 * 2
    put_added(sums[0], sums[1], row + 0, column + 0, out, m, n, mirror, alpha, beta, added)
    put_added(sums[2], sums[3], row + 8, column + 0, out, m, n, mirror, alpha, beta, added)
    put_added(sums[4], sums[5], row + 0, column + 8, out, m, n, mirror, alpha, beta, added)
    put_added(sums[6], sums[7], row + 8, column + 8, out, m, n, mirror, alpha, beta, added)
    put_added(sums[8], sums[9], row + 0, column + 16, out, m, n, mirror, alpha, beta, added)
    put_added(sums[10], sums[11], row + 8, column + 16, out, m, n, mirror, alpha, beta, added)
    put_added(sums[12], sums[13], row + 0, column + 24, out, m, n, mirror, alpha, beta, added)
    put_added(sums[14], sums[15], row + 8, column + 24, out, m, n, mirror, alpha, beta, added)
    put_added(sums[16], sums[17], row + 16, column + 0, out, m, n, mirror, alpha, beta, added)
    put_added(sums[18], sums[19], row + 24, column + 0, out, m, n, mirror, alpha, beta, added)
    put_added(sums[20], sums[21], row + 16, column + 8, out, m, n, mirror, alpha, beta, added)
    put_added(sums[22], sums[23], row + 24, column + 8, out, m, n, mirror, alpha, beta, added)
    put_added(sums[24], sums[25], row + 16, column + 16, out, m, n, mirror, alpha, beta, added)
    put_added(sums[26], sums[27], row + 24, column + 16, out, m, n, mirror, alpha, beta, added)
    put_added(sums[28], sums[29], row + 16, column + 24, out, m, n, mirror, alpha, beta, added)
    put_added(sums[30], sums[31], row + 24, column + 24, out, m, n, mirror, alpha, beta, added)


@cuda.jit(device=True)  # refopt/gpu/products.py
def put_added(x, y, row, column, out, m, n, mirror, alpha, beta, added):
    if row < m and column < n:
        pitch, both = padded_size(n), column + 1 < n
        here = row * pitch + column
        low, high = load2_bfloat16(added + 2 * here)
        x, y = beta * low + alpha * x, beta * high + alpha * y
        store2_bfloat16(out + 2 * here, (x, y if both else ZERO))


# PTX: $0 and $1 are returned; $2 is passed
#     { .reg .b32 w0, w1; .reg .b16 h0, h1, h2, h3;
#     ld.global.b32 w0, [$2];
#     shl.b32 $0, w0, 16;
#     and.b32 $1, w0, 0xffff0000; }
@ptx_twin("float32", "float32")  # refopt/gpu/vectors.py
def load2_bfloat16(address):
    return tuple(widen_bfloat16(x) for x in memory.load(address, np.uint16, 2))


# PTX: $0 to $2 are passed; from compute capability 8.0 on, before it as below
#     { .reg .b32 w0, w1; .reg .b16 h0, h1, h2, h3;
#     cvt.rn.bf16.f32 h0, $1; cvt.rn.bf16.f32 h1, $2;
#     mov.b32 w0, {h0, h1};
#     st.global.b32 [$0], w0; }
# PTX before 8.0:
#     { .reg .b32 w0, w1; .reg .b16 h0, h1, h2, h3; { .reg .b32 n, o; .reg .b16 l; .reg .pred q;
#     mov.b32 n, $1;
#     shr.u32 o, n, 16;
#     and.b32 o, o, 1;
#     add.u32 o, o, 0x7fff; add.u32 n, n, o;
#     setp.nan.f32 q, $1, $1;
#     selp.b32 n, 0x7fff0000, n, q;
#     mov.b32 {l, h0}, n; } { .reg .b32 n, o;
#     .reg .b16 l; .reg .pred q;
#     mov.b32 n, $2;
#     shr.u32 o, n, 16;
#     and.b32 o, o, 1;
#     add.u32 o, o, 0x7fff; add.u32 n, n, o;
#     setp.nan.f32 q, $2, $2;
#     selp.b32 n, 0x7fff0000, n, q;
#     mov.b32 {l, h1}, n; } mov.b32 w0, {h0, h1};
#     st.global.b32 [$0], w0; }
@ptx_twin()  # refopt/gpu/vectors.py
def store2_bfloat16(address, values):
    memory.store(address, np.uint16, tuple(narrow_bfloat16(x) for x in values))


@cuda.jit(device=True)  # refopt/gpu/patterns.py
def narrow_bfloat16(value):
    """The bits of the bf16 nearest to a number, ties to even; every NaN becomes the same one."""
    pattern = pattern_of(value)
    rounded = (pattern + 0x7FFF + (pattern >> 16 & 1)) >> 16
    if type(value) is np.ndarray:
        return np.where(value == value, rounded, 0x7FFF)
    return rounded if value == value else 0x7FFF


@cuda.jit(device=True)  # refopt/gpu/patterns.py
def pattern_of(value):
    """The bits of a number as fp32."""
    if type(value) is np.ndarray:
        return value.astype(np.float32, copy=False).view(np.uint32)
    return _word(value if type(value) is np.float32 else np.float32(value))[0]


@cuda.jit(launch_bounds=(64, 14))  # refopt/gpu/muon/elements.py
def merged_muon_update(addresses, places, chunks, ratios, hyper, found_at):
    c, offset = cuda.blockIdx.x // 8, cuda.blockIdx.x % 8 * TILE
    if not found(found_at):
        matrix = chunks[c, TENSOR]
        tensor, first = places[matrix, OF_TENSOR], places[matrix, OFFSET]
        place = places[matrix, INNER], places[matrix, OUTER_STRIDE], places[matrix, INNER_STRIDE]
        lr = hyper[LR, tensor]
        at = (addresses[PARAMS, tensor] + 4 * first, addresses[MASTERS, tensor] + 4 * first,
              places[matrix, LAST_X], place)
        over_rows_to_update(c, offset, chunks, at, (one - lr * hyper[DECAY, tensor], lr * ratios[matrix]))


@cuda.jit(device=True)  # refopt/gpu/gate.py
def found(found_at):
    return False


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def over_rows_to_update(c, offset, chunks, at, common):
    start = chunks[c, START] + offset
    stop = min(chunks[c, STOP], start + TILE)
    for first in of_warp(start, stop, ROW):
        update(at, first, stop, chunks[c, ALIGNED], common)


@cuda.jit(device=True)  # refopt/gpu/rows.py
def of_warp(start, stop, length):
    """Where this warp's parts of ``length`` elements begin: the block's warps take parts in turn."""
    return range(start + cuda.threadIdx.x // 32 * length, stop, cuda.blockDim.x // 32 * length)


@cuda.jit(device=True)  # refopt/gpu/rows.py
def update(at, first, stop, aligned, common):
    if aligned and first + 256 <= stop:
        return update_full(at, first, stop, common)
    return update_partial(at, first, stop, common)


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def update_full(at, first, stop, common):
    p_at, m_at, x_at, _ = at
    i = own(first)
    p = updated8(load_params(p_at, m_at, i, stop), load8_bfloat16(x_at, i, stop), common)
    store_params(p_at, m_at, i, stop, p, p)


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def updated8(ps, xs, common):
    return (
        updated(ps[0], xs[0], common),
        updated(ps[1], xs[1], common),
        updated(ps[2], xs[2], common),
        updated(ps[3], xs[3], common),
        updated(ps[4], xs[4], common),
        updated(ps[5], xs[5], common),
        updated(ps[6], xs[6], common),
        updated(ps[7], xs[7], common),
    )


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def load_params(param_at, master_at, i, stop):
    return load8_float32(param_at, i, stop)


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def load8_float32(address, i, stop):
    begin = moved_float32(address, i)
    return load4_float32(begin) + load4_float32(moved_float32(begin, SECOND))


# PTX: $0 to $3 are returned; $4 is passed
#     ld.global.v4.f32 {$0, $1, $2, $3}, [$4];
@ptx_twin("float32", "float32", "float32", "float32")  # refopt/gpu/vectors.py
def load4_float32(address):
    return memory.load(address, np.float32, 4)


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def load8_bfloat16(address, i, stop):
    begin = moved_bfloat16(address, i)
    return load4_bfloat16(begin) + load4_bfloat16(moved_bfloat16(begin, SECOND))


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def moved_bfloat16(address, elements):
    return address + 2 * elements


# PTX: $0 to $3 are returned; $4 is passed
#     { .reg .b32 w0, w1; .reg .b16 h0, h1, h2, h3;
#     ld.global.v2.b32 {w0, w1}, [$4];
#     shl.b32 $0, w0, 16;
#     and.b32 $1, w0, 0xffff0000;
#     shl.b32 $2, w1, 16;
#     and.b32 $3, w1, 0xffff0000; }
@ptx_twin("float32", "float32", "float32", "float32")  # refopt/gpu/vectors.py
def load4_bfloat16(address):
    return tuple(widen_bfloat16(x) for x in memory.load(address, np.uint16, 4))


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def store_params(param_at, master_at, i, stop, exact, rounded):
    store8_float32(param_at, i, stop, rounded)


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def store8_float32(address, i, stop, values):
    begin = moved_float32(address, i)
    store4_float32(begin, values[:4])
    store4_float32(moved_float32(begin, SECOND), values[4:])


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def moved_float32(address, elements):
    return address + 4 * elements


# PTX: $0 to $4 are passed
#     st.global.v4.f32 [$0], {$1, $2, $3, $4};
@ptx_twin()  # refopt/gpu/vectors.py
def store4_float32(address, values):
    memory.store(address, np.float32, values)


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def update_partial(at, first, stop, common):
    p_at, m_at, x_at, place = at
    for n in range(8):
        e = element_of(first, n)
        if e < stop:
            there = index_of(place, e)
            p, m = p_at + 4 * there, m_at + 4 * there
            store_param(p, m, updated(load_param(p, m), load_bfloat16(x_at + 2 * index_of_x(place[0], e)), common))


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def element_of(first, n):
    """The index in the matrix of a thread's n-th element of the row at ``first``."""
    return own(first) + n % 4 + n // 4 * SECOND


@cuda.jit(device=True)  # refopt/gpu/rows.py
def own(first):
    """This thread's first element of a row: lane t of a warp has 4t to 4t + 3, and the four that are 128 further.

    So the loads of a warp's lanes are contiguous and read whole lines of memory: they are coalesced.
    """
    return first + 4 * (cuda.threadIdx.x % 32)


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def index_of(place, e):
    """The distance of element e of a matrix from the first, in elements."""
    inner, outer_stride, inner_stride = place
    return e // inner * outer_stride + e % inner * inner_stride


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def store_param(param_at, master_at, value):
    store_float32(param_at, value)


# PTX: $0 and $1 are passed
#     st.global.f32 [$0], $1;
@ptx_twin()  # refopt/gpu/vectors.py
def store_float32(address, values):
    memory.store(address, np.float32, (values,))


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def updated(p, x, common):
    return p * common[0] - common[1] * x


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def load_param(param_at, master_at):
    return load_float32(param_at)


# PTX: $0 is returned; $1 is passed
#     ld.global.f32 $0, [$1];
@ptx_twin("float32")  # refopt/gpu/vectors.py
def load_float32(address):
    return memory.load(address, np.float32)[0]


# PTX: $0 is returned; $1 is passed
#     { .reg .b16 h, z;
#     mov.b16 z, 0;
#     ld.global.b16 h, [$1];
#     mov.b32 $0, {z, h}; }
@ptx_twin("float32")  # refopt/gpu/vectors.py
def load_bfloat16(address):
    return widen_bfloat16(memory.load(address, np.uint16)[0])


@cuda.jit(device=True)  # refopt/gpu/patterns.py
def widen_bfloat16(pattern):
    """The fp32 with the value of a bf16's bits."""
    return WIDENED[pattern] if type(pattern) is np.ndarray else WIDENED[int(pattern)]


@cuda.jit(device=True)  # refopt/gpu/muon/elements.py
def index_of_x(inner, e):
    """The same in the memory of the iterations, where rows are `padded`."""
    return e // inner * padded_size(inner) + e % inner


@cuda.jit(device=True)  # refopt/gpu/products.py
def padded_size(size):
    """`padded`, for kernels."""
    return (size + 7) // 8 * 8
