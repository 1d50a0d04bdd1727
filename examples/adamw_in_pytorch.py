"""A classifier trained twice: by ``torch.optim.AdamW``, and by `refopt.torch.AdamW` in its place.

The two differ in roundings alone. With ``--device cpu`` the kernels run on refopt's executor.
"""

import argparse

import torch
from sklearn.datasets import load_digits

import refopt.torch


def train(adamw, device="cpu", dtype=torch.float32, steps=40, **options):
    """The loss at every step; ``adamw`` is the class, and all that differs."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=dtype, device=device)
    labels = torch.tensor(digits.target, device=device)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 24), torch.nn.GELU(), torch.nn.Linear(24, 10)).to(device, dtype)
    optimizer = adamw(net.parameters(), **{"lr": 1e-2, **options})
    losses = []
    for batch in torch.arange(256 * steps).remainder(len(labels)).split(256):
        loss = torch.nn.functional.cross_entropy(net(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(arguments=None):
    """Train with both, and print both losses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    device = parser.parse_args(arguments).device
    theirs, ours = (train(adamw, device) for adamw in (torch.optim.AdamW, refopt.torch.AdamW))
    for k in range(0, len(ours), 5):
        print(f"step {k:2}   loss with PyTorch {theirs[k]:.9f}   with refopt {ours[k]:.9f}")
    print(f"largest difference {max(abs(x - y) for x, y in zip(theirs, ours, strict=True)):.1e}")
    return theirs, ours


if __name__ == "__main__":
    main()
