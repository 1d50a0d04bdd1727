from refopt.simt import cuda
import math, numpy as np

@cuda.jit
def k_add(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = v + o
        if t == 0: y[0] = r


@cuda.jit
def k_sub(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = v - o
        if t == 0: y[0] = r


@cuda.jit
def k_mul(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = o * v
        if t == 0: y[0] = r


@cuda.jit
def k_div(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = o / 3
        if t == 0: y[0] = r


@cuda.jit
def k_fdiv(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = o // 3
        if t == 0: y[0] = r


@cuda.jit
def k_mod(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = o % 7
        if t == 0: y[0] = r


@cuda.jit
def k_pow(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = o ** 2
        if t == 0: y[0] = r


@cuda.jit
def k_and(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = int(o) & 3
        if t == 0: y[0] = r


@cuda.jit
def k_or(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = int(o) | 3
        if t == 0: y[0] = r


@cuda.jit
def k_shl(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = int(o) << 1
        if t == 0: y[0] = r


@cuda.jit
def k_shr(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = int(o) >> 1
        if t == 0: y[0] = r


@cuda.jit
def k_neg(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = -o
        if t == 0: y[0] = r


@cuda.jit
def k_abs(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = abs(o)
        if t == 0: y[0] = r


@cuda.jit
def k_min(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = min(v, o)
        if t == 0: y[0] = r


@cuda.jit
def k_max(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = max(v, o)
        if t == 0: y[0] = r


@cuda.jit
def k_max2(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = max(o, v)
        if t == 0: y[0] = r


@cuda.jit
def k_sqrt(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = math.sqrt(o)
        if t == 0: y[0] = r


@cuda.jit
def k_fabs(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = math.fabs(o)
        if t == 0: y[0] = r


@cuda.jit
def k_cond(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = o if o > v else v
        if t == 0: y[0] = r


@cuda.jit
def k_cond2(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = v if v > o else o
        if t == 0: y[0] = r


@cuda.jit
def k_cmp(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = o > v
        if t == 0: y[0] = r


@cuda.jit
def k_eq(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = o == v
        if t == 0: y[0] = r


@cuda.jit
def k_not(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = not (o > 3)
        if t == 0: y[0] = r


@cuda.jit
def k_f32(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = np.float32(o)
        if t == 0: y[0] = r


@cuda.jit
def k_i32(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = np.int32(o)
        if t == 0: y[0] = r


@cuda.jit
def k_f64(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = float(o)
        if t == 0: y[0] = r


@cuda.jit
def k_int(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = int(o)
        if t == 0: y[0] = r


@cuda.jit
def k_round(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = round(o)
        if t == 0: y[0] = r


@cuda.jit
def k_selp(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = cuda.selp(o > v, o, v)
        if t == 0: y[0] = r


@cuda.jit
def k_fma(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = cuda.fma(float(o), 2.0, 1.0)
        if t == 0: y[0] = r


@cuda.jit
def k_npmax(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = np.maximum(v, o)
        if t == 0: y[0] = r


@cuda.jit
def k_shfl2(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = cuda.shfl_sync(0xffff, o, 0)
        if t == 0: y[0] = r


@cuda.jit
def k_popc(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = cuda.popc(int(o))
        if t == 0: y[0] = r


@cuda.jit
def k_h(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = cuda.fp16.hadd(np.float16(v), np.float16(o))
        if t == 0: y[0] = r


@cuda.jit
def k_hmax(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = cuda.fp16.hmax(np.float16(v), np.float16(o))
        if t == 0: y[0] = r


@cuda.jit
def k_cplx(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = complex(o, 1).real
        if t == 0: y[0] = r


@cuda.jit
def k_bool(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = bool(o)
        if t == 0: y[0] = r


@cuda.jit
def k_vote(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = cuda.any_sync(0xffff, o > 3)
        if t == 0: y[0] = r


@cuda.jit
def k_vote2(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = cuda.ballot_sync(0xffff, o)
        if t == 0: y[0] = r


@cuda.jit
def k_match(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = cuda.match_any_sync(0xffff, o)
        if t == 0: y[0] = r


@cuda.jit
def k_lane(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = cuda.shfl_sync(0xffff, v, o)
        if t == 0: y[0] = r


@cuda.jit
def k_exp(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = math.exp(o)
        if t == 0: y[0] = r


@cuda.jit
def k_and2(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = (o > 3) & (v > 2)
        if t == 0: y[0] = r


@cuda.jit
def k_divmod(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        o = cuda.shfl_down_sync(0xffff, v, 16)
        r = divmod(o, 3)[0]
        if t == 0: y[0] = r


@cuda.jit
def k_iadd(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        for d in (16, 8, 4, 2, 1):
            v += cuda.shfl_down_sync(0xffff, v, d)
        if t == 0: y[0] = v
@cuda.jit
def k_ifmax(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        for d in (16, 8, 4, 2, 1):
            o = cuda.shfl_down_sync(0xffff, v, d)
            if o > v: v = o
        if t == 0: y[0] = v
@cuda.jit
def k_ifmin(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        for d in (16, 8, 4, 2, 1):
            o = cuda.shfl_down_sync(0xffff, v, d)
            if v > o: v = o
        if t == 0: y[0] = v
@cuda.jit
def k_index(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        o = cuda.shfl_down_sync(0xffff, t, 16)
        y[o] = 1
@cuda.jit
def k_index_read(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        o = cuda.shfl_down_sync(0xffff, t, 16)
        v = x[o]
        if t == 0: y[0] = v
@cuda.jit
def k_atomic_index(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        o = cuda.shfl_down_sync(0xffff, t, 16)
        cuda.atomic.add(y, o, x[t])
@cuda.jit
def k_range(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        o = cuda.shfl_down_sync(0xffff, t, 16)
        v = x[t]
        for j in range(o): v += 1
        if t == 0: y[0] = v
@cuda.jit
def k_local(x, y):
    t = cuda.threadIdx.x
    l = cuda.local.array(1, np.float64)
    if t < 16:
        l[0] = cuda.shfl_down_sync(0xffff, x[t], 16)
        if t == 0: y[0] = l[0]
