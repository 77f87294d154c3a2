"""Small RF-DETRs: those that were recorded, by their configurations and the weights that follow from their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxwright.config.load import parse_message
from boxwright.families.rf_detr.network import RfDetr
from boxwright.families.rf_detr.weights import authors_name
from boxwright.nn.detector import Detector
from boxwright.nn.ops.boxes import to_corners
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.types import Targets
from tests.conftest import GOLDEN
from tests.golden.weights import uniform_stream
from tests.parity.recordings import FOLDERS

RF_DETR = """rf_detr { num_classes: 4
  image_resizer { fixed_shape_resizer { height: 64 width: 64 resize_method: BILINEAR_ANTIALIASED } }
  feature_extractor { width: 32 depth: 4 num_heads: 2 patch: 8 windows: 2 grid: 8 taken: [2, 4] }
  decoder { depth: 16 num_layers: 2 feedforward: 32 num_queries: 20 num_groups: 3 self_heads: 2 cross_heads: 4 }
}"""
RF_DETR_MASKS = RF_DETR.rstrip().removesuffix("}") + "masks { } }"
NANO = """rf_detr { num_classes: 90
  image_resizer { fixed_shape_resizer { height: 384 width: 384 resize_method: BILINEAR_ANTIALIASED } } }"""
CASES = ("tiny", "base_like", "two_levels", "refining", "few_cells", "segmentation")


def folders() -> list[Path]:
    """List the folders of recordings of RF-DETR."""
    return [folder / "rf_detr" for folder in FOLDERS if (folder / "rf_detr").is_dir()]


def folders_with(file: str) -> list[Path]:
    """List the folders of recordings that have a file, which all but the shipped one must have."""
    found = [folder for folder in folders() if (folder / file).is_file()]
    missing = [folder for folder in folders() if folder not in found and folder.parent != GOLDEN]
    assert not missing, (file, missing)
    return found


def recorded() -> list[Path]:
    """List the recorded small networks of all folders, without suffixes."""
    paths = [folder / name for folder in folders() for name in CASES]
    return [path for path in paths if path.with_name(f"{path.name}.config.json").is_file()]


def read_json(path: Path, kind: str) -> Any:
    """Return one of a recording's JSON files."""
    return json.loads(path.with_name(f"{path.name}.{kind}.json").read_text())


def read_arrays(path: Path, kind: str) -> dict[str, Tensor]:
    """Return one of a recording's archives."""
    arrays: dict[str, NDArray[Any]] = dict(np.load(path.with_name(f"{path.name}.{kind}.npz")))
    return {name: torch.from_numpy(value) for name, value in arrays.items()}


