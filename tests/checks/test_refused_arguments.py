"""Plain arguments that are none: refused in the same words by the reference and by the kernels, before any work."""

import inspect
from fractions import Fraction

import numpy as np
import pytest

from checks.refused import refuses
from refopt import cpu, gpu
from refopt.catalog import ROUTINES

F = np.float32
EPSILON = "expected a finite float32 of at least 0, got "
DECR = "expected a finite float32 above 0 and of at most 1, got "


def put_of(module):
    return np.array if module is cpu else gpu.device("executor").to_device


class Arrays:
    """Arrays of a call, on either side, which remember what was in them."""

    def __init__(self, module):
        self.module, self.put, self.made = module, put_of(module), []

    def __call__(self, *values, dtype=F):
        array = self.put(np.array(values or (1, 2, 3), dtype))
        self.made.append((array, self._bytes(array)))
        return array

    def _bytes(self, array):
        return (array if self.module is cpu else array.copy_to_host()).tobytes()

    def unchanged(self):
        return all(self._bytes(array) == before for array, before in self.made)


def sgd(**changed):
    return lambda m, x: m.merged_sgd(**({"params": [x()], "grads": [x()], "lr": 0.5} | changed))


def lists(name, of):
    """A call whose list is made of arrays in some way that is none."""
    return lambda m, x: m.merged_sgd(**({"params": [x()], "grads": [x()], "lr": 0.5} | {name: of(x())}))


def gated(name, *dtypes):
    """With a number of fp64 for the gate, and parameters of some dtypes."""
    return lambda m, x: m.merged_sgd(*([x(dtype=dtype) for dtype in dtypes] for _ in range(2)), lr=0.5,
                                     **{name: x(1, dtype="f8")})


def cast(scale=1.0, sources=None):
    return lambda m, x: m.merged_cast(sources or [x()], [x()], scale=scale)


def check(**given):
    return lambda m, x: (m.check_gradients if m is cpu else m.gradient_check)([x()], **given)


def scaling(**given):
    return lambda m, x: m.update_loss_scaling(x(0), x(8), x(0, dtype="i4"), x(0, dtype="i4"), **given)


def overlapping(first, second):
    """Two of the four arrays of the loss scale are one; those of int32, or those of fp32."""
    def call(m, x):
        arrays = {"found_inf": x(0), "loss_scale": x(8), "good_steps": x(0, dtype="i4"), "bad_steps": x(0, dtype="i4")}
        arrays[second] = arrays[first]
        if arrays[first].dtype != ("i4" if second.endswith("steps") else "f4"):
            arrays[second] = arrays[first].view(np.int32 if second.endswith("steps") else F)
        m.update_loss_scaling(*arrays.values())

    return call


def coalesce(**given):
    return lambda m, x: m.coalesce_tensor(**({"inputs": [x()]} | given))


def room(**given):
    return lambda m, x: m.coalesce_tensor([None], **({"dtype": "float32"} | given))


NUMBER = "expected a number, got "
REFUSED = {
    "merged_sgd": [
        (lists("grads", lambda x: x), TypeError, "grads: expected a list of arrays, got {array}"),
        (sgd(lr=[b"a"]), TypeError, f"lr[0]: {NUMBER}b'a'"),
        (sgd(rounding="up"), ValueError, "rounding: expected one of nearest, stochastic, got 'up'"),
        *((sgd(seed=x), ValueError, f"seed: expected a whole number at least 0 and below 16777216, got {x}")
          for x in (-1, 2**24, 0.5)),
        (gated("found_inf", "f8"), TypeError, "found_inf: expected float32, got float64"),
        (gated("grad_factor", "f4", "f8"), TypeError, "grad_factor: expected float32, got float64")],
    "check_gradients": [
        *((check(max_norm=1.0, epsilon=wrong), ValueError, f"epsilon: {EPSILON}{wrong}")
          for wrong in (np.nan, np.inf, 1e39, -1e-60)),
        (lambda m, x: (m.check_gradients if m is cpu else m.gradient_check)([x(dtype="f8")], epsilon=np.inf),
         ValueError, "epsilon: expected a finite float64 of at least 0, got inf")],
    "coalesce_tensor": [
        (coalesce(constant="x"), TypeError, f"constant: {NUMBER}'x'"),
        (room(shapes=[(3,)], set_constant=True, constant=np.float64(2**64), dtype="uint64"), ValueError,
         "constant: expected a number of uint64, got np.float64(1.8446744073709552e+19)"),
        (coalesce(dtype=np.dtype(">f4")), TypeError, "dtype: expected native byte order, got >f4"),
        (room(shapes=[(-1,)]), ValueError, "shapes[0]: expected at least one element"),
        (room(shapes=[(1,) * 65]), ValueError, "shapes[0]: expected at most 64 axes, got 65"),
        (room(shapes=[(2**62, 2**62)]), ValueError, "shapes[0]: expected an end, padded, below 2**63 bytes, got"),
        (coalesce(shapes=[np.array([3])]), TypeError, "shapes[0]: expected a list of extents, got ndarray")],
    "update_loss_scaling": [
        (scaling(incr_ratio=1e39), ValueError, "incr_ratio: expected a finite float32 of at least 1, got 1e+39"),
        (scaling(decr_ratio=1e-60), ValueError, f"decr_ratio: {DECR}1e-60"),
        (scaling(decr_every_n_nan_or_inf=2**31), ValueError, "decr_every_n_nan_or_inf: expected an integer from 1 to"),
        *((overlapping(a, b), ValueError, "") for a, b in [
            ("found_inf", "loss_scale"), ("good_steps", "bad_steps"), ("found_inf", "good_steps"),
            ("loss_scale", "bad_steps")])]}


