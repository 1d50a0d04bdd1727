"""Wrong answers to exercises 1 to 11: nearly right, or too slow; and words of the verdict on each."""

WRONG = {
    "01_guard_the_tail": {
        "nearly": (["if i < x.size - 1:\n    out[i] = k * x[i]"], "out[71]: expected 35.5, got nan", "no thread has"),
        "slow": (["if i < x.size:\n    out[i] = x[i]\n    out[i] = k * out[i]"], "too many requests", "1,152")},
    "02_a_row_for_each_warp": {
        "nearly": (["for column in range(lane, x.shape[1], 32):\n    out[row, column] = x[row, column] + b[row]"],
                   "out[0, 1]: expected 1.25, got 1.0", "last written by block 0, thread 1, in line"),
        "slow": (["share = (x.shape[1] + 31) // 32\n"
                  "for column in range(lane * share, min(lane * share + share, x.shape[1])):\n"
                  "    out[row, column] = x[row, column] + b[column]"], "too many sectors", "reference")},
    "03_grid_stride": {
        "nearly": (["for i in range(cuda.grid(1), p.size, cuda.blockDim.x):\n    new = mu * v[i] + g[i]\n"
                    "    v[i] = new\n    p[i] = p[i] - lr * new"], "data race on [32]", "Blocks of a launch are not")},
    "04_a_double_among_floats": {
        "nearly": (["p[i] = p[i] * (1.0 - lr * decay)"], "computes in fp64", "float64 and float32")},
    "05_columns_to_rows": {
        "nearly": (["column = cuda.grid(1)\nfor row in range(x.shape[0]):\n"
                    "    out[row, column] = factors[row] * x[row, column]"], "OutOfBounds", "A GPU says nothing here")},
    "06_a_sum_in_a_block": {
        "nearly": (["if t < half:\n    shared[t] += shared[t + half]",
                    "if t == 0:\n    sums[cuda.blockIdx.x] = shared[0]"], "DataRace",
                   "Threads of a block are ordered by cuda.syncthreads()"),
        "slow": (["cuda.syncthreads()\nif t < half:\n    shared[t] += shared[t + half]\ncuda.syncthreads()",
                  "if t == 0:\n    sums[cuda.blockIdx.x] = shared[0]"], "too many barriers", "reference")},
    "07_sizes_still_to_come": {
        "nearly": (["more = shared[t + distance] if t + distance < 32 else 0\ncuda.syncthreads()\nshared[t] += more"],
                   "DataRace", "more = shared[t + distance]", "one of the two may be in the next round")},
    "08_an_unreached_barrier": {
        "nearly": (
            ["if i < x.size:\n    shared[t] = abs(x[i])\nhalf = 32\nwhile half > 0:\n    cuda.syncthreads()\n"
             "    if t < half and shared[t + half] > shared[t]:\n        shared[t] = shared[t + half]\n    half //= 2"],
            "UninitializedRead", "Shared and fresh memory has no value")},
    "09_a_sum_by_shuffles": {
        "nearly": (["for level in range(5):\n    value += cuda.shfl_xor_sync(WARP, value, 16 >> level)\nif lane == 0:\n"
                    "    sums[row] = value"], "sums[", "elements of sums differ")},
    "10_the_crowded_bank": {
        "nearly": (["tile = cuda.shared.array((32, 34), np.float32)"], "too many conflicts", "2 turns where one would"),
        "slow": (["tile = cuda.shared.array((32, 64), np.float32)"], "too many conflicts", "32 turns where one would")}}
