"""Each kind of detector learns eight images by heart: near-zero loss, and AP above 0.95 on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import boxwright as bw
from boxwright.data.convert import write_tfrecords
from boxwright.data.shapes import ShapesDataset

SIDE = 96
HYPERPARAMS = """conv_hyperparams {
  activation: RELU_6
  initializer { variance_scaling_initializer { factor: 2.0 mode: FAN_IN } }
  batch_norm { decay: 0.9 epsilon: 0.001 scale: true }
}"""
PYRAMID = "multiscale_anchor_generator { min_level: 3 max_level: 5 anchor_scale: 2.0 aspect_ratios: [1.0] scales_per_octave: 3 }"
MAPS = """ssd_anchor_generator { num_layers: 4 min_scale: 0.15 max_scale: 0.6 aspect_ratios: [1.0, 2.0, 0.5]
  reduce_boxes_in_lowest_layer: false }"""
SHARED = f"""weight_shared_convolutional_box_predictor {{ depth: 64 num_layers_before_predictor: 2 kernel_size: 3
  class_prediction_bias_init: -4.6 {HYPERPARAMS.replace("variance_scaling_initializer { factor: 2.0 mode: FAN_IN }", "random_normal_initializer { stddev: 0.01 }")} }}"""
PLAIN = f"convolutional_box_predictor {{ kernel_size: 3 class_prediction_bias_init: -4.6 {HYPERPARAMS} }}"
FOCAL = "classification_loss { weighted_sigmoid_focal { gamma: 2.0 alpha: 0.25 } }"
MINED = """classification_loss { weighted_sigmoid { } }
  hard_example_miner { num_hard_examples: 500 iou_threshold: 0.99 max_negatives_per_positive: 3 min_negatives_per_image: 3 }"""

# Extractor, what it has beside its type, anchors, head, loss, steps.
FPN = "fpn { min_level: 3 max_level: 5 additional_layer_depth: 64 }"
OVERRIDE = "override_base_feature_extractor_hyperparams: true"
DETECTORS = {
    "mobilenet_v1": ("ssd_mobilenet_v1", f"depth_multiplier: 0.5 num_layers: 4 {OVERRIDE}", MAPS, PLAIN, MINED, 300),
    "mobilenet_v2": (
        "ssd_mobilenet_v2_keras",
        f"depth_multiplier: 0.5 num_layers: 4 {OVERRIDE}",
        MAPS,
        PLAIN,
        FOCAL,
        300,
    ),
    "mobilenet_v1_fpn": (
        "ssd_mobilenet_v1_fpn_keras",
        f"depth_multiplier: 0.5 {FPN} {OVERRIDE}",
        PYRAMID,
        SHARED,
        FOCAL,
        300,
    ),
    "mobilenet_v2_fpn": (
        "ssd_mobilenet_v2_fpn_keras",
        f"depth_multiplier: 0.5 {FPN} {OVERRIDE}",
        PYRAMID,
        SHARED,
        FOCAL,
        300,
    ),
    "resnet50_fpn": ("ssd_resnet50_v1_fpn_keras", f"{FPN} {OVERRIDE}", PYRAMID, SHARED, FOCAL, 200),
    "efficientnet-b0": (
        "ssd_efficientnet-b0_bifpn_keras",
        "bifpn { min_level: 3 max_level: 5 num_iterations: 2 num_filters: 64 }",
        PYRAMID,
        SHARED.replace("RELU_6", "SWISH"),
        FOCAL,
        600,
    ),
    "timm": ("timm/resnet18", FPN, PYRAMID, SHARED, FOCAL, 250),
}


def configuration(name: str, folder: Path) -> str:
    kind, more, anchors, head, loss, steps = DETECTORS[name]
    reader = f"""label_map_path: "{folder}/label_map.pbtxt" tf_record_input_reader {{ input_path: "{folder}/eight.record" }}"""
    return f"""
model {{ ssd {{
  num_classes: 4
  image_resizer {{ fixed_shape_resizer {{ height: {SIDE} width: {SIDE} }} }}
  feature_extractor {{ type: "{kind}" {more} {HYPERPARAMS} }}
  anchor_generator {{ {anchors} }}
  box_predictor {{ {head} }}
  box_coder {{ faster_rcnn_box_coder {{ }} }}
  similarity_calculator {{ iou_similarity {{ }} }}
  matcher {{ argmax_matcher {{ matched_threshold: 0.5 unmatched_threshold: 0.4 force_match_for_each_row: true }} }}
  encode_background_as_zeros: true
  normalize_loc_loss_by_codesize: true
  loss {{ {loss} localization_loss {{ weighted_smooth_l1 {{ delta: 0.1 }} }} localization_weight: 2 }}
  post_processing {{
    batch_non_max_suppression {{ score_threshold: 0.05 iou_threshold: 0.6 max_detections_per_class: 20 max_total_detections: 50 }}
    score_converter: SIGMOID }}
}} }}
train_config {{
  batch_size: 8
  num_steps: {steps}
  optimizer {{
    adamw_optimizer {{ weight_decay: 0 learning_rate {{ cosine_decay_learning_rate {{
      learning_rate_base: 0.003 total_steps: {steps} warmup_learning_rate: 0.0003 warmup_steps: 20 }} }} }}
    use_moving_average: false
  }}
  gradient_clipping_by_norm: 10
}}
train_input_reader {{ {reader} }}
eval_input_reader {{ shuffle: false {reader} }}
"""


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eight")
    write_tfrecords(ShapesDataset(8, seed=3, size=(SIDE, SIDE)), folder / "eight.record")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", DETECTORS)
def test_learns_eight_images_by_heart(name: str, eight: Path, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.config"
    path.write_text(configuration(name, eight))
    config = bw.load_config(path)
    bw.train(config, tmp_path / "m", bw.RunSettings(evaluate=False, workers=1, checkpoint_every_n=10**6))
    last = json.loads((tmp_path / "m" / "metrics.jsonl").read_text().splitlines()[-1])
    metrics = bw.evaluate(config, tmp_path / "m")
    found = {"loss": last["Loss/total_loss"], "AP": metrics["DetectionBoxes_Precision/mAP"]}
    assert found["loss"] < 0.15, found
    assert found["AP"] > 0.95, found


def test_every_family_is_there() -> None:
    """SSD's VGG-16 apart: it needs 300 pixels a side and takes half an hour on two cores."""
    from boxwright.config.messages.ssd_feature_extractor import TF1_EXTRACTORS
    from boxwright.families.shared.feature_extractor import SSD_EXTRACTORS

    families = {kind for kind, *_ in DETECTORS.values()}
    assert len(DETECTORS) == 7
    # TF-Slim's own networks are held to recordings and take steps; here are those that both TensorFlows have.
    slim = {kind for kind in TF1_EXTRACTORS if f"{kind}_keras" not in SSD_EXTRACTORS}
    assert len(slim) == 17
    for kind in SSD_EXTRACTORS.keys() - {"ssd_vgg16", "timm"} - slim:
        family = kind.removesuffix("_keras")
        for one, of in (("resnet101", "resnet50"), ("resnet152", "resnet50")):
            family = family.replace(one, of)
        if "efficientnet" in family:
            family = "ssd_efficientnet-b0_bifpn"
        assert {family, f"{family}_keras"} & families, kind
