"""The device that the executor claims to be: what is told of it, what it refuses, and when it is another again."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from refopt import cli, simt
from refopt.simt import cuda
from refopt.simt.machine import launch
from refopt.simt.machine.claims import DEVICES

# Of CUDA's deviceQuery on a T4, and of the CUDA C++ Programming Guide, section Compute Capabilities.
TOLD = {
    "T4": ((7, 5), 40, 1024, 16, 64, 64, 0, 4, 16), "A100": ((8, 0), 108, 2048, 32, 163, 164, 1, 40, 80),
    "RTX 3090": ((8, 6), 82, 1536, 16, 99, 100, 1, 6, 24), "RTX 4090": ((8, 9), 128, 1536, 24, 99, 100, 1, 72, 24),
    "H100": ((9, 0), 132, 2048, 32, 227, 228, 1, 50, 80), "B200": ((10, 0), 148, 2048, 32, 227, 228, 1, 126, 180),
    "RTX 5090": ((12, 0), 170, 1536, 24, 99, 100, 1, 96, 32)}


def told():
    device, total = cuda.get_current_device(), cuda.current_context().get_memory_info().total
    assert device.compute_capability == (device.COMPUTE_CAPABILITY_MAJOR, device.COMPUTE_CAPABILITY_MINOR)
    assert cuda.gpus[0].compute_capability == device.compute_capability and cuda.gpus[0].name == device.name
    return (device.compute_capability, device.MULTIPROCESSOR_COUNT, device.MAX_THREADS_PER_MULTI_PROCESSOR,
            device.MAX_BLOCKS_PER_MULTIPROCESSOR, device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN / 1024,
            device.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR / 1024, device.RESERVED_SHARED_MEMORY_PER_BLOCK / 1024,
            device.L2_CACHE_SIZE / 2**20, total / 2**30)


@pytest.mark.parametrize("name", DEVICES)
def test_names(name, capsys):
    with simt.claim(name) as claimed:
        assert told() == TOLD[name] and claimed == DEVICES[name]
        device = cuda.get_current_device()
        assert (device.MAX_SHARED_MEMORY_PER_BLOCK, device.MAX_REGISTERS_PER_BLOCK) == (48 * 1024, 65536)
        said = "refopt.simt" if name == "H100" else f"refopt.simt as {name}"
        assert device.name == said.encode() and repr(device) == f"<CUDA device 0 '{said}'>"
        cuda.detect()
        capability = "{}.{}".format(*TOLD[name][0])
        lines = f"\nid 0    {said}    [SUPPORTED]\n        Compute capability: {capability}, simulated\n"
        assert capsys.readouterr().out.endswith(lines)
        assert simt.occupancy(96, 40, 20000) == simt.occupancy(96, 40, 20000, TOLD[name][0])


@pytest.mark.parametrize(("device", "keywords", "name", "expected"), [
    ((), {}, "", (132, 50, 80)),
    ((), {"capability": (7, 5), "multiprocessors": 40, "l2": 4 << 20, "memory": 16 << 30}, " as 7.5", (40, 4, 16)),
    ((), {"capability": (7, 0)}, " as 7.0", (132, 50, 80)),
    (("8.6",), {"l2": 2 << 20}, " as 8.6", (132, 2, 80)),
    (("T4",), {"multiprocessors": np.int64(20)}, " as T4", (20, 4, 16)),
    (("T4",), {"capability": (8, 9), "memory": 1 << 30}, " as 8.9", (40, 4, 1)),
    ((), {"memory": 1 << 30}, " as H100", (132, 50, 1))])
def test_keywords(device, keywords, name, expected):
    with simt.claim("B200"), simt.claim(*device, **keywords):
        assert (told()[1], *told()[-2:]) == expected
        assert told()[0] == keywords.get("capability", {"8.6": (8, 6), "T4": (7, 5)}.get(*device or [0], (9, 0)))
        assert cuda.get_current_device().name.decode() == f"refopt.simt{name}"


def test_claims_end():
    device = cuda.get_current_device()
    with simt.claim("T4"):
        with pytest.raises(KeyError), simt.claim("A100"):
            raise KeyError
        assert told() == TOLD["T4"]
        with simt.claim("RTX 5090"):
            assert cuda.get_current_device() is device and told() == TOLD["RTX 5090"]
        assert told() == TOLD["T4"]
    assert told() == TOLD["H100"]


@pytest.mark.parametrize(("device", "keywords", "error", "words"), [
    (("K80",), {}, ValueError, "claim: device: expected one of T4, .* capability such as 7.5, got 'K80'"),
    ((75,), {}, TypeError, "claim: device: expected one of T4, .*, got 75"),
    (("6.1",), {}, ValueError, r"claim: device: expected \(7, 0\) or later, .* independently, got \(6, 1\)"),
    (("9.9",), {}, ValueError, r"claim: device: expected one of \(7, 0\), .*, got \(9, 9\)"),
    ((), {"capability": (6, 1)}, ValueError, r"claim: capability: expected \(7, 0\) or later, .*, got \(6, 1\)"),
    ((), {"capability": (7, 6)}, ValueError, r"claim: capability: expected one of .*, \(12, 1\), got \(7, 6\)"),
    ((), {"capability": 7.5}, TypeError, "claim: capability: expected a pair of integers, got 7.5"),
    ((), {"multiprocessors": 0}, ValueError, "claim: multiprocessors: expected an integer of at least 1, got 0"),
    ((), {"multiprocessors": 1.0}, TypeError, "claim: multiprocessors: expected an integer, got 1.0"),
    ((), {"memory": "16 GiB"}, TypeError, "claim: memory: expected an integer, got '16 GiB'")])
def test_refused(device, keywords, error, words):
    with simt.claim("T4"):
        with pytest.raises(error, match=f"^{words}$"), simt.claim(*device, **keywords):
            pass
        assert told() == TOLD["T4"]


def test_not_from_a_kernel():
    @simt.ptx_twin()
    def claiming():
        with simt.claim("T4"):
            pass

    @cuda.jit
    def kernel():
        claiming()

    with pytest.raises(simt.LaunchError, match="a kernel cannot claim another device"):
        kernel[1, 1]()
    assert told() == TOLD["H100"]


@pytest.mark.parametrize(("value", "printed", "error"), [
    ("T4", "refopt.simt as T4 40 132", ""), ("6.1", "", "ValueError: SIMT_DEVICE: expected .*, got \\(6, 1\\)\n"),
    pytest.param("", "refopt.simt 132 132", "", marks=pytest.mark.slow),
    pytest.param("K80", "", "ValueError: SIMT_DEVICE: expected .*, got 'K80'\n", marks=pytest.mark.slow)])
def test_the_environment_variable(value, printed, error):
    """Which device a process is that it is set for, and how many multiprocessors a claim of nothing has."""
    device = "cuda.get_current_device()"
    program = f"""from refopt import simt
