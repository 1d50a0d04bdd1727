# refopt.gpu: merged_sgd, form merged
#
# arrays: params float32, grads float32
# choices: maximize=False
# rows of addresses: 0 params, 1 grads
# rows of hyper: 0 lr, 1 l2_decay, 2 rescale_grad
#
# Launches for the tensors of resnet50, as kernel[blocks, threads]:
# in a step: merged_sgd[25021, 64]
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
def merged_sgd(addresses, chunks, hyper, carried, phase, first_chunk, factor_at, found_at):
    c = first_chunk + cuda.blockIdx.x
    tensor, start, stop = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP]
    h, s = hypers_of(hyper, tensor), scalars_of(carried, phase, tensor)
    if found(found_at):
        return
    at, common = (addresses, hyper, tensor), (h, s, factor_at)
    for first in of_warp(start, stop, ROW):
        update(at, first, stop, chunks[c, ALIGNED], common)


@cuda.jit(device=True)  # refopt/gpu/elementwise.py
def hypers_of(hyper, tensor):
    return (hyper[0, tensor], hyper[1, tensor], hyper[2, tensor])


@cuda.jit(device=True)  # refopt/gpu/elementwise.py
def scalars_of(carried, phase, tensor):
    return ()


@cuda.jit(device=True)  # refopt/gpu/gate.py
def found(found_at):
    return found_at != 0 and load_float32(found_at) != zero


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
    params = load_params(addresses[0, tensor], addresses[2, tensor], i, stop)
    grads = load8_float32(addresses[1, tensor], i, stop)
    rescale, k = h[-1] * factor_of(factor_at), numbers(h, s)
    params, = transposed((
        rule(params[0], rescale * grads[0], k),
        rule(params[1], rescale * grads[1], k),
        rule(params[2], rescale * grads[2], k),
        rule(params[3], rescale * grads[3], k),
        rule(params[4], rescale * grads[4], k),
        rule(params[5], rescale * grads[5], k),
        rule(params[6], rescale * grads[6], k),
        rule(params[7], rescale * grads[7], k),
    ))
    exact = params
    store_params(addresses[0, tensor], addresses[2, tensor], i, stop, exact, params)


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
    params = load_params_some(addresses[0, tensor], addresses[2, tensor], i, stop)
    grads = load_some_float32(addresses[1, tensor], i, stop)
    rescale, k = h[-1] * factor_of(factor_at), numbers(h, s)
    params, = transposed((
        rule(params[0], rescale * grads[0], k),
        rule(params[1], rescale * grads[1], k),
        rule(params[2], rescale * grads[2], k),
        rule(params[3], rescale * grads[3], k),
        rule(params[4], rescale * grads[4], k),
        rule(params[5], rescale * grads[5], k),
        rule(params[6], rescale * grads[6], k),
        rule(params[7], rescale * grads[7], k),
    ))
    exact = params
    store_params_some(addresses[0, tensor], addresses[2, tensor], i, stop, exact, params)


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


# PTX: $0 is returned; $1 is passed
#     ld.global.f32 $0, [$1];
@ptx_twin("float32")  # refopt/gpu/vectors.py
def load_float32(address):
    return memory.load(address, np.float32)[0]


@cuda.jit(device=True)  # refopt/gpu/rules/__init__.py
def numbers(h, s):
    """The default of ``prepare``: the numbers unchanged."""
    return h


@cuda.jit(device=True)  # refopt/gpu/target.py
def transposed(rows):
    """The columns of a tuple of tuples. On a GPU it moves nothing, and only renames registers."""
    return tuple(zip(*rows))


@cuda.jit(device=True)  # refopt/gpu/rules/sgd.py
def rule(p, g, k):
    lr, l2_decay, _ = k
    g = g + l2_decay * p
    return (p - lr * g,)


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
