"""The messages against the recorded schema: every one, every field."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from boxwright.base.errors import ConfigError
from boxwright.config.field import Enum
from boxwright.config.message import Message
from boxwright.pipeline import messages as m
from tests.conftest import GOLDEN

PACKAGE = "object_detection.protos."
SCHEMA = json.loads((GOLDEN / "pipeline_schema.json").read_text())
MESSAGES = {cls.proto_name: cls for cls in vars(m).values() if isinstance(cls, type) and issubclass(cls, Message)}
EXTENSIONS = {
    "InputReader": {
        *("coco_input_reader", "voc_input_reader", "yolo_input_reader", "open_images_input_reader"),
        *("wider_face_input_reader", "fddb_input_reader", "web_dataset_input_reader", "parquet_input_reader"),
        *(
            "class_weight",
            "group_by_aspect_ratio",
            "hide_ignored_regions",
            "ignore_exif",
            "white_level",
            "sample_list",
            "load_confidences",
        ),
    },
    "ClassWeight": {"name", "weight"},
    "SsdAnchorGenerator": {"first_release"},
    "RandomHorizontalFlip": {"dense_pose_symmetry"},
    "RandomVerticalFlip": {"dense_pose_symmetry"},
    "TrainEvalPipelineConfig": {"preset", "num_classes", "pedigree"},
    "TrainConfig": {
        *(
            "use_float16",
            "gradient_accumulation_steps",
            "freeze_stage",
            "multi_scale",
            "batch_mixup",
            "restart_from_best_step",
            "recipe_steps",
            "debias_batch_norm",
            "fine_tune_checkpoint_channels",
            "gradient_clipping",
        ),
        "learning_rate_batch_size",
    },
    "FreezeStage": {"until_step", "variables"},
    "MultiScale": {
        *("min_scale", "max_scale", "multiple_of", "own_size_weight", "resize_method", "from_step", "until_step")
    },
    "SsdFeatureExtractor": {"tensorflow_version", "pretrained"},
    "FasterRcnnFeatureExtractor": {"pyramid", "pretrained"},
    "KeepAspectRatioResizer": {"half_pixel_centers"},
    "CosineDecayLearningRate": {"end_factor", "warmup_power"},
    "ResizeType": {"BILINEAR_ANTIALIASED"},
    "MaskRCNNBoxPredictor": {"mask_crop_size", "deconvolve_masks"},
    "FasterRcnn": {
        "first_stage_box_coder",
        "first_stage_localization_loss",
        "second_stage_localization_loss",
        "first_stage_low_quality_matches",
        "first_stage_activation",
        "first_stage_share_predictor",
        "first_stage_keep_crossing_anchors",
        "level_proposals",
        "add_groundtruth_boxes",
        "normalize_by_weights",
        "second_stage_clip_first",
        "roi_align",
    },
    "AutoAugmentImage": {"sub_policy"},
    "Optimizer": {"adamw_optimizer", "parameter_group", "average_statistics", "moving_average_ramp_steps"},
    "AdamWOptimizer": {"learning_rate", "weight_decay", "beta1", "beta2", "epsilon"},
    "CocoInputReader": {"annotations", "image_folder", "load_masks"},
    "VocInputReader": {"root", "image_set"},
    "DetectionModel": {"refinedet", "srn", "align_det", "d_fine", "rf_detr"},
    "Matcher": {"bipartite_argmax_matcher"},
    "PreprocessingStep": {
        *("caffe_distort", "random_expand", "overlap_crop", "random_interpolation_resize"),
        *("random_mosaic", "random_mixup", "random_copy_paste", "large_scale_jitter", "random_erasing", "random_tile"),
        *("data_anchor_sampling", "random_square_patch", "random_size_crop"),
        *("user_augmentation", "random_affine_mosaic", "skip_mosaics", "from_step", "until_step"),
    },
}
NEW = {
    "ClassWeight",
    "WeightsOrigin",
    "MultiScale",
    "FreezeStage",
    "AdamWOptimizer",
    "CocoInputReader",
    "VocInputReader",
    "BipartiteArgmaxMatcher",
}
NEW |= {"YoloInputReader", "OpenImagesInputReader", "WiderFaceInputReader", "FddbInputReader"}
NEW |= {"WebDatasetInputReader", "ParquetInputReader"}
NEW |= {"CaffeDistort", "OverlapCrop", "RandomExpand", "RandomInterpolationResize"}
NEW |= {
    "AnchorRefinement",
    "ConvolutionalBody",
    "RefineDet",
    "RefineDetFeatureExtractor",
    "ResidualBody",
    "TransferConnection",
}
NEW |= {"LevelProposals", "RoiAlign", "AutoAugmentOperation", "AutoAugmentSubPolicy"}
NEW |= {"LargeScaleJitter", "RandomCopyPaste", "RandomErasing", "RandomMixup", "RandomMosaic", "RandomTile"}
NEW |= {"DataAnchorSampling", "RandomSizeCrop", "RandomSquarePatch", "RandomAffineMosaic", "BatchMixup"}
NEW |= {"UserArgument", "UserAugmentation"}
NEW |= {"RfDetr", "RfDetrDecoder", "RfDetrFeatureExtractor", "RfDetrLoss", "RfDetrMasks", "RfDetrProjector"}
NEW |= {"AlignDet", "AlignedStep", "ClassifierBackbone", "LevelCandidates"}
NEW |= {"Srn", "TwoStepClassification", "TwoStepRegression"}
NEW |= {"DFine", "DFineBox", "DFineDecoder", "DFineDenoising", "DFineEncoder", "DFineFeatureExtractor", "DFineLoss"}
NEW |= {"DFineDistillation"}
NEW |= {"HgNetV2Layout"}
NEW |= {"QueryMatcher", "QueryPostProcessing", "ParameterGroup"}
KINDS = {"float": "float", "int32": "int", "uint32": "int", "bool": "bool", "string": "string"}


def test_schema_has_all_messages_and_fields() -> None:
    assert len(SCHEMA["messages"]) == 165
    assert sum(len(fields) for fields in SCHEMA["messages"].values()) == 851
    assert set(MESSAGES) - NEW == {n.removeprefix(PACKAGE) for n in SCHEMA["messages"]}


@pytest.mark.parametrize("name", SCHEMA["messages"])
def test_fields_types_and_defaults(name: str) -> None:
    short = name.removeprefix(PACKAGE)
    message, fields = MESSAGES[short], SCHEMA["messages"][name]
    specs = message.fields
    assert set(specs) == set(fields) | EXTENSIONS.get(short, set())
    for field, recorded in fields.items():
        spec = info = specs[field]
        assert spec.repeated == (recorded["label"] == "repeated"), field
        _check_type(spec, recorded["type"])
        if not spec.repeated and "default" in recorded:
            default = info.default.name if isinstance(info.default, Enum) else info.default
            wanted = recorded["default"]
            if isinstance(info.default, Enum) and isinstance(wanted, int):
                default = info.default.value
            assert default == wanted, field
        assert info.meaning, field


def _check_type(spec: Any, recorded: str) -> None:
    if recorded.startswith("enum:"):
        assert spec.kind == "enum"
        name = recorded.removeprefix("enum:")
        ours = EXTENSIONS.get(name.rpartition(".")[2], set())
        assert {k: v.value for k, v in spec.type.__members__.items() if k not in ours} == SCHEMA["enums"][name]
    elif recorded.startswith(PACKAGE):
        assert spec.type.proto_name == recorded.removeprefix(PACKAGE)
    else:
        assert spec.kind == KINDS[recorded]


def test_oneofs() -> None:
    checked = 0
    for name, fields in SCHEMA["messages"].items():
        message = MESSAGES[name.removeprefix(PACKAGE)]
        recorded: dict[str, set[str]] = {}
        for field, entry in fields.items():
            if "oneof" in entry:
                recorded.setdefault(entry["oneof"], set()).add(field)
        ours = {oneof: set(members) for oneof, members in message.oneofs.items()}
        ours = {oneof: members - EXTENSIONS.get(message.proto_name, set()) for oneof, members in ours.items()}
        assert ours == recorded, name
        checked += sum(map(len, recorded.values()))
    assert checked == 104


def test_presence_differs_from_default() -> None:
    message = m.Ssd()
    assert message.num_classes == 0
    assert not message.has("num_classes")
    assert m.Ssd(num_classes=0).has("num_classes")
    assert m.Ssd(num_classes=0) != message


def test_floats_are_single_precision() -> None:
    assert m.L2Regularizer(weight=0.1).weight == 0.1
    assert m.L2Regularizer(weight=0.100000001490116).weight == 0.1
    assert m.LossEqualizationLoss(weight=1e40).weight == float("inf")
    with pytest.raises(ConfigError, match="finite"):
        m.L2Regularizer(weight=1e40)


@pytest.mark.parametrize(
    ("cls", "values"),
    [
        (m.Ssd, {"num_classes": "3"}),
        (m.Ssd, {"num_classes": 2**31}),
        (m.Ssd, {"numclasses": 3}),
        (m.Ssd, {"freeze_batchnorm": 1}),
        (m.BatchNonMaxSuppression, {"iou_threshold": 1.5}),
        (m.FasterRcnnBoxCoder, {"y_scale": 0.0}),
        (m.DetectionModel, {"ssd": m.Ssd(), "faster_rcnn": m.FasterRcnn()}),
    ],
)
def test_python_values_are_checked(cls: type[Message], values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        cls(**values)


def test_every_class_has_its_own_name() -> None:
    assert max(Counter(cls.proto_name for cls in MESSAGES.values()).values()) == 1
