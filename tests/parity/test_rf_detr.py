"""RF-DETR as its authors' code computes it: every map, output, match, loss, gradient, step and file that was recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import boxwright as bw
from boxwright.families.rf_detr.backbone import WindowedVit, resize_positions
from boxwright.families.rf_detr.criterion import (
    ClassificationLoss,
    Focal,
    IouAware,
    LossWeights,
    RfDetrCriterion,
    Varifocal,
)
from boxwright.families.rf_detr.decoder import (
    LOGITS,
    DecoderLayout,
    DeformableAttention,
    Memory,
    QuerySet,
    cell_boxes,
    read_memory,
    sine_embedding,
)
from boxwright.families.rf_detr.network import RfDetr
from boxwright.families.rf_detr.weights import authors_name
from boxwright.nn.attention import flatten_maps
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.criteria.set_matching import MatchingCosts, gather_matches, read_objects
from boxwright.nn.optimization.moving_average import MovingAverage
from boxwright.nn.postprocessing.queries import InstancePostprocessor, QueryPostprocessor
from boxwright.types import Targets
from tests.conftest import GOLDEN
from tests.parity.recordings import FOLDERS
from tests.rf_detrs import (
    CASES,
    NANO,
    build,
    described,
    detector_of,
    folders,
    folders_with,
    images_of,
    network_of,
    read_arrays,
    read_json,
    recorded,
    sizes_of,
    targets_of,
    weight,
    within,
)

RECORDED = recorded()
each = pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.parent.name}-{path.name}")
each_folder = pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.parent.name)
MASKS = "segmentation"


def test_all_are_there() -> None:
    shipped = [path.name for path in RECORDED if path.parent.parent == GOLDEN]
    if GOLDEN in FOLDERS:
        assert shipped == ["tiny", "few_cells"]
    for folder in folders():
        if folder.parent != GOLDEN:
            assert [path.name for path in RECORDED if path.parent == folder] == list(CASES)


@each
@torch.no_grad()
def test_maps(path: Path) -> None:
    """Of the backbone and the projector, within 1e-5 of their range."""
    network, wanted = network_of(path), read_arrays(path, "eval")
    images = images_of(path)
    within(images, wanted["images"], 1e-6)
    maps = network.backbone(images)
    projected = network.projector(maps)
    assert {f"feature.{number}" for number in range(len(maps))} == {n for n in wanted if n.startswith("feature.")}
    for prefix, computed in (("feature", maps), ("projected", projected)):
        for number, values in enumerate(computed):
            name = f"{prefix}.{number}"
            within(values, wanted[name], 1e-5 * float(wanted[name].abs().max()))


@each
@torch.no_grad()
def test_detections_before_selection(path: Path) -> None:
    network, wanted, images = network_of(path), read_arrays(path, "eval"), images_of(path)
    outputs = network(images, sizes_of(images))
    within(outputs.detections.logits, wanted["pred_logits"], 1e-4)
    within(outputs.detections.boxes, wanted["pred_boxes"], 1e-6)
    within(outputs.detections.features, wanted["hidden"][-1], 1e-5 * float(wanted["hidden"].abs().max()))
    within(outputs.encoder.logits, wanted["enc_outputs.pred_logits"], 1e-4)
    within(outputs.encoder.boxes, wanted["enc_outputs.pred_boxes"], 1e-6)
    within(outputs.encoder.features, wanted["selected.memory"], 1e-5 * float(wanted["selected.memory"].abs().max()))


@each
@torch.no_grad()
def test_padded_images(path: Path) -> None:
    network, wanted = network_of(path), read_arrays(path, "padded")
    inside = wanted["mask"].logical_not()
    sizes = torch.stack([inside.any(2).sum(1), inside.any(1).sum(1)], 1)
    outputs = network(wanted["images"], sizes)
    within(outputs.detections.logits, wanted["pred_logits"], 1e-4)
    within(outputs.detections.boxes, wanted["pred_boxes"], 1e-6)


@each
@torch.no_grad()
def test_sets_of_training(path: Path) -> None:
    """All groups, of every layer and of the encoder."""
    network, wanted, images = network_of(path).train(), read_arrays(path, "train"), images_of(path)
    outputs = network(images, sizes_of(images))
    sets = {f"aux_outputs.{number}.": layer for number, layer in enumerate(outputs.layers[:-1])}
    sets |= {"": outputs.layers[-1], "enc_outputs.": outputs.encoder}
    assert len(sets) == sum(name.endswith("pred_logits") for name in wanted)
    for prefix, part in sets.items():
        within(part.logits, wanted[f"{prefix}pred_logits"], 1e-4)
        within(part.boxes, wanted[f"{prefix}pred_boxes"], 1e-6)


@each
@torch.no_grad()
def test_detections(path: Path) -> None:
    """The best pairs of query and class, scaled to pictures of three sizes."""
    detector, wanted, images = detector_of(path), read_arrays(path, "eval"), images_of(path)
    postprocessor = detector.postprocessor
    if isinstance(postprocessor, InstancePostprocessor):
        postprocessor = postprocessor.queries
    assert isinstance(postprocessor, QueryPostprocessor)
    # The recorded heads have the row of no class last, and detect it.
    postprocessor = replace(postprocessor, background=0)
    sizes, outputs = sizes_of(images), detector.network(images, sizes_of(images))
    detections = postprocessor.select(outputs, postprocessor.decode(outputs), sizes)
    pictures = torch.tensor([[300, 200], [100, 100], [48, 64]])
    scales = torch.cat([pictures, pictures], 1)[:, None] / torch.tensor([*images.shape[-1:-3:-1]] * 2)
    assert bool(detections.valid.all())
    within(detections.scores, wanted["detections.scores"], 1e-5)
    assert torch.equal(detections.labels, wanted["detections.labels"])
    within(detections.boxes * scales, wanted["detections.boxes"], 2e-4)


LOSSES: dict[str, ClassificationLoss] = {"ia_bce": IouAware(), "varifocal": Varifocal(), "focal": Focal()}


def set_names(layers: int) -> list[str]:
    return [*(f"_{number}" for number in range(layers - 1)), "last", "_enc"]


@pytest.fixture(params=[path for path in RECORDED if path.name != MASKS], ids=lambda path: path.name)
def trained(request: pytest.FixtureRequest) -> Iterator[tuple[Path, RfDetr, RfDetrCriterion]]:
    """A network in training mode, and its criterion, by rows of the authors' order."""
    detector = detector_of(request.param)
    network, criterion = detector.network, detector.criterion
    assert isinstance(network, RfDetr)
    assert isinstance(criterion, RfDetrCriterion)
    return request.param, network.train(), replace(criterion, background=0)