from refopt.simt import cuda
print({device}.name.decode(), {device}.MULTIPROCESSOR_COUNT, end=" ")
with simt.claim(): print({device}.MULTIPROCESSOR_COUNT, end="")"""
    environment = os.environ | {"SIMT_DEVICE": value}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == printed and re.fullmatch(f"(?s:.*){error}", done.stderr)


def test_the_option_of_a_script(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("from numba import cuda\nprint(cuda.get_current_device().name.decode())\n")
    assert cli.main(["simt", "--device", "RTX 4090", str(script)]) == 0
    assert capsys.readouterr().out == "refopt.simt as RTX 4090\n" and told() == TOLD["H100"]
    assert cli.main(["simt", "--device", "K80", str(script)]) == 2
    assert "argument --device: invalid choice: 'K80'" in capsys.readouterr().err


@cuda.jit
def declares():
    cuda.shared.array(1024, np.uint8)


@pytest.mark.parametrize(("name", "most"), [("T4", 64 * 1024), ("A100", 163 * 1024), ("RTX 3090", 99 * 1024)])
def test_shared_memory_of_a_block(name, most):
    configured = declares[1, 1, 0, most + 1]  # for an H100
    with simt.claim(name):
        declares[1, 1, 0, most - 1024]()
        with pytest.raises(simt.LaunchError, match=f"1024 static and {most - 1023} dynamic .* and {most} together"):
            declares[1, 1, 0, most - 1023]()
        words = f"{most + 1} bytes of dynamic shared memory: must be between 0 and {most}"
        with pytest.raises(simt.LaunchError, match=words):
            declares[1, 1, 0, most + 1]
        with pytest.raises(simt.LaunchError, match=words):
            configured()


@cuda.jit
def at_first():
    cuda.cg.this_grid().sync()


@cuda.jit
def declared_before():
    cuda.shared.array(20 * 1024, np.uint8)
    cuda.cg.this_grid().sync()


@cuda.jit
def declared_after():
    cuda.cg.this_grid().sync()
    cuda.shared.array(20 * 1024, np.uint8)


@pytest.mark.parametrize(("name", "kernel", "block", "dynamic", "each"), [
    # By threads, by blocks, by shared memory.
    ("T4", at_first, 512, 0, 2), ("T4", at_first, 32, 0, 16), ("T4", at_first, 32, 20 * 1024, 3),
    ("T4", declared_before, 32, 1024, 3), ("T4", declared_after, 32, 2048, 2), ("RTX 3090", at_first, (32, 24), 0, 2),
    ("RTX 4090", at_first, 1, 0, 24), ("RTX 4090", declared_before, 32, 4096, 4), ("A100", declared_after, 32, 0, 7),
    ("H100", at_first, 1024, 0, 2)])
def test_blocks_that_can_be_resident(name, kernel, block, dynamic, each):
    with simt.claim(name, multiprocessors=2):
        most = kernel.max_cooperative_grid_blocks(block, dynamic)
        assert most == 2 * each if kernel is at_first else most > 2 * each
        kernel[2 * each, block, 0, dynamic]()
        shared = dynamic + (0 if kernel is at_first else 20 * 1024)
        words = f"cooperative launch of {2 * each + 1} blocks, each of {np.prod(block)} threads and {shared} bytes of"
        with pytest.raises(simt.LaunchError, match=f"^{words} .* more than {2 * each} cannot .* on 2 multiprocessors"):
            kernel[2 * each + 1, block, 0, dynamic]()


def test_as_many_threads_as_that_may_be_resident(monkeypatch):
    monkeypatch.setattr(launch, "MAX_RESIDENT_THREADS", 128)
    with simt.observe():
        at_first[4, 32]()
        with pytest.raises(simt.LaunchError, match="launch of 129 threads: more than 128 cannot be resident"):
            at_first[129, 1]()


def test_an_ordinary_launch_may_have_any_number_of_blocks():
    @cuda.jit
    def kernel(x):
        cuda.shared.array(20 * 1024, np.uint8)
        cuda.atomic.add(x, 0, 1)

    x = np.zeros(1, np.int32)
    with simt.claim("T4", multiprocessors=1):
        kernel[100, 32](x)
    assert x[0] == 3200


def test_memory_is_never_less_than_nothing():
    array = cuda.device_array(1000, np.uint8)
    with simt.claim(memory=array.nbytes - 1):
        assert cuda.current_context().get_memory_info() == (0, 999)
