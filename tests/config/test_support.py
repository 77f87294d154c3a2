"""The support table: whole, and true to the builders."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from boxwright.base.errors import ConfigError
from boxwright.config.field import AllowedValues
from boxwright.config.load import parse_message
from boxwright.config.message import Message
from boxwright.config.support import field_status, refuse_unsupported, report
from boxwright.data.augmentation.autoaugment import OPERATIONS
from boxwright.data.label_map import load_label_map
from boxwright.evaluation.build import _METRICS, build_evaluation
from boxwright.families.center_net.build_feature_extractor import CENTER_NET_EXTRACTORS
from boxwright.families.center_net.build_tasks import _RANKINGS
from boxwright.families.refinedet.build import REFINEDET_EXTRACTORS
from boxwright.families.shared.feature_extractor import SSD_EXTRACTORS
from boxwright.families.two_stage.build_feature_extractor import FASTER_RCNN_EXTRACTORS
from boxwright.nn.necks.bifpn import COMBINERS
from boxwright.nn.preprocessing import FixedShapeResizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.input_reader import build_dataset, build_groundtruth
from boxwright.pipeline.load import load_config
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline
from boxwright.pipeline.training import (
    _SCOPES,
    build_batch_mixup,
    build_input_sizes,
    build_training,
    wants_pretrained,
)
from tests.center_nets import KEYPOINT_LABEL_MAP, deep_mask_variants
from tests.center_nets import variants as center_net_variants
from tests.conftest import SMALL_MODEL, SMALL_TRAINING, extra_folder, nothing_drawn
from tests.data.other_formats import open_images_of, yolo_of
from tests.data.shards import members, rows, tar_bytes, write_parquet
from tests.two_stage_models import EVERY, ONE_MAP

MESSAGES = {cls.proto_name: cls for cls in vars(m).values() if isinstance(cls, type) and issubclass(cls, Message)}


# Read where the table is needed: message → its honored fields.
HONOURED = {
    name: [field for field in cls.fields if field_status(cls, field).verdict == "honored"]
    for name, cls in MESSAGES.items()
}


def test_every_field_has_a_verdict() -> None:
    statuses = [field_status(cls, field) for cls in MESSAGES.values() for field in cls.fields]
    assert len(statuses) == 1265
    assert all(status.note for status in statuses if status.verdict != "honored")


def test_named_values_are_those_of_the_builders() -> None:
    """Extractors and metric sets are declared with their fields, and built by tables: the names are the same."""

    def declared(cls: type[Message], field: str) -> AllowedValues:
        values = cls.fields[field].values
        assert values is not None
        return values

    two_stage = declared(m.FasterRcnnFeatureExtractor, "type")
    assert set(two_stage.names) == set(FASTER_RCNN_EXTRACTORS)
    ssd, refinedet = declared(m.SsdFeatureExtractor, "type"), declared(m.RefineDetFeatureExtractor, "type")
    assert {*ssd.names, "timm"} == set(SSD_EXTRACTORS)
    assert {*refinedet.names, "timm"} == set(REFINEDET_EXTRACTORS)
    center_net = declared(m.CenterNetFeatureExtractor, "type")
    assert {*center_net.names, center_net.prefix} == set(CENTER_NET_EXTRACTORS)
    assert ssd.prefix == refinedet.prefix == center_net.prefix == "timm/"
    # The last is not of snapping, but of its alternative.
    assert declared(m.CenterNetKeypointEstimation, "candidate_ranking_mode").names[:-1] == tuple(_RANKINGS)
    assert set(declared(m.EvalConfig, "metrics_set").names) == set(_METRICS)
    assert set(declared(m.BidirectionalFeaturePyramidNetworks, "combine_method").names) == set(COMBINERS)
    assert set(declared(m.TrainConfig, "fine_tune_checkpoint_type").names) == set(_SCOPES)
    assert declared(m.AutoAugmentOperation, "name").names == tuple(OPERATIONS)


def test_a_value_is_refused_at_its_line() -> None:
    text = 'model { ssd { feature_extractor {\n type: "ssd_pnas" } } }\neval_config { metrics_set: "coco_maks" }'
    config = parse_message(text, Pipeline, file="f")
    with pytest.raises(ConfigError) as caught:
        refuse_unsupported(config, "")
    first, second = str(caught.value).splitlines()
    assert first.startswith(
        "f:2:2: model.ssd.feature_extractor.type: refused: 'ssd_pnas' is not known; did you mean ssd_pnasnet"
    )
    assert "known: ssd_mobilenet_v1, " in first
    assert "metrics_set: refused: 'coco_maks' is not known" in second


EVERY_HEAD = """
box_predictor { convolutional_box_predictor {
  conv_hyperparams { initializer { %s } regularizer { l1_regularizer { weight: 0.1 } } sync_batch_norm { } }
  use_dropout: true box_code_size: CODE use_depthwise: true box_encodings_clip_range { min: -1 max: 1 } } }
