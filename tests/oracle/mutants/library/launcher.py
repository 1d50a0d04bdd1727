"""Many tensors in few launches, by tables that a launch takes: Apex's `multi_tensor_apply`, corrected."""

import numpy as np

LIMITS = 110, 64, 48, 36, 30, 24  # tensors of a launch, by the number of lists
BLOCKS = 320  # of a launch
CHUNK = 65536  # elements of a block
THREADS = 512


def multi_tensor_apply(kernel, lists):
    """Call ``kernel(t, chunk, arrays)`` for every chunk of every tensor."""
    limit = LIMITS[len(lists) - 1]
    tensors, blocks = [], []
    for t in range(len(lists[0])):
        size = lists[0][t].size
        if size == 0:
            continue
        tensors.append(t)
        chunks = (size + CHUNK - 1) // CHUNK
        for chunk in range(chunks):
            blocks.append((len(tensors) - 1, chunk))
            last = chunk == chunks - 1
            if (len(tensors) == limit and last) or len(blocks) == BLOCKS:
                launch(kernel, lists, tensors, blocks)
                blocks = []
                tensors = [] if last else [t]
    if blocks:
        launch(kernel, lists, tensors, blocks)


def launch(kernel, lists, tensors, blocks):
    """All blocks of one launch."""
    for slot, chunk in blocks:
        t = tensors[slot]
        start = chunk * CHUNK
        stop = min(start + CHUNK, lists[0][t].size)
        kernel(t, chunk, [values[t][start:stop] for values in lists])


def l2norms(arrays, scale=1):
    """The norm of each tensor: a partial sum a block, and a second launch that adds up those of a tensor."""
    most = max([(x.size + CHUNK - 1) // CHUNK for x in arrays], default=0)
    partials = np.zeros((len(arrays), most), np.result_type(*arrays, np.float32) if arrays else np.float32)

    def kernel(t, chunk, blocks):
        x = blocks[0].astype(partials.dtype) * partials.dtype.type(scale)
        partials[t, chunk] = block_sum(x * x)

    multi_tensor_apply(kernel, [arrays])
    return [np.sqrt(cleanup(row)) for row in partials]


def block_sum(x):
    """The sum of a block: each thread adds up elements of its own, then threads in a tree."""
    rows = (x.size + THREADS - 1) // THREADS
    padded = np.zeros(rows * THREADS, x.dtype)
    padded[: x.size] = x
    lanes = padded.reshape(rows, THREADS).sum(axis=0)
    while lanes.size > 1:
        half = lanes.size // 2
        lanes = lanes[:half] + lanes[half:]
    return lanes[0]


def cleanup(row):
    """The sum of the partial sums of a tensor."""
    return row.sum()
