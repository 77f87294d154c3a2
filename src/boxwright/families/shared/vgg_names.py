"""Names of VGG-16's layers in public ports, whose layers are a list."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from boxwright.families.shared.source_weights import Names, unchanged

# Indices of the convolutions in torchvision's VGG-16, and in the ports' lists of layers.
_VGG_LAYERS = ((0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28))
_REDUCED = (31, 33)


def both(ours: str, theirs: str, change: Callable[[Tensor], Tensor] = unchanged) -> Names:
    """Yield the names of a layer's kernel and bias."""
    for kind in ("weight", "bias"):
        yield f"{ours}.{kind}", f"{theirs}.{kind}", change


def stages(prefix: str) -> Names:
    """Yield the names of the convolutions below the classifier."""
    for stage, layers in enumerate(_VGG_LAYERS):
        for number, layer in enumerate(layers):
            yield from both(f"backbone.stages.{stage}.{2 * number}", f"{prefix}{layer}")


def reduced_vgg(prefix: str) -> Names:
    """Yield the names of a VGG-16 whose classifier was converted to convolutions."""
    yield from stages(prefix)
    for place, layer in enumerate(_REDUCED):
        yield from both(f"backbone.converted.{2 * place}", f"{prefix}{layer}")
