"""What Hopper's warpgroups do with tensor cores: products of what is in shared memory, copies by descriptors, barriers.

``wgmma`` multiplies matrices that lie in shared memory, where ``mma.sync`` wants them in registers: four warps in a
row, a warpgroup, make 64 rows at a time, and only the sums are in registers, a row of each eight columns as `C` of
`refopt.gpu.tensor_core` has it, 16 rows to a warp. A word of 64 bits describes where a matrix lies and in which order.

One thread copies whole boxes of 64 x 64 elements, by a **tensor map** that describes the matrix in global memory: its
address, its sizes, its pitch. What is outside of the matrix is 0 when it is loaded, and is left alone when it is
stored. In shared memory a row of a box has 128 bytes, and its eight chunks of 16 bytes change places from row to row,
so that eight rows are in different banks: chunk c of row r is where chunk ``c ^ r % 8`` would be.

A copy takes its time, and the thread does not wait. It says at a **barrier** in shared memory how many bytes are to
come; who needs them waits there. A barrier is passed in turns, or phases: its parity, 0 or 1, changes with each.

All of this is for GPUs alone. The executor refuses it: there `refopt.gpu.products` multiplies by ``mma.sync``, which
has the same bits.
"""

from collections.abc import Callable

from refopt.gpu.machine import WARPGROUPS
from refopt.gpu.target import device_function, intrinsic
from refopt.gpu.unroll import named

BOX = 64  # rows and columns of a box, elements of 16 bits
ELEMENTS = BOX * BOX
WAYS = "across", "along"  # how a matrix may lie to k
# Of a descriptor: chunks are swizzled in 128 bytes, and eight rows of a box, 1,024 bytes, are a group.
SWIZZLED, GROUPS = 1 << 62, (1024 >> 4) << 32


def hopper(asm: str, constraints: str, result: str, arguments: str) -> Callable[[Callable], Callable]:
    """An intrinsic that Hopper alone has."""
    return intrinsic(asm, constraints, result, arguments, since=WARPGROUPS, alone=True)


@hopper("mbarrier.init.shared::cta.b64 [$0], $1;", "r,r,~{memory}", "", "sr")
def init_barrier(array, index, arrivals):
    """A barrier of four elements of 16 bits, which is passed when so many threads have arrived."""


@hopper("fence.mbarrier_init.release.cluster; fence.proxy.async;", "~{memory}", "", "")
def show_barriers():
    """Let copies see barriers that the thread has made."""


@hopper("mbarrier.arrive.shared::cta.b64 _, [$0];", "r,~{memory}", "", "s")
def arrive(array, index):
    """Arrive at a barrier."""


@hopper("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "r,r,~{memory}", "", "sr")
def expect(array, index, nbytes):
    """Arrive at a barrier that is not passed before copies have brought so many bytes, too."""


@hopper(
    "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [$1], $2; selp.u32 $0, 1, 0, p; }",
    "=r,r,r,~{memory}", "r", "sr",
)
def passed(array, index, parity):
    """1 once the barrier's phase of that parity is over, or 0 after a while."""


@device_function
def wait(array, index, parity):
    """Wait until the barrier's phase of that parity is over."""
    while passed(array, index, parity) == 0:
        pass


@hopper(
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3}], [$4];",
    "r,l,r,r,r,~{memory}", "", "slrrs",
)
def load_box(array, index, tensor_map, column_row, barriers, barrier):
    """Begin to copy a box to shared memory, at 1,024 bytes or a multiple; the barrier counts its bytes."""


@hopper(
    "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [$0, {$1, $2}], [$3];", "l,r,r,r,~{memory}", "", "lrrs"
)
def store_box(tensor_map, column_row, array, index):
    """Begin to copy a box from shared memory, as far as it is inside of the matrix."""


@hopper("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;", "~{memory}", "", "")
def wait_for_reads():
    """Wait until the thread's stores have read shared memory."""


@hopper("cp.async.bulk.wait_group 0;", "~{memory}", "", "")
def wait_for_stores():
    """Wait until the thread's stores are done."""


@hopper("fence.proxy.async.shared::cta;", "~{memory}", "", "")
def show_to_copies():
    """Let copies and products see what the thread has written to shared memory."""


@hopper("mov.b32 $0, $1;", "=r,r", "r", "s")
def shared_address(array, index):
    """The address of an element in shared memory, in bytes."""


STMATRIX = "stmatrix.sync.aligned.m8n8.x4{}.shared.b16 [$0], {{$1, $2, $3, $4}};"


@hopper(STMATRIX.format(""), "r,r,r,r,r,~{memory}", "", "srrrr")
def stmatrix4(array, index, words):
    """The way back of `ldmatrix4`."""


@hopper(STMATRIX.format(".trans"), "r,r,r,r,r,~{memory}", "", "srrrr")
def stmatrix4_transposed(array, index, words):
    """`stmatrix4` of the transposed matrices."""


def multiplier(dtype: str, columns: int, a_along: bool, b_along: bool) -> Callable:
    """``multiply(a, b, sums)``: adds the products of 64 rows of A and of so many columns of B, for 64 of k.

    Args:
        dtype: ``"bfloat16"`` or ``"float16"``.
        columns: a multiple of 8, at most 256.
        a_along, b_along: whether a matrix lies with a row for each k, in boxes beside each other; else with a row for
            each row of A, or column of B.

    The descriptors say where the 64 of k begin. It takes them 16 at a time, which are 32 bytes in a row of a box, or 16
    rows. The registers of sums belong to the tensor cores until they have been waited for: so all is one intrinsic.
    """
    short = {"bfloat16": "bf16", "float16": "f16"}[dtype]
    count = columns // 2
    sums = ", ".join(f"${k}" for k in range(count))
    steps = [(16 * 128 if along else 32) >> 4 for along in (a_along, b_along)]
    lines = ["{ .reg .b64 a, b; wgmma.fence.sync.aligned;"]
    for k in range(4):
        lines.append(f"add.s64 a, ${count}, {k * steps[0]}; add.s64 b, ${count + 1}, {k * steps[1]};")
        lines.append(f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{short}.{short} {{{sums}}}, a, b, "
                     f"1, 1, 1, {a_along:d}, {b_along:d};")
    lines.append("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }")
    tied = [*["=f"] * count, "l", "l", *(str(k) for k in range(count)), "~{memory}"]

    def multiply(a, b, sums):
        """The sums with the products."""

    named(multiply, "multiply", WAYS[a_along], WAYS[b_along], f"to{columns}")
    return hopper(" ".join(lines), ",".join(tied), "f" * count, "ll" + "f" * count)(multiply)


def descriptor(along: bool) -> Callable:
    """``describe(array, index)``: the word for a matrix whose boxes begin there, beside each other for more than 64."""
    apart = (2 * ELEMENTS >> 4) << 16 if along else 1 << 16
    constant = SWIZZLED | GROUPS | apart

    @device_function
    def describe(array, index):
        return (shared_address(array, index) & 0x3FFFF) >> 4 | constant

    return named(describe, "describe", WAYS[along])
