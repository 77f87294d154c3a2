"""D-FINE as transformers computes it, and the losses and gradients of the authors' criterion and of DEIM's."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import boxwright as bw
from boxwright.families.d_fine.criterion import (
    ClassificationLoss,
    DFineCriterion,
    LossWeights,
    MatchabilityAware,
    Varifocal,
    neighboring_bins,
)
from boxwright.families.d_fine.decoder import (
    BoxQuality,
    DecoderLayout,
    DecoderOutputs,
    DeformableAttention,
    DFinePredictions,
    QueryOutputs,
    bin_distances,
    measure_distances,
    move_sides,
)
from boxwright.families.d_fine.network import DFine, cell_boxes, sine_positions
from boxwright.families.d_fine.weights import authors_name, is_ignored, transformers_names
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.criteria.set_matching import MatchingCosts, match, read_objects, unite
from boxwright.nn.ops.boxes import from_corners
from boxwright.nn.postprocessing.queries import QueryPostprocessor
from tests.d_fines import arrays, in_float64, network_of, noisy_of, recorded, recorded_json, targets_of
from tests.parity.recordings import FOLDERS

RECORDED = recorded()
LOSSES: dict[str, ClassificationLoss] = {"vfl": Varifocal(), "mal": MatchabilityAware()}
PIECES = [path for folder in FOLDERS for path in [folder / "d_fine" / "pieces.npz"] if path.is_file()]

# Of two and of three levels the same parts are computed.
each = pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.name, marks=[pytest.mark.slow] * (path.name != "wide_encoder")) for path in RECORDED],
)


def criterion(kind: str) -> DFineCriterion:
    return DFineCriterion(MatchingCosts(), LOSSES[kind], LossWeights())


def close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    assert found.shape == wanted.shape
    assert float((found.detach() - wanted).abs().max()) <= tolerance


def stored(found: Tensor, wanted: Tensor) -> None:
    """Compare what was computed in float64 with what was, and was stored as float32: to a unit of its last place."""
    assert (found.dtype, wanted.dtype, found.shape) == (torch.float64, torch.float32, wanted.shape)
    torch.testing.assert_close(found.detach(), wanted.double(), rtol=1.2e-7, atol=1e-9)


def evaluated(network: DFine, images: Tensor) -> DFinePredictions:
    """Return a network's predictions in float64."""
    with torch.no_grad(), in_float64():
        found: DFinePredictions = network.double()(images.double(), torch.tensor([images.shape[-2:]] * len(images)))
    return found


def trained(path: Path) -> tuple[DFine, DFinePredictions, dict[str, Tensor], tuple[int, int]]:
    """Return a network in training mode, but for its batch normalization, and its predictions for recorded noise.

    They are computed in float64.
    """
    train, images = arrays(path, "train"), arrays(path, "eval")["images"]
    size = (images.shape[2], images.shape[3])
    network, noisy = network_of(path).double(), noisy_of(train)
    network.denoiser = lambda *_: noisy
    network.frozen_statistics = ("",)
    network.train()
    with in_float64():
        found = network(images.double(), torch.tensor([size] * len(images)), targets_of(train, size))
    return network, found, train, size


def rounded(predictions: DFinePredictions) -> DFinePredictions:
    """Return predictions in float32, as the recorded criterion saw them."""

    def of(one: QueryOutputs) -> QueryOutputs:
        distances = None if one.distances is None else one.distances.float()
        return QueryOutputs(one.logits.float(), one.boxes.float(), distances)

    def all_of(some: DecoderOutputs) -> DecoderOutputs:
        pre = None if some.pre is None else of(some.pre)
        return DecoderOutputs(tuple(of(one) for one in some.layers), some.frame.float(), pre)

    noisy = predictions.denoised
    return replace(
        predictions,
        queries=all_of(predictions.queries),
        encoder=of(predictions.encoder),
        bins=predictions.bins.float(),
        scale=predictions.scale.float(),
        denoised=None if noisy is None else replace(noisy, outputs=all_of(noisy.outputs)),
    )


@each
def test_files_open_by_their_configuration(path: Path, tmp_path: Path) -> None:
    """None is of a published size, so that every part of the network is read from `config.json`."""
    for kind, name in (("safetensors", "model.safetensors"), ("config.json", "config.json")):
        shutil.copyfile(path.with_name(f"{path.name}.{kind}"), tmp_path / name)
    wanted, detector = arrays(path, "eval"), bw.load(tmp_path / "model.safetensors", device="cpu").detector.eval()
    network = detector.network
    assert isinstance(network, DFine)
    (last,) = evaluated(network, wanted["images"]).queries.layers
    stored(last.logits, wanted["logits"])
    stored(last.boxes, wanted["boxes"])


