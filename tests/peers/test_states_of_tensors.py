"""`check(None, optimizer)` of states that are tensors made of tensors, as torchao has codes and their scales."""

import pytest

torch = pytest.importorskip("torch")

from peers.trials import check  # noqa: E402


class Coded(torch.Tensor):
    """Codes and their scale as one tensor, which computes nothing."""

    @staticmethod
    def __new__(cls, codes, scale, tensors=None):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)

    def __init__(self, codes, scale, tensors=None):
        self.codes, self.scale, self.tensors = codes, scale, tensors

    def __tensor_flatten__(self):
        return ["codes", "scale"] + ["tensors"] * (self.tensors is not None), None

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(function)


class Momentum(torch.optim.Optimizer):
    """Whose momentum is such a tensor."""

    counts = False

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for p, lr in ((p, group["lr"]) for group in self.param_groups for p in group["params"] if p.grad is not None):
            held, scale = self.state[p].get("buffer"), torch.tensor(2.0**-12)
            before = 0 if held is None else held.codes.float() * held.scale
            codes = ((0.5 * before + p.grad.float()) / scale).round().to(torch.int16)
            counted = (torch.tensor(float(len(self.state))),) if self.counts else ()
            self.state[p]["buffer"] = Coded(codes, scale, *counted)
            p.sub_(lr * codes.float() * scale)


class Counts(Momentum):
    """With the number of tensors so far in a third part, which depends on what is merged."""

    counts = True


def test_they_are_compared_part_by_part():
    report = check(None, Momentum, laws=["L2", "L15", "L17"], dtypes=["float32"])
    assert report.ok, str(report)
    report = check(None, Counts, laws=["L2"], dtypes=["float32"])
    assert report.wrong == ["L2"] and "buffer.tensors[" in str(report), str(report)
