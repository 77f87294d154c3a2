"""CenterNet's losses by hand: classes that were labeled, weights of masks, embeddings of individuals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.config.support import refuse_unsupported
from boxwright.families.center_net.build_tasks import build_center_task, build_mask_task
from boxwright.families.center_net.criteria.criterion import labeled_classes
from boxwright.families.center_net.criteria.task import IdentityTask
from boxwright.families.center_net.network import CenterNet, IdentityClassifier
from boxwright.families.center_net.postprocessing.postprocessor import CenterNetPostprocessor
from boxwright.families.center_net.predictions import CenterPredictions, StageMaps
from boxwright.nn.criteria.losses import SoftmaxCrossEntropy
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline
from boxwright.types import Targets
from boxwright.types.masks import InstanceMasks
from boxwright.weights.tensorflow.variables import from_tensorflow, to_tensorflow
from tests.center_nets import with_identities

# Two images of 16 by 16 pixels, which are 4 by 4 cells, without objects: the loss of every cell is that of a logit of 0
# where none is wanted.
GRID = (4, 4)
SIGMOID = "classification_loss { weighted_sigmoid {} }"
VALID = torch.ones(2, *GRID, dtype=torch.bool)
EACH = math.log(2)


def targets(**changes: Tensor | InstanceMasks | None) -> Targets:
    """Return no objects in two images, padded to one."""
    nothing = torch.zeros(2, 1)
    empty = Targets(torch.zeros(2, 1, 4), nothing.long(), nothing, nothing.bool())
    return replace(empty, **changes)  # type: ignore[arg-type]


def maps(classes: int = 3) -> tuple[StageMaps, ...]:
    zeros = torch.zeros(2, classes, *GRID)
    return (StageMaps(centers=zeros, masks=zeros),)


@pytest.mark.parametrize(
    ("labels", "counted"),
    [
        (None, 6),
        ([[0, 2], [1, -1]], 3),
        ([[0, 0], [-1, -1]], 4),  # the second image lists none, which stands for all
    ],
)
def test_centers_of_labeled_classes(labels: list[list[int]] | None, counted: int) -> None:
    config = parse_message(f"use_labeled_classes: true {SIGMOID}", m.CenterNetObjectCenterParams)
    given = targets(verified_labels=None if labels is None else torch.tensor(labels))
    (term,) = build_center_task(config, [])(maps(), given, VALID).values()
    torch.testing.assert_close(term.total, torch.tensor(counted * 16 * EACH))
    every = build_center_task(parse_message(SIGMOID, m.CenterNetObjectCenterParams), [])
    (term,) = every(maps(), given, VALID).values()
    torch.testing.assert_close(term.total, torch.tensor(6 * 16 * EACH))


def test_labeled_classes() -> None:
    found = labeled_classes(torch.tensor([[0, 2], [1, -1], [-1, -1]]), 3)
    assert found.tolist() == [[1, 0, 1], [0, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize(("weight", "cells"), [(None, 32.0), (1.0, 32.0), (0.5, 30.0), (0.0, 28.0)])
def test_weights_of_masks(weight: float | None, cells: float) -> None:
    """An object in 2 by 2 cells of the first image (a margin included): what its mask's weight is, those cells count."""
    box = torch.tensor([[[4.0, 4.0, 11.2, 11.2]], [[0, 0, 0, 0]]])
    masks = [np.zeros((1, 16, 16), np.uint8), np.zeros((0, 16, 16), np.uint8)]
    given = targets(
        boxes=box,
        weights=torch.tensor([[1.0], [0.0]]),
        masks=InstanceMasks.stack(masks, 1, (16, 16)),
        mask_weights=None if weight is None else torch.tensor([[weight], [0.0]]),
    )
    config = parse_message(SIGMOID, m.CenterNetMaskEstimation)
    (term,) = build_mask_task(config)(maps(), given, VALID).values()
    assert float(term.count) == cells
    torch.testing.assert_close(term.total, torch.tensor(cells * 3 * EACH))


def targets_of(ids: list[int], weights: list[float], boxes: list[list[float]] | None = None) -> Targets:
    ones = torch.tensor([weights])
    corners = torch.zeros(1, len(ids), 4) if boxes is None else torch.tensor([boxes])
    return Targets(corners, torch.zeros(1, len(ids), dtype=torch.int64), ones, ones > 0, track_ids=torch.tensor([ids]))


def test_loss_by_hand() -> None:
    """Cross entropy of each object times its weight, by the number of objects; unknown individuals and padding cost 0."""
    logits = torch.tensor([[[0.0, 0.0, math.log(2)], [math.log(3), 0.0, 0.0], [9.0, 9.0, 0.0], [5.0, 0.0, 0.0]]])
    stages = (StageMaps(torch.zeros(1, 1, 2, 2), identity_logits=logits),) * 2
    targets = targets_of([2, 1, 3, 0], [1.0, 0.5, 1.0, 0.0])
    found = IdentityTask(SoftmaxCrossEntropy(), 4.0)(stages, targets, torch.ones(1, 2, 2))["Loss/track/reid"]
    assert found.count is not None
    assert found.count.item() == 3
    # log(4 / 2), half of log(5 / 1), nothing, nothing.
    assert found.total.item() == pytest.approx(4 * (math.log(2) + 0.5 * math.log(5)), rel=1e-6)