@each
def test_outputs(path: Path) -> None:
    wanted, network = arrays(path, "eval"), network_of(path).double()
    images = wanted["images"]
    with torch.no_grad(), in_float64():
        maps = network.backbone(images.double())
        encoded, _ = network.encoder(maps)
    for number, (one, other) in enumerate(zip(maps, encoded, strict=True)):
        stored(one, wanted[f"backbone.{number}"])
        stored(other, wanted[f"encoder.{number}"])
    found = evaluated(network, images)
    (last,) = found.queries.layers
    stored(last.logits, wanted["logits"])
    stored(last.boxes, wanted["boxes"])
    assert last.distances is not None
    stored(last.distances, wanted["corners"][:, -1])
    stored(found.queries.frame, wanted["first_boxes"][:, -1])
    stored(found.encoder.logits, wanted["enc_topk_logits"])
    stored(found.encoder.boxes, wanted["enc_topk_boxes"])


@each
def test_outputs_of_float32(path: Path) -> None:
    """As near as rounding allows: to a multiple of what a last place of float32 more or less in weights does in float64."""
    images, single = arrays(path, "eval")["images"], network_of(path)
    with torch.no_grad():
        found = single(images, torch.tensor([images.shape[-2:]] * len(images))).queries.layers[-1]
    exact = evaluated(network_of(path), images).queries.layers[-1]
    logits, boxes = torch.tensor(0.0), torch.tensor(0.0)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        network = network_of(path).double()
        with torch.no_grad():
            for parameter in network.parameters():
                noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.mul_(1 + torch.finfo(torch.float32).eps * (noise - 0.5))
        other = evaluated(network, images).queries.layers[-1]
        logits = torch.maximum(logits, (other.logits - exact.logits).abs().max())
        boxes = torch.maximum(boxes, (other.boxes - exact.boxes).abs().max())
    assert (found.logits - exact.logits).abs().max() <= 20 * logits
    assert (found.boxes - exact.boxes).abs().max() <= 20 * boxes


@each
def test_outputs_of_a_decoder_with_silu(path: Path) -> None:
    wanted = arrays(path, "eval_silu")
    (last,) = evaluated(network_of(path, nn.SiLU), arrays(path, "eval")["images"]).queries.layers
    stored(last.logits, wanted["logits"])
    stored(last.boxes, wanted["boxes"])


@each
def test_detections(path: Path) -> None:
    """As sets: equal scores may come in any order. Recorded boxes are of pictures of 200 × 300, and not clipped."""
    wanted = arrays(path, "eval")
    images, post = wanted["images"], QueryPostprocessor(wanted["detections.scores"].shape[1])
    sizes = torch.tensor([images.shape[-2:]] * len(images))
    predictions = rounded(evaluated(network_of(path), images))
    found = post.select(predictions, post.decode(predictions), sizes)
    scale = torch.tensor([300 / images.shape[3], 200 / images.shape[2]] * 2)
    limits = torch.tensor([300.0, 200.0] * 2)
    for image in range(len(images)):
        boxes = torch.minimum(wanted["detections.boxes"][image].clamp(min=0), limits)
        there = torch.cat([wanted["detections.scores"][image, :, None], boxes], 1)
        ours = torch.cat([found.scores[image, :, None], found.boxes[image] * scale], 1)
        same = (found.labels[image][:, None] == wanted["detections.labels"][image]) & (
            (ours[:, None] - there).abs() < torch.tensor([1e-6, *[2e-4] * 4])
        ).all(-1)
        assert same.any(0).all()
        assert same.any(1).all()


@each
def test_names(path: Path) -> None:
    """Every tensor has the authors' and transformers' names, both as recorded."""
    keys = recorded_json(path, "keys")
    state = [name for name in network_of(path).state_dict() if "num_batches" not in name]
    for name in state:
        theirs = keys[authors_name(name)]
        assert transformers_names(name) == ((theirs,) if isinstance(theirs, str) else tuple(theirs))
    assert keys.keys() - {authors_name(name) for name in state} == {name for name in keys if is_ignored(name)}


