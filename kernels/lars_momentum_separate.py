# refopt.gpu: merged_lars_momentum, form separate
#
# arrays: params float32, grads float32, velocities float32
# choices: adapt=norms, norm_of=param
# rows of addresses: 0 params, 1 grads, 2 velocities
# rows of hyper: 0 lr, 1 mu, 2 lars_coeff, 3 lars_weight_decay, 4 epsilon, 5 rescale_grad
#
# Launches for the tensors of resnet50, as kernel[blocks, threads]:
# in a step: 161 times lars_momentum[as many as fit at a time, 128] with a barrier across the grid
#
# The compiler inlines every function into its kernel and rounds a * b + c twice. Where a function has PTX above it, the
# GPU runs the PTX instead. The executor runs this text unchanged, with the same bits. launch_bounds are the most
# threads per block and the blocks that should fit on a multiprocessor at a time; they tell the compiler how many
# registers a thread may use.

import math

import numpy as np

from refopt.simt import cuda, memory, ptx_twin

TILE = 1024
FANOUT = 1024
ROW = 256
WHOLE_WARP = 0xFFFFFFFF
LANES = 256
ROWS = TILE // LANES
SECOND = 128  # from a thread's first four elements of a row to its other four
OFFSETS = 0, 1, 2, 3, SECOND, SECOND + 1, SECOND + 2, SECOND + 3  # from a thread's first element of a row to its eight

one = np.float32(1)
zeros = (np.float32(0),) * 8
zero = np.float32(0)


@cuda.jit(launch_bounds=(128, 4))  # refopt/gpu/lars/separate.py
def lars_momentum(p, g, v, m, tensor, size, aligned, sums, hyper, factor_at, found_at):
    if found(found_at):
        return
    grid = cuda.cg.this_grid()
    lane = cuda.threadIdx.x % 32
    warp = cuda.grid(1) // 32
    warps = cuda.gridsize(1) // 32
    tiles = (size + TILE - 1) // TILE
    at = p, g, v, m
    common = common_of(hyper, tensor, at, factor_at)

    for tile in range(warp, tiles, warps):
        x = tile_of_values(at, tile * TILE, size, aligned, common)
        if lane < 2:
            sums[lane, tile] = x
    grid.sync()

    first, count = 0, tiles
    while count > 1:
        parents = (count + FANOUT - 1) // FANOUT
        for parent in range(cuda.blockIdx.x, parents, cuda.gridDim.x):
            child = first + parent * FANOUT
            children = min(count - parent * FANOUT, FANOUT)
            x = join_sums(sums, child, children)
            if cuda.threadIdx.x < 2:
                sums[cuda.threadIdx.x, first + count + parent] = x
        first, count = first + count, parents
        grid.sync()

    closed = close((sums[0, first], sums[1, first]), common)  # in every thread, since all need the result
    for row in range(warp * ROW, size, warps * ROW):
        update_row(at, row, size, aligned, common + closed)


@cuda.jit(device=True)  # refopt/gpu/gate.py
def found(found_at):
    return False


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def common_of(hyper, tensor, at, factor_at):
    """What all elements of a tensor share in the first launch: the numbers, then the scalars."""
    return rescaled(hypers_of(hyper, tensor), factor_of(factor_at)) + scalars_of(at)


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def rescaled(h, factor):
    return (*h[:-1], h[-1] * factor)


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def hypers_of(hyper, tensor):
    return (hyper[0, tensor], hyper[1, tensor], hyper[2, tensor], hyper[3, tensor], hyper[4, tensor], hyper[5, tensor])


@cuda.jit(device=True)  # refopt/gpu/gate.py
def factor_of(factor_at):
    return one


@cuda.jit(device=True)  # refopt/gpu/norms/chunks.py
def scalars_of(at):
    return ()


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
def all_rows(first, stop):
    return ROWS


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


@cuda.jit(device=True)  # refopt/gpu/vectors.py
def kept(x, first, stop):
    return x


@cuda.jit(device=True)  # refopt/gpu/norms/elements.py
def lanes_of_values_partial(at, first, stop, common):
    sums, others = zeros, zeros
    for n in range(rows_of(first, stop)):
        x, y = values_partial(at, first + ROW * n, stop, common)
        sums, others = add_squares(sums, x), add_squares(others, y)
    return sums, others


@cuda.jit(device=True)  # refopt/gpu/tiles.py
def rows_of(first, stop):
    """How many rows of the tile at ``first`` hold elements before ``stop``."""
    return min((stop - first + ROW - 1) // ROW, ROWS)


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


@cuda.jit(device=True)  # refopt/gpu/rows.py
def update_row(at, first, stop, aligned, common):
    if aligned and first + 256 <= stop:
        return update_row_full(at, first, stop, common)
    return update_row_partial(at, first, stop, common)


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
