"""Loads and stores with cache hints, which have no effect here."""

from __future__ import annotations

from typing import Any


def _load(array: Any, index: Any) -> Any:
    """array[index]."""
    return array[index]


def _store(array: Any, index: Any, value: Any) -> None:
    """array[index] = value."""
    array[index] = value


ldca = ldcg = ldcs = ldlu = ldcv = _load
stcg = stcs = stwb = stwt = _store
