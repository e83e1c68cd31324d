"""The field's ConvNet: blocks of convolution, normalisation, ReLU and average pooling, then one linear layer."""

from collections.abc import Callable

from torch import Tensor, nn

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "in": lambda width: nn.InstanceNorm2d(width, affine=True),
    "bn": nn.BatchNorm2d,
}


class ConvNet(nn.Module):
    """`depth` blocks of `width` channels, each halving the image."""

    def __init__(self, *, depth: int, width: int, norm: str, num_classes: int, channels: int, image_size: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for block in range(depth):
            blocks += [
                nn.Conv2d(width if block else channels, width, kernel_size=3, padding=1),
                NORMS[norm](width),
                nn.ReLU(),
                nn.AvgPool2d(2),
            ]
        self.features = nn.Sequential(*blocks)
        side = image_size // 2**depth
        self.classifier = nn.Linear(width * side * side, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images [B, C, H, W] → logits [B, K]."""
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits
