"""Tensor cores of Hopper's warpgroups: products of matrices in shared memory, copies by tensor maps, barriers.

``wgmma`` multiplies matrices in shared memory; ``mma.sync`` needs them in registers. Four consecutive warps, a
warpgroup, compute 64 rows at a time, 16 rows per warp. Only the sums are in registers; each eight columns are
distributed like `C` in `refopt.gpu.tensor_core`. A word of 64 bits, the descriptor, has the address and layout of a
matrix.

One thread copies whole boxes of 64 x 64 elements, using a **tensor map** that describes the matrix in global memory:
its address, its sizes, its pitch. Loads return 0 for elements outside the matrix, and stores skip them. In shared
memory a row of a box has 128 bytes, and its eight chunks of 16 bytes change places from row to row, so that eight rows
are in different banks: chunk c of row r is where chunk ``c ^ r % 8`` would be.

Copies are asynchronous: the thread does not wait. It tells a **barrier** in shared memory how many bytes to expect, and
threads that need them wait there. A barrier goes through phases, whose parity alternates between 0 and 1.

All of this runs only on GPUs. The executor refuses it: there `refopt.gpu.products` multiplies by ``mma.sync``, with the
same bits.
"""

from collections.abc import Callable

from refopt.gpu.machine import WARPGROUPS
from refopt.gpu.target import device_function, intrinsic

BOX = 64  # rows and columns of a box of 16-bit elements
ELEMENTS = BOX * BOX
# Fields of a descriptor: chunks are swizzled within 128 bytes, and eight rows of a box, 1,024 bytes, are a group.
SWIZZLED, GROUPS = 1 << 62, (1024 >> 4) << 32


def hopper(asm: str, constraints: str, result: str, arguments: str) -> Callable[[Callable], Callable]:
    """An intrinsic that Hopper alone has."""
    return intrinsic(asm, constraints, result, arguments, since=WARPGROUPS, alone=True)


@hopper("mbarrier.init.shared::cta.b64 [$0], $1;", "r,r,~{memory}", "", "sr")
def init_barrier(array, index, arrivals):
    """Initialize a barrier of four 16-bit elements, whose phase ends when ``arrivals`` threads have arrived."""


@hopper("fence.mbarrier_init.release.cluster; fence.proxy.async;", "~{memory}", "", "")
def show_barriers():
    """Make the barriers that the thread has initialized visible to copies."""


@hopper("mbarrier.arrive.shared::cta.b64 _, [$0];", "r,~{memory}", "", "s")
def arrive(array, index):
    """Arrive at a barrier."""


@hopper("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "r,r,~{memory}", "", "sr")
def expect(array, index, nbytes):
    """Arrive at a barrier, whose phase then also waits for copies of ``nbytes`` bytes."""


@hopper(
    "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [$1], $2; selp.u32 $0, 1, 0, p; }",
    "=r,r,r,~{memory}", "r", "sr",
)
def passed(array, index, parity):
    """1 once the barrier's phase of that parity is over, or 0 after a time limit."""


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
    """Begin to copy a box to shared memory, at a multiple of 1,024 bytes; the barrier counts its bytes."""


@hopper(
    "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [$0, {$1, $2}], [$3];", "l,r,r,r,~{memory}", "", "lrrs"
)
def store_box(tensor_map, column_row, array, index):
    """Begin to copy the elements of a box that are inside the matrix from shared memory."""


@hopper("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;", "~{memory}", "", "")
def wait_for_reads():
    """Wait until the thread's stores have read shared memory."""


@hopper("cp.async.bulk.wait_group 0;", "~{memory}", "", "")
def wait_for_stores():
    """Wait until the thread's stores are done."""


@hopper("fence.proxy.async.shared::cta;", "~{memory}", "", "")
def show_to_copies():
    """Make the thread's writes to shared memory visible to copies and products."""


@hopper("mov.b32 $0, $1;", "=r,r", "r", "s")
def shared_address(array, index):
    """The address of an element in shared memory, in bytes."""


STMATRIX = "stmatrix.sync.aligned.m8n8.x4{}.shared.b16 [$0], {{$1, $2, $3, $4}};"


@hopper(STMATRIX.format(""), "r,r,r,r,r,~{memory}", "", "srrrr")
def stmatrix4(array, index, words):
    """Store four matrices, the inverse of `ldmatrix4`."""


@hopper(STMATRIX.format(".trans"), "r,r,r,r,r,~{memory}", "", "srrrr")
def stmatrix4_transposed(array, index, words):
    """`stmatrix4` of the transposed matrices."""


def multiplier(dtype: str, columns: int, a_along: bool, b_along: bool) -> Callable:
    """``multiply(a, b, sums)``: adds the products of 64 rows of A and ``columns`` columns of B, over 64 values of k.

    Args:
        dtype: ``"bfloat16"`` or ``"float16"``.
        columns: of B, a multiple of 8, at most 256.
        a_along, b_along: whether a matrix is stored with a row for each k, in boxes side by side; else with a row for
            each row of A, or column of B.

    The descriptors give the address of the first k. It takes 16 values of k at a time, which are 32 bytes of each row
    of a box, or 16 rows. Until the wait, the registers of sums belong to the tensor cores, so all is one intrinsic.
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

    @hopper(" ".join(lines), ",".join(tied), "f" * count, "ll" + "f" * count)
    def multiply(a, b, sums):
        """The sums with the products."""

    return multiply


def descriptor(along: bool) -> Callable:
    """``describe(array, index)``: the descriptor of a matrix that begins there, in boxes of 64."""
    apart = (2 * ELEMENTS >> 4) << 16 if along else 1 << 16
    constant = SWIZZLED | GROUPS | apart

    @device_function
    def describe(array, index):
        return (shared_address(array, index) & 0x3FFFF) >> 4 | constant

    return describe
