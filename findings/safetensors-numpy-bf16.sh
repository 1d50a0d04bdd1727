#!/usr/bin/env bash
# safetensors 0.8.0, safetensors.numpy: saves bfloat16 and float8 arrays of ml_dtypes, and cannot load what it saved.
#
# save writes a correct file: the header says BF16. load of the same bytes raises KeyError: 'BF16', also for all the
# other tensors of the file. A checkpoint of 16-bit states is found unreadable when it is needed.
#
# Expected: what save accepts, load returns (with ml_dtypes, as it was for saving), or save refuses it.
#
#> bfloat16: header BF16, load raises KeyError 'BF16'
#> float8_e4m3fn: header F8_E4M3, load raises KeyError 'F8_E4M3'
#> float16: header F16, loads float16
. "$(dirname "$0")/common.sh"
finding safetensors==0.8.0 ml_dtypes==0.6.0 numpy==2.4.6 <<'PY'
import json

import ml_dtypes
import numpy as np
from safetensors.numpy import load, save

for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float16):
    data = save({"x": np.ones(4, dtype)})
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["x"]["dtype"]
    try:
        result = f"loads {load(data)['x'].dtype}"
    except KeyError as error:
        result = f"load raises KeyError {error}"
    print(f"{np.dtype(dtype).name}: header {header}, {result}")
PY
