"""Arrays of PyTorch, CuPy, Numba and JAX, as they are: where they lie, on their stream, with the reference's bits.

Without a GPU: what DLPack says of an array, and the example, on the executor.
"""

import functools
import gc
import importlib.util
import math
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from refopt import gpu
from refopt.catalog import ROUTINES
from refopt.checks.dtypes import numpy_dtype
from refopt.gpu import dlpack
from refopt.gpu.arrays import describer, device_of
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import arguments, assert_same
from refopt.oracle.exact.laws import reference
from refopt.state.steps import power_after

ROUTINE = ROUTINES["adamw"]
SHAPES = [(3,), (2, 5), (0,), (), (1025,)]
# p, g, states, master
SIGNATURES = [
    ("float32",) * 3, ("float64",) * 3, ("float16", "float16", "float32", "float32"),
    ("bfloat16", "bfloat16", "float32", "float32"), ("bfloat16", "float32", "bfloat16")]
signatures = pytest.mark.parametrize("dtypes", SIGNATURES, ids="-".join)
LATE = 0.1  # seconds, at least, that gradients take to come


def shaped_case(dtypes, seed=0):
    """Two steps of tensors of several shapes."""
    one = step_of(ROUTINE)
    case = make(ROUTINE, [int(np.prod(shape)) for shape in SHAPES], dtypes, seed, [one, one | {"lr": 0.125}])
    tensors = {name: values for name, values in case.slots.items() if values and name not in ROUTINE.scalars}
    shaped = {name: [x.reshape(s) for x, s in zip(xs, SHAPES, strict=True)] for name, xs in tensors.items()}
    return case.replace(**shaped)


# The frameworks: an array from NumPy's and back, its address, a stream of its own, work on that stream.


class PyTorch:
    def __init__(self):
        self.torch = pytest.importorskip("torch")
        if not self.torch.cuda.is_available():
            pytest.skip("PyTorch sees no GPU")

    def put(self, x):
        if x.dtype == "bfloat16":
            return self.torch.from_numpy(x.view(np.int16)).cuda().view(self.torch.bfloat16)
        return self.torch.from_numpy(x).cuda()

    def read(self, x):
        x = x.detach().cpu()
        if x.dtype == self.torch.bfloat16:
            return x.view(self.torch.int16).numpy().view(numpy_dtype("bfloat16"))
        return x.numpy()

    def address(self, x):
        return x.data_ptr()

    def stream(self):
        return self.torch.cuda.Stream()

    def on(self, stream):
        return self.torch.cuda.stream(stream)

    def fill(self, target, source):
        target.copy_(source)


class CuPy:
    def __init__(self):
        self.cupy = pytest.importorskip("cupy")
        if not self.cupy.cuda.is_available():
            pytest.skip("CuPy sees no GPU")

    def put(self, x):
        if x.dtype != "bfloat16":
            return self.cupy.asarray(x)
        return BrainFloat(self.cupy.asarray(x.view(np.uint16)))

    def read(self, x):
        if isinstance(x, BrainFloat):
            return self.cupy.asnumpy(x.words).view(x.dtype)
        return self.cupy.asnumpy(x)

    def address(self, x):
        return getattr(x, "words", x).data.ptr

    def stream(self):
        return self.cupy.cuda.Stream(non_blocking=True)

    def on(self, stream):
        return stream

    def fill(self, target, source):
        getattr(target, "words", target)[...] = getattr(source, "words", source)


class BrainFloat:
    """bf16 over 16-bit words, as a library would offer it: NumPy's interface has no letter for it."""

    def __init__(self, words):
        self.words, self.shape, self.dtype = words, words.shape, numpy_dtype("bfloat16")
        self.__cuda_array_interface__ = words.__cuda_array_interface__ | {"typestr": self.dtype.str}


class Numba:
    def __init__(self):
        from numba import cuda

        self.cuda = cuda

    def put(self, x):
        # Numba itself has no bf16, and no copy of an array without dimensions.
        return gpu.device("gpu").to_device(x) if x.dtype == "bfloat16" or x.ndim == 0 else self.cuda.to_device(x)

    def read(self, x):
        return x.copy_to_host()

    def address(self, x):
        return x.__cuda_array_interface__["data"][0] or 0


FRAMEWORKS = {"torch": PyTorch, "cupy": CuPy, "numba": Numba}


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    """Each framework that is installed and sees the GPU."""
    return FRAMEWORKS[request.param]()


