"""Optional libraries: imported when they are needed, and what to install if one is missing."""

import importlib
from typing import Any

PACKAGES = {"ml_dtypes": "refopt[bf16]", "cupy": "cupy-cuda13x"}  # what pip calls those that have another name


def library(name: str) -> Any:
    """An optional library.

    Raises:
        ModuleNotFoundError: it is not installed; the message says what to install.
        ImportError: its import fails; the message says why.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (name, None):
            text = f"{name} is not installed (pip install '{PACKAGES.get(name, name)}')"
            raise ModuleNotFoundError(text, name=name) from error
        raise ImportError(f"{name} cannot be imported: {' '.join(str(error).split())}", name=name) from error
