"""Whole CenterNets against TensorFlow: the same weights, the same numbers at every stage."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.families.center_net.network import CenterNet
from boxwright.families.center_net.postprocessing.postprocessor import CenterNetPostprocessor
from boxwright.families.center_net.predictions import STRIDE, CenterPredictions, EmbeddingMaps, StageMaps, SurfaceMaps
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.types import RawDetections, Targets
from boxwright.types.dense_pose import COLUMNS, KNOWN, PART, PLACE, SURFACE
from boxwright.types.masks import InstanceMasks
from boxwright.weights.load_weights import LoadReport, load_weights
from boxwright.weights.tensorflow.variables import from_tensorflow, to_tensorflow
from tests.conftest import GOLDEN, assert_close, xyxy
from tests.golden.weights import weight
from tests.parity.recordings import FOLDER, FOLDERS, compare, unsupported

WEIGHTS_ARE_LOADED = True

# As large as the rounding of a score near 1, and less than what tells peaks from other cells.
_TIE = 5e-7
_PATHS = [
    path.with_suffix("")
    for folder in FOLDERS
    for pattern in ("centernet/*.json", "models/centernet_*.json")
    for path in sorted(folder.glob(pattern))
]
MODELS = [path for path in _PATHS if path.name != "components"]


def test_the_shipped_folder_is_whole() -> None:
    if FOLDER == GOLDEN:
        assert [path.name for path in MODELS] == ["multi_task", "single_class_keypoints"]


@dataclass
class Recorded:
    """A recorded detector, rebuilt."""

    detector: Detector
    report: LoadReport
    weights: dict[str, Any]
    arrays: Any
    inputs: Tensor
    sizes: Tensor
    predictions: CenterPredictions

    @property
    def config_size(self) -> tuple[int, int]:
        return (self.inputs.shape[-2], self.inputs.shape[-1])

    @cached_property
    def targets(self) -> Targets:
        height, width = self.config_size
        arrays = self.arrays

        def of_objects(name: str) -> Tensor | None:
            name = f"groundtruth_{name}"
            return torch.from_numpy(arrays[name])[None] if name in arrays.files else None

        boxes = xyxy(arrays["groundtruth_boxes"] * np.array([height, width] * 2, np.float32))[None]
        labels = torch.from_numpy(arrays["groundtruth_classes"].argmax(-1))[None]
        weights, keypoints, masks = of_objects("weights"), of_objects("keypoints"), of_objects("masks")
        assert weights is not None
        return Targets(
            boxes,
            labels,
            weights,
            torch.ones(labels.shape, dtype=torch.bool),
            keypoints=None if keypoints is None else keypoints.flip(-1) * torch.tensor([width, height]),
            masks=None if masks is None else InstanceMasks.stack([masks[0].numpy()], labels.shape[1], self.config_size),
            keypoint_depths=of_objects("keypoint_depths"),
            keypoint_depth_weights=of_objects("keypoint_depth_weights"),
            temporal_offsets=of_objects("temporal_offsets"),
            track_match_flags=of_objects("track_match_flags"),
            dense_pose=self.dense_pose,
        )

    @property
    def dense_pose(self) -> Tensor | None:
        if "groundtruth_dp_part_ids" not in self.arrays.files:
            return None
        height, width = self.config_size
        counts, parts, places = (
            self.arrays[f"groundtruth_dp_{name}"] for name in ("num_points", "part_ids", "surface_coords")
        )
        points = np.zeros((*parts.shape, COLUMNS), np.float32)
        points[..., PLACE] = places[..., [1, 0]] * [width, height]
        points[..., KNOWN] = np.arange(parts.shape[1]) < counts[:, None]
        points[..., PART], points[..., SURFACE] = parts, places[..., 2:]
        return torch.from_numpy(points)[None]

    def compare(self, name: str, actual: Any) -> None:
        compare(self.arrays, name, actual)


# The whole hourglass of 104 layers takes a minute; the others' heads are those of deepmac_hourglass and single_class_keypoints,
# and a ResNet's names are in tests/weights/tensorflow/test_variable_names.py.
_SLOW = ("centernet_", "deepmac_weak", "deepmac_projection", "resnet_fpn_depthwise")
_PARAMS = [
    pytest.param(path, id=path.name, marks=[pytest.mark.slow] if path.name.startswith(_SLOW) else []) for path in MODELS
]


@pytest.fixture(scope="module", params=_PARAMS)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    path: Path = request.param
    description = json.loads(path.with_suffix(".json").read_text())
    config = parse_message(description["model_text"], m.DetectionModel)
    assert config.center_net is not None
    if "keypoint_label_map" in description:
        label_map = tmp_path_factory.mktemp(path.name) / "keypoints.pbtxt"
        label_map.write_text(description["keypoint_label_map"])
        config.center_net.keypoint_label_map_path = str(label_map)
    try:
        detector = build_detector(config)
    except ConfigError as error:
        unsupported(path.name, error)
    weights = {key: weight(key, tuple(shape), description["gain"]) for key, shape in description["variables"]}
    report = load_weights(detector, weights)
    arrays = np.load(path.with_suffix(".npz"))
    inputs, sizes = detector.preprocess(torch.from_numpy(arrays["image"])[None])
    with torch.no_grad():
        recorded = Recorded(detector.eval(), report, weights, arrays, inputs, sizes, detector.predict(inputs, sizes))
        if recorded.predictions.deep_masks is not None:  # which reads the groundtruth's boxes
            recorded.predictions = detector.predict(inputs, sizes, recorded.targets)
        return recorded


def test_names_both_ways(recorded: Recorded) -> None:
    """Every variable is found, and written under the same name; but for one that TF has behind the last map."""
    network = recorded.detector.network
    found = from_tensorflow(network, recorded.weights)
    learned = {name for name in network.state_dict() if not name.endswith("num_batches_tracked")}
    assert set(found.values) == learned
    written, aliases = to_tensorflow(network)
    assert aliases is not None
    unused = set(recorded.weights) - set(written)
    assert all(key.startswith("model/_feature_extractor/_base_model/") for key in unused)
    assert len(unused) in (0, 4)
    for key, array in written.items():
        assert_close(array, recorded.weights[key], 0, 0)


def test_preprocess(recorded: Recorded) -> None:
    network = recorded.detector.network
    assert isinstance(network, CenterNet)
    recorded.compare("preprocessed", network.channel_order(recorded.inputs).permute(0, 2, 3, 1))
    assert recorded.sizes.tolist() == recorded.arrays["true_image_shapes"][:, :2].tolist()


def _maps(recorded: Recorded, maps: StageMaps) -> dict[str, Tensor | None]:
    found = {
        "object_center": maps.centers,
        "box/scale": maps.sizes,
        "box/offset": maps.offsets,
        "segmentation/heatmap": maps.masks,
        "track/offset": maps.temporal_offsets,
    }
    network = recorded.detector.network
    assert isinstance(network, CenterNet)
    if maps.surface is not None:
        found |= {"densepose/heatmap": maps.surface.parts, "densepose/regression": maps.surface.coordinates}
    if maps.embeddings is not None:
        found |= {"INSTANCE_EMBEDDING": maps.embeddings.instances, "PIXEL_EMBEDDING": maps.embeddings.pixels}
    for heads, part in zip(network.stages[0].keypoints, maps.keypoints, strict=True):
        found |= {f"{heads.name}/keypoint/{kind}": getattr(part, kind) for kind in ("heatmap", "regression")}
        found |= {f"{heads.name}/keypoint/offset": part.offsets, f"{heads.name}/keypoint/depth": part.depths}
    return found


def test_predict(recorded: Recorded) -> None:
    network = recorded.detector.network
    assert isinstance(network, CenterNet)
    with torch.no_grad():
        features = network.feature_maps(recorded.inputs)
    compared = set()
    for number, maps in enumerate(recorded.predictions.stages):
        recorded.compare(f"predict/extracted_features/{number}", features[number].permute(0, 2, 3, 1))
        for name, values in _maps(recorded, maps).items():
            if values is not None:
                recorded.compare(f"predict/{name}/{number}", values.permute(0, 2, 3, 1))
                compared.add(f"predict/{name}/{number}")
    deep = recorded.predictions.deep_masks
    for number, logits in enumerate(() if deep is None else deep.of_objects):
        recorded.compare(f"predict/MASK_LOGITS_GT_BOXES/{number}", logits)
        compared.add(f"predict/MASK_LOGITS_GT_BOXES/{number}")
    others = ("extracted_features", "preprocessed_inputs")
    names = {name.split("@")[0] for name in recorded.arrays.files if name.startswith("predict/")}
    assert compared == {name for name in names if not any(other in name for other in others)}


# One recording's colors are not what TensorFlow-IO's `rgb_to_lab` makes of the inputs that were recorded with them:
# with TensorFlow 2.15.1 and TensorFlow-IO 0.36.0 the loss of these inputs and masks is the second number.
_BY_TENSORFLOW = {("loss/deep_mask_feature_consistency", 0.67670715): 0.7072830}


def test_losses(recorded: Recorded) -> None:
    names = {name for name in recorded.arrays.files if name.startswith("loss/")}
    if "groundtruth_weights" not in recorded.arrays.files:  # the official detector's, which holds no losses
        assert not names
        return
    losses = LossTerm.values(recorded.detector.criterion(recorded.predictions, recorded.targets))
    assert {name.replace("Loss/", "loss/") for name in losses} == names
    different = {}
    for name in names:
        value, wanted = losses[name.replace("loss/", "Loss/")], recorded.arrays[name]
        wanted = _BY_TENSORFLOW.get((name, round(float(wanted), 8)), wanted)
        if not np.allclose(value.numpy(), wanted, rtol=1e-4, atol=1e-4):
            different[name] = (float(value), float(wanted))
    assert different == {}


def _as_recorded(recorded: Recorded) -> CenterPredictions:
    """Return what TF predicted: scores of random weights crowd together, so that rounding decides their order.

    Of large maps only samples are recorded: then what we predict ourselves.
    """
    last = recorded.predictions.stages[-1]
    arrays, number = recorded.arrays, len(recorded.predictions.stages) - 1
    if f"predict/object_center/{number}" not in arrays.files:
        return recorded.predictions

    def of(name: str) -> Tensor | None:
        key = f"predict/{name}/{number}"
        return torch.from_numpy(arrays[key]).permute(0, 3, 1, 2) if key in arrays.files else None

    network = recorded.detector.network
    assert isinstance(network, CenterNet)
    keypoints = tuple(
        replace(
            maps,
            **{
                ours: of(f"{heads.name}/keypoint/{theirs}")
                for ours, theirs in (
                    ("heatmap", "heatmap"),
                    ("regression", "regression"),
                    ("offsets", "offset"),
                    ("depths", "depth"),
                )
            },
        )
        for heads, maps in zip(network.stages[-1].keypoints, last.keypoints, strict=True)
    )
    centers = of("object_center")
    assert centers is not None
    instances, pixels = of("INSTANCE_EMBEDDING"), of("PIXEL_EMBEDDING")
    parts, coordinates = of("densepose/heatmap"), of("densepose/regression")
    maps = StageMaps(
        centers,
        of("box/scale"),
        of("box/offset"),
        keypoints,
        of("segmentation/heatmap"),
        of("track/offset"),
        None if instances is None or pixels is None else EmbeddingMaps(instances, pixels),
        None if parts is None or coordinates is None else SurfaceMaps(parts, coordinates),
    )
    height, width = maps.centers.shape[2:]
    return CenterPredictions((maps,), recorded.sizes, (4 * height, 4 * width))


def _helped(raw: RawDetections, recorded: Recorded) -> RawDetections:
    """Let scores that tie in float32 fall TF's way: its peaks get a bonus as small as a tie, the first the largest."""
    arrays, scores = recorded.arrays, raw.scores.double()
    count = int(arrays["detect/num_detections"][0])
    labels = torch.from_numpy(arrays["detect/detection_classes"][0].astype(np.int64))
    multiclass = torch.from_numpy(arrays["detect/detection_multiclass_scores"][0])
    limits = torch.tensor([*recorded.config_size[::-1]] * 2)
    boxes = raw.boxes[0].clamp(min=0).minimum(limits) / STRIDE
    strided = xyxy(arrays["detect/detection_boxes_strided"][0])
    taken = torch.zeros(len(boxes), int(labels.max()) + 1, dtype=torch.bool)
    for rank in range(count):
        distance = (raw.scores[0] - multiclass[rank]).abs().sum(1) + (boxes - strided[rank]).abs().sum(1)
        cell = distance.masked_fill(taken[:, labels[rank]], torch.inf).argmin()
        taken[cell, labels[rank]] = True
        scores[0, cell, labels[rank]] += _TIE * (1.3 - 0.3 * rank / count)
    return replace(raw, scores=scores)


