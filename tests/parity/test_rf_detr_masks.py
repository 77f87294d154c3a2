"""RF-DETR's masks as its authors' code computes them: factors, masks, points, losses and gradients that were recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.families.rf_detr.criterion import RfDetrCriterion
from boxwright.families.rf_detr.mask_criterion import read_masks
from boxwright.families.rf_detr.network import RfDetr
from boxwright.families.rf_detr.weights import authors_name
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.criteria.set_matching import read_objects
from boxwright.nn.postprocessing.masks import instance_masks
from boxwright.nn.postprocessing.queries import InstancePostprocessor
from boxwright.nn.preprocessing import FixedShapeResizer
from boxwright.pipeline.load import load_config
from boxwright.pipeline.training import build_input_sizes
from boxwright.types import Targets
from boxwright.types.masks import InstanceMasks
from tests.rf_detrs import (
    detector_of,
    images_of,
    network_of,
    read_arrays,
    read_json,
    recorded,
    sizes_of,
    targets_of,
    within,
)

RECORDED = [path for path in recorded() if path.name == "segmentation"]
each = pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.parent.name)


def all_queries(features: Tensor) -> Tensor:
    return torch.arange(features.shape[1]).expand(len(features), -1)


@each
@torch.no_grad()
def test_masks_of_detection(path: Path) -> None:
    """Of the last layer; with groundtruth at hand, of the encoder, too."""
    network, wanted, images = network_of(path), read_arrays(path, "eval"), images_of(path)
    outputs = network(images, sizes_of(images))
    (last,) = outputs.masks
    within(last.logits(all_queries(last.queries)), wanted["pred_masks"], 2e-4)
    again, encoder = network(images, sizes_of(images), targets_of(path)).masks
    assert torch.equal(again.queries, last.queries)
    within(encoder.logits(all_queries(encoder.queries)), wanted["enc_outputs.pred_masks"], 2e-4)


@each
@torch.no_grad()
def test_factors_of_training(path: Path) -> None:
    """Of all groups: each layer's, of a map refined once more by each, and the encoder's, of the map itself."""
    network, wanted, images = network_of(path).train(), read_arrays(path, "train"), images_of(path)
    outputs = network(images, sizes_of(images))
    prefixes = [*(f"aux_outputs.{number}." for number in range(len(outputs.layers) - 1)), "", "enc_outputs."]
    assert len(prefixes) == sum(name.endswith("pred_masks.query_features") for name in wanted)
    for prefix, factors in zip(prefixes, outputs.masks, strict=True):
        for name, values in (("spatial", factors.channels), ("query", factors.queries)):
            expected = wanted[f"{prefix}pred_masks.{name}_features"]
            within(values, expected, 1e-5 * float(expected.abs().max()))


@each
@torch.no_grad()
def test_masks_in_pictures(path: Path) -> None:
    """Of three sizes: logits are interpolated from edge to edge, and those above 0 are the object's."""
    detector, wanted, images = detector_of(path), read_arrays(path, "eval"), images_of(path)
    postprocessor = detector.postprocessor
    assert isinstance(postprocessor, InstancePostprocessor)
    # The recorded heads have the row of no class last, and detect it.
    postprocessor = replace(postprocessor, queries=replace(postprocessor.queries, background=0))
    sizes, outputs = sizes_of(images), detector.network(images, sizes_of(images))
    padded = postprocessor.select(outputs, postprocessor.decode(outputs), sizes)
    listed = padded.to_list(sizes)
    for number, ((height, width), found) in enumerate(zip(((200, 300), (100, 100), (64, 48)), listed, strict=True)):
        scale = torch.tensor([width, height] * 2) / torch.tensor([*images.shape[-1:-3:-1]] * 2)
        assert found.mask_boxes is not None
        placed = replace(
            found, boxes=found.boxes * scale, mask_boxes=found.mask_boxes * scale, image_size=(height, width)
        )
        masks, expected = instance_masks(placed).bool(), wanted[f"detections.masks.{number}"][:, 0].bool()
        logits = outputs.mask_logits(padded.anchors)[number][:, None]
        margin = F.interpolate(logits, (height, width), mode="bilinear", align_corners=False)[:, 0].abs()
        assert 0.1 < expected.float().mean() < 0.9
        # Of logits up to 29; a share of 1e-5 of the pixels is nearer to the border.
        assert torch.equal(masks[margin > 5e-3], expected[margin > 5e-3])
        assert (margin > 5e-3).float().mean() > 0.99


