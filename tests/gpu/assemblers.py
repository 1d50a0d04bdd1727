"""Every block of inline PTX under several assemblers: machine code converts nothing that the block does not convert.

    PYTHONPATH=.:tests python -m gpu.assemblers [REQUIREMENT ...]

Each wheel of ``ptxas`` is installed in a temporary folder. Those up to CUDA 13.0 convert a number of which a part is
stored: of them, the planted blocks must be found.
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.capabilities import CAPABILITIES
from gpu.inline_ptx import BLOCKS, PLANTED, kernels

WHEELS = "nvidia-cuda-nvcc-cu12==12.9.*", "nvidia-cuda-nvcc==13.0.*", "nvidia-cuda-nvcc"
PIP = "install", "-q", "--disable-pip-version-check", "--root-user-action=ignore", "--no-deps", "--no-compile"


def printed(*command: str | Path) -> str:
    """What a command prints; if it fails, it has said why on stderr."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def unasked(asm: str, code: str) -> list[str]:
    """Conversions of machine code that its PTX lacks, from and to F, a number, or I, an integer."""
    asked = re.findall(r"\bcvt\.(?:\w+\.)*?(b?f|[us])\d+\.(b?f|[us])\d+", asm)
    kinds = Counter("2".join("F" if "f" in kind else "I" for kind in (source, result)) for result, source in asked)
    return [*(Counter(re.findall(r"\bU?([FI]2[FI])P?\b", code)) - kinds)]


def found(folder: Path, capability: tuple[int, int]) -> dict[str, list[str]]:
    """The conversions that blocks have under an assembler, for a compute capability."""
    ptxas, nvdisasm = (next(folder.glob(f"nvidia/*/bin/{name}")) for name in ("ptxas", "nvdisasm"))
    forms = {name: (x.asm[0] if capability >= x.since else x.before, x.asm[1]) for name, x in BLOCKS.items()}
    blocks = {name: form for name, form in forms.items() if form[0]}
    blocks |= {f"planted {k}": form for k, form in enumerate(PLANTED)}
    (folder / "k.ptx").write_text(kernels(blocks.values(), capability))
    printed(ptxas, "-arch=sm_{}{}".format(*capability), folder / "k.ptx", "-o", folder / "k.cubin")
    _, *parts = re.split(r"\.section\s+\.text\.k(\d+)", printed(nvdisasm, folder / "k.cubin"))
    codes = dict(zip(map(int, parts[::2]), parts[1::2], strict=True))
    return {name: extra for k, (name, (asm, _)) in enumerate(blocks.items()) if (extra := unasked(asm, codes[k]))}


def main(wheels: Sequence[str]) -> int:
    """Say what is wrong under each assembler; 1 if something is."""
    wrong = 0
    for wheel in wheels:
        with tempfile.TemporaryDirectory() as name:
            printed(sys.executable, "-m", "pip", *PIP, "--target", name, wheel, "nvidia-cuda-nvdisasm")
            version = re.search(r"V(\d+\.\d+)", printed(next(Path(name).glob("nvidia/*/bin/ptxas")), "--version"))[1]
            planted = {f"planted {k}" for k in range(len(PLANTED))} if float(version) < 13.1 else set()
            for capability in CAPABILITIES:
                each = found(Path(name), capability)
                different = each.keys() ^ planted
                wrong += len(different)
                print(*(f"{wheel}: {capability}: {x}: {each.get(x)}\n" for x in sorted(different)), sep="", end="")
        print(f"ptxas {version}: {len(BLOCKS)} blocks for {len(CAPABILITIES)} capabilities", flush=True)
    print(f"{wrong or 'nothing'} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or WHEELS))
