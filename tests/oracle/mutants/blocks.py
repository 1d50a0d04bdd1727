"""Blocks, tails, indices, and the sums of a block."""

from oracle.mutants import APPLY, ARRAYS, KERNEL, LAUNCH, NORMS, SUM, mutant

SMALL = ("launcher", "CHUNK = 65536", "CHUNK = 2048")
CHUNKS = "(size + CHUNK - 1) // CHUNK"

MUTANTS = (
    mutant("whole chunks alone", "adamw", "L5", (APPLY, CHUNKS, "max(1, size // CHUNK)")),
    mutant("a chunk too few of a multiple", "momentum", "L5", SMALL,
        (APPLY, CHUNKS, "(size - 1 + CHUNK // 2) // CHUNK + (size < CHUNK)")),
    mutant("chunks that overlap by one", "sgd", "L5", (LAUNCH, "start = chunk * CHUNK", "start = chunk * (CHUNK - 1)")),
    mutant("8 bits of the number of a chunk", "adam", "L5", SMALL,
        (LAUNCH, "start = chunk *", "start = chunk % 256 *")),
    mutant("16 bits of an index", "rmsprop", "L5",
        (APPLY, "size = lists[0][t].size", "size = lists[0][t].size % 65536 or lists[0][t].size")),
    mutant("a tensor that goes on loses its place", "sgd", "L5", SMALL, (APPLY, "[] if last else [t]", "[]")),
    mutant("a tensor that goes on begins again", "momentum", "L5", SMALL,
        (APPLY, "blocks.append((len(tensors) - 1, chunk))", "blocks.append((len(tensors) - 1, chunk % BLOCKS))")),
    mutant("a tail after vectors of 4 left", "adamw", "L5",
        (LAUNCH, KERNEL, "        stop -= (stop - start) % 4\n" + KERNEL)),
    mutant("a tail of fewer than 4 rows of threads left", "adam", "L5",
        (LAUNCH, KERNEL, "        stop -= (stop - start) % 2048 if stop - start > 2048 else 0\n" + KERNEL)),
    mutant("the tail is updated twice", "momentum", "L5", (LAUNCH, KERNEL,
        "        if (stop - start) % 4 and stop > 4:\n"
        "            kernel(t, chunk, [values[t][stop - stop % 4:stop] for values in lists])\n" + KERNEL)),
    mutant("the last element of a chunk left", "lion", "L5",
        (LAUNCH, KERNEL, "        stop -= stop - start == CHUNK\n" + KERNEL)),
    mutant("states always from the first chunk", "adagrad", "L5", (LAUNCH, ARRAYS,
        "[values[t][start:stop] if d < 2 else values[t][:stop - start] for d, values in enumerate(lists)]")),
    mutant("the partial sum of the last chunk alone", "lamb", "L5",
        (NORMS, "partials[t, chunk] =", "partials[t, 0] =")),
    mutant("a norm of the first chunk", "novograd", "L5", ("launcher.cleanup", "row.sum()", "row[0]")),
    mutant("32 partial sums in the cleanup", "lars_momentum", "L5", SMALL,
        ("launcher.cleanup", "row.sum()", "row[:32].sum()")),
    mutant("threads beyond the end read the last element", "lars_momentum", "L5",
        (SUM, "padded = np.zeros(rows * THREADS, x.dtype)",
         "padded = np.full(rows * THREADS, x[-1] if x.size else 0, x.dtype)")),
    mutant("a row of threads that is not full left out", "novograd", "L5",
        (SUM, "    rows = (x.size + THREADS - 1) // THREADS",
         "    x = x[: x.size // THREADS * THREADS] if x.size > THREADS else x\n"
         "    rows = (x.size + THREADS - 1) // THREADS")),
    mutant("a tree of 480 threads, halved", "lamb", "L1", ("launcher", "THREADS = 512", "THREADS = 480"),
        (SUM, "lanes[half:]", "lanes[half : 2 * half]")),
    mutant("warps not added up", "novograd", "L1", (SUM, "while lanes.size > 1", "while lanes.size > 32")),
    mutant("norms in fp16", "lars_momentum", "L1",
        (NORMS, "np.result_type(*arrays, np.float32) if arrays else np.float32", "np.float16")))
