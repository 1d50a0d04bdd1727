#!/usr/bin/env bash
# ptxas of CUDA 12.9 and 13.0: a store of the low bits of a float converts it to an integer instead.
#
# st.global.b8 of a register that add.f32 wrote becomes F2IP.U8.F32.TRUNC, st.global.b16 F2I.U16, and st.global.b32 of
# an fp64 F2I.U32.F64: the last byte of a float, such as 8388608 + n, is stored as 255. A mov.b32 in between leaves the
# bits. From 13.1 on, these stores take the bits, but vectors of u8, s8, u16 and s16 are converted in 13.5, too.
#
# Expected: the low bits. The PTX ISA says of operands wider than the instruction's type that the data are truncated
# ("chopped"); only cvt converts.
#
#> 12.9 converts: b8, b16, b32, v2.b8, v2.u8
#> 13.0 converts: b8, b16, b32, v2.b8, v2.u8
#> 13.1 converts: v2.u8
#> 13.5 converts: v2.u8
. "$(dirname "$0")/common.sh"
finding nvidia-cuda-nvcc-cu12==12.9.86 nvidia-cuda-nvdisasm==13.5.37 <<'PY'
import re
import subprocess
import sys
from pathlib import Path

FLOAT, DOUBLE = "ld.param.f32 x, [x0]; add.rn.f32 x, x, x; ", "ld.param.f64 y, [y0]; add.rn.f64 y, y, y; "
STORES = {
    "b8": FLOAT + "st.global.b8 [p], x;", "b16": FLOAT + "st.global.b16 [p], x;",
    "b32": DOUBLE + "st.global.b32 [p], y;", "v2.b8": FLOAT + "st.global.v2.b8 [p], {x, x};",
    "v2.u8": FLOAT + "st.global.v2.u8 [p], {x, x};", "mov and b8": FLOAT + "mov.b32 m, x; st.global.b8 [p], m;",
}
HEAD = """.version 8.8
.target sm_90
.address_size 64
.visible .entry k(.param .b64 p0, .param .f32 x0, .param .f64 y0) {
.reg .b64 p, y; .reg .b32 x, m;
ld.param.b64 p, [p0];
"""
here = Path(sys.prefix)
(nvdisasm,) = here.rglob("bin/nvdisasm")
for wheel in ("", "nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-nvcc==13.1.115", "nvidia-cuda-nvcc==13.5.37"):
    folder = here
    if wheel:
        folder = Path("wheel", wheel)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--root-user-action=ignore", "--target", folder, wheel], check=True)
    (ptxas,) = folder.rglob("bin/ptxas")
    found = []
    for name, code in STORES.items():
        Path("k.ptx").write_text(HEAD + code + "\nret; }\n")
        subprocess.run([ptxas, "-arch=sm_90", "k.ptx", "-o", "k.cubin"], check=True)
        shown = subprocess.run([nvdisasm, "k.cubin"], check=True, capture_output=True, text=True).stdout
        found += [name] if re.search(r"\bF2IP?\b", shown) else []
    about = subprocess.run([ptxas, "--version"], check=True, capture_output=True, text=True).stdout
    print(re.search(r"release (\S+),", about)[1], "converts:", ", ".join(found))
PY
