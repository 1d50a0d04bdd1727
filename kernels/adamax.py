# refopt.gpu: merged_adamax, form merged
#
# arrays: params float32, grads float32, moment float32, inf_norm float32, beta1_pow float32
# choices: epsilon_at=norm, decay=l2, maximize=False
# rows of addresses: 0 params, 1 grads, 2 moment, 3 inf_norm, 4 beta1_pow
# rows of hyper: 0 lr, 1 beta1, 2 beta2, 3 epsilon, 4 weight_decay, 5 rescale_grad
# rows of carried: 0 beta1_pow
#
# Launches for the tensors of resnet50, as kernel[blocks, threads]:
# before the first step: fetch_scalars[2, 128]
# in a step: merged_adamax[25021, 64]
# after a step that is replayed: settle_scalars[2, 128]
#
# The compiler inlines every function into its kernel and rounds a * b + c twice. Where a function has PTX above it, the
# GPU runs the PTX instead. The executor runs this text unchanged, with the same bits. launch_bounds are the most
# threads per block and the blocks that should fit on a multiprocessor at a time; they tell the compiler how many
# registers a thread may use.

import numpy as np

from refopt.simt import cuda, memory, ptx_twin

# Columns of the chunk table: the tensor, the first element and the last + 1, the slot of the first tile's sum, the node
# that counts the chunk, and whether vectors can access all arrays of the tensor.
TENSOR, START, STOP, SLOT, NODE, ALIGNED = range(6)
ROW = 256
SECOND = 128  # from a thread's first four elements of a row to its other four
OFFSETS = 0, 1, 2, 3, SECOND, SECOND + 1, SECOND + 2, SECOND + 3  # from a thread's first element of a row to its eight

zero = np.float32(0)
one = np.float32(1)


@cuda.jit(launch_bounds=(64, 12))  # refopt/gpu/elementwise.py
def merged_adamax(addresses, chunks, hyper, carried, phase, first_chunk, factor_at, found_at):
    c = first_chunk + cuda.blockIdx.x
    tensor, start, stop = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP]
    h, s = hypers_of(hyper, tensor), scalars_of(carried, phase, tensor)
    opens = start == 0 and cuda.threadIdx.x == 0
    if found(found_at):
        if opens:
            stay(tensor, s, carried, 1 - phase)
        return
    at, common = (addresses, hyper, tensor), (h, s, factor_at)
    for first in of_warp(start, stop, ROW):
        update(at, first, stop, chunks[c, ALIGNED], common)
    if opens:
        leave(addresses, tensor, h, s, carried, 1 - phase)


@cuda.jit(device=True)  # refopt/gpu/elementwise.py
def hypers_of(hyper, tensor):
    return (hyper[0, tensor], hyper[1, tensor], hyper[2, tensor], hyper[3, tensor], hyper[4, tensor], hyper[5, tensor])


@cuda.jit(device=True)  # refopt/gpu/elementwise.py
def scalars_of(carried, phase, tensor):
    return (carried[phase, 0, tensor],)


@cuda.jit(device=True)  # refopt/gpu/gate.py
def found(found_at):
    return found_at != 0 and load_float32(found_at) != zero


@cuda.jit(device=True)  # refopt/gpu/elementwise.py
def stay(tensor, s, carried, next_phase):
    carried[next_phase, 0, tensor] = s[0]