@pytest.mark.parametrize("module", [cpu, gpu], ids=["cpu", "gpu"])
@pytest.mark.parametrize(("name", "call", "error", "message"), [
    (name, *row) for name, rows in REFUSED.items() for row in rows], ids=lambda x: x if isinstance(x, str) else "")
def test_refuses(module, name, call, error, message):
    arrays = Arrays(module)
    with gpu.use("executor"), pytest.raises(error) as caught:
        call(module, arrays)
    assert type(caught.value) is error
    said = f"{name}: {message}".format(array="ndarray" if module is cpu else "DeviceArray")
    assert str(caught.value).startswith(said)
    assert arrays.unchanged()


@pytest.mark.parametrize("module", [cpu, gpu], ids=["cpu", "gpu"])
@pytest.mark.parametrize("routine", ROUTINES.values(), ids=ROUTINES)
def test_functions_of_one_tensor_name_their_own_arguments(module, routine):
    """Not those of the merged function that they call, with lists of one."""
    function, count = getattr(module, routine.name), len([slot for slot in routine.slots if not slot.optional])
    names = list(inspect.signature(function).parameters)[:count]
    with gpu.use("executor"):
        for wrong in range(count):
            values = [np.ones(1 if slot.scalar else 3, F) for slot in routine.slots[:count]]
            given = dict(zip(names, map(put_of(module), values), strict=True)) | {names[wrong]: "abc"}
            numbers = {hyper.name: 0.5 for hyper in routine.hypers if hyper.default is None}
            with pytest.raises(TypeError, match=f"^{routine.name}: {names[wrong]}: expected "):
                function(**given, **numbers)
            other = put_of(module)(np.ones(4, F))
            with pytest.raises((TypeError, ValueError), match=rf"^{routine.name}: \w+: expected [^\[\]]*$"):
                function(**given | {names[wrong]: other}, **numbers)


TAKEN = [(sgd(lr=Fraction(1, 2)), sgd(lr=0.5)), (sgd(lr=np.array([0.5])), sgd(lr=0.5)),
         (sgd(lr=range(1, 2)), sgd(lr=1.0)), (cast(Fraction(1, 2)), cast(0.5)), (cast(-0.0), cast(0.0)),
         (check(max_norm=Fraction(1, 2)), check(max_norm=0.5)), (check(epsilon=np.array(2)), check(epsilon=2.0)),
         (scaling(incr_ratio=Fraction(3, 2), incr_every_n_steps=np.int64(1)),
          scaling(incr_ratio=1.5, incr_every_n_steps=1)), (lambda m, x: m.merged_sgd((x(),), (x(),), lr=0.5), sgd())]


@pytest.mark.parametrize("module", [cpu, gpu], ids=["cpu", "gpu"])
@pytest.mark.parametrize("calls", TAKEN)
def test_takes(module, calls):
    """Numbers of every type, and every sequence: as floats and lists."""
    left = []
    for call in calls:
        arrays = Arrays(module)
        with gpu.use("executor"):
            call(module, arrays)
        left.append([arrays._bytes(x) for x, _ in arrays.made])
    assert left[0] == left[1]


