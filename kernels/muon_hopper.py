# refopt.gpu: merged_muon, form merged, on Hopper
#
# arrays: params float32, grads float32, velocities float32
# choices: use_nesterov=True, average=True, adjust_lr=original, compute=bfloat16
# rows of addresses: 0 params, 1 grads, 2 velocities
# rows of hyper: 0 lr, 1 mu, 2 weight_decay, 3 epsilon, 5 rescale_grad
#
# Launches for the matrices of resnet50, as kernel[blocks, threads]:
# in a step: merged_muon_momentum[3116, 128], merged_muon_normalize[24928, 64], 5 times
#            warpgroup_products_square_symmetric[132, 320, 0, 229472], 5 times warpgroup_products_symmetric_added[132,
#            320, 0, 229472], 5 times warpgroup_products_added[132, 320, 0, 213056], merged_muon_update[24928, 64]
#
# The compiler inlines every function into its kernel and rounds a * b + c twice. Where a function has PTX above it, the
# GPU runs the PTX instead. The executor runs this text unchanged, with the same bits. launch_bounds are the most
# threads per block and the blocks that should fit on a multiprocessor at a time; they tell the compiler how many
# registers a thread may use. A function whose PTX is for Hopper only has no twin: it raises an error on the executor.
# The last of a launch's four numbers is its dynamic shared memory in bytes.

import math
from struct import Struct

import numpy as np

from refopt.gpu.tensor_core import ldmatrix4
from refopt.simt import cuda, memory, ptx_twin

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
_word = Struct("=I").unpack
BARRIER = 4  # elements of 16 bits
HEIGHT = 128  # rows of a tile: a box for each warpgroup, and 16 for each of its warps
MULTIPLYING = LOADING = HEIGHT // 16  # the number of warps that multiply; the next one loads, and the last stores
# Columns of the table of products: the fields of a `Product`. Columns of the table of tiles: product, row and column.
A, B, OUT, ADDED, M, N, K, ALONG = range(8)
BOX = 64  # rows and columns of a box of 16-bit elements
ELEMENTS = BOX * BOX
ZERO = np.float32(0)
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


@cuda.jit(launch_bounds=(320, 1))  # refopt/gpu/warpgroup_products.py
def warpgroup_products_square_symmetric(tiles, products, alpha, beta):
    memory = cuda.shared.array(0, np.uint16, alignment=1024)
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    if cuda.threadIdx.x == 0:
        for s in range(5):
            init_barrier(memory, 114688 + s * BARRIER, 1)
            init_barrier(memory, 114708 + s * BARRIER, MULTIPLYING)
        init_barrier(memory, 114728, 1)
        init_barrier(memory, 114732, MULTIPLYING)
        show_barriers()
    cuda.syncthreads()
    if warp < MULTIPLYING:
        sum_up_square_symmetric(memory, tiles, products, alpha, beta)
    elif lane == 0:
        if warp == LOADING:
            load_square_symmetric(memory, tiles, products)
        else:
            save_symmetric(memory, tiles, products)


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def sum_up_square_symmetric(memory, tiles, products, alpha, beta):
    at, parity, turn = 0, 0, 0
    top, lane = cuda.threadIdx.x // 32 * 16, cuda.threadIdx.x % 32
    for n in range(cuda.blockIdx.x, tiles.shape[0], cuda.gridDim.x):
        i, sums = tiles[n, 0], zeros64()
        if products[i, ALONG] != 0:
            sums, at, parity = add_up_along_along_to128(sums, memory, products[i, K], at, parity)
        else:
            sums, at, parity = add_up_across_across_to128(sums, memory, products[i, K], at, parity)
        wait(memory, 114728, turn)
        finish_symmetric(sums, memory, top, lane, alpha, beta)
        # A store skips whole chunks of eight elements beyond the matrix, but no part of a chunk. Sums there can be
        # NaN times 0, but padding must stay 0.
        below, right = products[i, M] - tiles[n, 1], products[i, N] - tiles[n, 2]
        cuda.syncwarp()
        if right < 128 and lane < 16:
            clear(memory, 81920, HEIGHT, top + lane, right)
        if top <= below < top + 16:
            for line in range(lane, 128, 32):
                clear(memory, 98304, 128, line, below)
        show_to_copies()
        cuda.syncwarp()
        if lane == 0:
            arrive(memory, 114732)
        turn = 1 - turn


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def add_up_along_along_to128(sums, memory, depth, at, parity):
    a = describe_along(memory, cuda.threadIdx.x // 128 * ELEMENTS)
    b = describe_along(memory, 8192)
    for _ in range(0, depth, BOX):
        wait(memory, 114688 + at * BARRIER, parity)
        away = at * (32768 >> 4)  # as descriptors count
        sums = multiply_along_along_to128(a + away, b + away, sums)
        if cuda.threadIdx.x % 32 == 0:
            arrive(memory, 114708 + at * BARRIER)
        at += 1
        if at == 5:
            at, parity = 0, 1 - parity
    return sums, at, parity


# PTX: $0 to $63 are returned; $64 to $129 are passed; on compute capability 9.0 alone
#     { .reg .b64 a, b;
#     wgmma.fence.sync.aligned;
#     add.s64 a, $64, 0; add.s64 b, $65, 0;
#     wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {$0, ..., $63}, a, b, 1, 1, 1, 1, 1;
#     add.s64 a, $64, 128; add.s64 b, $65, 128;
#     wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {$0, ..., $63}, a, b, 1, 1, 1, 1, 1;
#     add.s64 a, $64, 256; add.s64 b, $65, 256;
#     wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {$0, ..., $63}, a, b, 1, 1, 1, 1, 1;
#     add.s64 a, $64, 384; add.s64 b, $65, 384;
#     wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {$0, ..., $63}, a, b, 1, 1, 1, 1, 1;
#     wgmma.commit_group.sync.aligned;
#     wgmma.wait_group.sync.aligned 0; }
@ptx_twin(*["float32"] * 64)  # refopt/gpu/warpgroup.py
def multiply_along_along_to128(a, b, sums):
    """The sums with the products."""
    raise NotImplementedError


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def finish_symmetric(sums, memory, row, lane, alpha, beta):
    at = 81920 + (row + lane % 16) * 64
    mirror = 98304 + row // 64 * 8192 + (lane // 16 * 8 + lane % 8) * 64
    line, part = lane % 8, lane // 16
    across = (row % 64 // 8 + lane // 8 % 2 ^ line) * 8
    put_symmetric(
        memory,
        at + 0 + (0 + part ^ line) * 8,
        mirror + across + 0,
        ((sums[0], sums[1]), (sums[2], sums[3]), (sums[4], sums[5]), (sums[6], sums[7])),
        alpha,
        beta,
    )
    put_symmetric(
        memory,
        at + 0 + (2 + part ^ line) * 8,
        mirror + across + 1024,
        ((sums[8], sums[9]), (sums[10], sums[11]), (sums[12], sums[13]), (sums[14], sums[15])),
        alpha,
        beta,
    )
    put_symmetric(
        memory,
        at + 0 + (4 + part ^ line) * 8,
        mirror + across + 2048,
        ((sums[16], sums[17]), (sums[18], sums[19]), (sums[20], sums[21]), (sums[22], sums[23])),
        alpha,
        beta,
    )
    put_symmetric(
        memory,
        at + 0 + (6 + part ^ line) * 8,
        mirror + across + 3072,
        ((sums[24], sums[25]), (sums[26], sums[27]), (sums[28], sums[29]), (sums[30], sums[31])),
        alpha,
        beta,
    )
    put_symmetric(
        memory,
        at + 8192 + (0 + part ^ line) * 8,
        mirror + across + 4096,
        ((sums[32], sums[33]), (sums[34], sums[35]), (sums[36], sums[37]), (sums[38], sums[39])),
        alpha,
        beta,
    )
    put_symmetric(
        memory,
        at + 8192 + (2 + part ^ line) * 8,
        mirror + across + 5120,
        ((sums[40], sums[41]), (sums[42], sums[43]), (sums[44], sums[45]), (sums[46], sums[47])),
        alpha,
        beta,
    )
    put_symmetric(
        memory,
        at + 8192 + (4 + part ^ line) * 8,
        mirror + across + 6144,
        ((sums[48], sums[49]), (sums[50], sums[51]), (sums[52], sums[53]), (sums[54], sums[55])),
        alpha,
        beta,
    )
    put_symmetric(
        memory,
        at + 8192 + (6 + part ^ line) * 8,
        mirror + across + 7168,
        ((sums[56], sums[57]), (sums[58], sums[59]), (sums[60], sums[61]), (sums[62], sums[63])),
        alpha,
        beta,
    )


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def put_symmetric(memory, at, mirror_at, x, alpha, beta):
    words = narrowed(x[0]), narrowed(x[1]), narrowed(x[2]), narrowed(x[3])
    stmatrix4(memory, at, words)
    stmatrix4_transposed(memory, mirror_at, words)


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def load_square_symmetric(memory, tiles, products):
    at, parity = 0, 1  # at a new barrier, a wait for parity 1 returns at once
    for n in range(cuda.blockIdx.x, tiles.shape[0], cuda.gridDim.x):
        i, row, column = tiles[n, 0], tiles[n, 1], tiles[n, 2]
        a, b, a_along = products[i, A], products[i, B], products[i, ALONG] != 0
        b_along = a_along
        for k in range(0, products[i, K], BOX):
            came, start = 114688 + at * BARRIER, at * 16384
            wait(memory, 114708 + at * BARRIER, parity)
            expect(memory, came, 32768)
            load_boxes(memory, start, a, row, k, a_along, HEIGHT, came)
            load_boxes(memory, start + 8192, b, column, k, b_along, 128, came)
            at += 1
            if at == 5:
                at, parity = 0, 1 - parity


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def save_symmetric(memory, tiles, products):
    turn = 0
    for n in range(cuda.blockIdx.x, tiles.shape[0], cuda.gridDim.x):
        i, row, column = tiles[n, 0], tiles[n, 1], tiles[n, 2]
        out = products[i, OUT]
        arrive(memory, 114728)
        wait(memory, 114732, turn)
        store_boxes(memory, 81920, out, row, column, HEIGHT, 128)
        if row != column:
            store_boxes(memory, 98304, out, column, row, 128, HEIGHT)
        wait_for_reads()
        turn = 1 - turn
    wait_for_stores()


@cuda.jit(launch_bounds=(320, 1))  # refopt/gpu/warpgroup_products.py
def warpgroup_products_symmetric_added(tiles, products, alpha, beta):
    memory = cuda.shared.array(0, np.uint16, alignment=1024)
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    if cuda.threadIdx.x == 0:
        for s in range(5):
            init_barrier(memory, 114688 + s * BARRIER, 1)
            init_barrier(memory, 114708 + s * BARRIER, MULTIPLYING)
        init_barrier(memory, 114728, 1)
        init_barrier(memory, 114732, MULTIPLYING)
        show_barriers()
    cuda.syncthreads()
    if warp < MULTIPLYING:
        sum_up_symmetric_added(memory, tiles, products, alpha, beta)
    elif lane == 0:
        if warp == LOADING:
            load_symmetric(memory, tiles, products)
        else:
            save_symmetric_added(memory, tiles, products)


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def sum_up_symmetric_added(memory, tiles, products, alpha, beta):
    at, parity, turn = 0, 0, 0
    top, lane = cuda.threadIdx.x // 32 * 16, cuda.threadIdx.x % 32
    for n in range(cuda.blockIdx.x, tiles.shape[0], cuda.gridDim.x):
        i, sums = tiles[n, 0], zeros64()
        sums, at, parity = add_up_across_across_to128(sums, memory, products[i, K], at, parity)
        wait(memory, 114728, turn)
        finish_symmetric_added(sums, memory, top, lane, alpha, beta)
        # A store skips whole chunks of eight elements beyond the matrix, but no part of a chunk. Sums there can be
        # NaN times 0, but padding must stay 0.
        below, right = products[i, M] - tiles[n, 1], products[i, N] - tiles[n, 2]
        cuda.syncwarp()
        if right < 128 and lane < 16:
            clear(memory, 81920, HEIGHT, top + lane, right)
        if top <= below < top + 16:
            for line in range(lane, 128, 32):
                clear(memory, 98304, 128, line, below)
        show_to_copies()
        cuda.syncwarp()
        if lane == 0:
            arrive(memory, 114732)
        turn = 1 - turn


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def zeros64():
    return (
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
    )


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def add_up_across_across_to128(sums, memory, depth, at, parity):
    a = describe_across(memory, cuda.threadIdx.x // 128 * ELEMENTS)
    b = describe_across(memory, 8192)
    for _ in range(0, depth, BOX):
        wait(memory, 114688 + at * BARRIER, parity)
        away = at * (32768 >> 4)  # as descriptors count
        sums = multiply_across_across_to128(a + away, b + away, sums)
        if cuda.threadIdx.x % 32 == 0:
            arrive(memory, 114708 + at * BARRIER)
        at += 1
        if at == 5:
            at, parity = 0, 1 - parity
    return sums, at, parity


# PTX: $0 to $63 are returned; $64 to $129 are passed; on compute capability 9.0 alone
#     { .reg .b64 a, b;
#     wgmma.fence.sync.aligned;
#     add.s64 a, $64, 0; add.s64 b, $65, 0;
#     wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {$0, ..., $63}, a, b, 1, 1, 1, 0, 0;
#     add.s64 a, $64, 2; add.s64 b, $65, 2;
#     wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {$0, ..., $63}, a, b, 1, 1, 1, 0, 0;
#     add.s64 a, $64, 4; add.s64 b, $65, 4;
#     wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {$0, ..., $63}, a, b, 1, 1, 1, 0, 0;
#     add.s64 a, $64, 6; add.s64 b, $65, 6;
#     wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {$0, ..., $63}, a, b, 1, 1, 1, 0, 0;
#     wgmma.commit_group.sync.aligned;
#     wgmma.wait_group.sync.aligned 0; }
@ptx_twin(*["float32"] * 64)  # refopt/gpu/warpgroup.py
def multiply_across_across_to128(a, b, sums):
    """The sums with the products."""
    raise NotImplementedError


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def finish_symmetric_added(sums, memory, row, lane, alpha, beta):
    at = 81920 + (row + lane % 16) * 64
    mirror = 98304 + row // 64 * 8192 + (lane // 16 * 8 + lane % 8) * 64
    line, part = lane % 8, lane // 16
    across = (row % 64 // 8 + lane // 8 % 2 ^ line) * 8
    put_symmetric_added(
        memory,
        at + 0 + (0 + part ^ line) * 8,
        mirror + across + 0,
        ((sums[0], sums[1]), (sums[2], sums[3]), (sums[4], sums[5]), (sums[6], sums[7])),
        alpha,
        beta,
    )
    put_symmetric_added(
        memory,
        at + 0 + (2 + part ^ line) * 8,
        mirror + across + 1024,
        ((sums[8], sums[9]), (sums[10], sums[11]), (sums[12], sums[13]), (sums[14], sums[15])),
        alpha,
        beta,
    )
    put_symmetric_added(
        memory,
        at + 0 + (4 + part ^ line) * 8,
        mirror + across + 2048,
        ((sums[16], sums[17]), (sums[18], sums[19]), (sums[20], sums[21]), (sums[22], sums[23])),
        alpha,
        beta,
    )
    put_symmetric_added(
        memory,
        at + 0 + (6 + part ^ line) * 8,
        mirror + across + 3072,
        ((sums[24], sums[25]), (sums[26], sums[27]), (sums[28], sums[29]), (sums[30], sums[31])),
        alpha,
        beta,
    )
    put_symmetric_added(
        memory,
        at + 8192 + (0 + part ^ line) * 8,
        mirror + across + 4096,
        ((sums[32], sums[33]), (sums[34], sums[35]), (sums[36], sums[37]), (sums[38], sums[39])),
        alpha,
        beta,
    )
    put_symmetric_added(
        memory,
        at + 8192 + (2 + part ^ line) * 8,
        mirror + across + 5120,
        ((sums[40], sums[41]), (sums[42], sums[43]), (sums[44], sums[45]), (sums[46], sums[47])),
        alpha,
        beta,
    )
    put_symmetric_added(
        memory,
        at + 8192 + (4 + part ^ line) * 8,
        mirror + across + 6144,
        ((sums[48], sums[49]), (sums[50], sums[51]), (sums[52], sums[53]), (sums[54], sums[55])),
        alpha,
        beta,
    )
    put_symmetric_added(
        memory,
        at + 8192 + (6 + part ^ line) * 8,
        mirror + across + 7168,
        ((sums[56], sums[57]), (sums[58], sums[59]), (sums[60], sums[61]), (sums[62], sums[63])),
        alpha,
        beta,
    )


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def put_symmetric_added(memory, at, mirror_at, x, alpha, beta):
    c = ldmatrix4(memory, at)
    words = (rounded(c[0], x[0], alpha, beta), rounded(c[1], x[1], alpha, beta),
             rounded(c[2], x[2], alpha, beta), rounded(c[3], x[3], alpha, beta))
    stmatrix4(memory, at, words)
    stmatrix4_transposed(memory, mirror_at, words)


# PTX: $0 to $4 are passed; on compute capability 9.0 alone
#     stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$0], {$1, $2, $3, $4};
@ptx_twin()  # refopt/gpu/warpgroup.py
def stmatrix4_transposed(array, index, words):
    """`stmatrix4` of the transposed matrices."""
    raise NotImplementedError


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def load_symmetric(memory, tiles, products):
    at, parity = 0, 1  # at a new barrier, a wait for parity 1 returns at once
    for n in range(cuda.blockIdx.x, tiles.shape[0], cuda.gridDim.x):
        i, row, column = tiles[n, 0], tiles[n, 1], tiles[n, 2]
        a, b, a_along = products[i, A], products[i, B], False
        b_along = a_along
        for k in range(0, products[i, K], BOX):
            came, start = 114688 + at * BARRIER, at * 16384
            wait(memory, 114708 + at * BARRIER, parity)
            expect(memory, came, 32768)
            load_boxes(memory, start, a, row, k, a_along, HEIGHT, came)
            load_boxes(memory, start + 8192, b, column, k, b_along, 128, came)
            at += 1
            if at == 5:
                at, parity = 0, 1 - parity


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def save_symmetric_added(memory, tiles, products):
    turn = 0
    for n in range(cuda.blockIdx.x, tiles.shape[0], cuda.gridDim.x):
        i, row, column = tiles[n, 0], tiles[n, 1], tiles[n, 2]
        out = products[i, OUT]
        expect(memory, 114728, 32768)
        for j in range(0, 128, BOX):
            load_boxes(memory, 81920 + j * HEIGHT, products[i, ADDED], row, column + j, False, HEIGHT, 114728)
        wait(memory, 114732, turn)
        store_boxes(memory, 81920, out, row, column, HEIGHT, 128)
        if row != column:
            store_boxes(memory, 98304, out, column, row, 128, HEIGHT)
        wait_for_reads()
        turn = 1 - turn
    wait_for_stores()


@cuda.jit(launch_bounds=(320, 1))  # refopt/gpu/warpgroup_products.py
def warpgroup_products_added(tiles, products, alpha, beta):
    memory = cuda.shared.array(0, np.uint16, alignment=1024)
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    if cuda.threadIdx.x == 0:
        for s in range(3):
            init_barrier(memory, 106496 + s * BARRIER, 1)
            init_barrier(memory, 106508 + s * BARRIER, MULTIPLYING)
        init_barrier(memory, 106520, 1)
        init_barrier(memory, 106524, MULTIPLYING)
        show_barriers()
    cuda.syncthreads()
    if warp < MULTIPLYING:
        sum_up_added(memory, tiles, products, alpha, beta)
    elif lane == 0:
        if warp == LOADING:
            load(memory, tiles, products)
        else:
            save_added(memory, tiles, products)


# PTX: $0 and $1 are passed; on compute capability 9.0 alone
#     mbarrier.init.shared::cta.b64 [$0], $1;
@ptx_twin()  # refopt/gpu/warpgroup.py
def init_barrier(array, index, arrivals):
    """Initialize a barrier of four 16-bit elements, whose phase ends when ``arrivals`` threads have arrived."""
    raise NotImplementedError


# PTX: on compute capability 9.0 alone
#     fence.mbarrier_init.release.cluster;
#     fence.proxy.async;
@ptx_twin()  # refopt/gpu/warpgroup.py
def show_barriers():
    """Make the barriers that the thread has initialized visible to copies."""
    raise NotImplementedError


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def sum_up_added(memory, tiles, products, alpha, beta):
    at, parity, turn = 0, 0, 0
    top, lane = cuda.threadIdx.x // 32 * 16, cuda.threadIdx.x % 32
    for n in range(cuda.blockIdx.x, tiles.shape[0], cuda.gridDim.x):
        i, sums = tiles[n, 0], zeros128()
        sums, at, parity = add_up_across_along_to256(sums, memory, products[i, K], at, parity)
        wait(memory, 106520, turn)
        finish_added(sums, memory, top, lane, alpha, beta)
        # A store skips whole chunks of eight elements beyond the matrix, but no part of a chunk. Sums there can be
        # NaN times 0, but padding must stay 0.
        right = products[i, N] - tiles[n, 2]
        cuda.syncwarp()
        if right < 256 and lane < 16:
            clear(memory, 73728, HEIGHT, top + lane, right)
        show_to_copies()
        cuda.syncwarp()
        if lane == 0:
            arrive(memory, 106524)
        turn = 1 - turn


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def zeros128():
    return (
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
        ZERO,
    )


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def add_up_across_along_to256(sums, memory, depth, at, parity):
    a = describe_across(memory, cuda.threadIdx.x // 128 * ELEMENTS)
    b = describe_along(memory, 8192)
    for _ in range(0, depth, BOX):
        wait(memory, 106496 + at * BARRIER, parity)
        away = at * (49152 >> 4)  # as descriptors count
        sums = multiply_across_along_to256(a + away, b + away, sums)
        if cuda.threadIdx.x % 32 == 0:
            arrive(memory, 106508 + at * BARRIER)
        at += 1
        if at == 3:
            at, parity = 0, 1 - parity
    return sums, at, parity


@cuda.jit(device=True)  # refopt/gpu/warpgroup.py
def describe_across(array, index):
    return (shared_address(array, index) & 0x3FFFF) >> 4 | 4611686293305360384


@cuda.jit(device=True)  # refopt/gpu/warpgroup.py
def describe_along(array, index):
    return (shared_address(array, index) & 0x3FFFF) >> 4 | 4611686293338849280


# PTX: $0 is returned; $1 is passed; on compute capability 9.0 alone
#     mov.b32 $0, $1;
@ptx_twin("uint32")  # refopt/gpu/warpgroup.py
def shared_address(array, index):
    """The address of an element in shared memory, in bytes."""
    raise NotImplementedError


# PTX: $0 to $127 are returned; $128 to $257 are passed; on compute capability 9.0 alone
#     { .reg .b64 a, b;
#     wgmma.fence.sync.aligned;
#     add.s64 a, $128, 0; add.s64 b, $129, 0;
#     wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {$0, ..., $127}, a, b, 1, 1, 1, 0, 1;
#     add.s64 a, $128, 2; add.s64 b, $129, 128;
#     wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {$0, ..., $127}, a, b, 1, 1, 1, 0, 1;
#     add.s64 a, $128, 4; add.s64 b, $129, 256;
#     wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {$0, ..., $127}, a, b, 1, 1, 1, 0, 1;
#     add.s64 a, $128, 6; add.s64 b, $129, 384;
#     wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {$0, ..., $127}, a, b, 1, 1, 1, 0, 1;
#     wgmma.commit_group.sync.aligned;
#     wgmma.wait_group.sync.aligned 0; }
@ptx_twin(*["float32"] * 128)  # refopt/gpu/warpgroup.py
def multiply_across_along_to256(a, b, sums):
    """The sums with the products."""
    raise NotImplementedError


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def finish_added(sums, memory, row, lane, alpha, beta):
    at = 73728 + (row + lane % 16) * 64
    mirror = 106496 + row // 64 * 16384 + (lane // 16 * 8 + lane % 8) * 64
    line, part = lane % 8, lane // 16
    across = (row % 64 // 8 + lane // 8 % 2 ^ line) * 8
    put_added(
        memory,
        at + 0 + (0 + part ^ line) * 8,
        mirror + across + 0,
        ((sums[0], sums[1]), (sums[2], sums[3]), (sums[4], sums[5]), (sums[6], sums[7])),
        alpha,
        beta,
    )
    put_added(
        memory,
        at + 0 + (2 + part ^ line) * 8,
        mirror + across + 1024,
        ((sums[8], sums[9]), (sums[10], sums[11]), (sums[12], sums[13]), (sums[14], sums[15])),
        alpha,
        beta,
    )
    put_added(
        memory,
        at + 0 + (4 + part ^ line) * 8,
        mirror + across + 2048,
        ((sums[16], sums[17]), (sums[18], sums[19]), (sums[20], sums[21]), (sums[22], sums[23])),
        alpha,
        beta,
    )
    put_added(
        memory,
        at + 0 + (6 + part ^ line) * 8,
        mirror + across + 3072,
        ((sums[24], sums[25]), (sums[26], sums[27]), (sums[28], sums[29]), (sums[30], sums[31])),
        alpha,
        beta,
    )
    put_added(
        memory,
        at + 8192 + (0 + part ^ line) * 8,
        mirror + across + 4096,
        ((sums[32], sums[33]), (sums[34], sums[35]), (sums[36], sums[37]), (sums[38], sums[39])),
        alpha,
        beta,
    )
    put_added(
        memory,
        at + 8192 + (2 + part ^ line) * 8,
        mirror + across + 5120,
        ((sums[40], sums[41]), (sums[42], sums[43]), (sums[44], sums[45]), (sums[46], sums[47])),
        alpha,
        beta,
    )
    put_added(
        memory,
        at + 8192 + (4 + part ^ line) * 8,
        mirror + across + 6144,
        ((sums[48], sums[49]), (sums[50], sums[51]), (sums[52], sums[53]), (sums[54], sums[55])),
        alpha,
        beta,
    )
    put_added(
        memory,
        at + 8192 + (6 + part ^ line) * 8,
        mirror + across + 7168,
        ((sums[56], sums[57]), (sums[58], sums[59]), (sums[60], sums[61]), (sums[62], sums[63])),
        alpha,
        beta,
    )
    put_added(
        memory,
        at + 16384 + (0 + part ^ line) * 8,
        mirror + across + 8192,
        ((sums[64], sums[65]), (sums[66], sums[67]), (sums[68], sums[69]), (sums[70], sums[71])),
        alpha,
        beta,
    )
    put_added(
        memory,
        at + 16384 + (2 + part ^ line) * 8,
        mirror + across + 9216,
        ((sums[72], sums[73]), (sums[74], sums[75]), (sums[76], sums[77]), (sums[78], sums[79])),
        alpha,
        beta,
    )
    put_added(
        memory,
        at + 16384 + (4 + part ^ line) * 8,
        mirror + across + 10240,
        ((sums[80], sums[81]), (sums[82], sums[83]), (sums[84], sums[85]), (sums[86], sums[87])),
        alpha,
        beta,
    )
    put_added(
        memory,
        at + 16384 + (6 + part ^ line) * 8,
        mirror + across + 11264,
        ((sums[88], sums[89]), (sums[90], sums[91]), (sums[92], sums[93]), (sums[94], sums[95])),
        alpha,
        beta,
    )
    put_added(
        memory,
        at + 24576 + (0 + part ^ line) * 8,
        mirror + across + 12288,
        ((sums[96], sums[97]), (sums[98], sums[99]), (sums[100], sums[101]), (sums[102], sums[103])),
        alpha,
        beta,
    )
    put_added(
        memory,
        at + 24576 + (2 + part ^ line) * 8,
        mirror + across + 13312,
        ((sums[104], sums[105]), (sums[106], sums[107]), (sums[108], sums[109]), (sums[110], sums[111])),
        alpha,
        beta,
    )
    put_added(
        memory,
        at + 24576 + (4 + part ^ line) * 8,
        mirror + across + 14336,
        ((sums[112], sums[113]), (sums[114], sums[115]), (sums[116], sums[117]), (sums[118], sums[119])),
        alpha,
        beta,
    )
    put_added(
        memory,
        at + 24576 + (6 + part ^ line) * 8,
        mirror + across + 15360,
        ((sums[120], sums[121]), (sums[122], sums[123]), (sums[124], sums[125]), (sums[126], sums[127])),
        alpha,
        beta,
    )


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def put_added(memory, at, mirror_at, x, alpha, beta):
    c = ldmatrix4(memory, at)
    words = (rounded(c[0], x[0], alpha, beta), rounded(c[1], x[1], alpha, beta),
             rounded(c[2], x[2], alpha, beta), rounded(c[3], x[3], alpha, beta))
    stmatrix4(memory, at, words)


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def rounded(word, sums, alpha, beta):
    low, high = widened(word)
    return narrowed((beta * low + alpha * sums[0], beta * high + alpha * sums[1]))


# PTX: $0 and $1 are returned; $2 is passed; on compute capability 9.0 alone
#     { .reg .b16 h0, h1;
#     shl.b32 $0, $2, 16;
#     and.b32 $1, $2, 0xffff0000; }
@ptx_twin("float32", "float32")  # refopt/gpu/warpgroup_products.py
def widened(word):
    """The two numbers of a word."""
    raise NotImplementedError


# PTX: $0 is returned; $1 and $2 are passed; on compute capability 9.0 alone
#     cvt.rn.bf16x2.f32 $0, $2, $1;
@ptx_twin("uint32")  # refopt/gpu/warpgroup_products.py
def narrowed(numbers):
    """Two numbers, rounded, as a word."""
    raise NotImplementedError


# PTX: $0 to $4 are passed; on compute capability 9.0 alone
#     stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};
@ptx_twin()  # refopt/gpu/warpgroup.py
def stmatrix4(array, index, words):
    """Store four matrices, the inverse of `ldmatrix4`."""
    raise NotImplementedError


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def clear(memory, at, height, row, column):
    """Set a row of a tile to 0 from ``column`` up to the end of its chunk."""
    for c in range(column, (column + 7) // 8 * 8):
        chunk = c % BOX // 8 ^ row % 8
        memory[at + c // BOX * height * BOX + row * BOX + chunk * 8 + c % 8] = 0


# PTX: on compute capability 9.0 alone
#     fence.proxy.async.shared::cta;
@ptx_twin()  # refopt/gpu/warpgroup.py
def show_to_copies():
    """Make the thread's writes to shared memory visible to copies and products."""
    raise NotImplementedError


# PTX: $0 is passed; on compute capability 9.0 alone
#     mbarrier.arrive.shared::cta.b64 _, [$0];
@ptx_twin()  # refopt/gpu/warpgroup.py
def arrive(array, index):
    """Arrive at a barrier."""
    raise NotImplementedError


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def load(memory, tiles, products):
    at, parity = 0, 1  # at a new barrier, a wait for parity 1 returns at once
    for n in range(cuda.blockIdx.x, tiles.shape[0], cuda.gridDim.x):
        i, row, column = tiles[n, 0], tiles[n, 1], tiles[n, 2]
        a, b, a_along = products[i, A], products[i, B], False
        b_along = True
        for k in range(0, products[i, K], BOX):
            came, start = 106496 + at * BARRIER, at * 24576
            wait(memory, 106508 + at * BARRIER, parity)
            expect(memory, came, 49152)
            load_boxes(memory, start, a, row, k, a_along, HEIGHT, came)
            load_boxes(memory, start + 8192, b, column, k, b_along, 256, came)
            at += 1
            if at == 3:
                at, parity = 0, 1 - parity


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def save_added(memory, tiles, products):
    turn = 0
    for n in range(cuda.blockIdx.x, tiles.shape[0], cuda.gridDim.x):
        i, row, column = tiles[n, 0], tiles[n, 1], tiles[n, 2]
        out = products[i, OUT]
        expect(memory, 106520, 65536)
        for j in range(0, 256, BOX):
            load_boxes(memory, 73728 + j * HEIGHT, products[i, ADDED], row, column + j, False, HEIGHT, 106520)
        wait(memory, 106524, turn)
        store_boxes(memory, 73728, out, row, column, HEIGHT, 256)
        wait_for_reads()
        turn = 1 - turn
    wait_for_stores()


# PTX: $0 and $1 are passed; on compute capability 9.0 alone
#     mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;
@ptx_twin()  # refopt/gpu/warpgroup.py
def expect(array, index, nbytes):
    """Arrive at a barrier, whose phase then also waits for copies of ``nbytes`` bytes."""
    raise NotImplementedError


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def load_boxes(memory, at, tensor_map, first, k, along, size, barrier):
    """Begin to load ``size`` rows of a matrix, or columns if it is stored ``along`` k, for 64 values of k."""
    for i in range(0, size, BOX):
        place = first + i
        column, row = (place, k) if along else (k, place)
        load_box(memory, at + i * BOX, tensor_map, (np.uint32(column), np.uint32(row)), memory, barrier)


# PTX: $0 to $4 are passed; on compute capability 9.0 alone
#     cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3}], [$4];
@ptx_twin()  # refopt/gpu/warpgroup.py
def load_box(array, index, tensor_map, column_row, barriers, barrier):
    """Begin to copy a box to shared memory, at a multiple of 1,024 bytes; the barrier counts its bytes."""
    raise NotImplementedError


@cuda.jit(device=True)  # refopt/gpu/warpgroup.py
def wait(array, index, parity):
    """Wait until the barrier's phase of that parity is over."""
    while passed(array, index, parity) == 0:
        pass


# PTX: $0 is returned; $1 and $2 are passed; on compute capability 9.0 alone
#     { .reg .pred p;
#     mbarrier.try_wait.parity.shared::cta.b64 p, [$1], $2;
#     selp.u32 $0, 1, 0, p; }
@ptx_twin("uint32")  # refopt/gpu/warpgroup.py
def passed(array, index, parity):
    """1 once the barrier's phase of that parity is over, or 0 after a time limit."""
    raise NotImplementedError


@cuda.jit(device=True)  # refopt/gpu/warpgroup_products.py
def store_boxes(memory, at, tensor_map, row, column, height, width):
    """Begin to store a tile."""
    for j in range(0, width, BOX):
        for i in range(0, height, BOX):
            store_box(tensor_map, (np.uint32(column + j), np.uint32(row + i)), memory, at + j * height + i * BOX)


# PTX: $0 to $3 are passed; on compute capability 9.0 alone
#     cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [$0, {$1, $2}], [$3];
@ptx_twin()  # refopt/gpu/warpgroup.py
def store_box(tensor_map, column_row, array, index):
    """Begin to copy the elements of a box that are inside the matrix from shared memory."""
    raise NotImplementedError


# PTX: on compute capability 9.0 alone
#     cp.async.bulk.commit_group;
#     cp.async.bulk.wait_group.read 0;
@ptx_twin()  # refopt/gpu/warpgroup.py
def wait_for_reads():
    """Wait until the thread's stores have read shared memory."""
    raise NotImplementedError


# PTX: on compute capability 9.0 alone
#     cp.async.bulk.wait_group 0;
@ptx_twin()  # refopt/gpu/warpgroup.py
def wait_for_stores():
    """Wait until the thread's stores are done."""
    raise NotImplementedError


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
