"""SSD's VGG-16 against torchvision's, which carries the original's weights: same weights, same maps."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision.models.detection.ssd import SSDFeatureExtractorVGG
from torchvision.models.vgg import vgg16

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.families.shared.feature_extractor import FeatureExtractor, build_feature_extractor
from boxwright.pipeline import messages as m


def ours(layers: int) -> FeatureExtractor:
    return build_feature_extractor(parse_message(f'type: "ssd_vgg16" num_layers: {layers}', m.SsdFeatureExtractor))


def copy(extractor: FeatureExtractor, theirs: nn.Module) -> None:
    """Give theirs the weights of ours, layer by layer in order."""
    backbone, neck = extractor.backbone.module, extractor.neck.module
    mine = [layer for part in (backbone, neck) for layer in part.modules() if isinstance(layer, nn.Conv2d)]
    other = [layer for layer in theirs.modules() if isinstance(layer, nn.Conv2d)]
    assert len(mine) == len(other)
    with torch.no_grad():
        for own, their in zip(mine, other, strict=True):
            their.weight.copy_(own.weight)
            assert their.bias is not None
            assert own.bias is not None
            own.bias.uniform_(-0.1, 0.1)
            their.bias.copy_(own.bias)
        backbone.norms[0].scale.uniform_(10, 30)  # type: ignore[union-attr, operator]
        theirs.scale_weight.copy_(backbone.norms[0].scale)  # type: ignore[union-attr, operator, arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "size"), [(6, 300), pytest.param(7, 512, marks=pytest.mark.slow)])
@torch.no_grad()
def test_maps_are_torchvisions(layers: int, size: int) -> None:
    extractor = ours(layers)
    if layers == 6:
        theirs = SSDFeatureExtractorVGG(vgg16(weights=None, init_weights=False).features, highres=False)
    else:
        theirs = SSDFeatureExtractorVGG(vgg16(weights=None, init_weights=False).features, highres=True)
    copy(extractor, theirs)
    image = torch.rand(1, 3, size, size) * 200 - 100
    found = extractor.neck.module(extractor.backbone.module(image))
    wanted = list(theirs(image).values())
    assert [level.shape[-1] for level in found] == ([38, 19, 10, 5, 3, 1] if layers == 6 else [64, 32, 16, 8, 4, 2, 1])
    # torchvision's 512 has conv10_2 and conv11_2 as its 300 does, unpadded, where the paper's halve the map.
    same = len(wanted) if layers == 6 else 4
    for level, other in zip(found[:same], wanted[:same], strict=True):
        torch.testing.assert_close(level, other, atol=1e-4, rtol=1e-4)
    assert extractor.neck.channels == tuple(level.shape[1] for level in found)


def test_other_numbers_of_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="ssd_vgg16 has 6 layers"):
        ours(5)
