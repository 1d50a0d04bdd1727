"""Residual networks."""

from collections.abc import Iterator

Named = tuple[str, tuple[int, ...]]


def resnet50() -> Iterator[Named]:
    """ResNet-50 for ImageNet as in torchvision: He et al., Deep Residual Learning for Image Recognition,
    arXiv:1512.03385, table 1; the biases of convolutions are left to batch normalization."""
    yield from _conv_bn("conv1", "bn1", 64, 3, 7)
    channels = 64
    for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], start=1):
        for block in range(blocks):
            prefix = f"layer{stage}.{block}"
            yield from _bottleneck(prefix, channels, width, downsample=block == 0)
            channels = 4 * width
    yield "fc.weight", (1000, channels)
    yield "fc.bias", (1000,)


def _bottleneck(prefix: str, channels: int, width: int, *, downsample: bool) -> Iterator[Named]:
    yield from _conv_bn(f"{prefix}.conv1", f"{prefix}.bn1", width, channels, 1)
    yield from _conv_bn(f"{prefix}.conv2", f"{prefix}.bn2", width, width, 3)
    yield from _conv_bn(f"{prefix}.conv3", f"{prefix}.bn3", 4 * width, width, 1)
    if downsample:
        yield from _conv_bn(f"{prefix}.downsample.0", f"{prefix}.downsample.1", 4 * width, channels, 1)


def _conv_bn(conv: str, bn: str, out: int, channels: int, kernel: int) -> Iterator[Named]:
    yield f"{conv}.weight", (out, channels, kernel, kernel)
    yield f"{bn}.weight", (out,)
    yield f"{bn}.bias", (out,)
