"""The page of all models: the names that can be typed, what their publishers state, and what was measured here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from boxwright.cli.benchmarking.preset_costs import PresetCost, read_costs
from boxwright.weights.published import PublishedWeights, published_weights
from website.families import PAGES, RESULTS, cell, find_family, table

# Families by the page on them, the most recent first, with the year of the paper.
_FAMILIES = {
    "rf_detr.md": ("RF-DETR", 2025),
    "d_fine.md": ("D-FINE", 2024),
    "srn.md": ("SRN", 2019),
    "align_det.md": ("AlignDet", 2019),
    "centernet.md": ("CenterNet", 2019),
    "context_rcnn.md": ("Context R-CNN", 2019),
    "refinedet.md": ("RefineDet", 2017),
    "ssd.md": ("SSD", 2016),
    "two_stage.md": ("Faster R-CNN", 2015),
}
# What a name begins with says more than its family.
_KINDS = {
    "rt_detr_v4": ("RT-DETRv4", 2025),
    "deim": ("DEIM", 2024),
    "effdet": ("EfficientDet", 2019),
    "efficientdet": ("EfficientDet", 2019),
    "mask": ("Mask R-CNN", 2017),
    "torchvision_mask": ("Mask R-CNN", 2017),
}
# The names of the race's models that are not those of presets with the input's size twice.
_RACED = {
    "ssd_mobilenet_v2_320x320": "ssd_mobilenet_v2_320",
    "ssd_mobilenet_v2_fpnlite_320x320": "ssd_mobilenet_v2_fpnlite_320",
    "ssd_resnet50_v1_fpn_640x640": "ssd_resnet50_v1_fpn_640",
    "ssd_efficientdet_d0_512x512": "efficientdet_d0",
    "faster_rcnn_resnet50_v1_640x640": "faster_rcnn_resnet50_v1_640",
}
PROCESSOR = "Intel(R) Xeon(R) Processor"
_HEAD = (
    "model", "family", "year", "AP", "parameters, M", "file, MB", "license of the weights", "input", "GMAC",
    "ms, PyTorch", "ms, ONNX Runtime", "trained on",
)  # fmt: skip
_ABOUT = """\
# Models

Each name can be typed: `boxwright predict photos --model d_fine_s_coco` detects with published weights, which are
[fetched once](weights.md), and `boxwright train my-data --model d_fine_s_coco` starts from them. A name without a
license is a preset whose training starts from scratch or from a backbone. `boxwright models NAME` says more of a
preset, `boxwright weights info NAME` of weights; [Choose a model](choose_a_model.md) helps to decide.

<div class="models" markdown>

"""
_NOTES = """
</div>

- **AP** is that of boxes on COCO's val2017 in percent, as the publisher of the weights states it; it was not measured
  here. Where it is of masks, keypoints or other data, `boxwright weights info NAME` says so.
- **ms** is the median from a picture of 640×480 to its detections, on two cores of an Intel Xeon that had little else
  to do (how: [with suppression](benchmarks.md#race-against-tensorflow), [without](benchmarks.md#latencies)). Empty: not
  measured.
- **Parameters** and **GMAC** (10⁹ multiply-accumulate operations) are counted for the preset's own classes and a
  picture of 640×480; empty where weights change the preset's network. **Input** is width × height.
- **License** is that of the weights, as their publisher states it; "not stated" where only the code has one.
"""


@dataclass(frozen=True)
class Model:
    """A row of the table: published weights that open as a detector, or a preset that has none."""

    name: str
    preset: str
    weights: PublishedWeights | None = None

    @property
    def family(self) -> tuple[str, str, int]:
        """The page on its family, and the family's name and year."""
        page = next(page for page, message in PAGES.items() if message == find_family(self.preset))
        title, year = next((kind for start, kind in _KINDS.items() if self.name.startswith(start)), _FAMILIES[page])
        return page, title, year

    @property
    def cost(self) -> PresetCost | None:
        """What the preset costs; None if the weights are for another network than the preset's."""
        changes = () if self.weights is None else self.weights.overrides
        same = all(".activation=" in change or ".loss." in change for change in changes)
        return read_costs()[self.preset] if same else None


def page() -> str:
    """Return the page of all models."""
    rows = [_row(model) for model in sorted(_models(), key=_order)]
    return _ABOUT + "\n".join(table(_HEAD, rows)) + "\n" + _NOTES


def _models() -> Iterator[Model]:
    opened = [weights for weights in published_weights() if weights.opens and weights.presets]
    for weights in opened:
        yield Model(weights.name, weights.presets[0], weights)
    named = {weights.name for weights in opened}
    with_weights = {preset for weights in opened for preset in weights.presets}
    for preset in read_costs():
        if preset not in named | with_weights:
            yield Model(preset, preset)


def _order(model: Model) -> tuple[int, str, float]:
    """Return the key that puts recent families first, and in a family the highest AP."""
    _, title, year = model.family
    ap = model.weights.coco_box_ap if model.weights is not None else None
    return -year, title, -(ap or 0)


def _row(model: Model) -> tuple[object, ...]:
    page, title, year = model.family
    cost, weights = model.cost, model.weights
    size = weights.input_size if weights is not None and cost is None else ""
    torch, onnx = (latencies(way).get(model.preset, "") if cost is not None else "" for way in ("torch", "onnxruntime"))
    return (
        f"`{model.name}`",
        f"[{title}]({page})",
        year,
        _number(weights.coco_box_ap if weights is not None else None),
        _number(cost.parameters / 1e6 if cost is not None else None),
        _number(weights.size / 1e6 if weights is not None and weights.size else None),
        cell(weights.license) if weights is not None else "",
        f"{cost.width}×{cost.height}" if cost is not None else size,
        _number(cost.macs / 1e9 if cost is not None else None),
        torch,
        onnx,
        cell(", then ".join(weights.data)) if weights is not None else "",
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def latencies(way: str) -> dict[str, int]:
    """Return the median milliseconds of detecting in one image, by preset, that were recorded on a Xeon.

    Args:
        way: "torch" or "onnxruntime".
    """
    raced = json.loads((RESULTS / "race-cpu.json").read_text())[PROCESSOR]["rows"]
    measured = json.loads((RESULTS / "latencies-cpu.json").read_text())
    return {
        _RACED[row["model"]]: round(row["ours_median_ms"])
        for row in raced
        if (row["way"], row["mode"], row["batch"], row["busy_per_core"]) == (way, "detect", 1, 0)
    } | {row["preset"]: round(row[f"{way} ms"]["median"]) for row in measured if row["processor"] == PROCESSOR}
