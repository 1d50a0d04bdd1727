"""What `benchmarks.torch_training` trains: models with batches of random data, and the optimizers that train them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.torch_work import OURS
from refopt import torch as merged

MAX_NORM = 1.0
CLASSES = 1000
KINDS = OURS, "fused", "foreach"
AUTOCAST = {"cuda": torch.float16, "cpu": torch.bfloat16}


class Case(NamedTuple):
    """A model and the optimizer that trains it.

    Attributes:
        model: what it is called.
        kind: the optimizer's class, by its name in ``torch.optim``.
        options: what the class is given.
        build: makes the model, on the default device.
        batch: makes a batch: what the model takes, and the classes.
        samples: of a batch.
    """

    model: str
    kind: str
    options: dict[str, Any]
    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    samples: int

    def optimizer(self, name: str, params: Any) -> Optimizer:
        """Of `KINDS`; refopt's clips by itself."""
        if name == OURS:
            return getattr(merged, self.kind)(params, **self.options, max_norm=MAX_NORM)
        return getattr(torch.optim, self.kind)(params, **self.options, **{name: True})


class Text(nn.Module):
    """A classifier of sequences of tokens, by ``torch.nn.TransformerEncoder``."""

    def __init__(self, tokens: int, width: int, heads: int, layers: int, length: int, classes: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of each class."""
        return self.head(self.encoder(self.tokens(tokens) + self.places)[:, 0])


def resnet50() -> nn.Module:
    """timm's ResNet-50."""
    import timm

    return timm.create_model("resnet50", num_classes=CLASSES)


def tiny_images() -> nn.Module:
    """A convolution, a normalisation and a classifier: for the executor."""
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
    return nn.Sequential(*layers)


def images(count: int, size: int, classes: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """Batches of random images."""
    return lambda: (torch.randn(count, 3, size, size), torch.randint(classes, (count,)))


def texts(count: int, length: int, tokens: int, classes: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """Batches of random sequences."""
    return lambda: (torch.randint(tokens, (count, length)), torch.randint(classes, (count,)))


ADAMW = {"lr": 1e-3}
SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-5}
CASES = {
    "cuda": (
        Case("ResNet-50", "AdamW", ADAMW, resnet50, images(64, 224, CLASSES), 64),
        Case("ResNet-50", "SGD", SGD, resnet50, images(64, 224, CLASSES), 64),
        Case("BERT-size", "AdamW", {"lr": 1e-4}, lambda: Text(30522, 1024, 16, 24, 128, CLASSES),
             texts(16, 128, 30522, CLASSES), 16),
    ),
    "cpu": (
        Case("tiny images", "AdamW", ADAMW, tiny_images, images(4, 6, 5), 4),
        Case("tiny images", "SGD", SGD, tiny_images, images(4, 6, 5), 4),
        Case("tiny texts", "AdamW", ADAMW, lambda: Text(11, 8, 2, 1, 3, 5), texts(4, 3, 11, 5), 4),
    ),
}


class Run:
    """A training in mixed precision: a scaler, a cosine schedule, clipping; the same from the same seed.

    Attributes:
        model: in training.
        params, optimizer: its parameters, and what updates them.
        losses: of each step.
    """

    def __init__(self, case: Case, name: str, device: str, steps: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        with torch.device(device):
            self.model = case.build()
            self._batches = [case.batch() for _ in range(4)]  # again and again, so that something can be learnt
        self.name, self._device = name, device
        self.params = list(self.model.parameters())
        self.optimizer = case.optimizer(name, self.params)
        self.scaler = torch.amp.GradScaler(device, init_scale=2.0**12)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self._losses: list[Tensor] = []

    @property
    def losses(self) -> list[float]:
        return [loss.item() for loss in self._losses]

    def step(self, look: Callable[["Run"], Any] | None = None) -> None:
        """One step.

        Args:
            look: is called before PyTorch's optimizer steps, when the gradients are unscaled and clipped.
        """
        data, labels = self._batches[len(self._losses) % len(self._batches)]
        with torch.autocast(self._device, AUTOCAST[self._device]):
            loss = nn.functional.cross_entropy(self.model(data), labels)
        self.scaler.scale(loss).backward()
        if self.name != OURS:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.params, MAX_NORM)
        if look is not None:
            look(self)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.optimizer.zero_grad()
        self._losses.append(loss.detach())

    def steps(self, count: int) -> None:
        """So many steps."""
        for _ in range(count):
            self.step()

    def state(self) -> dict[str, Any]:
        """All that a training goes on from."""
        return {name: part.state_dict() for name, part in self._parts()} | {"losses": self._losses}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        for name, part in self._parts():
            part.load_state_dict(state[name])
        self._losses = list(state["losses"])

    def _parts(self) -> Iterator[tuple[str, Any]]:
        for name in ("model", "optimizer", "scaler", "schedule"):
            yield name, getattr(self, name)


def differing(xs: Iterable[Tensor], ys: Iterable[Tensor]) -> int:
    """How many elements of fp32 tensors differ in any bit."""
    return sum(int((x.view(torch.int32) != y.view(torch.int32)).sum()) for x, y in zip(xs, ys, strict=True))
