"""A D-FINE as a folder that the transformers library opens: `model.safetensors`, `config.json`, its preprocessing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.base.errors import CheckpointError
from boxwright.base.files import make_folder, write_whole
from boxwright.base.safetensors_file import pack_safetensors
from boxwright.families.d_fine.layouts import Layouts, read_layouts
from boxwright.families.d_fine.message import DFine as DFineMessage
from boxwright.families.d_fine.message import DFineDenoising
from boxwright.families.d_fine.network import DFine
from boxwright.families.d_fine.weights import to_transformers
from boxwright.nn.backbones.hgnetv2 import HgNetLayout
from boxwright.nn.detector import Detector
from boxwright.nn.network import evaluation_mode
from boxwright.nn.ops.resize import resize_antialiased
from boxwright.nn.preprocessing import FixedShapeResizer

_BILINEAR = 2  # Pillow's number of it, which antialiases


def write_transformers(detector: Detector, model: DFineMessage, folder: str | Path) -> Path:
    """Write a detector's weights by transformers' names, with the configuration and preprocessing that it reads.

    Args:
        detector: Of `model`.
        folder: Is made; files in it are replaced.

    Returns:
        The file of weights, which `boxwright.load` opens too.

    Raises:
        CheckpointError: If transformers has no such network.
        OutputError: If a file cannot be written.
    """
    network = detector.network
    if not isinstance(network, DFine):
        raise TypeError(f"expected a D-FINE, found {type(network).__name__}")
    layouts, resizer = read_layouts(model), detector.preprocessor.resizer
    if layouts.backbone is None:
        raise CheckpointError("--format transformers: its D-FINE has no backbone of timm's; use hgnetv2_b0 and others")
    if layouts.decoder.activation is not nn.ReLU:
        raise CheckpointError(
            "--format transformers: its D-FINE has ReLU in the layers of boxes whatever config.json says, so that "
            "DEIM's weights compute something else there; use safetensors"
        )
    if not isinstance(resizer, FixedShapeResizer) or resizer.resize is not resize_antialiased:
        raise CheckpointError(
            "--format transformers: its preprocessing antialiases, and resizes to one size, as a fixed_shape_resizer "
            "with resize_method: BILINEAR_ANTIALIASED does, but the detector has another"
        )
    if resizer.channels != 3:
        raise CheckpointError("--format transformers: its D-FINE takes red, green and blue alone")
    with evaluation_mode(detector):  # which takes the start out of statistics in training
        packed = pack_safetensors({**to_transformers(network.state_dict()), **_points(layouts)}, format="pt")
    said = _config(network, layouts, model)
    said |= {"backbone_config": _backbone(layouts.backbone, len(layouts.strides)), **_labels(detector)}
    path = make_folder(Path(folder)) / "model.safetensors"
    write_whole(path.with_name("config.json"), _text(said))
    write_whole(path.with_name("preprocessor_config.json"), _text(_preprocessing(resizer)))
    return write_whole(path, packed)


def _points(layouts: Layouts) -> dict[str, Tensor]:
    """Return a constant of each layer that ours has not: of each tap 1 over the number of its level's."""
    shares = torch.tensor([1 / count for count in layouts.decoder.taps for _ in range(count)])
    numbers = range(layouts.decoder.num_layers)
    return {f"model.decoder.layers.{number}.encoder_attn.num_points_scale": shares.clone() for number in numbers}


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _preprocessing(resizer: FixedShapeResizer) -> dict[str, Any]:
    return {
        "image_processor_type": "RTDetrImageProcessor",
        "do_resize": True,
        "size": {"height": resizer.height, "width": resizer.width},
        "resample": _BILINEAR,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": False,
        "do_pad": False,
    }


def _config(network: DFine, layouts: Layouts, model: DFineMessage) -> dict[str, Any]:
    encoder, decoder, levels = layouts.encoder, layouts.decoder, len(layouts.strides)
    denoising = model.denoising or DFineDenoising()
    return {
        "architectures": ["DFineForObjectDetection"],
        "model_type": "d_fine",
        "dtype": "float32",
        "freeze_backbone_batch_norms": bool(network.frozen_statistics),
        "feat_strides": list(layouts.strides),
        "num_feature_levels": levels,
        "encoder_in_channels": list(network.backbone.channels),
        "encoder_hidden_dim": encoder.depth,
        "encoder_ffn_dim": encoder.feedforward,
        "encoder_attention_heads": encoder.heads,
        "encoder_layers": 1,
        "encode_proj_layers": [levels - 1],
        "encoder_activation_function": "gelu",
        "activation_function": "silu",
        "hidden_expansion": encoder.expansion,
        # transformers takes round(3 × depth_mult).
        "depth_mult": encoder.repeats / 3,
        "d_model": decoder.depth,
        "decoder_in_channels": [encoder.depth] * levels,
        "decoder_ffn_dim": decoder.feedforward,
        "decoder_layers": decoder.num_layers,
        "decoder_attention_heads": decoder.heads,
        "decoder_n_points": list(decoder.taps),
        "decoder_activation_function": "relu",
        "num_queries": network.queries.num_queries,
        "num_denoising": denoising.num_queries,
        "max_num_bins": decoder.bins,
        # From the weights, which may bring other values than the configuration says.
        "reg_scale": float(network.decoder.reg_scale),
        "up": float(network.decoder.up),
    }


def _backbone(body: HgNetLayout, levels: int) -> dict[str, Any]:
    stages = [f"stage{number}" for number in range(1, len(body.out) + 1)]
    return {
        "model_type": "hgnet_v2",
        "num_channels": 3,
        "hidden_act": "relu",
        "embedding_size": body.stem[1],
        "hidden_sizes": list(body.out),
        "depths": list(body.blocks),
        "stem_channels": [3, *body.stem],
        "stage_in_channels": [body.stem[1], *body.out[:-1]],
        "stage_mid_channels": list(body.middle),
        "stage_out_channels": list(body.out),
        "stage_num_blocks": list(body.blocks),
        "stage_numb_of_layers": [body.layers] * len(body.out),
        "stage_downsample": [False, True, True, True],
        "stage_light_block": [False, False, True, True],
        "stage_kernel_size": [3, 3, 5, 5],
        "use_learnable_affine_block": body.affine,
        "out_features": stages[-levels:],
    }


def _labels(detector: Detector) -> dict[str, Any]:
    known = {category.label: category.name for category in detector.categories or ()}
    names = {number: known.get(number, f"LABEL_{number}") for number in range(detector.num_classes)}
    return {
        "id2label": {str(number): name for number, name in names.items()},
        "label2id": {name: number for number, name in names.items()},
    }