@each
def test_outputs_of_training(path: Path) -> None:
    _, found, wanted, _ = trained(path)
    assert found.denoised is not None

    def both(of: QueryOutputs, noisy: QueryOutputs) -> tuple[Tensor, Tensor]:
        return torch.cat([noisy.logits, of.logits], 1), torch.cat([noisy.boxes, of.boxes], 1)

    ours, theirs = sets_of(found.queries), sets_of(found.denoised.outputs)
    for number, (one, noisy) in enumerate(zip(ours, theirs, strict=True)):
        logits, boxes = both(one, noisy)
        stored(logits, wanted["logits_pre_and_layers"][number])
        stored(boxes, wanted["boxes_pre_and_layers"][number])
        if one.distances is not None and noisy.distances is not None:
            distances = torch.cat([noisy.distances, one.distances], 1)
            stored(distances, wanted["corners_of_layers"][number - 1])
    stored(torch.cat([found.denoised.outputs.frame, found.queries.frame], 1), wanted["first_boxes"])
    stored(found.encoder.logits, wanted["enc_topk_logits"])
    stored(found.encoder.boxes, wanted["enc_topk_boxes"])


def sets_of(outputs: DecoderOutputs) -> list[QueryOutputs]:
    """Return the sets as they were recorded: the first layer's plain outputs, then the layers'."""
    assert outputs.pre is not None
    return [outputs.pre, *outputs.layers]


def names_of(layers: int) -> list[str]:
    """Name the sets of outputs, in our order, as they were recorded."""
    return [*(f"aux_{number}" for number in range(layers - 1)), "last", "pre", "enc_0"]


@each
@pytest.mark.parametrize("kind", LOSSES)
def test_matches(path: Path, kind: str) -> None:
    """On the CPU, and by the kernel for GPUs in Triton's interpreter."""
    on_cpu = importlib.util.find_spec("triton") and not torch.cuda.is_available()
    kernels = importlib.import_module("boxwright.nn.ops.triton_kernels") if on_cpu else None
    _, found, wanted, size = trained(path)
    published = recorded_json(path, "loss")[f"published_{kind}"]
    found = rounded(found)
    objects = read_objects(targets_of(wanted, size), size)
    sets = [*found.queries.layers, found.queries.pre, found.encoder]
    logits, boxes = (torch.stack([getattr(one, name) for one in sets]).detach() for name in ("logits", "boxes"))
    costs = MatchingCosts()(logits, boxes, objects.labels, objects.boxes)
    matches = match(costs, objects.valid)
    if kernels is not None:
        assert torch.equal(kernels.assign(costs.contiguous(), objects.valid, 1e6), matches)
    for number, name in enumerate(names_of(len(found.queries.layers))):
        assert pairs(matches[number]) == recorded_pairs(published["matches"][name])
    if not published["tie_in_union"]:  # of votes that tie either may win
        assert pairs(unite(matches, objects.labels.shape[1])) == recorded_pairs(published["union"])


def pairs(numbers: Tensor) -> list[set[tuple[int, int]]]:
    return [{(query, number) for query, number in enumerate(image) if number >= 0} for image in numbers.tolist()]


def recorded_pairs(images: list[tuple[list[int], list[int]]]) -> list[set[tuple[int, int]]]:
    return [set(zip(*image, strict=True)) for image in images]


@each
@pytest.mark.parametrize("kind", LOSSES)
def test_each_term(path: Path, kind: str) -> None:
    _, predictions, wanted, size = trained(path)
    predictions = rounded(predictions)
    published, used = recorded_json(path, "loss")[f"published_{kind}"], criterion(kind)
    objects = read_objects(targets_of(wanted, size), size)
    with torch.no_grad():
        plain, noisy = used.totals(predictions, objects), used.denoising_totals(predictions, objects)
    assert float(plain.pairs) == published["num_boxes_union"]
    boxes, layers = published["num_boxes"], len(predictions.queries.layers)
    found: dict[str, float] = {}
    for number, name in enumerate(names_of(layers)):
        found[f"{kind}/{name}"] = float(plain.classification[number]) / boxes
        found[f"bbox/{name}"] = float(plain.l1[number] / plain.pairs)
        found[f"giou/{name}"] = float(plain.giou[number] / plain.pairs)
        if number < layers:
            found[f"fgl/{name}"] = float(plain.fgl[number] / plain.pairs)
    for number, name in enumerate([*(f"dn_{number}" for number in range(layers)), "dn_pre"]):
        divisor = published["num_boxes_denoising"]
        found[f"{kind}/{name}"] = float(noisy.classification[number]) / divisor
        found[f"bbox/{name}"] = float(noisy.l1[number]) / divisor
        found[f"giou/{name}"] = float(noisy.giou[number]) / divisor
        if number < layers:
            found[f"fgl/{name}"] = float(noisy.fgl[number]) / divisor
    # The last layer is its own teacher; and pairs and others are weighted by the roots of how many there are.
    found[f"ddf/dn_{layers - 1}"] = 0.0
    roots = plain.pairs.sqrt(), plain.others.sqrt()
    for totals, name in ((plain, "aux"), (noisy, "dn")):
        for number in range(layers - 1):
            means = totals.ddf[0][number] / totals.pairs / 4, totals.ddf[1][number] / totals.others / 4
            found[f"ddf/{name}_{number}"] = float((means[0] * roots[0] + means[1] * roots[1]) / (roots[0] + roots[1]))
    assert found == pytest.approx(published["terms"], rel=1e-4, abs=1e-7)