with_streams = pytest.mark.parametrize("framework", ["torch", "cupy"], indirect=True)


def put(framework, case):
    """Every slot of a case as arrays of a framework, whose copies are complete."""
    slots = {name: values and [framework.put(x) for x in values] for name, values in case.slots.items()}
    gpu.device("gpu").synchronize()
    return slots


def plan_of(case, slots, **options):
    positional, named = arguments(ROUTINE, slots)
    return gpu.plan(ROUTINE.name, *positional, **named, **case.choices, **options)


def outcome(framework, slots):
    """What the framework sees in the arrays that a step writes, once the GPU is idle."""
    gpu.device("gpu").synchronize()
    return {
        slot.name: [None] * len(SHAPES) if slots[slot.name] is None else [framework.read(x) for x in slots[slot.name]]
        for slot in ROUTINE.slots
        if slot.written}


@pytest.mark.clause("N4")
@pytest.mark.gpu
@signatures
def test_in_place(framework, dtypes):
    """Steps leave the reference's bits in the framework's own arrays, which lie where the plan has them."""
    case = shaped_case(dtypes)
    slots = put(framework, case)
    step = plan_of(case, slots)
    for name, arrays in step._call.arrays.items():
        for i, array in enumerate(arrays):
            if array and array.size:
                assert array.address == framework.address(slots[name][i]), f"{name}[{i}]"
                assert (array.dtype, array.shape) == (case.slots[name][i].dtype.name, case.slots[name][i].shape)
    for numbers in case.steps:
        step(**numbers)
    assert_same(reference(case), outcome(framework, slots), "N4, in place")


@functools.cache
def sleeper():
    """A kernel that naps so many times, and how often it has to for gradients to be late."""
    from numba import cuda

    @cuda.jit("void(int64)")
    def sleep(naps):
        for _ in range(naps):
            cuda.nanosleep(500_000)

    sleep[1, 1](1)
    cuda.synchronize()
    start = time.perf_counter()
    sleep[1, 1](100)
    cuda.synchronize()
    return sleep, math.ceil(2 * 100 * LATE / (time.perf_counter() - start))


def enqueue_gradients(framework, stream, targets, sources):
    """Gradients that come late: a long sleep on the stream, and then the copies."""
    from numba import cuda

    sleep, naps = sleeper()
    handle = getattr(stream, "cuda_stream", None) or stream.ptr
    with framework.on(stream):
        sleep[1, 1, cuda.external_stream(handle)](naps)
        for target, source in zip(targets, sources, strict=True):
            framework.fill(target, source)


@pytest.mark.gpu
@pytest.mark.parametrize("dtypes", [SIGNATURES[0], SIGNATURES[3]], ids="-".join)
@with_streams
def test_on_the_callers_stream(framework, dtypes):
    """A step comes after what is on its stream: gradients that are still under way are waited for, on no other."""
    case, late = shaped_case(dtypes), shaped_case(dtypes, seed=1).grads
    one = case.steps[:1]
    expected = reference(case.replace(grads=late, steps=one))
    early = reference(case.replace(steps=one))
    for follows in (True, False):
        sources = put(framework, case.replace(grads=late))["grads"]
        slots = put(framework, case)
        stream, other = framework.stream(), framework.stream()
        step = plan_of(case, slots, stream=stream if follows else other, **one[0])
        sleeper()
        enqueue_gradients(framework, stream, slots["grads"], sources)
        step()
        clause = "on the stream" if follows else "on another stream"
        assert_same(expected if follows else early, outcome(framework, slots), clause)


@pytest.mark.gpu
def test_parameters_that_require_a_gradient():
    """A model's parameters and the gradients of its backward pass go in as they are; autograd takes no notice."""
    torch = PyTorch().torch
    torch.manual_seed(0)
    net = torch.nn.Linear(5, 3).cuda()
    net(torch.randn(7, 5, device="cuda")).square().sum().backward()
    params = list(net.parameters())
    assert all(p.requires_grad for p in params)
    before = [p.detach().cpu().numpy().copy() for p in params]
    grads = [p.grad.cpu().numpy().copy() for p in params]
    gpu.plan("sgd", params, [p.grad for p in params], lr=0.5)()
    torch.cuda.synchronize()
    for p, x, g in zip(params, before, grads, strict=True):
        assert (p.detach().cpu().numpy() == x - np.float32(0.5) * g).all() and p.requires_grad and p.is_leaf
    net(torch.randn(7, 5, device="cuda")).sum().backward()


