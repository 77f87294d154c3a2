"""RF-DETR's training as its authors' code computes it: steps of AdamW by layer, rates over time, sizes, averages."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from boxwright.config.load import parse_message
from boxwright.families.rf_detr.criterion import RfDetrCriterion
from boxwright.families.rf_detr.network import RfDetr
from boxwright.families.rf_detr.weights import authors_name, first_queries, repeat_rows
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.criteria.set_matching import MatchingCosts, iou_and_giou
from boxwright.nn.optimization.optimizers import Optimizer, clip_by_global_norm, global_norm, grouped
from boxwright.nn.preprocessing import FixedShapeResizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.load import load_config
from boxwright.pipeline.optimizer import OptimizerPlan, build_optimizer
from boxwright.pipeline.training import build_input_sizes
from tests.rf_detrs import detector_of, folders, folders_with, images_of, sizes_of, targets_of

each_folder = pytest.mark.parametrize("folder", folders_with("steps.npz"), ids=lambda folder: folder.parent.name)
each_pieces = pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.parent.name)


def plan_of(recording: Any, blocks: int) -> OptimizerPlan:
    """Return the optimizer of a recording, written as the presets write it."""
    rates = recording["hyperparameters"]
    encoder = rates["lr_encoder"] / rates["lr"] * rates["lr_component_decay"] ** 2
    # Embeddings lie one below the first block, the last normalization two above the last one.
    parts = ["(class_token|positions|patches)", *(f"blocks\\\\.{block}\\\\." for block in range(blocks))]
    layers = [*enumerate(parts), (blocks + 2, "norm\\\\.")]
    of_layers = [
        f"""parameter_group {{ variables: "^backbone\\\\.{part}"
          learning_rate_factor: {encoder * rates["lr_vit_layer_decay"] ** (blocks + 2 - number)} }}"""
        for number, part in layers
    ]
    decay = rates["weight_decay"]
    text = f"""adamw_optimizer {{ weight_decay: {decay} beta1: {recording["betas"][0]} beta2: {recording["betas"][1]}
        epsilon: {recording["eps"]} learning_rate {{ cosine_decay_learning_rate {{
          learning_rate_base: {rates["lr"]} total_steps: {recording["total_steps"]} warmup_steps: 0 }} }} }}
      parameter_group {{ variables: "^(projector|queries|decoder)\\\\." weight_decay: {decay} }}
      parameter_group {{
        variables: "^decoder\\\\.(layers|norm|ref_point_head)\\\\."
        learning_rate_factor: {rates["lr_component_decay"]} }}
      {" ".join(of_layers)}
      parameter_group {{ variables: "^backbone\\\\..*scale[12]$" weight_decay: {decay} }}
      parameter_group {{ variables: "^backbone\\\\.(class_token|positions|patches|norm\\\\.|blocks\\\\..*(norm|bias))"
        weight_decay: 0 }}
      use_moving_average: false"""
    return build_optimizer(parse_message(text, m.Optimizer))


@each_folder
def test_steps(folder: Path) -> None:
    """Of AdamW, with rates by layer, clipping and a cosine; every parameter that was recorded after each step."""
    recording = json.loads((folder / "steps.json").read_text())
    arrays = {name: torch.from_numpy(value) for name, value in np.load(folder / "steps.npz").items()}
    path = folder / "tiny"
    detector = detector_of(path)
    network, criterion = detector.network.train(), detector.criterion
    assert isinstance(network, RfDetr)
    assert isinstance(criterion, RfDetrCriterion)
    criterion = replace(criterion, background=0)
    plan = plan_of(recording, len(network.backbone.blocks))
    groups, _ = grouped(network, plan.groups, {name: (name,) for name, _ in network.named_parameters()})
    optimizer = Optimizer(groups, plan.rule)
    parameters = {authors_name(name): value for name, value in network.named_parameters()}
    check_groups(groups, parameters, recording)
    images, targets = images_of(path), targets_of(path)
    sizes = sizes_of(images)
    compared = set()
    for number, wanted in enumerate(recording["float64"]):
        optimizer.zero_grad()
        loss = LossTerm.sum(criterion(network(images, sizes), targets))
        assert loss.item() == pytest.approx(wanted["loss"], rel=1e-5)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [value.grad for value in parameters.values() if value.grad is not None]
        norm = global_norm(gradients)
        assert float(norm) == pytest.approx(wanted["gradient_norm_before_clipping"], rel=1e-4)
        clip_by_global_norm(gradients, norm, recording["clip_max_norm"])
        rate = plan.schedule(number)
        assert rate / recording["hyperparameters"]["lr"] == pytest.approx(wanted["factor"], rel=1e-6)
        optimizer.set_rate(rate)
        optimizer.step()
        check_sums(parameters, wanted["sums"])
        after = {name: value for name, value in arrays.items() if name.startswith(f"{number}/")}
        for name, value in after.items():
            distances = (parameters[name.split("/", 1)[1]].detach().double() - value.double()).abs()
            # Biases of attention's keys have no gradient but of rounding.
            assert float(distances.max()) <= 1e-4, name
            assert float(distances.median()) <= 1e-6, name
        compared |= set(after)
    assert compared == set(arrays)
    assert len(recording["float64"]) == 3


def check_groups(groups: Any, parameters: dict[str, Tensor], recording: Any) -> None:
    """Check rates and decays of all parameters."""
    rate, decay = recording["hyperparameters"]["lr"], recording["hyperparameters"]["weight_decay"]
    names = {id(value): name for name, value in parameters.items()}
    own = {
        names[id(value)]: (group.factor * rate, decay if group.decay is None and value.ndim > 1 else group.decay or 0.0)
        for group in groups
        for value in group.tensors
    }
    wanted = {name: pair for name, pair in recording["groups"].items() if not name.endswith("mask_token")}
    assert own.keys() == wanted.keys()
    for name, pair in wanted.items():
        assert own[name] == pytest.approx(pair, rel=1e-5), name


def check_sums(parameters: dict[str, Tensor], sums: dict[str, float]) -> None:
    """Check the sum of each parameter, in which roundings of so many numbers add up."""
    assert {name for name in sums if not name.endswith("mask_token")} == set(parameters)
    for name, value in parameters.items():
        assert float(value.detach().double().sum()) == pytest.approx(sums[name], abs=1e-4 + 1e-6 * value.numel()), name


def read(folder: Path) -> tuple[dict[str, Tensor], Any]:
    arrays = {name: torch.from_numpy(value) for name, value in np.load(folder / "pieces.npz").items()}
    return arrays, json.loads((folder / "pieces.json").read_text())


@each_pieces
@pytest.mark.parametrize(
    ("preset", "side", "unit"),
    [
        ("nano", 384, "16/2"),
        ("small", 512, "16/2"),
        ("medium", 576, "16/2"),
        ("large", 704, "16/2"),
        ("base", 560, "14/4"),
    ],
)
def test_sizes_of_training(folder: Path, preset: str, side: int, unit: str) -> None:
    """The presets' sizes are those that theirs draws from by default."""
    _, notes = read(folder)
    config = load_config(f"preset:rf_detr_{preset}_coco")
    sizes = build_input_sizes(config, FixedShapeResizer(side, side), 0)
    assert sizes is not None
    wanted = notes["scales"][f"{side}/{unit}/expanded"]
    assert [size.output_size for size in sizes.drawn] == [(side, side) for side in wanted]
    assert set(notes["scale_of_step"]) <= set(notes["scales"]["384/16/2/expanded"])


