"""Wrong answers to exercises 17 to 22: nearly right, or too slow; and words of the verdict on each."""

STEP = """
def step(p, g, v, scale, lr, mu):
    blocks = -(-p.size // 32)
"""
KERNEL = """
@cuda.jit
def fused(p, g, v, scale, lr, mu):
    i = cuda.grid(1)
    if i < p.size:
"""
LAUNCH = "    fused[blocks, 32](p, g, v, scale, lr, mu)\n"
MERGED = 'merged = [Op("merged_momentum", inputs, outputs, updates[0].attrs, "optimize")]'
SLOTS = """
inputs = {slot: [op.inputs[slot][0] for op in updates] for slot in updates[0].inputs}
outputs = {slot: [op.outputs[slot][0] for op in updates] for slot in updates[0].outputs}
"""
TREE = """
half = 32
while half > 0:
    cuda.syncthreads()
    if t < half:
        shared[t] += shared[t + half]
    half //= 2
if t == 0:
    sums[c] = shared[0]
"""
FACTOR = """
total = ZERO
for k in range(sums.size):
    total += sums[k]
norm = sqrt(total)
if norm > max_norm:
    factor = max_norm / norm
"""
ADAMW = """
new_m = beta1 * load_float32(m + at) + (ONE - beta1) * d
new_u = beta2 * load_float32(u + at) + (ONE - beta2) * d * d
store_float32(p + at, load_float32(p + at) * keep - rate * (new_m / (sqrt(new_u) / root + epsilon)))
store_float32(m + at, new_m)
store_float32(u + at, new_u)
"""

WRONG = {
    "17_wrong_by_its_bits": {"nearly": ([None], "p[2]: expected", "Only the last bits differ")},
    "18_beat_the_bytes": {
        "nearly": ([f"{KERNEL}        new = mu * v[i] + scale * g[i]\n        p[i] = p[i] - lr * new\n{STEP}{LAUNCH}"],
                   "v[0]: expected", "no thread has written it"),
        "slow": ([f"{KERNEL}        v[i] = mu * v[i] + scale * g[i]\n        p[i] = p[i] - lr * v[i]\n{STEP}{LAUNCH}"],
                 "too many bytes", "reference")},
    "19_a_pass": {"nearly": ([f"{SLOTS}{MERGED}"], "two learning rates", "elements of params[1] differ"),
                  "slow": (["merged = updates"], "too many launches", "reference")},
    "20_a_sharded_step": {
        "nearly": (["comm.reduce_scatter(grad, grad[own])\n"
                    "update[-(-size // 32), 32](param[own], grad[own], velocity, lr, mu, np.float32(1))\n"
                    "comm.all_gather(param[own], param)"], "params[0][0]: expected",
                   "last written by block 0, thread 0"),
        "slow": (["comm.all_reduce(grad)\n"
                  "update[-(-size // 32), 32](param[own], grad[own], velocity, lr, mu, QUARTER)\n"
                  "comm.all_gather(param[own], param)\ncomm.broadcast(param, 0)"], "too many copied bytes",
                 "Which part does a rank need")},
    "21_norm_and_step_in_two_launches": {
        "nearly": ([TREE, FACTOR.replace("if norm > max_norm:\n    factor", "factor"), ADAMW], "a norm below it",
                   "elements of params[0] differ")},
    "22_top_k_with_residuals": {
        "nearly": (["if i < g.size:\n    u, s = r[i] + g[i], ZERO\n    if not abs(u) < threshold:\n        s = u\n"
                    "    sent[i], r[i] = s, u - s"], "NaN and inf", "r[2]: expected 0.0, got nan"),
        "slow": (["if i < g.size:\n    r[i] += g[i]\n    sent[i] = ZERO\n    if not abs(r[i]) < threshold:\n"
                  "        sent[i], r[i] = r[i], ZERO"], "too many requests", "reference")}}
# Wrong by the order of a sum or a product alone.
ORDERS = {"atomic": ([TREE.replace("sums[c] = shared[0]", "cuda.atomic.add(sums, 0, shared[0])"), FACTOR, ADAMW],
                     "in reverse order", "Only the last bits differ"),
          "product": ([TREE, FACTOR, ADAMW.replace("(ONE - beta2) * d * d", "(ONE - beta2) * (d * d)")],
                      "elements of params[1] differ", "Only the last bits differ")}
