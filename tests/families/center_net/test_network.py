"""CenterNet runs on anything, and every extractor of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from boxwright.base.errors import CheckpointError, ConfigError, DataError
from boxwright.config.load import parse_message
from boxwright.config.support import refuse_unsupported
from boxwright.data.batch import collate, to_input
from boxwright.data.shapes import ShapesDataset
from boxwright.families.center_net.build_feature_extractor import CENTER_NET_EXTRACTORS, build_feature_extractor
from boxwright.families.center_net.criteria.criterion import BoxTargets, CentersOfBoxes
from boxwright.families.center_net.predictions import CenterPredictions, StageMaps
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline
from boxwright.pipeline.training import build_training
from boxwright.types import Categories, Category, Targets
from boxwright.types.dense_pose import COLUMNS, KNOWN, PART, PLACE
from boxwright.types.masks import InstanceMasks
from boxwright.weights.load_weights import load_weights
from boxwright.weights.tensorflow.variables import from_tensorflow, tf2_variables, to_tensorflow
from tests.center_nets import (
    CENTER_NET,
    KEYPOINT_LABEL_MAP,
    deep_mask_variants,
    give_keypoint_label_map,
    of_one_class,
    variants,
    with_every_task,
    with_identities,
    with_surface,
)
from tests.conftest import extra_folder
from tests.nn.shapes import only_shapes


@pytest.fixture(scope="module")
def label_map(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("center_net") / "keypoints.pbtxt"
    path.write_text(KEYPOINT_LABEL_MAP)
    return path


def detector_of(text: str, categories: Categories | None = None) -> Detector:
    torch.manual_seed(0)
    return build_detector(parse_message(text, m.DetectionModel), categories)


def targets_of(detector: Detector, objects: int) -> Targets:
    """Two images; the second has no object."""
    torch.manual_seed(1)
    low = torch.rand(2, objects, 2) * torch.tensor([80.0, 50.0])
    # The last object is a pixel large, in the far corner.
    boxes = torch.cat([low, low + torch.rand(2, objects, 2) * 12 + 1], -1)
    if objects:
        boxes[:, -1] = torch.tensor([95.0, 63.0, 96.0, 64.0])
    valid = torch.tensor([True, False])[:, None].expand(2, objects)
    labels = torch.arange(objects).expand(2, -1) % detector.num_classes
    keypoints = torch.rand(2, objects, 3, 2) * torch.tensor([96.0, 64.0])
    keypoints[:, ::2, 0] = torch.nan
    masks = [np.ones((objects, 64, 96), np.uint8) for _ in valid]
    return Targets(
        boxes * valid[..., None],
        labels * valid,
        valid.float(),
        valid,
        keypoints=keypoints,
        masks=InstanceMasks.stack(masks, objects, (64, 96)),
        keypoint_depths=torch.rand(2, objects, 3),
        temporal_offsets=torch.rand(2, objects, 2),
        track_match_flags=torch.ones(2, objects),
        dense_pose=dense_pose_of(objects),
        track_ids=torch.arange(objects).expand(2, -1),
    )


def dense_pose_of(objects: int) -> torch.Tensor:
    """Three points of each object; the first lies on the far corner."""
    points = torch.rand(2, objects, 3, COLUMNS)
    points[..., PLACE] *= torch.tensor([96.0, 64.0])
    points[..., 0, PLACE] = torch.tensor([96.0, 64.0])
    points[..., KNOWN] = 1
    points[..., PART] = torch.randint(0, 24, points.shape[:-1]).float()
    return points


@pytest.mark.slow_except("0-6", "5-7", "5-8")
@pytest.mark.parametrize("number", range(11))
@pytest.mark.parametrize("objects", [0, 5])
def test_learns_and_detects(number: int, objects: int, label_map: Path) -> None:
    """Every option, with and without objects: finite losses, a gradient for each weight, and detections in the image."""
    texts = variants(label_map)
    assert len(texts) == 11
    detector = detector_of(texts[number]).train()
    images = torch.randint(0, 255, (2, 50, 60, 3), dtype=torch.uint8)
    inputs, sizes = detector.preprocess(images)
    targets = targets_of(detector, objects)
    terms = detector.criterion(detector.predict(inputs, sizes, targets), targets)
    loss = LossTerm.sum(terms)
    assert loss.isfinite()
    loss.backward()
    learned = [one for one in detector.network.parameters() if one.requires_grad]
    assert all(one.grad is not None and one.grad.isfinite().all() for one in learned)
    for found in detector.eval().detect([image.numpy() for image in images]):
        assert len(found) <= 20
        if "object_detection_task" in texts[number]:  # boxes around keypoints alone may cross the border, as in TF
            assert (found.boxes >= 0).all()
            assert (found.boxes <= torch.tensor([60, 50, 60, 50]) + 1e-3).all()
        assert (found.scores[:-1] >= found.scores[1:]).all()


def test_a_perfect_network_finds_the_objects() -> None:
    """Maps that say what is to be learned decode to the groundtruth, whatever the detector's weights."""
    detector = detector_of(CENTER_NET)
    boxes = torch.tensor([[[3.0, 5.0, 30.0, 25.0], [40.0, 8.0, 55.0, 60.0], [60.5, 30.0, 90.0, 44.0]]])
    labels, ones = torch.tensor([[2, 0, 2]]), torch.ones(1, 3)
    targets, grid = Targets(boxes, labels, ones, ones > 0), (16, 24)
    heatmap = CentersOfBoxes()(targets, 4, grid)
    wanted = BoxTargets.assign(boxes, grid)
    sizes, offsets = torch.zeros(1, 2, *grid), torch.zeros(1, 2, *grid)
    rows, columns = wanted.cells[0].long().unbind(-1)
    sizes[0][:, rows, columns], offsets[0][:, rows, columns] = wanted.sizes[0].T, wanted.offsets[0].T
    maps = StageMaps(torch.logit(heatmap.clamp(1e-6, 1 - 1e-6)), sizes, offsets)
    predictions = CenterPredictions((maps,), torch.tensor([[64, 96]]), (64, 96))
    (found,) = detector.postprocess(predictions, torch.tensor([[64, 96]]))
    best = found.first(3)
    order = best.boxes[:, 0].argsort()
    torch.testing.assert_close(best.boxes[order], boxes[0], rtol=0, atol=1e-4)
    assert best.labels[order].tolist() == labels[0].tolist()
    assert found.scores[3:].max() < 1e-4
    losses = LossTerm.values(detector.criterion(predictions, targets))
    assert losses["Loss/box/scale"] == 0
    assert losses["Loss/box/offset"] == 0
    assert losses["Loss/object_center"] < 0.1


