"""The code of docs/oracle.md that needs libraries runs."""

import pytest
from oracle.test_pages import block, lines_of

from refopt import oracle

pytest.importorskip("torch")
pytest.importorskip("optax")


def test_optimizers_of_libraries(monkeypatch, capsys):
    """Those of the page, by the step law alone."""
    text, check = block("import optax, torch"), oracle.check
    assert len(lines_of(text)) <= 5
    quick = {"laws": ["L1"], "dtypes": ["float32"], "examples": 0, "process": False}
    monkeypatch.setattr(oracle, "check", lambda *args, **named: check(*args, **quick, **named))
    exec(text, {})
    del quick["dtypes"]
    exec(block('arrays="torch"'), {})
    out = capsys.readouterr().out
    assert "torch.optim.AdamW, fused=True as adamw: right" in out and "optax.adamw as adamw: right" in out
    assert "sgd, arrays='torch' as sgd: right" in out
