"""Kernels for GPUs of every compute capability: their PTX, assembled, and what is refused. No GPU is needed."""
# ruff: noqa: E402

import re
from typing import ClassVar

import needs
import numpy as np
import pytest

from refopt import gpu, simt
from refopt.cli import main
from refopt.gpu import compiling, runtime, target
from refopt.gpu.compiler import Linked
from refopt.gpu.kernels import kernel
from refopt.gpu.ladder import adam, lars

needs.compiler()

from benchmarks import capabilities
from benchmarks.capabilities import CAPABILITIES, judged, of_routine
from gpu.inline_ptx import BLOCKS, kernels
from refopt.catalog import ROUTINES
from refopt.gpu import elementwise, instructions, vectors
from refopt.gpu.machine import OLDEST, Properties

pytestmark = pytest.mark.skipif(not capabilities.ptxas(), reason="no ptxas, which nvidia-cuda-nvcc has")

CASES = {case.label: case for case in capabilities.cases()}
# A family each: hints to the cache and a launch that waits, bf16 by chance, remainders, a cast.
SAMPLE = ("merged_lars_momentum_update two_launches-fp32", "merged_adamw merged-bf16-sr", "merged_sgd merged-bf16+16",
          "merged_cast float64-bfloat16-unscaled")
EACH = 5  # one in so many of all kernels: each takes seconds
OFTEN = SAMPLE[3], *(pytest.param(label, marks=pytest.mark.slow) for label in SAMPLE[:3])


@pytest.mark.parametrize("label", OFTEN)
def test_kernels_for_other_gpus(label):
    """The oldest, and one beyond the named ones: nothing is empty, contracted or spilled."""
    taken, wrong = judged(CASES[label], ((7, 5), (12, 1)))
    assert not wrong and len(taken) == 2


@pytest.mark.slow
@pytest.mark.parametrize("capability", [(8, 7), (8, 8), (10, 3), (11, 0), (13, 0)])
def test_gpus_between_and_beyond_the_named_ones(capability):
    for label in SAMPLE:
        assert not judged(CASES[label], (capability,))[1]