@each_pieces
@pytest.mark.parametrize("kind", ["step", "step_warm", "cosine"])
def test_rates_over_time(folder: Path, kind: str) -> None:
    """Their schedules, whose warm-up's first step is idle, as messages of a configuration."""
    note = read(folder)[1]["schedules"][kind]
    count = note["epochs"] * note["steps_per_epoch"]
    warm = int(note["steps_per_epoch"] * note["warmup_epochs"])
    if kind == "cosine":
        schedule = f"""cosine_decay_learning_rate {{ learning_rate_base: 1 total_steps: {count}
          warmup_learning_rate: 0 warmup_steps: {warm} end_factor: {note["min_factor"]} }}"""
    else:
        schedule = f"""manual_step_learning_rate {{ initial_learning_rate: {0 if warm else 1}
          {f"warmup: true schedule {{ step: {warm} learning_rate: 1 }}" if warm else ""}
          schedule {{ step: {note["lr_drop"] * note["steps_per_epoch"]} learning_rate: 0.1 }} }}"""
    plan = build_optimizer(parse_message(f"adamw_optimizer {{ learning_rate {{ {schedule} }} }}", m.Optimizer))
    assert len(note["factors"]) == count
    rates = [plan.schedule(step) for step in range(count)]
    np.testing.assert_allclose(rates, note["factors"], atol=1e-7)