def test_what_is_classified_lies_in_the_cell_of_each_center() -> None:
    network = build_detector(parse_message(with_identities(), m.DetectionModel)).eval().network
    assert isinstance(network, CenterNet)
    targets = targets_of([0, 1], [1.0, 1.0], [[8.0, 4.0, 16.0, 12.0], [88.0, 60.0, 104.0, 68.0]])
    with torch.no_grad():
        found = network(torch.randn(1, 3, 64, 96), torch.tensor([[64, 96]]), targets).stages[-1]
        assert network.identity_classifier is not None
        # The first center is in row 2 and column 3; the second on the far corner, so in the last cell.
        embeddings = torch.stack([found.identities[0, :, 2, 3], found.identities[0, :, 15, 23]])
        torch.testing.assert_close(found.identity_logits, network.identity_classifier(embeddings[None]))
        assert network(torch.randn(1, 3, 64, 96), torch.tensor([[64, 96]])).stages[-1].identity_logits is None


def test_detections_have_embeddings_of_length_one() -> None:
    centers, identities = torch.full((1, 1, 4, 4), -9.0), torch.zeros(1, 2, 4, 4)
    centers[0, 0, 1, 2] = 3.0
    identities[0, :, 1, 2] = torch.tensor([3.0, -4.0])
    sizes = torch.ones(1, 2, 4, 4)
    maps = StageMaps(centers, sizes, sizes * 0.5, identities=identities)
    predictions, post = CenterPredictions((maps,), torch.tensor([[16, 16]]), (16, 16)), CenterNetPostprocessor(1)
    (found,) = post.select(predictions, post.decode(predictions), torch.tensor([[16, 16]])).to_list(
        torch.tensor([[16, 16]])
    )
    torch.testing.assert_close(found.embeddings, torch.tensor([[0.6, -0.8]]))
    assert found.to_tf()["detection_embeddings"].shape == (1, 2)


@pytest.mark.parametrize(("layers", "modules"), [(1, 1), (3, 7)])
def test_layers_of_the_classifier(layers: int, modules: int) -> None:
    """All but the last dense layer are normalized and activated; one row, or none, is no batch to normalize."""
    classifier = IdentityClassifier(5, 8, layers).train()
    assert len(classifier) == modules
    for shape in ((2, 3), (1, 1), (1, 0), (2, 0)):
        embeddings = torch.randn(*shape, 5, requires_grad=True)
        logits = classifier(embeddings)
        assert logits.shape == (*shape, 8)
        logits.sum().backward()
        assert all(one.grad is not None and one.grad.isfinite().all() for one in classifier.parameters())
        assert embeddings.grad is not None
    assert all(value.isfinite().all() for value in classifier.state_dict().values())


@pytest.mark.slow
def test_names_in_tensorflows_checkpoints() -> None:
    network = build_detector(parse_message(with_identities(), m.DetectionModel)).network
    arrays, _ = to_tensorflow(network)
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    path = "model/track_reid_classification_net/layer_with_weights-"
    own = {name.removesuffix(suffix): value.shape for name, value in arrays.items() if "reid" in name}
    heads = {name: shape for name, shape in own.items() if "prediction_head" in name}
    assert set(heads) == {
        f"model/_prediction_head_dict/track.Sreid/0/layer_with_weights-{layer}/{kind}"
        for layer in (0, 1)
        for kind in ("kernel", "bias")
    }
    assert {name.removeprefix(path): shape for name, shape in own.items() if name not in heads} == {
        "0/kernel": (6, 6),
        "0/bias": (6,),
        "1/gamma": (6,),
        "1/beta": (6,),
        "1/moving_mean": (6,),
        "1/moving_variance": (6,),
        "2/kernel": (6, 7),
        "2/bias": (7,),
    }
    found = from_tensorflow(network, arrays)
    assert not found.unnamed
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in found.values.items())


def test_options_that_do_not_fit() -> None:
    for change, line in (
        (("num_track_ids: 7", "num_track_ids: 0"), "num_track_ids: missing; set it to the number of track ids"),
        (("num_fc_layers: 2", "num_fc_layers: 0"), "should be greater than or equal to 1"),
    ):
        with pytest.raises(ConfigError) as caught:
            build_detector(parse_message(with_identities().replace(*change), m.DetectionModel))
        assert line in str(caught.value)


def test_a_reader_that_leaves_out_what_is_learned() -> None:
    text = f"""model {{ {with_identities()} }} train_config {{ batch_size: 2 }}
      train_input_reader {{ tf_record_input_reader {{ input_path: "none" }} }}"""
    with pytest.raises(ConfigError, match="load_track_id: the detector learns identities; set it to true"):
        refuse_unsupported(parse_message(text, Pipeline), "")


def test_losses_need_the_groundtruth_before_the_network_runs() -> None:
    task, stages = IdentityTask(SoftmaxCrossEntropy()), (StageMaps(torch.zeros(1, 1, 2, 2)),)
    with pytest.raises(ValueError, match="has not been given the groundtruth"):
        task(stages, targets_of([0], [1.0]), torch.ones(1, 2, 2))
