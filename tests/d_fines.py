"""Small D-FINEs: those that were recorded, and one for tests of everything else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from boxwright.families.d_fine.decoder import DecoderLayout, DistributionDecoder, NoisyQueries
from boxwright.families.d_fine.network import DFine, EncoderLayout, HybridEncoder, QuerySelection
from boxwright.families.d_fine.weights import from_transformers
from boxwright.nn.backbones.hgnetv2 import HgNetLayout, HgNetV2
from boxwright.types import Targets
from tests.parity.recordings import FOLDERS

D_FINE = """d_fine { num_classes: 4
  image_resizer { fixed_shape_resizer { height: 64 width: 96 resize_method: BILINEAR_ANTIALIASED } }
  encoder { depth: 16 feedforward: 32 block_repeat: 1 } decoder { depth: 16 feedforward: 32 num_layers: 2 num_queries: 20 }
  denoising { num_queries: 16 }
}"""

DEIM = D_FINE.replace("num_queries: 20 }", "num_queries: 20 activation: SILU }").replace(
    "denoising { num_queries: 16 }", "denoising { num_queries: 16 } loss { classification: MATCHABILITY_AWARE }"
)


def recorded() -> list[Path]:
    """List the recordings of D-FINE of all folders, without suffixes."""
    found = (path for folder in FOLDERS for path in sorted((folder / "d_fine").glob("*.config.json")))
    return [path.with_name(path.name.partition(".")[0]) for path in found]


def recorded_json(path: Path, kind: str) -> Any:
    """Return one of a recording's JSON files."""
    return json.loads(path.with_name(f"{path.name}.{kind}.json").read_text())


def arrays(path: Path, kind: str) -> dict[str, Tensor]:
    """Return one of a recording's archives."""
    found: dict[str, NDArray[Any]] = dict(np.load(path.with_name(f"{path.name}.{kind}.npz")))
    return {name: torch.from_numpy(value) for name, value in found.items()}


@cache
def _weights(path: Path) -> dict[str, Tensor]:
    return load_file(path.with_name(f"{path.name}.safetensors"))


def network_of(path: Path, activation: type[nn.Module] = nn.ReLU) -> DFine:
    """Return a recording's network, in evaluation mode, with its weights."""
    config = recorded_json(path, "config")
    body, classes = config["backbone_config"], len(config["id2label"])
    backbone = HgNetV2(
        HgNetLayout(
            stem=tuple(body["stem_channels"][1:]),
            middle=tuple(body["stage_mid_channels"]),
            out=tuple(body["stage_out_channels"]),
            blocks=tuple(body["stage_num_blocks"]),
            layers=body["stage_numb_of_layers"][0],
            affine=body["use_learnable_affine_block"],
        ),
        config["feat_strides"],
    )
    encoder = EncoderLayout(
        config["encoder_hidden_dim"],
        config["hidden_expansion"],
        round(3 * config["depth_mult"]),
        config["encoder_ffn_dim"],
        config["encoder_attention_heads"],
    )
    decoder = DecoderLayout(
        config["d_model"],
        config["decoder_layers"],
        tuple(config["decoder_n_points"]),
        config["decoder_ffn_dim"],
        activation,
        config["decoder_attention_heads"],
        config["max_num_bins"],
        config["reg_scale"],
        config["up"],
    )
    network = DFine(
        backbone,
        HybridEncoder(backbone.channels, encoder),
        QuerySelection(encoder.depth, decoder, classes, config["num_queries"]),
        DistributionDecoder(decoder, classes),
    )
    state = {name: value for name, value in network.state_dict().items() if "num_batches" not in name}
    found = from_transformers(state, _weights(path), path)
    assert found.keys() == state.keys()
    network.load_state_dict(found, strict=False)
    return network.eval()


@contextmanager
def in_float64() -> Iterator[None]:
    """Let the network compute in float64, as it was recorded, where it asks for float32.

    On random weights single queries amplify float32's rounding a thousand times: in float64 they tell a formula from it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "float", Tensor.double)
        patch.setattr(torch, "float32", torch.float64)
        yield


def targets_of(train: dict[str, Tensor], size: tuple[int, int]) -> Targets:
    """Return a recording's targets, in pixels of an input of (height, width)."""
    boxes, valid = train["target_boxes_cxcywh"], train["target_valid"]
    low, high = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    corners = torch.cat([low, high], -1) * torch.tensor([size[1], size[0]] * 2)
    return Targets(corners * valid[..., None], train["target_labels"] * valid, valid.float(), valid)


def noisy_of(train: dict[str, Tensor]) -> NoisyQueries:
    """Return a recording's noisy queries: in each group first those that have to find an object, in its order."""
    valid, groups = train["target_valid"], int(train["dn_groups"])
    objects = torch.where(valid, torch.arange(valid.shape[1]), -1)
    both = torch.cat([objects, torch.full_like(objects, -1)], 1).repeat(1, groups)
    return NoisyQueries(train["dn_labels"], train["dn_boxes_unactivated"].double(), both, train["dn_blocked"], groups)