@each_pieces
def test_costs_of_matching(folder: Path) -> None:
    """Each query of an image with each of its objects."""
    arrays, _ = read(folder)
    objects = torch.cat([arrays[f"loss.target_boxes.{image}"] for image in range(2)]).float()
    labels = torch.cat([arrays[f"loss.target_labels.{image}"] for image in range(2)])
    wanted = arrays["loss.cost"]
    costs = MatchingCosts()(
        arrays["loss.logits"].float()[None],
        arrays["loss.boxes"].float()[None],
        labels.expand(2, -1),
        objects.expand(2, -1, -1),
    )[0]
    # Columns are objects, each with the queries of its own image.
    first = len(arrays["loss.target_labels.0"])
    rows = torch.cat([costs[0, :, :first], costs[1, :, first:]], 1)
    np.testing.assert_allclose(rows.numpy(), wanted.numpy(), atol=1e-5)


@each_pieces
def test_overlaps_of_boxes(folder: Path) -> None:
    """Also of a box whose width is negative."""
    arrays, _ = read(folder)
    corners = arrays["boxes.corners"].float()
    _, giou = iou_and_giou(corners[:6, None], corners[None, 6:])
    np.testing.assert_allclose(giou.numpy(), arrays["boxes.giou"].numpy(), atol=1e-5)


@each_pieces
@pytest.mark.parametrize(("groups", "queries"), [(2, 2), (1, 4)])
def test_fewer_queries_than_in_a_file(folder: Path, groups: int, queries: int) -> None:
    """Those of each group that come first."""
    arrays, _ = read(folder)
    found = first_queries(arrays["queries.12x2"], 3, groups, queries)
    assert torch.equal(found, arrays[f"queries.from_4x3_to_{queries}x{groups}"])


@each_pieces
@pytest.mark.parametrize("rows", [3, 8, 12])
@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_rows_of_class_heads_by_position(folder: Path, rows: int, kind: str) -> None:
    """Those that come first, and from the beginning again where there are too few."""
    arrays, _ = read(folder)
    assert torch.equal(repeat_rows(arrays[f"head.{kind}"], rows), arrays[f"head.{rows}.{kind}"])


# The average of an older class; and one whose decay is the same from the first step on.
NOT_OURS = re.compile(r"ema\.\d\.class|ema\.2\..*")
COMPARED = re.compile(
    r"attention\..*|sine\..*|proposals\..*|positions\.\d\.(output|stored|loaded_for_9)|queries\..*|loss\..*|boxes\..*"
    r"|ema\.[01]\.(walk|callback)|head\..*"
)


@each_pieces
def test_no_piece_is_left_out(folder: Path) -> None:
    """Each array is compared here or in test_rf_detr.py, but for what Boxwright does otherwise."""
    arrays, _ = read(folder)
    assert len(arrays) == 49
    assert [name for name in arrays if NOT_OURS.fullmatch(name)] != []
    assert [name for name in arrays if not NOT_OURS.fullmatch(name) and not COMPARED.fullmatch(name)] == []
