# refopt.gpu: merged_lars_momentum, form carried_norm
#
# arrays: params float32, grads float32, velocities float32
# choices: adapt=norms, norm_of=param
# rows of addresses: 0 params, 1 grads, 2 velocities
# rows of hyper: 0 lr, 1 mu, 2 lars_coeff, 3 lars_weight_decay, 4 epsilon, 5 rescale_grad
#
# Launches for the tensors of resnet50, as kernel[blocks, threads]:
# in the first step, and after refresh(): merged_lars_momentum_norms[3223, 128], merged_lars_update_and_norm[12892, 64]
#                                         whose blocks may start while the previous launch drains
# in a step: merged_lars_grad_norm[3223, 128], merged_lars_update_and_norm[12892, 64] whose blocks may start while the
#            previous launch drains
#
# The compiler inlines every function into its kernel and rounds a * b + c twice. Where a function has PTX above it, the
# GPU runs the PTX instead. The executor runs this text unchanged, with the same bits. launch_bounds are the most
# threads per block and the blocks that should fit on a multiprocessor at a time; they tell the compiler how many
# registers a thread may use.

import math

import numpy as np

from refopt.simt import cuda, memory, ptx_twin

# Columns of the chunk table: the tensor, the first element and the last + 1, the slot of the first tile's sum, the node
# that counts the chunk, and whether vectors can access all arrays of the tensor.
TENSOR, START, STOP, SLOT, NODE, ALIGNED = range(6)
# Columns of the node table: the slot of the first child's sum, the number of children, the slot of the node's own sum,
# the number of arrivals that it waits for, and its parent or -1.
FIRST_CHILD, CHILDREN, OWN_SUM, ARRIVALS, PARENT = range(5)
WHOLE_WARP = 0xFFFFFFFF
TILE = 1024
ROW = 256
SECOND = 128  # from a thread's first four elements of a row to its other four
PAIR = 2 * TILE
LANES = 256
ROWS = TILE // LANES
OFFSETS = 0, 1, 2, 3, SECOND, SECOND + 1, SECOND + 2, SECOND + 3  # from a thread's first element of a row to its eight

zero = np.float32(0)
zeros = (np.float32(0),) * 8
one = np.float32(1)


@cuda.jit(launch_bounds=(128, 4))  # refopt/gpu/norms/__init__.py
def merged_lars_momentum_norms(
    addresses, chunks, nodes, counters, sums, numbers, hyper, first_chunk, factor_at, found_at
):
    c = first_chunk + cuda.blockIdx.x
    if not found(found_at):
        norms(c, addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at)


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def norms(c, addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at):
    """Sum the chunk's tiles; the last block of a tensor also writes the tensor's numbers and scalars."""
    let_next_launch_begin()
    tensor = chunks[c, TENSOR]
    at = addresses_of(addresses, tensor)
    common = common_of(hyper, tensor, at, factor_at)
    closes, squares = sums_of_values(c, at, chunks, nodes, counters, sums, common)
    if closes and cuda.threadIdx.x == 0:
        # All blocks of the tensor have read its scalars by now, so they can be written. The numbers are read
        # again here, so that they need no registers before.
        leave(tensor, at, close(squares, common_of(hyper, tensor, at, factor_at)), numbers)


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def sums_of_values(c, at, chunks, nodes, counters, sums, common):
    node = chunks[c, NODE]
    # How many chunks the node counts. Loaded early, since the last block to finish would have to wait for it.
    arrivals = nodes[node, ARRIVALS]
    over_tiles_of_values(c, chunks, at, chunks[c, START], chunks[c, STOP], chunks[c, SLOT], sums, common)
    # The last block to finish under a node of the tree joins its sums, so none waits for another.
    closes, x = climb(node, arrivals, nodes, counters, sums)
    if closes:
        return True, (x, cuda.shfl_xor_sync(WHOLE_WARP, x, 1))
    return False, (zero, zero)


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def over_tiles_of_values(c, chunks, at, start, stop, slot, sums, common):
    lane = cuda.threadIdx.x % 32
    for first in of_warp(start, stop, TILE):
        x = tile_of_values(at, first, stop, chunks[c, ALIGNED], common)
        if 0 <= lane < 2:
            sums[lane, slot + (first - start) // TILE] = x


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def tile_of_values(at, first, stop, aligned, common):
    return lane_tree_2(*lanes_of_values(at, first, stop, aligned, common))


@cuda.jit(device=True)  # refopt/gpu/tiles.py
def lane_tree_2(s, t):
    """``lane_tree`` of s on even threads and of t on odd ones, in 7 shuffles for both."""
    odd, second = cuda.threadIdx.x & 1, cuda.threadIdx.x & 2
    x = swap_join(odd, (s[0] + s[1]) + (s[2] + s[3]), (t[0] + t[1]) + (t[2] + t[3]), 1)
    y = swap_join(odd, (s[4] + s[5]) + (s[6] + s[7]), (t[4] + t[5]) + (t[6] + t[7]), 1)
    x = swap_join(second, x, y, 2)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 4)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 8)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 16)
    return x + cuda.shfl_xor_sync(WHOLE_WARP, x, 2)


