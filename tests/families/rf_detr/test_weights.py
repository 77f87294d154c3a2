"""Files of the authors' weights, by their shapes: which size they are of, and whether they find masks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

import boxwright as bw
from boxwright.base.errors import CheckpointError
from boxwright.config.load import parse_message
from boxwright.families.rf_detr.message import SIZES, RfDetr
from boxwright.families.rf_detr.weights import authors_name, describe_weights
from boxwright.families.shared.source_weights import FileFacts
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config
from boxwright.types import Categories, Category
from tests.rf_detrs import RF_DETR, build

SEGMENTING = {
    "SEG_N": "rf_detr_seg_nano_coco",
    "SEG_S": "rf_detr_seg_small_coco",
    "SEG_M": "rf_detr_seg_medium_coco",
    "SEG_L": "rf_detr_seg_large_coco",
    "SEG_XL": "rf_detr_seg_xlarge_coco",
    "SEG_2XL": "rf_detr_seg_2xlarge_coco",
}
# In training, with the authors' mask token of 384, and names in their files without two that nothing reads.
COUNTS = {
    "SEG_N": (33_577_475, 543),
    "SEG_S": (33_711_107, 543),
    "SEG_M": (35_694_259, 571),
    "SEG_L": (35_873_971, 571),
    "SEG_XL": (38_113_635, 599),
    "SEG_2XL": (38_648_163, 599),
}


def authors_tensors(preset: str, device: str) -> dict[str, Tensor]:
    """Return a preset's made-up weights by the authors' names."""
    config = load_config(f"preset:{preset}")
    assert config.model is not None
    with torch.device(device):
        network = build_detector(config.model).network
    return {authors_name(name): value for name, value in network.state_dict().items()}


@pytest.mark.parametrize("size", SEGMENTING)
def test_a_file_with_masks_says_its_size(size: str) -> None:
    """Its message is the preset's, and its parameters are as many as the authors' code has."""
    tensors = authors_tensors(SEGMENTING[size], "meta")
    described = describe_weights(tensors, Path("a.pth"), FileFacts())
    assert described is not None
    message, categories = described
    assert isinstance(message, RfDetr)
    assert message.masks is not None
    assert message.size.name == size
    preset = load_config(f"preset:{SEGMENTING[size]}").model
    assert preset is not None
    assert preset.rf_detr is not None
    assert message.image_resizer == preset.rf_detr.image_resizer
    assert message.decoder is not None
    assert message.post_processing is not None
    assert message.decoder.num_queries == message.post_processing.max_total_detections
    of_preset = 300 if preset.rf_detr.decoder is None else preset.rf_detr.decoder.num_queries
    assert message.decoder.num_queries == of_preset
    assert (sum(value.numel() for value in tensors.values()) + 384, len(tensors)) == COUNTS[size]
    assert categories is not None
    assert [item.name for item in categories.items if item.id == 18] == ["dog"]


def test_masks_of_no_published_size_are_refused_with_the_sizes() -> None:
    tensors = authors_tensors("rf_detr_seg_nano_coco", "meta")
    tensors = {name: value for name, value in tensors.items() if ".layers.3." not in name}
    with pytest.raises(CheckpointError, match=r"26 × 26 positions and 3 layers.*SEG_2XL; pass the configuration"):
        describe_weights(tensors, Path("a.pth"), FileFacts())
    assert sum(name.startswith("SEG") for name in SIZES) == len(SEGMENTING)


@pytest.mark.parametrize("mode", ["BY_NAME", "BY_POSITION"])
def test_class_rows_are_kept_by_name_or_by_position(mode: str, tmp_path: Path) -> None:
    """Of cat, dog and owl an owl and a newt: by name the owl keeps its row; by position it has the cat's.

    In the authors' files the row of no class is the last one, in ours the first.
    """
    names = ("cat", "dog", "owl")
    ours = Categories(tuple(Category(number, number + 1, name) for number, name in enumerate(("owl", "newt"))))
    source = build(RF_DETR.replace("num_classes: 4", "num_classes: 3"))
    tensors = {authors_name(name): value for name, value in source.network.state_dict().items()}
    heads = [name for name in tensors if re.search(r"class_embed(\.\d)?\.bias$", name)]
    assert len(heads) == 4  # the decoder's, and those of three groups
    tensors |= dict.fromkeys(heads, torch.arange(4.0))
    torch.save({"model": tensors, "args": {"class_names": list(names)}}, tmp_path / "theirs.pth")
    text = RF_DETR.replace("num_classes: 4", f"num_classes: 2 class_rows: {mode}")
    detector = build_detector(parse_message(text, m.DetectionModel), ours)
    torch.nn.init.constant_(detector.network.get_parameter("decoder.class_embed.bias"), 9)
    report = bw.load_weights(detector, tmp_path / "theirs.pth", scope="transfer")
    wanted = {"BY_NAME": [3.0, 2, 9], "BY_POSITION": [2.0, 0, 1]}[mode]
    assert detector.network.get_parameter("decoder.class_embed.bias").tolist() == wanted
    assert ("owl kept by name" in report.classes) == (mode == "BY_NAME")


@pytest.mark.slow
def test_a_published_file_with_masks_opens(tmp_path: Path) -> None:
    tensors = authors_tensors("rf_detr_seg_nano_coco", "cpu")
    # As in newer files: an empty mark, and a token that is learned for nothing.
    tensors["_kp_active_mask"] = torch.zeros(0, 0, dtype=torch.bool)
    tensors["backbone.0.encoder.encoder.embeddings.mask_token"] = torch.zeros(1, 384)
    torch.save({"model": tensors}, tmp_path / "rf-detr-seg-nano.pt")
    model = bw.load(tmp_path / "rf-detr-seg-nano.pt")
    result = model(torch.randint(0, 256, (60, 80, 3), dtype=torch.uint8).numpy(), conf=0.0)
    assert result.masks is not None
    assert result.masks.shape == (100, 60, 80)
    state = {authors_name(name): value for name, value in model.detector.network.state_dict().items()}
    assert all(torch.equal(value, tensors[name]) for name, value in state.items())