@pytest.mark.slow_cases(
    "resnet_v2_101", "resnet_v1_101_fpn", "mobilenet_v2", "mobilenet_v2_fpn", "mobilenet_v2_fpn_sep_conv"
)
@pytest.mark.parametrize("name", [name for name in CENTER_NET_EXTRACTORS if name != "timm/"])
def test_extractors(name: str) -> None:
    """Each gives maps of stride 4 of the channels that it says, and has names in TF's checkpoints."""
    config = parse_message(f'type: "{name}"', m.CenterNetFeatureExtractor)
    with only_shapes(), torch.no_grad():
        extractor = build_feature_extractor(config)
        side = extractor.pad_to_multiple
        maps = extractor.neck(extractor.backbone(torch.zeros(2, 3, side, 2 * side)))
    assert len(maps) == extractor.stages == (2 if name == "hourglass_104" else 1)
    assert {tuple(one.shape) for one in maps} == {(2, extractor.channels, side // 4, side // 2)}


def test_extractors_are_counted() -> None:
    assert len(CENTER_NET_EXTRACTORS) == 5 + 2 + 4 + 3 + 1


@pytest.mark.slow_cases("resnet_v1_18_fpn", "mobilenet_v2_fpn_sep_conv")
@pytest.mark.parametrize("name", ["hourglass_20", "resnet_v1_18_fpn", "mobilenet_v2_fpn_sep_conv"])
def test_names_of_extractors_that_are_not_recorded(name: str) -> None:
    """Written to TF's names and read again, every weight is the same."""
    text = CENTER_NET.replace("mobilenet_v2_fpn", name).replace("depth_multiplier: 0.1", "")
    network = detector_of(text).network
    arrays, _ = to_tensorflow(network)
    found = from_tensorflow(network, arrays)
    state = {key: value for key, value in network.state_dict().items() if "num_batches" not in key}
    assert not found.unnamed
    assert set(found.values) == set(state)
    assert all(torch.equal(found.values[key], value) for key, value in state.items())


@pytest.mark.slow_cases("detection-left1")
@pytest.mark.parametrize(("scope", "left"), [("classification", ("neck.", "stages.")), ("detection", ("stages.",))])
def test_what_a_fine_tuning_restores(scope: Literal["classification", "detection"], left: tuple[str, ...]) -> None:
    """A classifier's backbone, by the name under which TF saves it; or, of a detector, all but the heads."""
    arrays, _ = to_tensorflow(detector_of(CENTER_NET).network)
    if scope == "classification":
        inside = "model/_feature_extractor/_base_model/"
        of_classifier = {key: value for key, value in arrays.items() if key.startswith(inside)}
        arrays = {f"feature_extractor/{key.removeprefix(inside)}": value for key, value in of_classifier.items()}
    report = load_weights(detector_of(CENTER_NET), arrays, scope)
    assert report.restored
    assert {name for name in report.kept if not name.startswith(left)} == set()
    assert {name.split(".")[0] + "." for name in report.kept} == set(left)


@pytest.mark.slow_cases("deep masks", "surface")
@pytest.mark.parametrize(
    ("text", "left"),
    [
        (deep_mask_variants()[0], {"stages", "deep_masks"}),
        (with_surface(), {"stages"}),
        (with_identities(), {"stages", "identity_classifier"}),
    ],
    ids=["deep masks", "surface", "identities"],
)
def test_a_detector_of_boxes_starts_other_tasks(text: str, left: set[str]) -> None:
    """By TF's names; and what they learn is written to these names and read again."""
    boxes, _ = to_tensorflow(detector_of(CENTER_NET).network)
    detector = detector_of(text)
    report = load_weights(detector, boxes, "detection")
    assert {name.split(".")[0] for name in report.kept} == left
    own, _ = to_tensorflow(detector.network)
    found = from_tensorflow(detector.network, own)
    state = {key: value for key, value in detector.network.state_dict().items() if "num_batches" not in key}
    assert not found.unnamed
    assert all(torch.equal(found.values[key], value) for key, value in state.items())


@pytest.mark.slow_cases("resnet_v1_18_fpn-_base_model-left2", "mobilenet_v2-_network-left1")
@pytest.mark.parametrize(
    ("extractor", "inside", "left"),
    [
        ("hourglass_10", "_network", ("stages.",)),
        ("mobilenet_v2", "_network", ("stages.",)),
        ("resnet_v1_18_fpn", "_base_model", ("neck.", "stages.")),
    ],
)
def test_what_a_fine_tuning_restores_of_another_kind_of_model(
    extractor: str, inside: str, left: tuple[str, ...]
) -> None:
    """ExtremeNet's hourglasses, MobileNetV2 with its upsampling, a classifier: TF saves each as `feature_extractor`."""
    text = CENTER_NET.replace('"mobilenet_v2_fpn" depth_multiplier: 0.1', f'"{extractor}"')
    arrays, _ = to_tensorflow(detector_of(text).network)
    prefix = f"model/_feature_extractor/{inside}/"
    arrays = {f"feature_extractor/{key.removeprefix(prefix)}": arrays[key] for key in arrays if key.startswith(prefix)}
    detector, scope = detector_of(text), ("classification" if "neck." in left else "detection")
    before = {name: value.clone() for name, value in detector.network.state_dict().items()}
    arrays = {key: value + 1 for key, value in arrays.items()}
    report = load_weights(detector, arrays, scope)  # type: ignore[arg-type]
    assert not report.unused
    assert {name.split(".")[0] + "." for name in report.kept} == set(left)
    state = detector.network.state_dict()
    for name, value in before.items():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(state[name], value if name in report.kept else value + 1)


@pytest.mark.slow
def test_a_classifier_is_not_enough_for_a_detection() -> None:
    """Of a ResNet the upsampling is missing, which the type `detection` promises."""
    text = CENTER_NET.replace('"mobilenet_v2_fpn" depth_multiplier: 0.1', '"resnet_v1_18_fpn"')
    arrays, _ = to_tensorflow(detector_of(text).network)
    prefix = "model/_feature_extractor/_base_model/"
    arrays = {f"feature_extractor/{key.removeprefix(prefix)}": arrays[key] for key in arrays if key.startswith(prefix)}
    with pytest.raises(CheckpointError, match=r"scope 'detection': \d+ of \d+ tensors cannot be restored; .*neck\."):
        load_weights(detector_of(text), arrays, "detection")


@pytest.mark.slow
def test_stacked_hourglasses_learn_each(label_map: Path) -> None:
    """The loss is the mean over the stages, of which the last is decoded."""
    text = CENTER_NET.replace('"mobilenet_v2_fpn" depth_multiplier: 0.1', '"hourglass_104"')
    with torch.device("meta"):
        detector = detector_of(text)
        found = detector.predict(torch.zeros(1, 3, 128, 128), torch.tensor([[128, 128]]))
    assert [tuple(maps.centers.shape) for maps in found.stages] == [(1, 4, 32, 32)] * 2
    assert detector.network.parts.heads == ("stages.0", "stages.1")


def test_any_input_size() -> None:
    """Inputs are padded to what the network can halve; boxes stay within the image."""
    text = CENTER_NET.replace("fixed_shape_resizer { height: 64 width: 96 }", "identity_resizer { }")
    (found,) = detector_of(text).detect([torch.randint(0, 255, (37, 51, 3), dtype=torch.uint8).numpy()])
    assert (found.boxes <= torch.tensor([51, 37, 51, 37])).all()


@pytest.mark.parametrize(
    ("missing", "line"),
    [
        ("masks", "learns masks, but the records have none"),
        ("keypoints", "learns keypoints, but the records have none"),
        ("temporal_offsets", "learns temporal offsets, but the records have none"),
        ("dense_pose", "learns the surface of bodies, but the records have none"),
        ("track_ids", "learns identities, which are track ids, but the records have none"),
    ],
)
def test_records_without_what_is_learned(missing: str, line: str, label_map: Path) -> None:
    detector = detector_of(variants(label_map)[{"dense_pose": 9, "track_ids": 10}.get(missing, 4)]).train()
    inputs, sizes = detector.preprocess(torch.zeros(2, 64, 96, 3, dtype=torch.uint8))
    targets = replace(targets_of(detector, 3), **{missing: None})
    with pytest.raises(DataError, match=line):
        detector.criterion(detector.predict(inputs, sizes, targets), targets)


def test_records_with_fewer_keypoints_than_the_label_map(label_map: Path) -> None:
    detector = detector_of(variants(label_map)[4]).train()
    inputs, sizes = detector.preprocess(torch.zeros(2, 64, 96, 3, dtype=torch.uint8))
    targets = targets_of(detector, 3)
    assert targets.keypoints is not None
    targets = replace(targets, keypoints=targets.keypoints[:, :, :2])
    with pytest.raises(DataError, match="objects have 2 keypoints, but the keypoint label map's ids go up to 2"):
        detector.criterion(detector.predict(inputs, sizes), targets)


def test_masks_are_learned() -> None:
    """Masks of records become the union of each class, at a quarter of the size."""
    text = with_every_task(Path("none")).replace('keypoint_label_map_path: "none"', "")
    start, stop = text.index("keypoint_estimation_task"), text.index("mask_estimation_task")
    detector = detector_of(text[:start] + text[stop:]).train()
    dataset = ShapesDataset(2, seed=3, size=(64, 96))
    batch = collate([to_input(dataset[index], detector.preprocessor.resizer) for index in range(2)])
    inputs = detector.preprocessor.normalize(batch.images, batch.true_sizes)
    terms = detector.criterion(detector.predict(inputs, batch.true_sizes), batch.targets)
    assert "Loss/segmentation/heatmap" in terms
    assert LossTerm.sum(terms).isfinite()
    (found, _) = detector.eval().detect([image.permute(1, 2, 0).numpy() for image in batch.images])
    assert found.masks is not None
    assert found.masks.shape[1:] == (8, 6)
    assert set(found.masks.unique().tolist()) <= {0.0, 1.0}


CATEGORIES = Categories((Category(0, 1, "circle"), Category(1, 2, "square"), Category(2, 3, "star")))


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ('name: "circle"', 'name: "ring"', "'circle' is no class with keypoints in"),
        ('label: "bottom"', 'label: "base"', "'bottom' is no keypoint of 'circle'"),
        ("id: 1 label", "id: 0 label", "keypoint id 0 occurs 2 times"),
        ("id: 1 label", "id: -1 label", "item.keypoints.id: should be greater than or equal to 0, found -1"),
        ("id: 1 label", "id: 10000 label", "item.keypoints.id: should be less than 10000, found 10000"),
        ('id: 1 name: "circle"', 'id: 9 name: "circle"', "id 9 in the keypoint label map, of 4 classes"),
        ('id: 1 name: "circle"', 'id: 3 name: "circle"', "has id 3 in the keypoint label map, but id 1 in the data's"),
    ],
)
def test_a_keypoint_label_map_that_does_not_fit(before: str, after: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / "map.pbtxt"
    assert before in KEYPOINT_LABEL_MAP
    path.write_text(KEYPOINT_LABEL_MAP.replace(before, after))
    with pytest.raises(ConfigError, match="keypoint") as caught:
        detector_of(with_every_task(path), CATEGORIES)
    assert line in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ('keypoint_label_to_std { key: "top" value: 1 }', "none for bottom; give each one, or none"),
        ("argmax_postprocessing: true", "ranks by gaussian_weighted_const alone"),
        ("per_keypoint_depth: true", "set predict_depth: true"),
        ('candidate_ranking_mode: "nearest"', "'nearest' is not known"),
    ],
)
def test_options_that_do_not_fit(more: str, line: str, label_map: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        detector_of(of_one_class(label_map, more))
    assert line in str(caught.value)


def test_a_missing_keypoint_label_map(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keypoint_label_map_path: .*none\.pbtxt"):
        detector_of(of_one_class(tmp_path / "none.pbtxt", ""))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("l1_localization_loss { }", "weighted_giou { }"), "compares boxes, not vectors"),
        (
            ("num_filters: 16 kernel_sizes: 3", "num_filters: [16, 16] kernel_sizes: 3"),
            "expected as many as num_filters",
        ),
        (
            ("object_center_params", "post_processing { batch_non_max_suppression { } } object_center_params"),
            "change_coordinate_frame: false",
        ),
        (("depth_multiplier: 0.1", 'upsampling_interpolation: "cubic"'), "'cubic' is not known"),
        (("mobilenet_v2_fpn", "resnet_v2_50"), "takes only 1.0"),
        (
            ("num_classes: 4", "num_classes: 4 densepose_estimation_task { }"),
            "parts and coordinates are those of masks, without which TF raises; set mask_estimation_task",
        ),
    ],
)
def test_a_model_that_does_not_fit(change: tuple[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        detector_of(CENTER_NET.replace(*change))
    assert line in str(caught.value)
    assert "center_net" in str(caught.value)


def test_names_of_stacked_hourglasses(label_map: Path) -> None:
    """The second is given what the first was and said."""
    with torch.device("meta"):
        text = CENTER_NET.replace('"mobilenet_v2_fpn" depth_multiplier: 0.1', '"hourglass_104"')
        network = detector_of(text).network
    variables = tf2_variables(network)
    assert not variables.unnamed
    path = "model/_feature_extractor/_network"
    between = [key for key in (one.key for one in variables.named.values()) if key.startswith(f"{path}/intermediate")]
    assert {key.removeprefix(f"{path}/").partition("/")[0] for key in between} == {
        "intermediate_conv1",
        "intermediate_conv2",
        "intermediate_residual",
    }
    assert all(key.split("/")[4] == "0" for key in between), "one less than hourglasses"


@pytest.mark.slow_cases("BOXWRIGHT_CONFIGS-11")
@pytest.mark.parametrize(("variable", "built"), [("BOXWRIGHT_CONFIGS", 11), ("BOXWRIGHT_USER_CONFIGS", 3)])
def test_real_configurations(variable: str, built: int, tmp_path: Path) -> None:
    """Every CenterNet is built, and has names in TF's checkpoints for all that it learns."""
    folder = extra_folder(variable)
    if folder is None:
        pytest.skip(f"{variable} names no folder of pipeline.config files")
    done = 0
    for path in sorted(folder.rglob("*.config")):
        if "center_net {" not in path.read_text(errors="replace"):
            continue
        config = load_config(path)
        give_keypoint_label_map(config, tmp_path)
        with torch.device("meta"):
            network = build_detector(config).network
        done += 1
        variables = tf2_variables(network)
        assert not variables.unnamed
        assert len(variables.named) == sum("num_batches" not in name for name in network.state_dict())
    assert done == built


@pytest.mark.parametrize(
    ("reader", "line"),
    [
        ("num_keypoints: 3", "train_input_reader.load_instance_masks: the detector learns masks; set it to true"),
        ("load_instance_masks: true", "train_input_reader.num_keypoints: the detector learns keypoints; set it"),
    ],
)
def test_a_reader_that_leaves_out_what_is_learned(reader: str, line: str, label_map: Path) -> None:
    text = f"""model {{ {with_every_task(label_map)} }} train_config {{ batch_size: 2 }}
      train_input_reader {{ {reader} tf_record_input_reader {{ input_path: "none" }} }}"""
    with pytest.raises(ConfigError) as caught:
        refuse_unsupported(parse_message(text, Pipeline), "")
    assert str(caught.value).splitlines() == [str(caught.value)]
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("keypoint_map", "reader", "line"),
    [
        (
            KEYPOINT_LABEL_MAP.replace('id: 1 name: "circle"', 'id: 3 name: "circle"'),
            "num_keypoints: 3",
            "keypoint_class_name: 'circle' has id 3 in the keypoint label map, but id 1 in the data's",
        ),
        (
            KEYPOINT_LABEL_MAP,
            "num_keypoints: 2",
            "train_input_reader.num_keypoints: 2, but the keypoint label map's ids go up to 2; set it to how many the "
            "records have of each object, 3 or more",
        ),
        (KEYPOINT_LABEL_MAP, "num_keypoints: 3", ""),
    ],
)
def test_keypoints_that_the_data_lack(keypoint_map: str, reader: str, line: str, tmp_path: Path) -> None:
    """Said by `config check` and at a run's start, before a record is read."""
    (tmp_path / "keypoints.pbtxt").write_text(keypoint_map)
    (tmp_path / "data.pbtxt").write_text("\n".join(f'item {{ id: {c.id} name: "{c.name}" }}' for c in CATEGORIES.items))
    path = tmp_path / "pipeline.config"
    path.write_text(f"""model {{ {with_every_task(tmp_path / "keypoints.pbtxt")} }}
      train_config {{ batch_size: 2 num_steps: 1 optimizer {{ adam_optimizer {{ learning_rate {{
        constant_learning_rate {{ learning_rate: 0.001 }} }} }} }} }}
      train_input_reader {{ label_map_path: "{tmp_path}/data.pbtxt" load_instance_masks: true {reader}
        tf_record_input_reader {{ input_path: "none" }} }}""")
    config = load_config(path)
    if not line:
        build_training(config)
        return
    with pytest.raises(ConfigError) as caught:
        build_training(config)
    assert str(caught.value).splitlines() == [str(caught.value)]
    assert str(caught.value).startswith(f"{path}:")
    assert line in str(caught.value)


def test_depths_that_are_not_read(label_map: Path) -> None:
    text = f"""model {{ {of_one_class(label_map, "predict_depth: true")} }} train_config {{ batch_size: 2 }}
      train_input_reader {{ num_keypoints: 3 tf_record_input_reader {{ input_path: "none" }} }}"""
    line = "train_input_reader.load_keypoint_depth_features: a keypoint task predicts depths; set it to true"
    with pytest.raises(ConfigError, match=line):
        refuse_unsupported(parse_message(text, Pipeline), "")