def test_arrays_without_elements_overlap_nothing():
    x, y = np.ones(3, F), np.ones(3, F)
    lists = [[x, x[1:][:0]], [y, y[1:][:0]]]  # which NumPy says begin inside of the others
    cpu.merged_sgd(*lists, lr=0.5)
    cpu.merged_cast(*lists, scale=4.0)
    assert x.tolist() == [0.5] * 3 and y.tolist() == [2.0] * 3


@pytest.mark.parametrize("frozen", ["found_inf", "loss_scale", "good_steps", "bad_steps"])
def test_what_a_loss_scale_writes_must_be_writable(frozen):
    """All but what it is told."""
    arrays = {"found_inf": np.zeros(1, F), "loss_scale": np.full(1, 8, F)} | {
        name: np.zeros(1, np.int32) for name in ("good_steps", "bad_steps")}
    arrays[frozen].flags.writeable = False
    if frozen == "found_inf":
        cpu.update_loss_scaling(*arrays.values())
    else:
        with refuses(ValueError, f"update_loss_scaling: {frozen}: expected a writable array, got a read-only one"):
            cpu.update_loss_scaling(*arrays.values())


def test_gradients_with_gaps_are_not_checked():
    with refuses(ValueError, "check_gradients: grads[1]: expected a dense array, got strides (8,) for (4,)"):
        cpu.check_gradients([np.ones(4, F), np.ones(8, F)[::2]])


NAMES = ["a.weight", "a.bias"]


@pytest.mark.parametrize(("given", "error", "message"), [
    ((NAMES, np.nan, []), ValueError, "lars_weight_decay: expected a finite number of at least 0, got nan"),
    ((NAMES, [0.1], []), TypeError, "lars_weight_decay: expected a finite number of at least 0, got [0.1]"),
    (("abc", 0.1, []), TypeError, "names: expected a sequence of names, got 'abc'"),
    (([*NAMES, 3], 0.1, []), TypeError, "names[2]: expected a name, got 3"),
    ((NAMES, 0.1, "bias"), TypeError, "exclude: expected a sequence of names, got 'bias'"),
    ((NAMES, 0.1, [None]), TypeError, "exclude[0]: expected a name, got None")])
def test_weight_decays_refuses(given, error, message):
    with refuses(error, f"weight_decays: {message}"):
        cpu.weight_decays(*given)


@pytest.mark.parametrize("of", [list, tuple, iter, set, lambda xs: (x for x in xs), dict.fromkeys, np.array])
def test_weight_decays_goes_through_each_once(of):
    assert cpu.weight_decays(of(["bias"] * 2 + ["x"]) if of not in (set, dict.fromkeys) else ["bias", "bias", "x"],
                             Fraction(1, 2), of(["bias"])) == [0, 0, 0.5]


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"form": ["merged"]}, ValueError, "form: expected one of separate, merged, got ['merged']"),
    ({"form": np.ones(2)}, ValueError, "form: expected one of separate, merged, got an array of shape (2,)"),
    *(({"stream": s}, TypeError, f"stream: expected a stream of the executor or its handle, got {s!r}")
      for s in ("abc", -1, 1.5, True, None, [0]))])
def test_plan_refuses_options(executor, options, error, message):
    x = [executor.to_device(np.ones(3, F)) for _ in range(2)]
    for call in (lambda **o: gpu.plan("sgd", x[:1], x[1:], **o), lambda **o: gpu.merged_sgd(x[:1], x[1:], lr=1, **o)):
        with refuses(error, f"merged_sgd: {message}"):
            call(**options)
    if "stream" in options:
        for name, call in (("merged_cast", lambda s: gpu.cast_plan(x[:1], x[1:], stream=s)),
                           ("check_gradients", lambda s: gpu.gradient_check(x, stream=s)),
                           ("coalesce_tensor", lambda s: gpu.coalesce_tensor(x, stream=s))):
            with refuses(error, f"{name}: {message}"):
                call(options["stream"])
    assert all((y.copy_to_host() == 1).all() for y in x)


@pytest.mark.parametrize("name", [None, 3, ["sgd"], np.ones(2), {}, "sdg", b"sgd"])
def test_plan_refuses_a_routine(name):
    with pytest.raises(ValueError, match=r"^plan: routine: expected one of sgd, adagrad, .*, got "):
        gpu.plan(name, [], [])


@pytest.mark.parametrize("way", ["gathered", None, ["gather"], "scatter"])
def test_plan_of_a_way(executor, way):
    made = gpu.coalesce_tensor([executor.to_device(np.ones(3, F))], copy_data=True)
    made.gather(made.views)
    assert made.plan("gather").launches == 1
    with pytest.raises(ValueError, match=r"^plan: way: expected one "):
        made.plan(way)