"""


def variants(shapes_data: Path) -> Iterator[str]:
    """Configurations that, together, ask for everything that is honored."""
    readers = [
        f'tf_record_input_reader {{ input_path: "{shapes_data}/val.record" }}',
        f'coco_input_reader {{ annotations: "{shapes_data}/coco/instances.json" image_folder: "{shapes_data}/coco/images" }}',
        f'voc_input_reader {{ root: "{shapes_data}/voc" image_set: "all" }}',
        f'yolo_input_reader {{ data: "{yolo_of(shapes_data)}" }}',
        f'open_images_input_reader {{ annotations: "{open_images_of(shapes_data)}" }}',
    ]
    rates = [
        "constant_learning_rate { }",
        "exponential_decay_learning_rate { }",
        "manual_step_learning_rate { schedule { step: 3 learning_rate: 0.1 } }",
        "cosine_decay_learning_rate { }",
    ]
    optimizers = [
        f"{kind} {{ learning_rate {{ {rate} }} }} parameter_group {{ variables: 'a' learning_rate_factor: 2 weight_decay: 1 }}"
        for kind in ("adam_optimizer", "adamw_optimizer", "momentum_optimizer", "rms_prop_optimizer")
        for rate in rates
    ]
    steps = " ".join(
        f"data_augmentation_options {{ {step} {{ }} }}" for step in m.PreprocessingStep.oneofs["preprocessing_step"]
    )
    for name, what in {
        "resize": "height: 64 width: 64",
        "normalize_image": "original_maxval: 255",
        "random_resize_method": "target_height: 64 target_width: 64",
        "resize_image": "new_height: 64 new_width: 64",
        "subtract_channel_mean": "means: [1, 2, 3]",
        "random_downscale_to_target_pixels": "max_target_pixels: 500000",
        "remap_labels": "original_labels: 2 new_label: 1",
        "user_augmentation": 'callable: "package:function" arguments { key: "p" value: "1" }',
        "autoaugment_image": 'sub_policy { operation { name: "Color" } }',
    }.items():
        steps = steps.replace(f"{name} {{ }}", f"{name} {{ {what} }}")
    steps += " data_augmentation_options { autoaugment_image { } from_step: 1 until_step: 2 }"
    window = "min_area: 0.1 max_area: 1"
    shaped = f"min_aspect_ratio: 0.5 max_aspect_ratio: 2 {window}"
    for name, what in {
        "ssd_random_crop_pad": shaped,
        "ssd_random_crop_fixed_aspect_ratio": window,
        "ssd_random_crop_pad_fixed_aspect_ratio": shaped,
    }.items():
        steps += f" data_augmentation_options {{ {name} {{ operations {{ {what} }} }} }}"
    steps += """ data_augmentation_options { ssd_random_crop { operations {
      min_aspect_ratio: 0.5 max_aspect_ratio: 2 min_area: 0.1 max_area: 1 } } }"""
    initializers = [
        "truncated_normal_initializer { }",
        "random_normal_initializer { }",
        "variance_scaling_initializer { }",
        'keras_initializer_by_name: "he_normal"',
    ]
    anchors = [
        "ssd_anchor_generator { num_layers: 2 aspect_ratios: 1.0 }",
        "ssd_anchor_generator { num_layers: 2 aspect_ratios: 1.0 scales: [0.1, 0.4] height_stride: [16, 32] width_stride: [16, 32]"
        " height_offset: [8, 16] width_offset: [8, 16] }",
        "multiscale_anchor_generator { min_level: 4 max_level: 5 aspect_ratios: 1.0 }",
        "flexible_grid_anchor_generator { anchor_grid { base_sizes: 32 aspect_ratios: 1 height_stride: 16 width_stride: 16 }"
        " anchor_grid { base_sizes: [64, 90] aspect_ratios: 1 height_stride: 32 width_stride: 32 } }",
    ]
    losses = [
        "weighted_sigmoid { }",
        "weighted_softmax { }",
        "weighted_sigmoid_focal { alpha: 0.5 }",
        "weighted_logits_softmax { }",
        "bootstrapped_sigmoid { }",
        "penalty_reduced_logistic_focal_loss { }",
        "weighted_dice_classification_loss { }",
    ]
    selections = [
        "hard_example_miner { }",
        "random_example_sampler { }",
        "",
        "expected_loss_weights: EXPECTED_SAMPLING",
    ]
    localizations = [f"{name} {{ }}" for name in HONOURED["LocalizationLoss"]]
    resizers = [
        "keep_aspect_ratio_resizer { }",
        "fixed_shape_resizer { height: 64 width: 64 }",
        "conditional_shape_resizer { }",
        "pad_to_multiple_resizer { }",
        "identity_resizer { }",
    ]
    coders = ["faster_rcnn_box_coder { }", "keypoint_box_coder { num_keypoints: 2 }", "mean_stddev_box_coder { }"]
    coders += ["square_box_coder { }"]
    similarities = [f"{name} {{ }}" for name in HONOURED["RegionSimilarityCalculator"]]
    suppressions = ["", "use_class_agnostic_nms: true", "soft_nms_sigma: 0.5"]
    suppressions += ["use_combined_nms: true change_coordinate_frame: false"]
    curve = "x_y_pairs { x_y_pair { x: 0 y: 0 } }"
    calibrations = [
        "",
        f"calibration_config {{ function_approximation {{ {curve} }} }}",
        "calibration_config { class_id_function_approximations { class_id_xy_pairs_map { key: 1 value "
        f"{{ {curve.removeprefix('x_y_pairs { ').removesuffix(' }')} }} }} }} }}",
        "calibration_config { sigmoid_calibration { sigmoid_parameters { } } }",
        "calibration_config { class_id_sigmoid_calibrations { class_id_sigmoid_parameters_map { key: 1 value { } } } }",
        "calibration_config { temperature_scaling_calibration { scaler: 2 } }",
    ]
    for number in range(28):
        extractor = "fpn { min_level: 4 max_level: 5 }" if number % 2 else "num_layers: 2"
        kind = "ssd_mobilenet_v2_fpn_keras" if number % 2 else "ssd_mobilenet_v1"
        depth = "depth_multiplier: 0.1 override_base_feature_extractor_hyperparams: true"
        if number == 27:
            kind, extractor = "ssd_efficientnet-b0_bifpn_keras", "bifpn { min_level: 4 max_level: 5 num_iterations: 1 }"
            depth = ""
        code_size = (4, 8, 4, 3)[number % 4]
        head = (EVERY_HEAD % initializers[number % 4]).replace("CODE", str(code_size))
        if number % 3 == 2:
            head = """box_predictor { weight_shared_convolutional_box_predictor {
              depth: 8 use_dropout: true box_code_size: CODE use_depthwise: true box_encodings_clip_range { min: -1 max: 1 } } }""".replace(
                "CODE", str(code_size)
            )
            grid = anchors[2]
        else:
            grid = anchors[number % 4 if number % 4 != 2 else 3]
        loss = losses[number % 7]
        reader = f"num_keypoints: 2 {readers[0]}" if number % 4 == 1 else readers[number % 5]
        merging = "freeze_stage { variables: 'head' until_step: 3 }" if number % 2 else ""
        if number == 0:
            reader = f"load_instance_masks: true load_multiclass_scores: true max_number_of_boxes: 9 {readers[0]}"
            merging = "use_multiclass_scores: true"
        elif number == 2:
            reader += " class_weight { name: 'star' weight: 2 } sample_from_datasets_weights: 1"
        selection = selections[number % 4]
        if ("focal {" in loss and "miner" in selection) or "dice" in loss:
            selection = ""
        yield f"""
        model {{ ssd {{ num_classes: 4 image_resizer {{ {resizers[number % 5]} }}
          add_background_class: {str(number % 2 == 0).lower()}
          feature_extractor {{ type: "{kind}" min_depth: 8 {depth} {extractor}
            conv_hyperparams {{ regularizer {{ l2_regularizer {{ }} }} batch_norm {{ }} initializer {{ {initializers[number % 4]} }} }} }}
          anchor_generator {{ {grid} }} {head}
          box_coder {{ {coders[number % 4]} }} similarity_calculator {{ {similarities[number % 4]} }}
          matcher {{ {"bipartite_matcher" if number % 5 == 0 else "argmax_matcher"} {{ }} }}
          use_confidences_as_targets: {str(number % 6 == 0).lower()}
          loss {{ classification_loss {{ {loss} }} localization_loss {{ {localizations[number % 5]} }} {selection} }}
          post_processing {{ batch_non_max_suppression {{ {suppressions[number % 4]} }} {calibrations[number % 6]} }} }} }}
        train_config {{ num_steps: 5 {steps} {merging} optimizer {{ {optimizers[number % 16]} }} }}
        train_input_reader {{ label_map_path: "{shapes_data}/label_map.pbtxt" {reader} }}
        eval_config {{ keypoint_edge {{ start: 0 end: 1 }} include_metrics_per_category: true
          skip_predictions_for_unlabeled_class: true super_categories {{ key: "a" value: "b,c" }}
          parameterized_metric {{ coco_keypoint_metrics {{ class_label: "a"
            keypoint_label_to_sigmas {{ key: "b" value: 0.1 }} }} }} }}
        eval_input_reader {{ label_map_path: "{shapes_data}/label_map.pbtxt" {readers[0]} }}
        """


CASCADES = (
    """refinedet { num_classes: 4 image_resizer { fixed_shape_resizer { height: 64 width: 128 } } align_second_step: true
      feature_extractor { type: "refinedet_mobilenet_v2" depth_multiplier: 0.1 }
      anchor_refinement { filter_levels: [3] refine_levels: [5, 6] } }""",
    """srn { num_classes: 4 image_resizer { identity_resizer { } } depth: 8 align_corners: false share_head: false
      receptive_field_enhancement: false freeze_batchnorm: true conv_hyperparams { }
      feature_extractor { type: "mobilenet_v2" depth_multiplier: 0.1 min_depth: 4 use_explicit_padding: true
        override_base_feature_extractor_hyperparams: true conv_hyperparams { batch_norm { } } }
      anchor_generator { multiscale_anchor_generator { min_level: 2 max_level: 7 aspect_ratios: 1.0 } }
      box_coder { faster_rcnn_box_coder { } } inference_preset: PAPER
      level_candidates { per_level: 9 score_threshold: 0.1 any_score_below_cells: 3 any_score_coarsest: 2 }
      two_step_classification { levels: 2 } two_step_regression { levels: 7 }
      first_matcher { argmax_matcher { } } matcher { argmax_matcher { } }
      first_loss { classification_loss { weighted_sigmoid { } } localization_loss { weighted_smooth_l1 { } } }
      loss { classification_loss { weighted_sigmoid { } } localization_loss { weighted_smooth_l1 { } } } }""",
    """srn { num_classes: 4 image_resizer { identity_resizer { } } depth: 8 feature_extractor { type: "timm/resnet18" }
      post_processing { batch_non_max_suppression { } score_converter: SIGMOID } }""",
    """align_det { num_classes: 4 image_resizer { identity_resizer { } } depth: 8 num_layers_before_predictor: 1
      freeze_batchnorm: true conv_hyperparams { } feature_extractor { type: "timm/resnet18" }
      anchor_generator { multiscale_anchor_generator { min_level: 3 max_level: 7 aspect_ratios: 1.0 } }
      box_coder { faster_rcnn_box_coder { } } matcher { argmax_matcher { } } level_candidates { }
      loss { classification_loss { weighted_sigmoid { } } localization_loss { weighted_smooth_l1 { } } }
      step { sampling: ROI_CONV kernel_size: 3 border: ZERO depth: 8 ignore_finest: true matcher { argmax_matcher { } }
        loss { classification_loss { weighted_sigmoid { } } localization_loss { weighted_smooth_l1 { } } } }
      post_processing { batch_non_max_suppression { } score_converter: SIGMOID } }""",
)
REFINEDETS = (
    """refinedet { num_classes: 4 image_resizer { fixed_shape_resizer { height: 64 width: 128 } } inference_preset: PAPER
      feature_extractor { type: "refinedet_mobilenet_v2" depth_multiplier: 0.1 } anchor_refinement { } }""",
    """refinedet { num_classes: 4 image_resizer { fixed_shape_resizer { height: 64 width: 128 } } freeze_batchnorm: true
      feature_extractor { type: "refinedet_mobilenet_v2" depth_multiplier: 0.1 }
      conv_hyperparams { batch_norm { } } box_coder { faster_rcnn_box_coder { } }
      anchor_generator { multiscale_anchor_generator { min_level: 3 max_level: 6 aspect_ratios: 1.0 } }
      anchor_refinement { matcher { bipartite_argmax_matcher { matched_threshold: 0.7 unmatched_threshold: 0.3 } }
        loss { classification_loss { weighted_softmax { } } localization_loss { weighted_smooth_l1 { } } }
        objectness_threshold: 0 object_anchors: TILED }
      transfer_connection { depth: 16 deconvolution_kernel_size: 4 conv_hyperparams { batch_norm { } } }
      residual_body { width: 8 depth: 16 conv_hyperparams { batch_norm { } } }
      matcher { bipartite_argmax_matcher { } }
      loss { classification_loss { weighted_softmax { } } localization_loss { weighted_smooth_l1 { } } }
      post_processing { batch_non_max_suppression { } score_converter: SOFTMAX } }""",
    """refinedet { num_classes: 4 image_resizer { fixed_shape_resizer { height: 128 width: 128 } }
      feature_extractor { type: "refinedet_mobilenet_v2" min_level: 2 depth_multiplier: 0.1 }
      conv_hyperparams { batch_norm { } } normalize_predictors: true anchor_refinement { }
      convolutional_body { num_layers: 2 depth: 16 conv_hyperparams { } }
      regularizer { l2_regularizer { weight: 0.1 } } }""",
)

D_FINES = (
    """d_fine { num_classes: 4 image_resizer { fixed_shape_resizer { height: 64 width: 64 } } size: N
      feature_extractor { freeze_batchnorm: true } encoder { depth: 16 } decoder { depth: 16 activation: SILU }
      denoising { num_queries: 8 } loss { classification: MATCHABILITY_AWARE } sync_batch_norm: true
      post_processing { batch_non_max_suppression { } } }""",
    """d_fine { num_classes: 4 image_resizer { fixed_shape_resizer { height: 64 width: 64 } } box { bins: 8 }
    feature_extractor { layout { stem: [8, 8] middle: [4, 4, 8, 8] out: [8, 16, 24, 32] blocks: [1, 1, 1, 1] layers: 2 } } }""",
)
RF_DETRS = (
    """rf_detr { num_classes: 4 image_resizer { fixed_shape_resizer { height: 64 width: 64 } } size: S
      feature_extractor { width: 16 num_heads: 2 patch: 8 grid: 8 depth: 2 taken: [1, 2] }
      projector { levels: [4, 5] } matcher { }
      decoder { depth: 16 self_heads: 2 cross_heads: 2 num_groups: 2 boxes: LOGITS }
      loss { classification: FOCAL } masks { } post_processing { batch_non_max_suppression { } } }""",
)
CONTEXT_RCNN = ONE_MAP.replace("resnet50_keras", "resnet50").replace(
    "faster_rcnn {", "faster_rcnn { context_config { }"
)


# Beside families: what builds members of oneofs, readers, augmentation, the plan of a run and of its evaluation.
BUILDERS = (
    *(f"pipeline/{name}.py" for name in ("detector", "input_reader", "learning_rate")),
    *(f"pipeline/{name}.py" for name in ("missing", "optimizer", "precision", "tensorflow_version", "training")),
    *("pipeline/augmentation.py", "config/build.py", "evaluation/build.py", "pipeline/message.py"),
)


def readers_of_files(tmp_path: Path) -> list[m.InputReader]:
    """Return readers of faces and of shards, whose files are written."""
    (tmp_path / "wider.txt").write_text("a/1.jpg\n0\n")
    (tmp_path / "fddb.txt").write_text("img_1\n0\n")
    texts = (
        f'{name}_input_reader {{ annotations: "{tmp_path}/{file}.txt" }}'
        for name, file in (("wider_face", "wider"), ("fddb", "fddb"))
    )
    opened = [parse_message(text, m.InputReader) for text in texts]
    (tmp_path / "a.tar").write_bytes(tar_bytes(members(rows(0, 1))))
    write_parquet(tmp_path / "a.parquet", rows(0, 1), 1)
    for name, file in (("web_dataset", "a.tar"), ("parquet", "a.parquet")):
        text = f'{name}_input_reader {{ input_path: "{tmp_path}/{file}" }} label_map_path: "{tmp_path}/map.pbtxt"'
        opened.append(parse_message(text, m.InputReader))
    return opened


def test_honored_is_what_builders_read(shapes_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch every read of a field from the builders while they build everything; compare with the table."""
    read: set[tuple[str, str]] = set()
    plain = Message.__getattribute__

    def watching(self: Message, name: str) -> object:
        fields = type(self).fields
        if name in fields:
            caller = sys._getframe(1).f_code.co_filename
            helper = (
                caller.endswith(("choice.py", "config/message.py", "config/rules.py")) or "config/messages" in caller
            )
            building = "boxwright/families/" in caller or caller.endswith(BUILDERS)
            if building or helper or caller.endswith("data/label_map.py"):
                read.add((type(self).proto_name, name))
        return plain(self, name)

    configs = [parse_message(text, Pipeline) for text in variants(shapes_data)]
    (tmp_path / "keypoints.pbtxt").write_text(KEYPOINT_LABEL_MAP)
    texts = (
        *CASCADES,
        *REFINEDETS,
        *D_FINES,
        *RF_DETRS,
        *EVERY.values(),
        CONTEXT_RCNN,
        *center_net_variants(tmp_path / "keypoints.pbtxt"),
        *deep_mask_variants(),
    )
    models = [parse_message(text, m.DetectionModel) for text in texts]
    scales = parse_message("train_config { multi_scale { } batch_mixup { } }", Pipeline)
    (tmp_path / "map.pbtxt").write_text('item { id: 1 name: "a" display_name: "A" keypoints { id: 0 label: "k" } }')
    grid = parse_message("grid_anchor_generator { }", m.AnchorGenerator)
    opened = readers_of_files(tmp_path)
    monkeypatch.setattr(Message, "__getattribute__", watching)
    monkeypatch.setattr(Message, "has", lambda self, name: bool(getattr(self, name)) and name in self.__dict__)
    from boxwright.families.shared.anchor_generator import build_anchor_generator

    for config in configs:
        config.train_config.fine_tune_checkpoint_type = ""  # type: ignore[union-attr]
        with torch.device("meta"), nothing_drawn():
            build_detector(config)
        build_training(config)
        build_groundtruth(config, load_label_map(shapes_data / "label_map.pbtxt"), 4)
        build_evaluation(config, config.eval_input_reader[0])
        build_dataset(config.train_input_reader, "train_input_reader")
    with pytest.raises(ConfigError):  # its data are given in Python
        build_dataset(parse_message("external_input_reader { }", m.InputReader), "train_input_reader")
    with pytest.raises(ConfigError, match="boxwright.train"):  # so is the detector
        build_detector(parse_message("experimental_model { }", m.DetectionModel))
    for reader in opened:
        build_dataset(reader, "train_input_reader")
    for model in models:
        with torch.device("meta"), nothing_drawn():
            build_detector(model)
        wants_pretrained(model)
    build_anchor_generator(grid)
    assert None not in (build_input_sizes(scales, FixedShapeResizer(64, 64), 0), build_batch_mixup(scales, 0))
    load_label_map(tmp_path / "map.pbtxt")
    # Read outside the builders: which readers there are, and whether the average is evaluated.
    read |= {("TrainEvalPipelineConfig", "eval_input_reader"), ("InputReader", "name")}
    # Honoured as the file is read, and absent from what builders see.
    read |= {("TrainEvalPipelineConfig", "preset"), ("TrainEvalPipelineConfig", "num_classes")} | {
        ("TrainConfig", "learning_rate_batch_size"),
        ("TrainConfig", "recipe_steps"),
    }
    # A record of a model's weights, which nothing is built from: descriptions, cards and checks of licenses read it.
    read |= {("TrainEvalPipelineConfig", "pedigree"), *(("WeightsOrigin", name) for name in m.WeightsOrigin.fields)}
    honored = {(message, field) for message, fields in HONOURED.items() for field in fields}
    oneofs = {
        (cls.proto_name, name) for cls in MESSAGES.values() for members in cls.oneofs.values() for name in members
    }
    assert honored - read == set()
    assert {item for item in read - honored if item not in oneofs} == set()