@each
@pytest.mark.parametrize("kind", LOSSES)
def test_total_and_gradients(path: Path, kind: str) -> None:
    network, predictions, wanted, size = trained(path)
    published = recorded_json(path, "loss")[f"published_{kind}"]
    total = LossTerm.sum(criterion(kind)(rounded(predictions), targets_of(wanted, size)))
    assert float(total.detach()) == pytest.approx(published["total"], rel=1e-5)
    if "gradient_sum_and_norm" not in published:
        return
    total.backward()
    norms: dict[str, float] = {}
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        theirs, gradient = authors_name(name), parameter.grad
        stacked = "in_proj_" in name
        parts = zip((f"{theirs}#{one}" for one in "qkv"), gradient.chunk(3), strict=True) if stacked else ()
        norms |= {one: float(part.norm()) for one, part in parts} if stacked else {theirs: float(gradient.norm())}
    # Keys' biases change nothing in a softmax: their gradients are rounding errors.
    expected = {name: norm for name, (_, norm) in published["gradient_sum_and_norm"].items()}
    assert norms == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("path", PIECES, ids=lambda path: path.parent.parent.name)
def test_pieces(path: Path) -> None:
    pieces = {name: torch.from_numpy(value) for name, value in np.load(path).items()}
    for scale in (4.0, 8.0):
        name, one = f"{scale:g}", torch.tensor([scale])
        bins = bin_distances(one, torch.tensor([0.5]), 32)
        close(bins, pieces[f"weighting_{name}"], 1e-6)
        decoded = move_sides(pieces["points"], pieces["distances"], one)
        close(decoded, pieces[f"decoded_{name}"], 1e-6)
        wanted = from_corners(pieces["wanted_xyxy"])
        below, above = neighboring_bins(measure_distances(pieces["first_boxes"], wanted, one), bins)
        # Recorded flat, with shares that need not add up to a bin that both name.
        lower, share = pieces[f"bins_{name}"].long(), pieces[f"right_{name}"]
        places = (below.flatten() + above.flatten(), lower + share)
        assert float((places[0] - places[1]).abs().max()) < 2e-4
        close(1 - share, pieces[f"left_{name}"], 1e-5)
    grids = [(8, 12), (4, 6), (2, 3)]
    boxes, inside = cell_boxes(grids, torch.device("cpu"))
    assert torch.equal(inside, pieces["anchors.valid"][0])
    close(boxes, pieces["anchors.unactivated"][0], 1e-5)


@pytest.mark.parametrize("path", PIECES, ids=lambda path: path.parent.parent.name)
def test_one_attention_and_one_quality(path: Path) -> None:
    pieces = {name: torch.from_numpy(value) for name, value in np.load(path).items()}
    layout = DecoderLayout(8, 1, (2, 3), 8, heads=2)
    attention = DeformableAttention(layout)
    close(attention.scales[:, 0], pieces["attention.num_points_scale"], 1e-7)
    attention.load_state_dict({name: pieces[f"attention.{name}"] for name in attention.state_dict()})
    with torch.no_grad():
        found = attention(pieces["attention.query"], pieces["attention.reference"], pieces["attention.memory"], GRIDS)
    close(found, pieces["attention.output"], 1e-5)
    quality = BoxQuality(nn.ReLU)
    quality.load_state_dict({name: pieces[f"quality.{name}"] for name in quality.state_dict()})
    with torch.no_grad():
        close(quality(pieces["quality.scores"], pieces["quality.corners"]), pieces["quality.output"], 1e-5)


# The 21 cells of the recorded attention's memory.
GRIDS = [(3, 5), (2, 3)]


def test_positions_of_a_grid_that_is_no_square() -> None:
    """Row by row: sine and cosine of the row, then of the column, at 10000^(-i / 4)."""
    positions = sine_positions(2, 3, 16, torch.device("cpu"))
    frequencies = [10000 ** (-number / 4) for number in range(4)]
    for row in range(2):
        for column in range(3):
            parts = [f(place * w) for place in (row, column) for f in (np.sin, np.cos) for w in frequencies]
            assert positions[3 * row + column].tolist() == pytest.approx(parts, abs=1e-6)