# JAX: gradients alone, since its arrays are not to be written.


@pytest.fixture
def jax():
    """JAX on a GPU, which it does not take the memory of at once."""
    try:
        gpu.device("gpu")
    except RuntimeError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        jax = pytest.importorskip("jax")
        try:
            jax.devices("gpu")
        except RuntimeError as error:
            pytest.skip(f"JAX has no GPU: {error}")
    return jax


@pytest.mark.gpu
@pytest.mark.parametrize("dtypes", [SIGNATURES[0], SIGNATURES[2], SIGNATURES[3]], ids="-".join)
def test_gradients_of_jax(jax, dtypes):
    """Gradients that JAX is still at work on, taken through DLPack, by a plan and by ``rebind``."""
    case = shaped_case(dtypes)
    slots, numba = put(Numba(), case), Numba()

    @jax.jit
    def busy(x, ones):
        """x, after a while."""
        y = jax.lax.fori_loop(0, 500, lambda _, y: y @ ones / 1024, ones)
        return x * y[0, 0].astype(x.dtype)

    device = jax.devices("gpu")[0]
    placed = [jax.device_put(g, device) for g in case.grads]
    ones = jax.device_put(np.ones((1024, 1024), np.float32), device)
    for g in placed:
        busy(g, ones).block_until_ready()
    slots["grads"] = [busy(g, ones) for g in placed]
    step = plan_of(case, slots, **case.steps[0])
    for i, array in enumerate(step._call.arrays["grads"]):
        assert not array.size or array.address == slots["grads"][i].unsafe_buffer_pointer()
        assert array.dtype == case.grads[i].dtype.name and not array.writable
    step()
    step.rebind(grads=[busy(g, ones) for g in placed])
    step(**case.steps[1])
    assert_same(reference(case), outcome(numba, slots), "gradients of JAX")
    with pytest.raises(ValueError, match=r"params\[0\]: expected a writable array, got a read-only one"):
        plan_of(case, slots | {"params": [jax.device_put(p, device) for p in case.params]})
    with pytest.raises(TypeError, match=r"grads\[0\]: expected a device array, got .* in host memory"):
        plan_of(case, slots | {"grads": [jax.device_put(g, jax.devices("cpu")[0]) for g in case.grads]})


# DLPack, read on the CPU.


class Elsewhere:
    """An array of NumPy that says that it is on a GPU."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **asked):
        return self.array.__dlpack__(**asked)

    def __dlpack_device__(self):
        return (2, 0)


EXAMPLES = {
    "C order": np.zeros((2, 3, 4), np.float32), "Fortran order": np.zeros((2, 3), np.float64).T,
    "axes swapped": np.zeros((2, 3, 4), np.float16).transpose(1, 2, 0), "a part": np.zeros(9, np.float32)[3:7],
    "every other": np.zeros((4, 6), np.float32)[:, ::2], "reversed": np.zeros(4, np.float32)[::-1],
    "one": np.zeros((), np.float64), "none": np.zeros((0, 3), np.float32), "integers": np.zeros(3, np.int32)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_dlpack_of_numpy(name):
    """Address, shape, dtype and strides are those of the array."""
    x = EXAMPLES[name]
    got = dlpack.describe(x, "x")
    assert (got.shape, got.dtype, got.writable) == (x.shape, x.dtype.name, True)
    assert got.strides == x.strides or x.size == 0
    assert got.address == x.ctypes.data or x.size == 0
    assert got == describer("gpu")(Elsewhere(x), "x")


def test_dlpack_takes_nothing_over():
    """The capsule goes when the description has been made, and nothing holds the array then."""
    x = np.zeros(3, np.float32)
    gone = weakref.ref(x)
    got = dlpack.describe(x, "x")
    del x
    gc.collect()
    assert gone() is None and got.shape == (3,)


def test_dlpack_of_pytorch():
    """bf16, with an offset into its memory, transposed."""
    torch = pytest.importorskip("torch")
    x = torch.zeros(4, 3, dtype=torch.bfloat16)[1:].t()
    got = dlpack.describe(x, "x")
    assert got.address == x.data_ptr() and (got.shape, got.strides, got.dtype) == ((3, 3), (2, 6), "bfloat16")


def test_not_on_the_device():
    """What is in host memory is refused by name, whichever way it is offered."""
    describe = describer("gpu")
    with pytest.raises(TypeError, match=r"grads\[0\]: expected a device array, got builtins.list"):
        describe([1.0], "grads[0]")
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"grads\[0\]: expected a device array, got a PyTorch tensor on cpu"):
        describe(torch.zeros(3), "grads[0]")


def test_the_device_of_arrays():
    """That of the first array on one; what is in host memory is on none, whichever way it is offered."""
    x = np.zeros(3, np.float32)
    on_executor = gpu.device("executor").to_device(x)

    class Interface:
        __cuda_array_interface__ = {"shape": (3,), "typestr": "<f4", "data": (4096, False), "version": 3}  # noqa: RUF012

    class OfPyTorch:
        def __init__(self, is_cuda):
            self.is_cuda, self.data_ptr = is_cuda, lambda: 4096

    on_host = [None, x, x[0], [1.0], object(), 3, OfPyTorch(False)]
    assert device_of([]) == device_of(on_host) == ""
    for array, machine in (
        (on_executor, "executor"), (Elsewhere(x), "gpu"), (Interface(), "gpu"), (OfPyTorch(True), "gpu"),
    ):
        assert device_of([*on_host, array]) == device_of([array, *on_host]) == machine
    assert device_of([Elsewhere(x), on_executor]) == "gpu" and device_of([on_executor, Elsewhere(x)]) == "executor"


# The example.


@pytest.fixture(scope="module")
def example():
    """examples/adamw_in_pytorch.py as a module."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    path = Path(__file__).parents[2] / "examples" / "adamw_in_pytorch.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def largest(x, y):
    return max(abs(a - b) for a, b in zip(x, y, strict=True))