def test_matches_and_terms(trained: tuple[Path, RfDetr, RfDetrCriterion]) -> None:
    path, network, criterion = trained
    images, targets, wanted = images_of(path), targets_of(path), read_json(path, "loss")
    outputs = network(images, sizes_of(images))
    objects = read_objects(targets, outputs.input_size)
    sets = [*outputs.layers, outputs.encoder]
    matches = criterion.match(sets, objects, outputs.groups)
    names = set_names(len(outputs.layers))
    assert set(wanted["matches"]) == set(names)
    for name, part, places in zip(names, sets, matches, strict=True):
        for image, (queries, numbers) in enumerate(wanted["matches"][name]):
            own = {query: int(place) for query, place in enumerate(places[image]) if place >= 0}
            assert own == dict(zip(queries, numbers, strict=True))
        totals = criterion.totals(part, gather_matches(places, objects), objects.counted) / wanted["num_boxes"]
        suffix = "" if name == "last" else name
        terms = ("loss_ce", "loss_bbox", "loss_giou")
        recorded_terms = [wanted["weights"][f"{t}{suffix}"] * wanted["float64"][f"{t}{suffix}"] for t in terms]
        np.testing.assert_allclose(totals.detach().numpy(), recorded_terms, rtol=1e-5)


def test_gradients(trained: tuple[Path, RfDetr, RfDetrCriterion]) -> None:
    path, network, criterion = trained
    images, wanted, whole = images_of(path), read_json(path, "loss"), read_arrays(path, "gradients")
    loss = LossTerm.sum(criterion(network(images, sizes_of(images)), targets_of(path)))
    assert loss.item() == pytest.approx(wanted["total"]["float64"], rel=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = {authors_name(name): value for name, value in network.named_parameters()}
    # The file names one shared layer twice.
    shared = "transformer.decoder.bbox_embed."
    norms = {name.replace(shared, "bbox_embed."): row for name, row in wanted["gradient_sum_norm_norm32"].items()}
    assert {name for name, value in parameters.items() if value.grad is not None} == set(norms)
    for name, (_, norm, _) in norms.items():
        gradient = parameters[name].grad
        assert gradient is not None
        # Biases of keys change no softmax: their gradients are rounding.
        assert float(gradient.norm()) == pytest.approx(norm, rel=1e-4, abs=1e-5), name
    for name, gradient in whole.items():
        own = parameters[name.replace(shared, "bbox_embed.")].grad
        assert own is not None
        within(own, gradient, 1e-4 * float(gradient.abs().max()) + 1e-6)
    without = {name for name in wanted["without_gradient"] if not name.endswith("mask_token")}
    assert without == {name for name, value in parameters.items() if value.grad is None}


@pytest.mark.parametrize("folder", folders_with("nano.config.json"), ids=lambda folder: folder.parent.name)
def test_nanos_layout(folder: Path) -> None:
    """Each tensor's name and shape."""
    config = json.loads((folder / "nano.config.json").read_text())
    network = build(NANO).network
    ours = {authors_name(name): list(value.shape) for name, value in network.state_dict().items()}
    unused = {"_kp_active_mask", "backbone.0.encoder.encoder.embeddings.mask_token"}
    assert ours == {name: shape for name, shape in config["shapes"].items() if name not in unused}


@each_folder
@pytest.mark.parametrize("file", ["legacy.pth", "best_total.pth", "last.ckpt"])
@torch.no_grad()
def test_files(folder: Path, file: str) -> None:
    """All forms of file open; the row of no class, their last, is our first; classes have the names of the file."""
    config = json.loads((folder / "files.json").read_text())
    wanted = {name: torch.from_numpy(value) for name, value in np.load(folder / "files.npz").items()}
    detector = build(described(config))
    report = bw.load_weights(detector, folder / file, scope="full")
    assert (len(report.restored), report.unused, report.kept) == (170, {}, {})
    images = wanted["images"]
    outputs = detector.eval().predict(images)
    within(outputs.detections.logits.roll(-1, -1), wanted["pred_logits"], 1e-4)
    within(outputs.detections.boxes, wanted["pred_boxes"], 1e-6)


@pytest.fixture(params=folders(), ids=lambda folder: folder.parent.name)
def pieces(request: pytest.FixtureRequest) -> tuple[dict[str, Tensor], dict[str, object]]:
    arrays = {name: torch.from_numpy(value) for name, value in np.load(request.param / "pieces.npz").items()}
    return arrays, json.loads((request.param / "pieces.json").read_text())


@torch.no_grad()
def test_deformable_attention(pieces: tuple[dict[str, Tensor], dict[str, object]]) -> None:
    arrays, notes = pieces
    note = notes["attention"]
    assert isinstance(note, dict)
    levels = len(note["levels"])
    layout = DecoderLayout(16, 1, 1, levels=levels, taps=note["points"], cross_heads=note["heads"])
    layer = DeformableAttention(layout)
    within(layer.sampling_offsets.bias, arrays["attention.initial_offsets_bias"], 1e-6)
    state = {name: weight(note["salt"], name, tuple(value.shape)) for name, value in layer.state_dict().items()}
    layer.load_state_dict(state)
    query, cells, references = (arrays[f"attention.{name}"].float() for name in ("query", "memory", "reference"))
    for suffix, padding in (
        ("", torch.zeros_like(arrays["attention.blocked"])),
        (".masked", arrays["attention.blocked"]),
    ):
        memory = Memory(cells, [tuple(grid) for grid in note["levels"]], padding, torch.ones(2, levels, 2))
        within(layer(query, references, memory), arrays[f"attention.output{suffix}"], 1e-5)


def test_positions_and_cells(pieces: tuple[dict[str, Tensor], dict[str, object]]) -> None:
    arrays, notes = pieces
    boxes = arrays["sine.boxes"].float()
    within(sine_embedding(boxes, 16), arrays["sine.embedding"], 1e-5)
    memory = read_memory(torch.zeros(2, 31, 4), [(4, 6), (2, 3), (1, 1)], torch.tensor([[64, 96]] * 2), (64, 96))
    cells, inside = cell_boxes(memory)
    within(cells * inside[..., None], arrays["proposals.boxes"], 1e-6)
    logits = torch.where(inside[..., None], LOGITS.start(cells), torch.inf)
    finite = arrays["proposals.logits"].isfinite()
    assert torch.equal(finite, logits.isfinite())
    within(logits[finite], arrays["proposals.logits"][finite], 1e-5)
    for number in range(3):
        stored, note = arrays[f"positions.{number}.stored"], notes[f"positions.{number}"]
        assert isinstance(note, dict)
        grid = stored[:, 1:].float().unflatten(1, (note["side"], note["side"]))
        shape = (note["height"] // note["patch"], note["width"] // note["patch"])
        within(resize_positions(grid, shape).flatten(1, 2), arrays[f"positions.{number}.output"][:, 1:], 1e-6)
        within(resize_positions(grid, (9, 9)).flatten(1, 2), arrays[f"positions.{number}.loaded_for_9"][:, 1:], 1e-6)


@pytest.mark.parametrize("groups", [1, 3])
def test_classification_losses(groups: int, pieces: tuple[dict[str, Tensor], dict[str, object]]) -> None:
    arrays, notes = pieces
    wanted = notes["loss"]
    assert isinstance(wanted, dict)
    wanted = wanted[f"groups{groups}"]
    boxes = [arrays[f"loss.target_boxes.{image}"].float() for image in range(2)]
    labels = [arrays[f"loss.target_labels.{image}"] for image in range(2)]
    padded = torch.nn.utils.rnn.pad_sequence(boxes, batch_first=True)
    valid = torch.tensor([[number < len(part) for number in range(padded.shape[1])] for part in boxes])
    corners = torch.cat([padded[..., :2] - padded[..., 2:] / 2, padded[..., :2] + padded[..., 2:] / 2], -1)
    targets = Targets(corners, torch.nn.utils.rnn.pad_sequence(labels, batch_first=True), valid.float(), valid)
    objects = read_objects(targets, (1, 1))
    part = QuerySet(arrays["loss.logits"].float(), arrays["loss.boxes"].float(), torch.zeros(()))
    for name, loss in LOSSES.items():
        criterion = RfDetrCriterion(MatchingCosts(), loss, LossWeights(1, 1, 1), background=0)
        (places,) = criterion.match([part], objects, groups)
        for image, (queries, numbers) in enumerate(wanted["matches"]):
            own = {query: int(place) for query, place in enumerate(places[image]) if place >= 0}
            assert own == dict(zip(queries, numbers, strict=True))
        count = 5 * groups
        totals = criterion.totals(part, gather_matches(places, objects), objects.counted) / count
        np.testing.assert_allclose(
            totals.numpy(), [wanted[name][key] for key in ("loss_ce", "loss_bbox", "loss_giou")], rtol=1e-5
        )


@pytest.mark.parametrize("folder", folders_with("groups.json"), ids=lambda folder: folder.parent.name)
@pytest.mark.parametrize("size", ["nano", "base"])
def test_groups_of_the_optimizer(folder: Path, size: str) -> None:
    """Rates and decays of a preset, variable by variable."""
    from boxwright.nn.optimization.optimizers import grouped
    from boxwright.pipeline.detector import build_detector
    from boxwright.pipeline.load import load_config
    from boxwright.pipeline.optimizer import build_optimizer

    recording = json.loads((folder / "groups.json").read_text())[size]
    rates = recording["hyperparameters"]
    wanted = {
        name: (group["lr"] / rates["lr"], group["weight_decay"])
        for group in recording["groups"]
        for name in group["names"]
    }
    config = load_config(f"preset:rf_detr_{size}_coco")
    assert config.train_config is not None
    assert config.train_config.optimizer is not None
    assert config.model is not None
    network = build_detector(config).network
    names = {id(value): authors_name(name) for name, value in network.named_parameters()}
    plan = build_optimizer(config.train_config.optimizer, 2)
    groups, _ = grouped(network, plan.groups, {name: (name,) for name, _ in network.named_parameters()})
    own = {
        names[id(value)]: (group.factor, 1e-4 if group.decay is None and value.ndim > 1 else group.decay or 0.0)
        for group in groups
        for value in group.tensors
    }
    unused = "backbone.0.encoder.encoder.embeddings.mask_token"
    assert own.keys() == wanted.keys() - {unused}
    for name, (factor, decay) in own.items():
        assert (factor, decay) == pytest.approx(wanted[name], rel=1e-5), name


@pytest.mark.parametrize("number", [0, 1])
def test_average_of_weights(number: int, pieces: tuple[dict[str, Tensor], dict[str, object]]) -> None:
    """The averages after each of eight updates that walk from the first row; the authors' first update is a copy."""
    arrays, notes = pieces
    settings = notes[f"ema.{number}"]
    assert isinstance(settings, dict)
    start, *walk = arrays[f"ema.{number}.walk"].double()
    module = torch.nn.Linear(len(start), 1, bias=False, dtype=torch.float64)
    average = MovingAverage(module, settings["decay"], ramp_steps=settings["tau"])
    wanted = arrays[f"ema.{number}.callback"]
    assert len(walk) == len(wanted) == 8
    for count, (weights, row) in enumerate(zip(walk, wanted, strict=True)):
        module.weight.data = weights[None].clone()
        average.update(module, count)
        np.testing.assert_allclose(average.shadow["weight"][0].numpy(), row.numpy(), rtol=1e-12)


def test_a_grid_of_another_shape_is_resized() -> None:
    """As many patches as the stored grid has, in an oblong input, are no square of positions."""
    vit = build(NANO).network.backbone
    assert isinstance(vit, WindowedVit)
    assert vit._grid_positions((16, 36), square=False).shape == (1, 16, 36, 384)
    maps = [torch.zeros(1, 4, 2, 3), torch.zeros(1, 4, 1, 2)]
    cells, grids = flatten_maps(maps)
    assert (cells.shape, list(grids)) == ((1, 8, 4), [(2, 3), (1, 2)])