def weight(salt: str, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return the weights of a recorded tensor, which follow from the authors' name of it and the recording's salt."""
    count = int(np.prod(shape)) if shape else 1
    unit = uniform_stream(f"{salt}|{name}", count).reshape(shape)
    sign, fan = 2 * unit - 1, max(1, count // shape[0]) if shape else 1
    leaf = name.rsplit(".", 1)[-1]
    bias = leaf == "bias"
    spread = sign * np.sqrt(3.0 / fan)
    if leaf == "lambda1":
        value = 0.4 + 0.6 * unit
    elif leaf in ("cls_token", "mask_token", "register_tokens", "position_embeddings"):
        value = 0.5 * sign
    elif name.startswith("refpoint_embed."):
        value = 0.2 * sign
    elif name.startswith("query_feat."):
        value = np.sqrt(3.0) * sign
    elif "sampling_offsets" in name:
        value = 2.0 * sign if bias else spread
    elif "bbox_embed" in name and shape and shape[0] == 4:
        value = 0.1 * sign if bias else 0.3 * spread
    elif "class_embed" in name:
        value = sign - 1.0 if bias else 4.0 * spread
    elif len(shape) == 1:
        value = 1.0 + 0.2 * sign if leaf == "weight" else 0.1 * sign
    else:
        value = spread * np.sqrt(2.0) if len(shape) == 4 else spread
    return torch.from_numpy(value.astype(np.float32))


def picture(salt: str, name: str, height: int, width: int) -> NDArray[np.uint8]:
    """Return a recorded picture: squares of 8 pixels of any color, with noise."""
    rows, columns = -(-height // 8), -(-width // 8)
    coarse = uniform_stream(f"{salt}|{name}|coarse", rows * columns * 3).reshape(rows, columns, 3)
    noise = uniform_stream(f"{salt}|{name}|noise", height * width * 3).reshape(height, width, 3)
    squares = coarse.repeat(8, 0).repeat(8, 1)[:height, :width]
    return np.clip(np.floor(squares * 216) + np.floor(noise * 41), 0, 255).astype(np.uint8)


def described(config: Any) -> str:
    """Return our message of a recorded network; a JSON file's `encoder`, `model`, `defaults` and `size`."""
    encoder, model = config["encoder"], config["model"]
    height, width = config.get("size", (model["resolution"],) * 2)
    lite, relative = model.get("lite_refpoint_refine", True), model.get("bbox_reparam", True)
    masks = f"masks {{ stride: {model['mask_downsample_ratio']} }}" if model.get("segmentation_head") else ""
    loss = "IOU_AWARE" if model.get("ia_bce_loss", True) else "VARIFOCAL"
    return f"""rf_detr {{
      num_classes: {model["num_classes"]}
      image_resizer {{ fixed_shape_resizer {{ height: {height} width: {width} resize_method: BILINEAR_ANTIALIASED }} }}
      feature_extractor {{
        width: {encoder["hidden_size"]} depth: {encoder["num_hidden_layers"]}
        num_heads: {encoder["num_attention_heads"]} patch: {model["patch_size"]} windows: {model["num_windows"]}
        grid: {model["positional_encoding_size"]} taken: {model["out_feature_indexes"]}
      }}
      projector {{ levels: {[int(level[1]) for level in model["projector_scale"]]} }}
      decoder {{
        depth: {model["hidden_dim"]} num_layers: {model["dec_layers"]}
        feedforward: {config["defaults"]["dim_feedforward"]} num_queries: {model["num_queries"]}
        num_groups: {model["group_detr"]} self_heads: {model["sa_nheads"]} cross_heads: {model["ca_nheads"]}
        taps: {model["dec_n_points"]} refine_references: {str(not lite).lower()}
        boxes: {"RELATIVE" if relative else "LOGITS"}
      }}
      {masks}
      loss {{ classification: {loss} }}
      post_processing {{ max_total_detections: {model["num_select"]} }}
    }}"""


def build(text: str) -> Detector:
    """Return the detector of a message."""
    return build_detector(parse_message(text, m.DetectionModel))


def detector_of(path: Path) -> Detector:
    """Return a recording's detector, with its weights, whose class heads have the authors' order of rows."""
    config = read_json(path, "config")
    detector = build(described(config))
    network = detector.network
    assert isinstance(network, RfDetr)
    shapes = {name: config["shapes"][authors_name(name)] for name in network.state_dict()}
    assert {name: list(value.shape) for name, value in network.state_dict().items()} == shapes
    return with_recorded_weights(detector, config["salt"])


def with_recorded_weights(detector: Detector, salt: str) -> Detector:
    """Give a detector the weights that follow from a recording's salt; return it in evaluation mode."""
    state = detector.network.state_dict()
    detector.network.load_state_dict(
        {name: weight(salt, authors_name(name), tuple(value.shape)) for name, value in state.items()}
    )
    return detector.eval()


def network_of(path: Path) -> RfDetr:
    """Return a recording's network, in evaluation mode."""
    network = detector_of(path).network
    assert isinstance(network, RfDetr)
    return network


def sizes_of(images: Tensor) -> Tensor:
    """Return the true sizes of inputs that have no padding, int64 [B, 2]."""
    return torch.tensor([images.shape[-2:]] * len(images))


def within(actual: Tensor, wanted: Tensor, limit: float) -> None:
    """Check that two tensors of one shape differ by no more than a limit."""
    assert actual.shape == wanted.shape
    assert float((actual.double() - wanted.double()).abs().max()) <= limit


def images_of(path: Path) -> Tensor:
    """Return a recording's three inputs."""
    config = read_json(path, "config")
    pixels = np.stack([picture(config["salt"], f"image{number}", *config["size"]) for number in range(3)])
    mean, deviation = (np.array(v, np.float32) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    scaled = (pixels.astype(np.float32) / np.float32(255) - mean) / deviation
    return torch.from_numpy(scaled.transpose(0, 3, 1, 2).copy())


def targets_of(path: Path) -> Targets:
    """Return a recording's targets, whose labels are rows of the class heads in the authors' order."""
    arrays, (height, width) = read_arrays(path, "train"), read_json(path, "config")["size"]
    boxes, valid = arrays["target_boxes_cxcywh"], arrays["target_valid"]
    corners = to_corners(boxes) * torch.tensor([width, height, width, height])
    return Targets(corners, arrays["target_labels"], valid.float(), valid)
