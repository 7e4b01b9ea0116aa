"""VGG-16, ResNet-50, ResNet-152 and the CIFAR-10 network of Spotlight.

vgg-16              Simonyan and Zisserman 2015, configuration D: 13 convolutions of 3x3, 3 linear layers; 224x224.
resnet-50, -152     He et al. 2016, bottleneck blocks (3, 4, 6, 3) and (3, 8, 36, 3); 224x224. HDP and Post place
                    resnet-152. The stride is at the 3x3 convolution of a block, as today's implementations have it;
                    the paper has it at the first 1x1. Parameters are the same.
spotlight-cifar10   Gao et al. 2018 say "a CNN on CIFAR-10" with TensorFlow's operation names (`conv1/biases`); read
                    here as TensorFlow's own CIFAR-10 network: two 5x5 convolutions of 64 channels with pooling and
                    local response normalisation, linear layers of 384 and 192; crops of 24x24.

Precision float32. Optimiser: SGD with momentum, as the papers of VGG and ResNet train; plain SGD for CIFAR-10.
Batch 32 per step for ImageNet, which Post states for ResNet, and 128 for CIFAR-10, that network's own.
Chosen here: no dropout and no weight decay.
"""

from __future__ import annotations

from torch import Tensor, nn

from placewright.zoo.layers import Built, ConvNorm, CrossEntropy, image_batch


class Classifier(nn.Module):
    """Features of an image, a classifier of their values and the loss."""

    def __init__(self, features: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.classifier = classifier
        self.loss = CrossEntropy()

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """The loss, or the logits where there are no labels."""
        values = self.features(images).flatten(1)
        result: Tensor = self.loss(self.classifier(values), labels)
        return result


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions added to the block's input; the last has four times the channels."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.reduce = ConvNorm(inputs, width)
        self.conv = ConvNorm(width, width, 3, stride=stride)
        self.expand = ConvNorm(width, outputs, relu=False)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else ConvNorm(inputs, outputs, stride=stride, relu=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out: Tensor = self.relu(self.expand(self.conv(self.reduce(x))) + self.shortcut(x))
        return out


class LocalResponseNorm(nn.LocalResponseNorm):
    """Normalisation over 9 neighbouring channels, with TensorFlow's CIFAR-10 constants."""

    def __init__(self) -> None:
        super().__init__(size=9, alpha=0.001, beta=0.75, k=1.0)  # this alpha is divided by the size


def vgg(batch: int, training: bool, *, convolutions: tuple[int, ...] = (2, 2, 3, 3, 3), size: int = 224) -> Built:
    """VGG with so many convolutions in each of its five stages: 16 layers with weights by default."""
    features, channels = nn.Sequential(), 3
    for stage, (count, width) in enumerate(zip(convolutions, (64, 128, 256, 512, 512), strict=True), 1):
        block = nn.Sequential()
        for _ in range(count):
            block.extend([nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()])
            channels = width
        features.add_module(f"stage{stage}", block.append(nn.MaxPool2d(2)))
    values = channels * (size // 32) ** 2
    linear = nn.Linear(values, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)
    return Classifier(features, nn.Sequential(*linear)), image_batch(batch, size, 1000, training)


def resnet(batch: int, training: bool, *, blocks: tuple[int, ...], size: int = 224) -> Built:
    """ResNet with so many bottleneck blocks in each of its four stages."""
    features = nn.Sequential()
    features.add_module("stem", nn.Sequential(ConvNorm(3, 64, 7, stride=2), nn.MaxPool2d(3, 2, padding=1)))
    channels = 64
    for stage, (count, width) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True), 1):
        layers = nn.Sequential()
        for k in range(count):
            layers.append(Bottleneck(channels, width, stride=2 if k == 0 and stage > 1 else 1))
            channels = 4 * width
        features.add_module(f"stage{stage}", layers)
    features.add_module("pool", nn.AdaptiveAvgPool2d(1))
    return Classifier(features, nn.Linear(channels, 1000)), image_batch(batch, size, 1000, training)


def cifar10(batch: int, training: bool) -> Built:
    """The network that Spotlight trains on CIFAR-10."""
    features = nn.Sequential()
    features.add_module("conv1", nn.Sequential(nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)))
    features.add_module("norm1", LocalResponseNorm())
    features.add_module("conv2", nn.Sequential(nn.Conv2d(64, 64, 5, padding=2), nn.ReLU()))
    features.add_module("norm2", LocalResponseNorm())
    features.add_module("pool2", nn.MaxPool2d(3, 2, 1))
    classifier = nn.Sequential()
    classifier.add_module("local3", nn.Sequential(nn.Linear(64 * 6 * 6, 384), nn.ReLU()))
    classifier.add_module("local4", nn.Sequential(nn.Linear(384, 192), nn.ReLU()))
    classifier.add_module("softmax", nn.Linear(192, 10))
    return Classifier(features, classifier), image_batch(batch, 24, 10, training)