@cuda.jit(device=True)  # refopt/gpu/rows.py
def lanes_of_values(at, first, stop, aligned, common):
    if aligned and first + 1024 <= stop:
        return lanes_of_values_full(at, first, stop, common)
    return lanes_of_values_partial(at, first, stop, common)


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def lanes_of_values_full(at, first, stop, common):
    sums, others = zeros, zeros
    for n in range(all_rows(first, stop)):
        x, y = values_full(at, first + ROW * n, stop, common)
        sums, others = add_squares(sums, x), add_squares(others, y)
    return sums, others


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def values_full(at, first, stop, common):
    i = own(first)
    stored_params = load8_float32_keep(at[0], i, stop)
    grads = load8_float32_keep(at[1], i, stop)
    grads = scale8(common[5], grads)
    x, y = transposed((
        normed(stored_params[0], grads[0], common),
        normed(stored_params[1], grads[1], common),
        normed(stored_params[2], grads[2], common),
        normed(stored_params[3], grads[3], common),
        normed(stored_params[4], grads[4], common),
        normed(stored_params[5], grads[5], common),
        normed(stored_params[6], grads[6], common),
        normed(stored_params[7], grads[7], common),
    ))
    return (kept(x, first, stop), kept(y, first, stop))


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def lanes_of_values_partial(at, first, stop, common):
    sums, others = zeros, zeros
    for n in range(rows_of(first, stop)):
        x, y = values_partial(at, first + ROW * n, stop, common)
        sums, others = add_squares(sums, x), add_squares(others, y)
    return sums, others


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def values_partial(at, first, stop, common):
    i = own(first)
    stored_params = load_some_float32(at[0], i, stop)
    grads = load_some_float32(at[1], i, stop)
    grads = scale8(common[5], grads)
    x, y = transposed((
        normed(stored_params[0], grads[0], common),
        normed(stored_params[1], grads[1], common),
        normed(stored_params[2], grads[2], common),
        normed(stored_params[3], grads[3], common),
        normed(stored_params[4], grads[4], common),
        normed(stored_params[5], grads[5], common),
        normed(stored_params[6], grads[6], common),
        normed(stored_params[7], grads[7], common),
    ))
    return (kept_some(x, first, stop), kept_some(y, first, stop))


@cuda.jit(device=True)  # refopt/gpu/rules/lars_momentum.py
def normed(p, g, k):
    return p, g


@cuda.jit(launch_bounds=(128, 4))  # refopt/gpu/lars/carried_norm.py
def merged_lars_grad_norm(addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at, found_at):
    if not found(found_at):
        grad_norms(cuda.blockIdx.x, addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at)


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def grad_norms(c, addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at):
    """Sum the chunk's tiles; the last block of a tensor also writes the tensor's numbers and scalars."""
    let_next_launch_begin()
    tensor = chunks[c, TENSOR]
    at = addresses_of(addresses, tensor)
    common = common_of(hyper, tensor, at, factor_at)
    closes, squares = sums_of_grads(c, at, chunks, nodes, counters, sums, common)
    if closes and cuda.threadIdx.x == 0:
        # All blocks of the tensor have read its scalars by now, so they can be written. The numbers are read
        # again here, so that they need no registers before.
        leave(tensor, at, close(squares, common_of(hyper, tensor, at, factor_at)), numbers)