@cuda.jit(device=True)  # refopt/gpu/rows.py
def of_warp(start, stop, length):
    """Where this warp's parts of ``length`` elements begin: the block's warps take parts in turn."""
    return range(start + cuda.threadIdx.x // 32 * length, stop, cuda.blockDim.x // 32 * length)


@cuda.jit(device=True)  # refopt/gpu/rows.py
def update(at, first, stop, aligned, common):
    if aligned and first + 256 <= stop:
        return update_full(at, first, stop, common)
    return update_partial(at, first, stop, common)


@cuda.jit(device=True)  # refopt/gpu/elementwise.py
def update_full(at, first, stop, common):
    i = own(first)
    addresses, _, tensor = at
    h, s, factor_at = common
    params = load_params(addresses[0, tensor], addresses[5, tensor], i, stop)
    grads = load8_float32(addresses[1, tensor], i, stop)
    moment = load8_float32(addresses[2, tensor], i, stop)
    inf_norm = load8_float32(addresses[3, tensor], i, stop)
    rescale, k = h[-1] * factor_of(factor_at), prepare(h, s)
    params, moment, inf_norm = transposed((
        rule(params[0], rescale * grads[0], moment[0], inf_norm[0], k),
        rule(params[1], rescale * grads[1], moment[1], inf_norm[1], k),
        rule(params[2], rescale * grads[2], moment[2], inf_norm[2], k),
        rule(params[3], rescale * grads[3], moment[3], inf_norm[3], k),
        rule(params[4], rescale * grads[4], moment[4], inf_norm[4], k),
        rule(params[5], rescale * grads[5], moment[5], inf_norm[5], k),
        rule(params[6], rescale * grads[6], moment[6], inf_norm[6], k),
        rule(params[7], rescale * grads[7], moment[7], inf_norm[7], k),
    ))
    exact = params
    store_params(addresses[0, tensor], addresses[5, tensor], i, stop, exact, params)
    store8_float32(addresses[2, tensor], i, stop, moment)
    store8_float32(addresses[3, tensor], i, stop, inf_norm)


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


@cuda.jit(device=True)  # refopt/gpu/elementwise.py
def update_partial(at, first, stop, common):
    i = own(first)
    addresses, _, tensor = at
    h, s, factor_at = common
    params = load_params_some(addresses[0, tensor], addresses[5, tensor], i, stop)
    grads = load_some_float32(addresses[1, tensor], i, stop)
    moment = load_some_float32(addresses[2, tensor], i, stop)
    inf_norm = load_some_float32(addresses[3, tensor], i, stop)
    rescale, k = h[-1] * factor_of(factor_at), prepare(h, s)
    params, moment, inf_norm = transposed((
        rule(params[0], rescale * grads[0], moment[0], inf_norm[0], k),
        rule(params[1], rescale * grads[1], moment[1], inf_norm[1], k),
        rule(params[2], rescale * grads[2], moment[2], inf_norm[2], k),
        rule(params[3], rescale * grads[3], moment[3], inf_norm[3], k),
        rule(params[4], rescale * grads[4], moment[4], inf_norm[4], k),
        rule(params[5], rescale * grads[5], moment[5], inf_norm[5], k),
        rule(params[6], rescale * grads[6], moment[6], inf_norm[6], k),
        rule(params[7], rescale * grads[7], moment[7], inf_norm[7], k),
    ))
    exact = params
    store_params_some(addresses[0, tensor], addresses[5, tensor], i, stop, exact, params)
    store_some_float32(addresses[2, tensor], i, stop, moment)
    store_some_float32(addresses[3, tensor], i, stop, inf_norm)


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


@cuda.jit(device=True)  # refopt/gpu/gate.py
def factor_of(factor_at):
    if factor_at != 0:
        return np.float32(load_float32(factor_at))
    return one


@cuda.jit(device=True)  # refopt/gpu/rules/adamax.py
def prepare(h, s):
    lr, beta1, beta2, epsilon, weight_decay, _ = h
    return beta1, one - beta1, beta2, epsilon, lr / (one - s[0]), share(lr, weight_decay)


@cuda.jit(device=True)  # refopt/gpu/rules/__init__.py
def share(lr, weight_decay):
    return weight_decay


@cuda.jit(device=True)  # refopt/gpu/target.py
def transposed(rows):
    """The columns of a tuple of tuples. On a GPU it moves nothing, and only renames registers."""
    return tuple(zip(*rows))


@cuda.jit(device=True)  # refopt/gpu/rules/adamax.py
def rule(p, g, m, n, k):
    beta1, rest1, beta2, epsilon, rate, by = k
    p, g = in_gradient(p, g, by)
    m, n = beta1 * m + rest1 * g, norm(g, n, beta2, epsilon)
    return p - rate * (m / n), m, n


@cuda.jit(device=True)  # refopt/gpu/rules/__init__.py
def in_gradient(p, g, by):
    return p, g + by * p if by != zero else g


@cuda.jit(device=True)  # refopt/gpu/rules/adamax.py
def norm(g, n, beta2, epsilon):
    return larger(abs(g), beta2 * n + epsilon)


@cuda.jit(device=True)  # refopt/gpu/rules/__init__.py
def larger(x, y):
    """The larger of two numbers; y if either is NaN."""
    return x if x > y else y


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


@cuda.jit(device=True)  # refopt/gpu/elementwise.py
def leave(addresses, tensor, h, s, carried, next_phase):
    after = advance(h, s)
    carried[next_phase, 0, tensor] = after[0]
    store_float32(addresses[4, tensor], after[0])


@cuda.jit(device=True)  # refopt/gpu/rules/adamax.py
def advance(h, s):
    return (s[0] * h[1],)


# PTX: $0 and $1 are passed
#     st.global.f32 [$0], $1;
@ptx_twin()  # refopt/gpu/vectors.py
def store_float32(address, values):
    memory.store(address, np.float32, (values,))


@cuda.jit  # refopt/gpu/elementwise.py
def fetch_scalars(addresses, carried, phase):
    for tensor in range(cuda.grid(1), carried.shape[2], cuda.gridsize(1)):
        for n in range(1):
            carried[phase, n, tensor] = load_float32(addresses[4 + n, tensor])


# PTX: $0 is returned; $1 is passed
#     ld.global.f32 $0, [$1];
@ptx_twin("float32")  # refopt/gpu/vectors.py
def load_float32(address):
    return memory.load(address, np.float32)[0]


@cuda.jit  # refopt/gpu/elementwise.py
def settle_scalars(carried, phase):
    """Copy the scalars of the next step over those that the last step read."""
    for tensor in range(cuda.grid(1), carried.shape[2], cuda.gridsize(1)):
        for n in range(carried.shape[1]):
            carried[phase, n, tensor] = carried[1 - phase, n, tensor]