def test_detections(recorded: Recorded) -> None:
    """The same peaks in the same order, and at each the same of everything."""
    predictions, post = _as_recorded(recorded), recorded.detector.postprocessor
    raw = _helped(post.decode(predictions), recorded)
    network = recorded.detector.network
    assert isinstance(network, CenterNet)
    assert isinstance(post, CenterNetPostprocessor)
    if network.deep_masks is not None:
        network.deep_masks.detect = lambda found: post.detect_in(found, raw)
        predictions = replace(predictions, deep_masks=network.deep_masks.of_detections(predictions))
        network.deep_masks.detect = post.detect
    (found,) = post.select(predictions, raw, recorded.sizes).to_list(recorded.sizes)
    arrays = recorded.arrays
    count = int(arrays["detect/num_detections"][0])
    assert len(found) == count
    given = found.to_tf()
    given["detection_classes"] = given["detection_classes"] - 1
    theirs = {name.removeprefix("detect/"): arrays[name][0] for name in arrays.files if name.startswith("detect/")}
    del theirs["num_detections"]
    for name, values in theirs.items():
        assert_close(given[name], values[:count], 1e-4, 1e-3)


def test_scores_of_the_image(recorded: Recorded) -> None:
    """Detecting in the image itself gives the same scores, and boxes in its pixels."""
    (found,) = recorded.detector.detect([recorded.arrays["image"]])
    height, width = recorded.arrays["image"].shape[:2]
    assert found.image_size == (height, width)
    count = int(recorded.arrays["detect/num_detections"][0])
    assert_close(found.scores, recorded.arrays["detect/detection_scores"][0][:count], 1e-4, 1e-3)
    assert (found.boxes <= torch.tensor([width, height] * 2) + 1e-3).all()


def test_report_of_the_weights(recorded: Recorded) -> None:
    """Everything that the network has was loaded."""
    assert isinstance(recorded.detector.postprocessor, CenterNetPostprocessor)
    assert not recorded.report.kept
