"""Wrong answers to exercises 11 to 16: nearly right, or too slow; and words of the verdict on each."""

FOURS = """
for i in range(4 * cuda.grid(1), fours, 4 * cuda.gridsize(1)):
    x, d = load4_float32(p + 4 * i), load4_float32(g + 4 * i)
    store4_float32(p + 4 * i, (x[0] - lr * d[0], x[1] - lr * d[1], x[2] - lr * d[2], x[3] - lr * d[3]))
"""
TAIL = "store_float32(p + 4 * i, load_float32(p + 4 * i) - lr * load_float32(g + 4 * i))"
GATED = "if i < p.size and found_inf[0] == 0:\n    new = mu * v[i] + g[i]\n    v[i] = new\n    p[i] = p[i] - lr * new"
LION = "return p * keep - lr * sign, beta2 * m + rest2 * g"
FIND = "if i < g.size and g[i] - g[i] != ZERO:\n    cuda.atomic.max(found_inf, 0, 1)"
TREES = ("\nhalf = 32\nwhile half > 0:\n    cuda.syncthreads()\n    if t < half:\n"
         "        shared[0, t] += shared[0, t + half]\n        shared[1, t] += shared[1, t + half]\n    half //= 2\n")
RATE = ("\nof_p, of_g = sqrt(shared[0, 0]), sqrt(shared[1, 0])\nrate = lr\nif of_p > ZERO and of_g > ZERO:\n"
        "    rate = lr * (coeff * of_p / of_g)\n")

WRONG = {
    "11_sixteen_bytes_at_a_time": {
        "nearly": ([FOURS.replace("4 * i", "i"), TAIL], "MisalignedAddress", "x, d = load4_float32(p + i)")},
    "12_many_tensors_one_launch": {"nearly": ([f"for i in range(cuda.threadIdx.x, stop, cuda.blockDim.x):\n    {TAIL}"],
                                              "of params[3] (shape (1100,)", "Blocks of a launch are not ordered")},
    "13_gradients_side_by_side": {
        "nearly": (["for i in range(cuda.threadIdx.x, count, cuda.blockDim.x):\n"
                    "    store_float16(buffer + 4 * (offset + i), scale * load_float32(source + 4 * i))"],
                   "OutOfBounds", "A GPU says nothing here")},
    "14_a_gate_on_the_device": {
        "nearly": ([FIND.replace("g[i] - g[i] != ZERO", "g[i] > np.float32(3e38)"), GATED], "a NaN among 70",
                   "70 of 70 elements of p differ")},
    "15_norms_and_a_step": {
        "nearly": ([f"{TREES}cuda.syncthreads(){RATE}".replace(" and of_g > ZERO", "")], "a gradient of 0", "got nan")},
    "16_lion_as_a_rule": {
        "nearly": ([f"c = beta1 * m + rest1 * g\nsign = ONE if c > ZERO else -ONE\n{LION}"], "nothing to blend",
                   "elements of params[0] differ"),
        "slow": ([f"c = beta1 * m + rest1 * g\nsign = 1 if c > ZERO else (-1 if c < ZERO else c)\n{LION}"],
                 "computes in fp64", "np.float32(...) does not")}}