def test_report_classifies_and_locates() -> None:
    config = parse_message(
        "train_config {\n sync_replicas: true\n bias_grad_multiplier: 0\n batch_size: 4 }\n"
        "model { ssd { mask_head_config { } } }",
        Pipeline,
        file="f",
    )
    lines = {item.path: item for item in report(config)}
    assert lines["train_config.sync_replicas"].status.verdict == "without effect"
    assert str(lines["train_config.sync_replicas"]).startswith("f:2:2: train_config.sync_replicas: without effect")
    assert lines["train_config.bias_grad_multiplier"].status.verdict == "honored"
    assert lines["train_config.batch_size"].status.verdict == "honored"
    assert lines["model.ssd.mask_head_config"].status.verdict == "refused"
    with pytest.raises(ConfigError) as caught:
        refuse_unsupported(config, "")
    assert str(caught.value).count("refused") == 1


@pytest.mark.parametrize(
    ("type", "noted"), [("timm/mobilenetv2_050", True), ("ssd_mobilenet_v2_fpn_keras", False), ("", False)]
)
def test_a_note_on_other_backbones_is_not_said(type: str, noted: bool) -> None:
    extractor = f'feature_extractor {{ type: "{type}" override_base_feature_extractor_hyperparams: true }}'
    config = parse_message(f"model {{ ssd {{ {extractor} }} }}", Pipeline)
    (item,) = [item for item in report(config) if item.path.endswith("override_base_feature_extractor_hyperparams")]
    assert item.status.verdict == "honored"
    assert item.worth_saying == noted


