"""The published sizes of D-FINE, and the layouts of a network's parts that a message describes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from boxwright.families.d_fine.decoder import DecoderLayout
from boxwright.families.d_fine.message import (
    DFine as DFineMessage,
)
from boxwright.families.d_fine.message import (
    DFineBox,
    DFineDecoder,
    DFineEncoder,
    DFineFeatureExtractor,
    HgNetV2Layout,
)
from boxwright.families.d_fine.network import EncoderLayout
from boxwright.nn.backbones.hgnetv2 import HGNETS, HgNetLayout


@dataclass(frozen=True)
class Size:
    """A published size.

    Attributes:
        encoder: Its depth and feed-forward width, the blocks' expansion and how often they repeat.
        decoder: Its depth, feed-forward width and number of layers.
    """

    backbone: str
    strides: tuple[int, ...]
    encoder: tuple[int, int, float, int]
    decoder: tuple[int, int, int]
    taps: tuple[int, ...]
    reg_scale: float


_FINE, _TAPS = (8, 16, 32), (3, 6, 3)
SIZES = {
    "N": Size("hgnetv2_b0", (16, 32), (128, 512, 0.34, 2), (128, 512, 3), (6, 6), 4.0),
    "S": Size("hgnetv2_b0", _FINE, (256, 1024, 0.5, 1), (256, 1024, 3), _TAPS, 4.0),
    "M": Size("hgnetv2_b2", _FINE, (256, 1024, 1.0, 2), (256, 1024, 4), _TAPS, 4.0),
    "L": Size("hgnetv2_b4", _FINE, (256, 1024, 1.0, 3), (256, 1024, 6), _TAPS, 4.0),
    "X": Size("hgnetv2_b5", _FINE, (384, 2048, 1.0, 3), (256, 1024, 6), _TAPS, 8.0),
}
_ACTIVATIONS: dict[str, type[nn.Module]] = {"RELU": nn.ReLU, "SILU": nn.SiLU}


@dataclass(frozen=True)
class Layouts:
    """The shape of a whole network.

    Attributes:
        backbone: None for one of timm's.
        strides: Of its maps.
    """

    backbone: HgNetLayout | None
    strides: tuple[int, ...]
    encoder: EncoderLayout
    decoder: DecoderLayout


def read_layouts(config: DFineMessage) -> Layouts:
    """Return the shape of the network that a configuration describes."""
    size, extractor = SIZES[config.size.name], config.feature_extractor or DFineFeatureExtractor()
    name = extractor.type or size.backbone
    strides = tuple(extractor.strides) or size.strides
    own = HGNETS.get(name) if extractor.layout is None else _layout(extractor.layout)
    return Layouts(own, strides, _encoder(config, size), _decoder(config, size))


def _layout(config: HgNetV2Layout) -> HgNetLayout:
    inner, outer = config.stem
    middle, out, blocks = tuple(config.middle), tuple(config.out), tuple(config.blocks)
    return HgNetLayout((inner, outer), middle, out, blocks, config.layers, affine=config.affine)


def _encoder(config: DFineMessage, size: Size) -> EncoderLayout:
    encoder = config.encoder or DFineEncoder()
    depth, feedforward, expansion, repeats = size.encoder
    return EncoderLayout(
        depth=encoder.depth or depth,
        expansion=encoder.expansion or expansion,
        repeats=encoder.block_repeat or repeats,
        feedforward=encoder.feedforward or feedforward,
        heads=encoder.num_heads,
    )


def _decoder(config: DFineMessage, size: Size) -> DecoderLayout:
    decoder, box = config.decoder or DFineDecoder(), config.box or DFineBox()
    depth, feedforward, layers = size.decoder
    return DecoderLayout(
        depth=decoder.depth or depth,
        num_layers=decoder.num_layers or layers,
        taps=tuple(decoder.taps) or size.taps,
        feedforward=decoder.feedforward or feedforward,
        activation=_ACTIVATIONS[decoder.activation.name],
        heads=decoder.num_heads,
        bins=box.bins,
        scale=box.reg_scale or size.reg_scale,
        up=box.up,
    )