def check_example(example, device):
    """Hold the losses of the example, and those of the same in fp64, to a bound.

    What sets refopt's step apart from PyTorch's is the size of the step, sqrt((1 - beta2**t) / (1 - beta2)) over
    1 - beta1**t, of the powers as refopt rounds them (N9). A step so much larger is that of an lr so much larger; what
    that does to the losses is measured, in fp64, and taken twice, since the difference changes from step to step. All
    else that rounds comes to about as much as PyTorch's fp32 losses differ from its fp64 ones; that is taken four
    times. In fp64 the size is bounded: after t steps a power is off by 2 t u at most, u half an ulp of 1, of which
    1 - beta2**t, near t (1 - beta2), is divided, and 1 - beta2 likewise.
    """
    lr, (beta1, beta2) = 1e-2, (0.9, 0.999)

    def size(p1, p2, first):
        return np.sqrt((1 - np.float64(p2)) / (1 - np.float64(first))) / (1 - np.float64(p1))

    def losses(adamw, **options):
        return example.train(adamw, device, example.torch.float64, **options)

    peer, merged = example.torch.optim.AdamW, example.refopt.torch.AdamW
    theirs, ours = example.main(["--device", device])
    assert ours[-1] < ours[0] / 3, "it learns"
    exact, change = losses(peer), 2.0**-12
    by_size = largest(losses(peer, lr=lr * (1 + change)), exact) / change
    rounded = [[power_after(np.float32(beta), t) for t in range(len(ours))] for beta in (beta1, beta2)]
    sizes = [size(p1, p2, rounded[1][0]) for p1, p2 in zip(*rounded, strict=True)]
    off = max(abs(x / size(beta1**t, beta2**t, beta2) - 1) for t, x in enumerate(sizes, 1))
    others = 4 * largest(theirs, exact)
    bound = 2 * by_size * off + others
    assert largest(theirs, ours) <= bound < 1e-4
    assert largest(exact, losses(merged)) <= 2 * by_size * 2**-52 / (1 - beta2) + others * 2**-29
    assert largest(exact, losses(merged, weight_decay=0.0)) > bound


@pytest.mark.gpu
def test_example_on_the_gpu(example):
    """refopt in the place of AdamW: the same losses but for roundings."""
    PyTorch()
    check_example(example, "cuda")


def test_example_on_the_executor(example, capsys):
    """The same by the executor."""
    threads = example.torch.get_num_threads()
    example.torch.set_num_threads(1)  # for so small a model, several only wait for each other
    try:
        check_example(example, "cpu")
    finally:
        example.torch.set_num_threads(threads)
    assert "largest difference" in capsys.readouterr().out
