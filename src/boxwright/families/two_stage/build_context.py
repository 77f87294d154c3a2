"""`Context`: the attention of Context R-CNN."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from boxwright.families.two_stage.build_feature_extractor import TwoStageExtractor
from boxwright.families.two_stage.context_attention import (
    AttentionBlock,
    ContextAttention,
    LayeredAttention,
    Place,
)
from boxwright.families.two_stage.message import Context
from boxwright.families.two_stage.region_crop import CornerCrop, RegionCrop
from boxwright.nn.activations import make_activation
from boxwright.nn.batch_norm import BatchNormSettings, make_norm
from boxwright.nn.layers import Dense, KernelRule

# Fixed in both of TF's libraries.
_NORM = BatchNormSettings(decay=0.97, epsilon=0.001)


def build_context_attention(
    config: Context, extractor: TwoStageExtractor, crop: RegionCrop, channels: int, version: int
) -> tuple[ContextAttention, RegionCrop]:
    """Build the attention of a second stage, and return it with the crop that it needs.

    Args:
        channels: Of the box classifier's features.
        version: TensorFlow's, whose blocks and projections differ.
    """
    place: Place = "crops" if config.attention_position.name == "POST_RPN" else "features"
    every = 1
    if place == "crops":
        channels = extractor.channels[0]
        if isinstance(crop, CornerCrop):  # attention reads all cells, including those that the second stage skips
            every, crop = crop.pool.every, replace(crop, pool=replace(crop.pool, every=1))

    def project(inputs: int, outputs: int) -> nn.Module:
        # Keras's dense layer keeps its bias beside the normalization's; TF-Slim's does not.
        dense = KernelRule().apply(Dense(inputs, outputs, bias=version == 2))
        return nn.Sequential(dense, make_norm(outputs, _NORM), make_activation("RELU_6"))

    def block(length: int) -> AttentionBlock:
        width, temperature = config.attention_bottleneck_dimension, config.attention_temperature
        return AttentionBlock(project, channels, length, width, temperature)

    attend: AttentionBlock | LayeredAttention
    if version == 1:
        itself = block(channels) if config.use_self_attention else None
        heads = config.num_attention_heads
        count = heads * config.num_attention_layers if config.use_long_term_attention else 0
        blocks = [block(config.context_feature_length) for _ in range(count)]
        attend = LayeredAttention(itself, blocks, heads, in_sequence=config.self_attention_in_sequence)
    else:
        attend = block(config.context_feature_length)
    length, most = config.context_feature_length, config.max_num_context_features
    return ContextAttention(attend, place, length, most, every), crop