class RecordedPoints:
    """What the authors' code drew, in its order: all sets' points of matching, the last layer first, then losses'."""

    def __init__(self, path: Path, layers: int, counts: list[int]) -> None:
        arrays = read_arrays(path, "train")
        self.draws = [arrays[f"draw.{number}"].float() for number in range(3 * (layers + 1))]
        self.counts = counts
        # Theirs begin with the last layer.
        self.sets = [*range(1, layers), 0, layers]

    def __call__(self, keys: Tensor, stream: int, count: int) -> Tensor:
        number, what = self.sets[stream // 3], stream % 3
        if what == 0:
            return self.draws[number].expand(len(keys), -1, -1)
        drawn = self.draws[len(self.sets) + 2 * number + what - 1]
        points = torch.zeros(len(keys), count, 2)
        for row, part in zip(points, drawn.split(self.counts), strict=True):
            row[: part.shape[0] * part.shape[1]] = part.flatten(0, 1)
        return points


def with_masks(path: Path) -> Targets:
    arrays, targets = read_arrays(path, "train"), targets_of(path)
    planes = [arrays[f"target_masks.{number}"].numpy().astype("uint8") for number in range(len(targets.boxes))]
    size = (planes[0].shape[1], planes[0].shape[2])
    return replace(targets, masks=InstanceMasks.stack(planes, targets.labels.shape[1], size))


def parts_of(path: Path) -> tuple[RfDetr, RfDetrCriterion, Targets]:
    detector, targets, layers = detector_of(path), with_masks(path), read_json(path, "config")["model"]["dec_layers"]
    network, criterion = detector.network.train(), detector.criterion
    assert isinstance(network, RfDetr)
    assert isinstance(criterion, RfDetrCriterion)
    assert criterion.masks is not None
    counts = (targets.valid.sum(1) * network.decoder.layout.groups).tolist()
    points = RecordedPoints(path, layers, counts)
    return network, replace(criterion, background=0, masks=replace(criterion.masks, draw=points)), targets


@each
def test_matches_and_losses(path: Path) -> None:
    """At the recorded points: every match, and every set's losses of masks within 1e-5."""
    network, criterion, targets = parts_of(path)
    images, wanted = images_of(path), read_json(path, "loss")
    outputs = network(images, sizes_of(images))
    masks, groundtruth, objects = criterion.masks, read_masks(targets), read_objects(targets, outputs.input_size)
    assert masks is not None
    assert groundtruth is not None
    costs = masks.matching_costs(outputs.masks, groundtruth)
    sets = [*outputs.layers, outputs.encoder]
    matches = criterion.match(sets, objects, outputs.groups, costs)
    names = [*(f"_{number}" for number in range(len(outputs.layers) - 1)), "last", "_enc"]
    for number, (name, places) in enumerate(zip(names, matches, strict=True)):
        for image, (queries, numbers) in enumerate(wanted["matches"][name]):
            own = {query: int(place) for query, place in enumerate(places[image]) if place >= 0}
            assert own == dict(zip(queries, numbers, strict=True))
        streams = replace(masks, draw=lambda keys, stream, count, n=number: masks.draw(keys, stream + 3 * n, count))
        totals = streams.totals([outputs.masks[number]], [places], groundtruth, objects.weights, outputs.groups)
        suffix = "" if name == "last" else name
        terms = [f"loss_mask_{part}{suffix}" for part in ("ce", "dice")]
        expected = [wanted["weights"][term] * wanted["float64"][term] * wanted["num_boxes"] for term in terms]
        np.testing.assert_allclose(totals.detach().numpy(), expected, rtol=1e-5)


@each
def test_gradients(path: Path) -> None:
    """Of the whole loss, parameter by parameter, within 1e-4."""
    network, criterion, targets = parts_of(path)
    images, wanted, whole = images_of(path), read_json(path, "loss"), read_arrays(path, "gradients")
    loss = LossTerm.sum(criterion(network(images, sizes_of(images)), targets))
    assert loss.item() == pytest.approx(wanted["total"]["float64"], rel=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = {authors_name(name): value for name, value in network.named_parameters()}
    norms = wanted["gradient_sum_norm_norm32"]
    assert {name for name, value in parameters.items() if value.grad is not None} == set(norms)
    for name, (_, norm, _) in norms.items():
        gradient = parameters[name].grad
        assert gradient is not None
        assert float(gradient.norm()) == pytest.approx(norm, rel=1e-4, abs=1e-6), name
    for name, gradient in whole.items():
        own = parameters[name].grad
        assert own is not None
        within(own, gradient, 1e-4 * float(gradient.abs().max()) + 1e-6)


@pytest.mark.parametrize(
    ("preset", "side", "unit"),
    [
        ("nano", 312, 12),
        ("small", 384, 24),
        ("medium", 432, 24),
        ("large", 504, 24),
        ("xlarge", 624, 24),
        ("2xlarge", 768, 24),
    ],
)
def test_sizes_of_training(preset: str, side: int, unit: int) -> None:
    """Eleven around the preset's own, in steps of patches times windows, as the authors' code draws from."""
    sizes = build_input_sizes(load_config(f"preset:rf_detr_seg_{preset}_coco"), FixedShapeResizer(side, side), 0)
    assert sizes is not None
    assert [size.output_size for size in sizes.drawn] == [(side + n * unit, side + n * unit) for n in range(-5, 6)]