@pytest.fixture(scope="module")
def compilers():
    with capabilities.compilers(1) as pool:
        yield pool


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(k, id=label) for k, label in enumerate(CASES) if k % EACH == 0])
def test_a_kernel_for_one_gpu(compilers, number):
    """GPUs take turns; benchmarks/results/capabilities.json has all kernels for all of them."""
    of_turn = (CAPABILITIES[number // EACH % len(CAPABILITIES)],)
    taken, wrong = compilers.apply(capabilities.judged_apart, (number, of_turn))
    assert not wrong and len(taken) == 1


def takes(intrinsic, asm, capability):
    """Whether the assembler takes an intrinsic's instructions for a capability, on registers that hold anything."""
    try:
        capabilities.assembled(kernels([(asm, intrinsic.asm[1])], capability))
    except RuntimeError:
        return False
    return True


def test_every_block_of_the_kernels_is_here():
    known = {x.asm for x in BLOCKS.values()}
    assert not [x.__name__ for case in CASES.values() for x in target.intrinsics(case.kernel.function)
                if x.asm not in known]


@pytest.mark.parametrize("name", [x for x in BLOCKS if "mma" not in x])  # whose arithmetic is known from 9.0 on
def test_an_intrinsic_says_from_where_on_its_instructions_exist(name):
    """The assembler takes them there, and not for the capability before; it takes another form from the oldest on."""
    intrinsic = BLOCKS[name]
    assert takes(intrinsic, intrinsic.asm[0], intrinsic.since)
    if intrinsic.since == OLDEST:
        assert intrinsic.before is None
        return
    older = [capability for capability in CAPABILITIES if capability < intrinsic.since]
    assert not takes(intrinsic, intrinsic.asm[0], older[-1])
    if intrinsic.before:
        assert takes(intrinsic, intrinsic.before, OLDEST)
    else:
        assert intrinsic.before is None or intrinsic.asm[1:] == ("", "", "")  # none, or of a hint


def test_a_hint_is_left_out():
    """Nothing is compiled in its place, and not for newer GPUs."""
    wait = instructions.wait_for_previous_launch

    @kernel()
    def waits(x):
        wait()
        x[0] = x[1]

    old, new = (waits.ptx(["float32[1]"], capability) for capability in ((8, 9), (9, 0)))
    assert "griddepcontrol" in new and "griddepcontrol" not in old


def planted(before):
    """A kernel with an instruction that only GPUs from 9.0 on have, and a form for others, if any."""

    @target.intrinsic("mov.f32 $0, $1; fence.proxy.async;", "=f,f", "f", "f", since=(9, 0), before=before)
    def newest(x):
        return x

    within = target.device_function(lambda x: newest(x))

    @kernel()
    def moves(x):
        x[0] = within(x[0])

    return moves


def test_a_kernel_without_another_form_is_refused():
    """Compiled or launched, for a device that lacks the instruction; where it is there, it runs."""
    made, signature = planted(before=None), ["float32[1]"]
    words_of = r"^moves: newest: expected compute capability 9.0 or later, got {}, compute capability 8.9$"
    with pytest.raises(RuntimeError, match=words_of.format("a device")):
        made.ptx(signature, (8, 9))
    assert "fence.proxy.async" in made.ptx(signature)
    x, machine = gpu.to_device(np.ones(1, np.float32)), gpu.device("executor")
    with simt.claim("RTX 4090"), pytest.raises(RuntimeError, match=words_of.format("refopt.simt as RTX 4090")):
        machine.prepare(made, 1, 32, (x,))
    machine.prepare(made, 1, 32, (x,))(0)
    assert "mov.f32" in planted(before="mov.f32 $0, $1;").ptx(signature, (8, 9))


class Compiler:
    """A compiler, as far as it is told what to compile for."""

    asked: ClassVar = []
    oldest = staticmethod(lambda: (7, 5))
    cuda = simt.cuda

    def linked(self, function, signature, wanted):
        self.asked.append(wanted.launch_bounds)
        return Linked("code", b"")


def test_what_is_compiled_for_the_gpu_in_hand(monkeypatch):
    """Launch bounds as measured, or fewer blocks on other GPUs; nothing where an instruction is missing."""
    monkeypatch.setenv("REFOPT_CACHE", "0")
    for module in (compiling, target):
        monkeypatch.setattr(module, "compiler", Compiler)
    signature = ("float32[1]",)

    def machine():
        return Properties.of(simt.cuda.get_current_device())

    for bounds in ((64, 12), (128, 5), None):
        one = kernel(bounds)(lambda x: None)
        for name in ("T4", "H100", "RTX 5090"):
            with simt.claim(name):
                assert one.linked(signature, machine()) == Linked("code", b"")
    assert Compiler.asked == [(64, 6), (64, 12), (64, 6), (128, 3), (128, 5), (128, 3), None, None, None]
    with simt.claim("A100"), pytest.raises(RuntimeError, match=r"^moves: newest: expected .* refopt.simt as A100"):
        planted(before=None).linked(signature, machine())
    monkeypatch.setattr(Compiler, "oldest", staticmethod(lambda: (8, 0)))
    target.oldest.cache_clear()
    with simt.claim("T4"), pytest.raises(RuntimeError, match=r"<lambda>: expected compute capability 8.0 or later"):
        kernel()(lambda x: None).linked(signature, machine())
    target.oldest.cache_clear()


@pytest.mark.parametrize(("capability", "blocks"), [((8, 0), 6), ((9, 0), 12)])
def test_launch_bounds_of_ptx(capability, blocks):
    ptx = kernel((64, 12))(lambda x: None).ptx(["float32[1]"], capability)
    assert f".minnctapersm {blocks}\n" in ptx and ".maxntid 64" in ptx


def test_blocks_leave_registers_for_their_arrays():
    assert [elementwise.resident(np.float32, states) for states in (0, 2, 3)] == [12, 12, 10]
    assert elementwise.resident(np.float64, 0) == 6


def test_intrinsics_are_found_wherever_they_are():
    """In closures, by way of device functions, namespaces and modules."""
    names = {x.__name__ for case in of_routine(ROUTINES["lars_momentum"], "bf16+16", "two_launches")
             for x in target.intrinsics(case.kernel.function)}
    assert {"load4_bfloat16", "store_joined", "fence", "wait_for_previous_launch", "let_next_launch_begin"} <= names
    module_spelled = kernel()(lambda at: vectors.store_float32(at, vectors.load_float32(at)))
    assert {x.__name__ for x in target.intrinsics(module_spelled.function)} == {"load_float32", "store_float32"}


@pytest.mark.parametrize("wrong", [{"asm": ""}, {"asm": "mov.f32 $0, $1;", "before": ""}])
def test_an_intrinsic_of_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match=r"^intrinsic: expected instructions, or no operands"):
        target.intrinsic(**({"constraints": "=f,f", "result": "f", "arguments": "f"} | wrong))


# Devices that are too old.

REFUSED = r"expected compute capability 7.5 or later, got {}, compute capability 7.0"


def test_every_entry_refuses_an_older_device(capsys):
    x = [gpu.to_device(np.ones(5, np.float32))]
    one, step = np.float32(1), gpu.plan("sgd", x, [gpu.to_device(np.ones(5, np.float32))], lr=1)
    with simt.claim("7.0"):
        refused = "^device: " + REFUSED.format("refopt.simt as 7.0") + "$"
        for entry in (
            lambda: gpu.plan("sgd", x, x, lr=1), lambda: gpu.to_device(np.ones(1)), lambda: gpu.merged_cast(x, x),
            lambda: adam.launches_1(x, x, x, x, (one,) * 6)[0](), lambda: lars.launches_4(x, x, x, (one,) * 5),
        ):
            with pytest.raises(RuntimeError, match=refused):
                entry()
        assert main(["verify", "--routine", "sgd"]) == 2
        out, err = capsys.readouterr()
        assert not out and re.search(REFUSED.format("refopt.simt as 7.0"), err) and "Traceback" not in err
    step()  # which was planned on a device that can


class Old(runtime.Executor):
    """A GPU, as far as it says what it is."""

    name = "gpu"
    properties = property(lambda self: Properties("Tesla V100", (7, 0), 80, 6 << 20))


def test_an_old_gpu_is_refused_and_not_passed_over(monkeypatch, capsys):
    """Without a name, too: the executor in its place would be slow, and say nothing."""
    monkeypatch.delenv("REFOPT_DEVICE")
    monkeypatch.setattr(runtime, "_why_no_gpu", lambda: "")
    monkeypatch.setattr(runtime, "_gpu", lambda index=None: Old())
    for name in (None, "gpu"):
        with pytest.raises(RuntimeError, match="^device: " + REFUSED.format("Tesla V100") + "$"):
            gpu.device(name)
    monkeypatch.setattr(runtime, "gpus", lambda: 2)
    monkeypatch.setattr(runtime, "device_of", lambda values: "gpu")
    monkeypatch.setattr(runtime, "ordinal_of", lambda value: 1)
    with pytest.raises(RuntimeError, match="Tesla V100"):
        runtime.machine_of([object()])
    assert main(["verify", "--routine", "sgd"]) == 2 and "Tesla V100" in capsys.readouterr().err
    assert gpu.device("executor").name == "executor"


@pytest.mark.parametrize("capability", [(7, 0), (6, 1)])
def test_ptx_for_an_older_device_is_refused(capability):
    case = CASES["adam_1 adam_1"]
    with pytest.raises(ValueError, match=rf"^adam_1: capability: expected \(7, 5\) or later, got \({capability[0]}, "):
        case.kernel.ptx(case.signature, capability)


def test_a_later_cuda_that_leaves_out_more(monkeypatch):
    from numba.cuda.cudadrv import nvrtc

    monkeypatch.setattr(nvrtc, "get_supported_ccs", lambda: [(8, 0), (9, 0)])
    assert target.oldest.__wrapped__() == (8, 0)
    said = r"^moves: capability: expected \(8, 0\) or later, got \(7, 5\)$"
    with monkeypatch.context() as patch, pytest.raises(ValueError, match=said):
        patch.setattr(target, "oldest", lambda: (8, 0))
        planted(before=None).ptx(["float32[1]"], (7, 5))
    monkeypatch.setattr(nvrtc, "get_supported_ccs", lambda: [(5, 0), (9, 0)])
    assert target.oldest.__wrapped__() == OLDEST