def test_what_a_preset_sets_is_told_from_what_a_file_sets(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.config"
    path.write_text('preset: "ssd_mobilenet_v2_fpnlite_320"\ntrain_config { sync_replicas: true num_steps: 7 }\n')
    reports = {item.path: item for item in report(load_config(path))}
    assert not reports["train_config.sync_replicas"].in_preset
    assert not reports["train_config.num_steps"].in_preset
    assert reports["train_config.batch_size"].in_preset
    assert reports["model.ssd.feature_extractor.type"].in_preset


def test_refused_field_stops_the_build() -> None:
    config = parse_message(SMALL_MODEL.replace("num_classes: 4", "num_classes: 4 mask_head_config { }"), Pipeline)
    reason = "model.ssd.mask_head_config: refused: TensorFlow's builder never reads it: its SSD predicts no masks"
    with pytest.raises(ConfigError, match=reason):
        build_detector(config)


def test_real_configurations_are_classified() -> None:
    folder = extra_folder("BOXWRIGHT_CONFIGS")
    if folder is None:
        pytest.skip("BOXWRIGHT_CONFIGS names no folder of pipeline.config files; the tests above cover the table")
    files = sorted(folder.rglob("*.config"))
    assert len(files) >= 104
    for file in files:
        found = list(report(load_config(file)))
        assert len(found) > 20, file
        assert all(item.location for item in found), file


def test_small_configuration_is_fully_honored() -> None:
    found = list(report(parse_message(SMALL_MODEL + SMALL_TRAINING, Pipeline)))
    assert {item.status.verdict for item in found} == {"honored"}
