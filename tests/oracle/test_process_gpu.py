"""A step on a GPU in a process of its own: a context that is spoiled costs one law, and streams are waited for."""

import pytest

from refopt import oracle

try:
    import torch
except ImportError:
    torch = None
on_gpu = torch is not None and torch.cuda.is_available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not on_gpu, reason="PyTorch has no GPU")]
SIZE = 33  # of L5 alone
NAMED = dict(arrays="torch", device="cuda", dtypes=["float32"], laws=["L1", "L5", "L6", "L17"], examples=0)


def sgd(params, grads, *, lr):
    for p, g in zip(params, grads, strict=True):
        p -= lr * g


def out_of_bounds(params, grads, *, lr):
    """An assertion of a kernel's, after which the context is of no use."""
    sgd(params, grads, lr=lr)
    if any(p.numel() == SIZE for p in params):
        torch.zeros(4, device="cuda")[torch.full((1,), 1000, device="cuda")].sum().item()


def on_another_stream(params, grads, *, lr):
    """Not waited for."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        sgd(params, grads, lr=lr)


def on_another_stream_and_waited_for(params, grads, *, lr):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        sgd(params, grads, lr=lr)
    torch.cuda.current_stream().wait_stream(stream)


def test_a_spoiled_context_is_the_verdict_of_one_law():
    report = oracle.check("sgd", out_of_bounds, process=True, **NAMED)
    assert report.failed_laws == ["L5"], str(report)
    assert "its process" in report.of("failed")[0].text
    assert all(x.status == "passed" for x in report.items if x.law in ("L6", "L17"))


def test_a_stream_that_is_not_waited_for():
    named = NAMED | {"laws": ["L1", "L20"]}
    report = oracle.check("sgd", on_another_stream, **named)
    assert "L20" in report.failed_laws and "when all its work had ended" in str(report)
    assert oracle.check("sgd", on_another_stream_and_waited_for, **named).ok
