"""A model trained twice: with ``torch.optim.AdamW``, and with one launch of refopt in place of its step.

PyTorch's AdamW is refopt's ``adamw`` with ``epsilon_at="corrected"``, the default, and ``coeff`` for ``weight_decay``;
they differ in roundings alone. ``zero_grad(set_to_none=False)`` leaves gradients where they are, so that one plan does
for all steps. Both are on the default stream. With ``--device cpu`` the kernel runs on refopt's executor.
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits

from refopt import gpu

LR, BETA1, BETA2, EPSILON, DECAY = 1e-2, 0.9, 0.999, 1e-8, 0.01


def model(device):
    """A small classifier of images of 8 by 8 pixels, the same every time."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 24), torch.nn.GELU(), torch.nn.Linear(24, 10)).to(device)


def by_pytorch(params):
    return torch.optim.AdamW(params, LR, (BETA1, BETA2), EPSILON, DECAY, fused=params[0].is_cuda).step


def by_refopt(params):
    for p in params:
        p.grad = torch.zeros_like(p)
    moments = [[torch.zeros_like(p) for p in params] for _ in range(2)]
    powers = [[torch.full_like(p.flatten()[:1], beta) for p in params] for beta in (BETA1, BETA2)]
    lists = [[shared(x) for x in tensors] for tensors in (params, [p.grad for p in params], *moments, *powers)]
    return gpu.plan("adamw", *lists, lr=LR, beta1=BETA1, beta2=BETA2, epsilon=EPSILON, coeff=DECAY)


def shared(tensor):
    """The tensor, if it is on a GPU; else an array of the executor, which is where the tensor lies from now on."""
    if tensor.is_cuda:
        return tensor
    with gpu.use("executor"):
        array = gpu.to_device(tensor.detach().numpy())
    tensor.data = torch.from_numpy(array.data)
    return array


def train(net, stepper, steps=40):
    """The loss at every step, and the mean time in seconds of the optimizer's steps after the first."""
    digits, params = load_digits(), list(net.parameters())
    images, labels = torch.tensor(digits.data / 16).to(params[0]), torch.tensor(digits.target).to(params[0].device)
    step, losses, times = stepper(params), [], []
    for batch in torch.arange(256 * steps).remainder(len(labels)).split(256):
        loss = torch.nn.functional.cross_entropy(net(images[batch]), labels[batch])
        loss.backward()
        losses.append(loss.item())
        start = time.perf_counter()
        step()
        if images.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        net.zero_grad(set_to_none=False)
    return losses, sum(times[1:]) / (steps - 1)


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    device = parser.parse_args(arguments).device
    (theirs, their_time), (ours, our_time) = (train(model(device), stepper) for stepper in (by_pytorch, by_refopt))
    for k in range(0, len(ours), 5):
        print(f"step {k:2}   loss with PyTorch {theirs[k]:.9f}   with refopt {ours[k]:.9f}")
    print(f"largest difference {max(abs(x - y) for x, y in zip(theirs, ours, strict=True)):.1e}")
    print(f"time of a step: PyTorch {their_time * 1e6:.0f} us, refopt {our_time * 1e6:.0f} us")
    return theirs, ours


if __name__ == "__main__":
    main()
