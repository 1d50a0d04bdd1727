"""Blocks, tails, indices, and the sums of a block."""

from oracle.mutants import Mutant, edits

APPLY, LAUNCH, SUM = "launcher.multi_tensor_apply", "launcher.launch", "launcher.block_sum"
SMALL = ("launcher", "CHUNK = 65536", "CHUNK = 2048")

MUTANTS = (
    Mutant(
        "whole chunks alone", "adamw", "L5", edits((APPLY, "(size + CHUNK - 1) // CHUNK", "max(1, size // CHUNK)")),
    ),
    Mutant(
        "a chunk too few of a multiple", "momentum", "L5",
        edits(SMALL, (APPLY, "(size + CHUNK - 1) // CHUNK", "(size - 1 + CHUNK // 2) // CHUNK + (size < CHUNK)")),
    ),
    Mutant(
        "chunks that overlap by one", "sgd", "L5",
        edits((LAUNCH, "start = chunk * CHUNK", "start = chunk * (CHUNK - 1)")),
    ),
    Mutant(
        "8 bits of the number of a chunk", "adam", "L5",
        edits(SMALL, (LAUNCH, "start = chunk *", "start = chunk % 256 *")),
    ),
    Mutant(
        "16 bits of an index", "rmsprop", "L5",
        edits((APPLY, "size = lists[0][t].size", "size = lists[0][t].size % 65536 or lists[0][t].size")),
    ),
    Mutant("a tensor that goes on loses its place", "sgd", "L5", edits(SMALL, (APPLY, "[] if last else [t]", "[]"))),
    Mutant(
        "a tensor that goes on begins again", "momentum", "L5",
        edits(
            SMALL,
            (APPLY, "blocks.append((len(tensors) - 1, chunk))", "blocks.append((len(tensors) - 1, chunk % BLOCKS))"),
        ),
    ),
    Mutant(
        "a tail after vectors of 4 left", "adamw", "L5",
        edits((LAUNCH, "        kernel(", "        stop -= (stop - start) % 4\n        kernel(")),
    ),
    Mutant(
        "a tail after vectors of 8 left, in 16 bits", "momentum", "L5",
        edits(
            (
                LAUNCH, "        kernel(",
                "        stop -= (stop - start) % 8 if lists[0][t].itemsize == 2 else 0\n        kernel(",
            ),
        ),
        dtypes=("float16",),
    ),
    Mutant(
        "a tail of fewer than 4 rows of threads left", "adam", "L5",
        edits(
            (
                LAUNCH, "        kernel(",
                "        stop -= (stop - start) % 2048 if stop - start > 2048 else 0\n        kernel(",
            ),
        ),
    ),
    Mutant(
        "the tail is updated twice", "momentum", "L5",
        edits(
            (
                LAUNCH, "        kernel(",
                "        if (stop - start) % 4 and stop > 4:\n"
                "            kernel(t, chunk, [values[t][stop - stop % 4:stop] for values in lists])\n"
                "        kernel(",
            ),
        ),
    ),
    Mutant(
        "the last element of a chunk left", "lion", "L5",
        edits((LAUNCH, "        kernel(", "        stop -= stop - start == CHUNK\n        kernel(")),
    ),
    Mutant(
        "states always from the first chunk", "adagrad", "L5",
        edits(
            (
                LAUNCH, "[values[t][start:stop] for values in lists]",
                "[values[t][start:stop] if d < 2 else values[t][:stop - start] for d, values in enumerate(lists)]",
            ),
        ),
    ),
    Mutant(
        "gradients always from the first chunk", "adadelta", "L5",
        edits(
            (
                LAUNCH, "[values[t][start:stop] for values in lists]",
                "[values[t][:stop - start] if d == 1 else values[t][start:stop] for d, values in enumerate(lists)]",
            ),
        ),
    ),
    Mutant(
        "an index in fp16, which ends at 2048", "adamax", "L5",
        edits((LAUNCH, "        kernel(", "        stop = min(stop, 2048 + start)\n        kernel(")),
    ),
    Mutant(
        "the partial sum of the last chunk alone", "lamb", "L5",
        edits(("launcher.l2norms", "partials[t, chunk] =", "partials[t, 0] =")),
    ),
    Mutant("a norm of the first chunk", "novograd", "L5", edits(("launcher.cleanup", "row.sum()", "row[0]"))),
    Mutant(
        "32 partial sums in the cleanup", "lars_momentum", "L5",
        edits(SMALL, ("launcher.cleanup", "row.sum()", "row[:32].sum()")),
    ),
    Mutant(
        "a partial sum only of whole chunks", "lamb", "L5",
        edits(
            (
                "launcher.l2norms", "partials[t, chunk] = block_sum(x * x)",
                "partials[t, chunk] = block_sum(x * x) if chunk == 0 or x.size == CHUNK else 0",
            ),
        ),
    ),
    Mutant(
        "threads beyond the end read the last element", "lars_momentum", "L5",
        edits(
            (
                SUM, "padded = np.zeros(rows * THREADS, x.dtype)",
                "padded = np.full(rows * THREADS, x[-1] if x.size else 0, x.dtype)",
            ),
        ),
    ),
    Mutant(
        "a row of threads that is not full left out", "novograd", "L5",
        edits(
            (
                SUM, "    rows = (x.size + THREADS - 1) // THREADS",
                "    x = x[: x.size // THREADS * THREADS] if x.size > THREADS else x\n"
                "    rows = (x.size + THREADS - 1) // THREADS",
            ),
        ),
    ),
    Mutant(
        "a tree of 480 threads, halved", "lamb", "L1",
        edits(("launcher", "THREADS = 512", "THREADS = 480"), (SUM, "lanes[half:]", "lanes[half : 2 * half]")),
    ),
    Mutant(
        "one warp of the block", "lars_momentum", "L1",
        edits((SUM, "while lanes.size > 1", "lanes = lanes[:32]\n    while lanes.size > 1")),
    ),
    Mutant("warps not added up", "novograd", "L1", edits((SUM, "while lanes.size > 1", "while lanes.size > 32"))),
    Mutant("a sum in fp16", "lamb", "L1", edits((SUM, "return lanes[0]", "return np.float32(np.float16(lanes[0]))"))),
    Mutant(
        "squares in bf16", "novograd", "L1",
        edits(
            (
                SUM, "    padded[: x.size] = x",
                "    padded[: x.size] = (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)",
            ),
        ),
    ),
    Mutant(
        "norms in fp16", "lars_momentum", "L1",
        edits(("launcher.l2norms", "np.result_type(*arrays, np.float32) if arrays else np.float32", "np.float16")),
    ),
)  # fmt: skip