# PTX: from compute capability 9.0 on, before it nothing
#     griddepcontrol.launch_dependents;
@ptx_twin()  # refopt/gpu/target.py
def let_next_launch_begin():
    """Let a launch prepared with ``overlaps`` start its blocks; they wait where they need this one's results."""


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def common_of(hyper, tensor, at, factor_at):
    """What all elements of a tensor share in the first launch: the numbers, then the scalars."""
    return rescaled(hypers_of(hyper, tensor), factor_of(factor_at)) + scalars_of(at)


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def scalars_of(at):
    return ()


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def sums_of_grads(c, at, chunks, nodes, counters, sums, common):
    node = chunks[c, NODE]
    # How many chunks the node counts. Loaded early, since the last block to finish would have to wait for it.
    arrivals = nodes[node, ARRIVALS]
    over_tiles_of_grads(c, chunks, at, chunks[c, START], chunks[c, STOP], chunks[c, SLOT], sums, common)
    # The last block to finish under a node of the tree joins its sums, so none waits for another.
    closes, x = climb(node, arrivals, nodes, counters, sums)
    if closes:
        return True, (x, cuda.shfl_xor_sync(WHOLE_WARP, x, 1))
    return False, (zero, zero)


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def over_tiles_of_grads(c, chunks, at, start, stop, slot, sums, common):
    lane = cuda.threadIdx.x % 32
    for first in of_warp(start, stop, TILE):
        x = tile_of_grads(at, first, stop, chunks[c, ALIGNED], common)
        if 1 <= lane < 2:
            sums[lane, slot + (first - start) // TILE] = x


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def tile_of_grads(at, first, stop, aligned, common):
    return lane_tree(*lanes_of_grads(at, first, stop, aligned, common))


@cuda.jit(device=True)  # refopt/gpu/rows.py
def lanes_of_grads(at, first, stop, aligned, common):
    if aligned and first + 1024 <= stop:
        return lanes_of_grads_full(at, first, stop, common)
    return lanes_of_grads_partial(at, first, stop, common)


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def lanes_of_grads_full(at, first, stop, common):
    sums = zeros
    for n in range(all_rows(first, stop)):
        sums = add_squares(sums, grads_full(at, first + ROW * n, stop, common)[0])
    return (sums,)


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def grads_full(at, first, stop, common):
    i = own(first)
    grads = load8_float32_keep(at[1], i, stop)
    grads = scale8(common[5], grads)
    x, = transposed((
        normed_grads(grads[0], common),
        normed_grads(grads[1], common),
        normed_grads(grads[2], common),
        normed_grads(grads[3], common),
        normed_grads(grads[4], common),
        normed_grads(grads[5], common),
        normed_grads(grads[6], common),
        normed_grads(grads[7], common),
    ))
    return (kept(x, first, stop),)


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def load8_float32_keep(address, i, stop):
    begin = moved_float32(address, i)
    return load4_float32_keep(begin) + load4_float32_keep(moved_float32(begin, SECOND))


# PTX: $0 to $3 are returned; $4 is passed; from compute capability 8.0 on, before it as below
#     { .reg .b64 policy;
#     mov.b64 policy, 0x14f0000000000000;
#     ld.global.L2::cache_hint.v4.f32 {$0, $1, $2, $3}, [$4], policy; }
# PTX before 8.0:
#     ld.global.v4.f32 {$0, $1, $2, $3}, [$4];
@ptx_twin("float32", "float32", "float32", "float32")  # refopt/gpu/vectors.py
def load4_float32_keep(address):
    return memory.load(address, np.float32, 4)


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def lanes_of_grads_partial(at, first, stop, common):
    sums = zeros
    for n in range(rows_of(first, stop)):
        sums = add_squares(sums, grads_partial(at, first + ROW * n, stop, common)[0])
    return (sums,)


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def grads_partial(at, first, stop, common):
    i = own(first)
    grads = load_some_float32(at[1], i, stop)
    grads = scale8(common[5], grads)
    x, = transposed((
        normed_grads(grads[0], common),
        normed_grads(grads[1], common),
        normed_grads(grads[2], common),
        normed_grads(grads[3], common),
        normed_grads(grads[4], common),
        normed_grads(grads[5], common),
        normed_grads(grads[6], common),
        normed_grads(grads[7], common),
    ))
    return (kept_some(x, first, stop),)


@cuda.jit(device=True)  # refopt/gpu/lars/carried_norm.py
def normed_grads(g, k):
    return (g,)


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


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def leave(tensor, at, closed, numbers):
    numbers[0, tensor] = closed[0]


@cuda.jit(device=True)  # refopt/gpu/rules/lars_momentum.py
def close(sums, k):
    lr, _, coeff, decay, epsilon, _ = k
    return (local_lr(sqrt(sums[0]), sqrt(sums[1]), lr, coeff, decay, epsilon),)


@cuda.jit(device=True)  # refopt/gpu/rules/lars_momentum.py
def local_lr(p_norm, g_norm, lr, coeff, decay, epsilon):
    if adapts(p_norm, g_norm, decay):
        return lr * coeff * p_norm / (g_norm + decay * p_norm + epsilon)
    return lr


@cuda.jit(device=True)  # refopt/gpu/rules/lars_momentum.py
def adapts(p_norm, g_norm, decay):
    """Whether the ratio applies; Paddle's versions have used three conditions."""
    if not (p_norm > zero and g_norm > zero):
        return False
    return True


@cuda.jit(device=True)  # refopt/gpu/target.py
def sqrt(x):
    """The square root, rounded once: ``sqrt.rn`` in the kernel."""
    return math.sqrt(x)


@cuda.jit(launch_bounds=(64, 8))  # refopt/gpu/lars/carried_norm.py
def merged_lars_update_and_norm(addresses, chunks, sums, numbers, hyper, factor_at, found_at):
    pair = cuda.gridDim.x - 1 - cuda.blockIdx.x
    c, offset = pair // 4, pair % 4 * PAIR
    update(c, offset, PAIR, addresses, chunks, sums, numbers, hyper, factor_at, found_at)


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def update(c, offset, length, addresses, chunks, sums, numbers, hyper, factor_at, found_at):
    """Update a part of the chunk."""
    tensor, start = chunks[c, TENSOR], chunks[c, START] + offset
    stop, slot = min(chunks[c, STOP], start + length), chunks[c, SLOT] + offset // TILE
    at, h = addresses_of(addresses, tensor), hypers_of(hyper, tensor)
    # Nothing read so far was written by the previous launch. Its numbers are needed from here on.
    wait_for_previous_launch()
    if found(found_at):
        return
    common = rescaled(h, factor_of(factor_at)) + numbers_of(numbers, tensor)
    over_tiles_of_new_params(c, chunks, at, start, stop, slot, sums, common)


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def addresses_of(addresses, tensor):
    return (addresses[0, tensor], addresses[1, tensor], addresses[2, tensor], addresses[3, tensor])


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def hypers_of(hyper, tensor):
    return (hyper[0, tensor], hyper[1, tensor], hyper[2, tensor], hyper[3, tensor], hyper[4, tensor], hyper[5, tensor])


# PTX: from compute capability 9.0 on, before it nothing
#     griddepcontrol.wait;
@ptx_twin()  # refopt/gpu/target.py
def wait_for_previous_launch():
    """Wait until the previous launch is complete and its writes are visible."""


@cuda.jit(device=True)  # refopt/gpu/gate.py
def found(found_at):
    return False


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def rescaled(h, factor):
    return (*h[:-1], h[-1] * factor)


@cuda.jit(device=True)  # refopt/gpu/gate.py
def factor_of(factor_at):
    return one


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def numbers_of(numbers, tensor):
    return (numbers[0, tensor],)


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def over_tiles_of_new_params(c, chunks, at, start, stop, slot, sums, common):
    lane = cuda.threadIdx.x % 32
    for first in of_warp(start, stop, TILE):
        x = tile_of_new_params(at, first, stop, chunks[c, ALIGNED], common)
        if 0 <= lane < 1:
            sums[lane, slot + (first - start) // TILE] = x


@cuda.jit(device=True)  # refopt/gpu/rows.py
def of_warp(start, stop, length):
    """Where this warp's parts of ``length`` elements begin: the block's warps take parts in turn."""
    return range(start + cuda.threadIdx.x // 32 * length, stop, cuda.blockDim.x // 32 * length)


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def tile_of_new_params(at, first, stop, aligned, common):
    return lane_tree(*lanes_of_new_params(at, first, stop, aligned, common))


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


@cuda.jit(device=True)  # refopt/gpu/tiles.py
def swap_join(odd, x, y, distance):
    """One level of two trees in one shuffle: even threads continue with x, odd ones with y."""
    mine, theirs = (y, x) if odd else (x, y)
    return mine + cuda.shfl_xor_sync(WHOLE_WARP, theirs, distance)


@cuda.jit(device=True)  # refopt/gpu/rows.py
def lanes_of_new_params(at, first, stop, aligned, common):
    if aligned and first + 1024 <= stop:
        return lanes_of_new_params_full(at, first, stop, common)
    return lanes_of_new_params_partial(at, first, stop, common)


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def lanes_of_new_params_full(at, first, stop, common):
    sums = zeros
    for n in range(all_rows(first, stop)):
        sums = add_squares(sums, new_params_full(at, first + ROW * n, stop, common)[0])
    return (sums,)


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def all_rows(first, stop):
    return ROWS


@cuda.jit(device=True)  # refopt/gpu/lars/carried_norm.py
def new_params_full(at, first, stop, common):
    return (kept(round8_float32(update_row_full(at, first, stop, common)), first, stop),)


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def kept(x, first, stop):
    return x


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def update_row_full(at, first, stop, common):
    i = own(first)
    params = load_params(at[0], at[3], i, stop)
    grads = load8_float32(at[1], i, stop)
    velocities = load8_float32(at[2], i, stop)
    grads = scale8(common[5], grads)
    params, velocities = transposed((
        rule(params[0], grads[0], velocities[0], common),
        rule(params[1], grads[1], velocities[1], common),
        rule(params[2], grads[2], velocities[2], common),
        rule(params[3], grads[3], velocities[3], common),
        rule(params[4], grads[4], velocities[4], common),
        rule(params[5], grads[5], velocities[5], common),
        rule(params[6], grads[6], velocities[6], common),
        rule(params[7], grads[7], velocities[7], common),
    ))
    store8_float32(at[2], i, stop, velocities)
    store_params(at[0], at[3], i, stop, params, params)
    return params


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
def store_params(param_at, master_at, i, stop, exact, rounded):
    store8_float32(param_at, i, stop, rounded)


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def store8_float32(address, i, stop, values):
    begin = moved_float32(address, i)
    store4_float32(begin, values[:4])
    store4_float32(moved_float32(begin, SECOND), values[4:])


# PTX: $0 to $4 are passed
#     st.global.v4.f32 [$0], {$1, $2, $3, $4};
@ptx_twin()  # refopt/gpu/vectors.py
def store4_float32(address, values):
    memory.store(address, np.float32, values)


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def lanes_of_new_params_partial(at, first, stop, common):
    sums = zeros
    for n in range(rows_of(first, stop)):
        sums = add_squares(sums, new_params_partial(at, first + ROW * n, stop, common)[0])
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


@cuda.jit(device=True)  # refopt/gpu/lars/carried_norm.py
def new_params_partial(at, first, stop, common):
    return (kept_some(round8_float32(update_row_partial(at, first, stop, common)), first, stop),)


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def kept_some(x, first, stop):
    return value_or_zero8(OFFSETS, x, own(first), stop)


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def value_or_zero8(offsets, xs, i, stop):
    return (
        value_or_zero(offsets[0], xs[0], i, stop),
        value_or_zero(offsets[1], xs[1], i, stop),
        value_or_zero(offsets[2], xs[2], i, stop),
        value_or_zero(offsets[3], xs[3], i, stop),
        value_or_zero(offsets[4], xs[4], i, stop),
        value_or_zero(offsets[5], xs[5], i, stop),
        value_or_zero(offsets[6], xs[6], i, stop),
        value_or_zero(offsets[7], xs[7], i, stop),
    )


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def value_or_zero(offset, x, i, stop):
    return x if i + offset < stop else zero


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def round8_float32(x):
    return x


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def update_row_partial(at, first, stop, common):
    i = own(first)
    params = load_params_some(at[0], at[3], i, stop)
    grads = load_some_float32(at[1], i, stop)
    velocities = load_some_float32(at[2], i, stop)
    grads = scale8(common[5], grads)
    params, velocities = transposed((
        rule(params[0], grads[0], velocities[0], common),
        rule(params[1], grads[1], velocities[1], common),
        rule(params[2], grads[2], velocities[2], common),
        rule(params[3], grads[3], velocities[3], common),
        rule(params[4], grads[4], velocities[4], common),
        rule(params[5], grads[5], velocities[5], common),
        rule(params[6], grads[6], velocities[6], common),
        rule(params[7], grads[7], velocities[7], common),
    ))
    store_some_float32(at[2], i, stop, velocities)
    store_params_some(at[0], at[3], i, stop, params, params)
    return params


@cuda.jit(device=True)  # refopt/gpu/rows.py
def own(first):
    """This thread's first element of a row: lane t of a warp has 4t to 4t + 3, and the four that are 128 further.

    So the loads of a warp's lanes are contiguous and read whole lines of memory: they are coalesced.
    """
    return first + 4 * (cuda.threadIdx.x % 32)


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def load_params_some(param_at, master_at, i, stop):
    return load_some_float32(param_at, i, stop)


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def load_some_float32(address, i, stop):
    return load_or_zero8_float32(OFFSETS, moved_float32(address, i), stop - i)


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def load_or_zero8_float32(offsets, begin, left):
    return (
        load_or_zero_float32(offsets[0], begin, left),
        load_or_zero_float32(offsets[1], begin, left),
        load_or_zero_float32(offsets[2], begin, left),
        load_or_zero_float32(offsets[3], begin, left),
        load_or_zero_float32(offsets[4], begin, left),
        load_or_zero_float32(offsets[5], begin, left),
        load_or_zero_float32(offsets[6], begin, left),
        load_or_zero_float32(offsets[7], begin, left),
    )


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def load_or_zero_float32(offset, begin, left):
    if offset < left:
        return np.float32(load_float32(moved_float32(begin, offset)))
    return zero


# PTX: $0 is returned; $1 is passed
#     ld.global.f32 $0, [$1];
@ptx_twin("float32")  # refopt/gpu/vectors.py
def load_float32(address):
    return memory.load(address, np.float32)[0]


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


@cuda.jit(device=True)  # refopt/gpu/rules/lars_momentum.py
def rule(p, g, v, k):
    _, mu, _, decay, _, _, rate = k
    v = mu * v + rate * (g + decay * p)
    return p - v, v


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def store_params_some(param_at, master_at, i, stop, exact, rounded):
    store_some_float32(param_at, i, stop, rounded)


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def store_some_float32(address, i, stop, values):
    begin, left = moved_float32(address, i), stop - i
    for e in range(4):
        if left > e:
            store_float32(moved_float32(begin, e), values[e])
        if left > SECOND + e:
            store_float32(moved_float32(begin, SECOND + e), values[e + 4])


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def moved_float32(address, elements):
    return address + 4 * elements


# PTX: $0 and $1 are passed
#     st.global.f32 [$0], $1;
@ptx_twin()  # refopt/gpu/vectors.py
def store_float32(address, values):
    memory.store(address, np.float32, (values,))
