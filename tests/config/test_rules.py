"""Rules between fields: hand-worked cases, and all that is broken said at once, with its place."""

from __future__ import annotations

import pytest

from boxwright.base.errors import ConfigError
from boxwright.config.field import Interval, field, number
from boxwright.config.load import dump_message, parse_message
from boxwright.config.message import Message
from boxwright.config.rules import default_only, excludes, of_type, ordered, refuse, rising, together
from boxwright.config.support import contradictions, refuse_unsupported
from boxwright.pipeline import messages as m


class Table(Message):
    """A message for these tests."""

    low: int = number(1, "[0, 10]", "Low.")
    high: int = number(3, "[0, 10]", "High.")
    size: list[float] = number([1.0, 2.0], "(0, inf)", "Two sides.", length=2, was="sides")
    on: bool = field(False, "On.")
    height: int = field(0, "Height.")
    width: int = field(0, "Width.")
    type: str = field("plain", "Type.")

    rules = (
        default_only("height", when=of_type("flat")),
        ordered("low", "high", below=True),
        rising("size"),
        excludes("on", "height", why="remove one"),
        together("height", "width"),
        refuse("low", "found {low} of {high}", when=lambda c: c.low == 9),
    )


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", []),
        ("low: 2 high: 3 size: [1, 2]", []),
        ("low: 3 high: 3", ["Table.low: 3 is not below high 3"]),
        ("low: 4", ["Table.low: 4 is not below high 3"]),
        ("size: [2, 1]", ["Table.size: expected rising numbers, found [2.0, 1.0]"]),
        ("size: [1, 1]", ["Table.size: expected rising numbers, found [1.0, 1.0]"]),
        ("on: true height: 2 width: 1", ["Table.on: excludes height; remove one"]),
        ("on: false height: 2 width: 1", []),
        ("height: 2", ["Table.height: set height and width, or neither"]),
        ("width: 2", ["Table.height: set height and width, or neither"]),
        ("type: 'flat_one' height: 2 width: 1", ["Table.height: flat_one takes only 0; remove the line"]),
        ("type: 'flat_one' height: 0 width: 0", []),
        ("type: 'a_flat' height: 2 width: 1", []),
        ("low: 9 high: 10", ["Table.low: found 9 of 10"]),
        ("low: 9", ["Table.low: 9 is not below high 3", "Table.low: found 9 of 3"]),
    ],
)
def test_rules(text: str, problems: list[str]) -> None:
    found = [str(error).split(": ", 1)[1] for error in contradictions(parse_message(text, Table))]
    assert found == problems


def test_every_contradiction_of_a_configuration_is_said_at_once_with_its_place() -> None:
    text = """train_config {
      batch_size: 2
      gradient_accumulation_steps: 3
      data_augmentation_options { random_adjust_contrast { min_delta: 2 max_delta: 1 } }
    }
    model { ssd { loss { expected_loss_weights: EXPECTED_SAMPLING hard_example_miner { } } } }"""
    with pytest.raises(ConfigError) as caught:
        refuse_unsupported(parse_message(text, m.TrainEvalPipelineConfig, file="f"), "")
    assert sorted(str(caught.value).splitlines()) == [
        "f:3:7: train_config.gradient_accumulation_steps: 3 parts of a batch of 2; each needs an image",
        "f:4:60: train_config.data_augmentation_options[0].random_adjust_contrast.min_delta: 2.0 is over max_delta 1.0",
        "f:6:26: model.ssd.loss.expected_loss_weights: excludes hard_example_miner; it takes its place; remove one of "
        "the two",
    ]


EXTRACTORS = {
    "ssd": ('"timm/resnet18"', '"ssd_efficientnet-b0_bifpn_keras"'),
    "faster_rcnn": ('"timm/resnet18"',),
    "refinedet": ('"timm/resnet18"',),
    "srn": ('"timm/resnet18"',),
    "align_det": ('"timm/resnet18"',),
    "d_fine": ('"timm/resnet18"',),
    "center_net": ('"hourglass_52"', '"timm/resnet18"'),
}


@pytest.mark.parametrize(("family", "kind"), [(family, kind) for family, kinds in EXTRACTORS.items() for kind in kinds])
def test_gray_images_are_refused_on_the_line_of_the_type(family: str, kind: str) -> None:
    text = f"""model {{ {family} {{
      feature_extractor {{
        type: {kind}
      }}
      image_resizer {{ %s {{ convert_to_grayscale: true }} }}
    }} }}"""
    wanted = (
        f"f:3:9: model.{family}.feature_extractor.type: {kind[1:-1]} takes color images; remove convert_to_grayscale"
    )
    for resizer in ("fixed_shape_resizer", "keep_aspect_ratio_resizer"):
        message = parse_message(text % resizer, m.TrainEvalPipelineConfig, file="f")
        assert wanted in [str(error) for error in contradictions(message)]
    color = text.replace("convert_to_grayscale: true", "") % "fixed_shape_resizer"
    assert wanted not in [str(error) for error in contradictions(parse_message(color, m.TrainEvalPipelineConfig))]


HGNET = "stem: [8, 8] middle: [4, 4, 8, 8] out: [8, 16, 24, 32] blocks: [1, 1, 1, 1]"


@pytest.mark.parametrize(
    ("message", "text", "wanted"),
    [
        (m.SsdFeatureExtractor, "", "type: missing; name a feature extractor"),
        (m.CenterNetFeatureExtractor, "", "type: missing; name a feature extractor"),
        (m.CenterNetFeatureExtractor, 'type: "resnet_v2_50" depth_multiplier: 2', "resnet_v2_50 takes only 1.0"),
        (m.CenterNetFeatureExtractor, 'type: "mobilenet_v2" use_separable_conv: true', "mobilenet_v2 takes only False"),
        (m.CenterNetFeatureExtractor, 'type: "mobilenet_v2_fpn" use_separable_conv: true', ""),
        (m.SsdFeatureExtractor, 'type: "ssd_mobilenet_v2_keras" num_layers: 7', "expected 2 to 6, found 7"),
        (m.SsdFeatureExtractor, 'type: "ssd_inception_v3" num_layers: 2', "has 3 maps of its own, found 2"),
        (m.SsdFeatureExtractor, 'type: "timm/resnet18" num_layers: 1', "expected 2 to 6, found 1"),
        (m.SsdFeatureExtractor, 'type: "timm/resnet18" num_layers: 1 fpn { }', ""),
        (m.SsdFeatureExtractor, 'type: "ssd_mobilenet_v1_ppn" num_layers: 7', ""),
        (m.SsdFeatureExtractor, 'type: "ssd_inception_v2" tensorflow_version: 2', "is not a type of TensorFlow 2"),
        (
            m.SsdFeatureExtractor,
            'type: "ssd_vgg16" tensorflow_version: 1 num_layers: 7',
            "is not a type of TensorFlow 1",
        ),
        (m.SsdFeatureExtractor, 'type: "ssd_mobilenet_v1" tensorflow_version: 2', ""),
        (m.SsdFeatureExtractor, 'type: "ssd_resnet50_v1_fpn" use_depthwise: true', ""),
        (
            m.SsdFeatureExtractor,
            'type: "ssd_resnet50_v1_fpn" use_depthwise: true tensorflow_version: 2',
            "ssd_resnet50_v1_fpn takes only False",
        ),
        (m.FasterRcnnFeatureExtractor, 'type: "faster_rcnn_resnet50_keras" first_stage_features_stride: 8', "takes 16"),
        (m.FasterRcnnFeatureExtractor, 'type: "faster_rcnn_resnet50" first_stage_features_stride: 8', ""),
        (m.FasterRcnnFeatureExtractor, 'type: "faster_rcnn_resnet50" first_stage_features_stride: 4', "takes 8 or 16"),
        (m.FasterRcnnFeatureExtractor, 'type: "timm/resnet18" first_stage_features_stride: 4 conv_hyperparams { }', ""),
        (m.RefineDetFeatureExtractor, 'type: "refinedet_resnet101" min_depth: 8', "takes only 16"),
        (m.RefineDetFeatureExtractor, 'type: "refinedet_vgg16" conv_hyperparams { batch_norm { } }', "not normalized"),
        (m.ClassifierBackbone, 'type: "resnet50_v1" use_explicit_padding: true', "takes only False"),
        (
            m.MaskRCNNBoxPredictor,
            "fc_hyperparams { group_norm { } }",
            "fc_hyperparams.group_norm: TensorFlow's needs maps",
        ),
        (
            m.AlignDet,
            "anchor_generator { multiscale_anchor_generator { min_level: 2 } }",
            "which is min_level 3; found 2",
        ),
        (m.DFine, "image_resizer { fixed_shape_resizer { height: 64 width: 72 } }", "multiples of 32, found width 72"),
        (
            m.RfDetr,
            "image_resizer { fixed_shape_resizer { height: 64 width: 72 } }",
            "multiples of 32, patches times windows, found width 72",
        ),
        (m.RfDetr, "size: BASE image_resizer { identity_resizer { } }", "multiples of 56; use fixed_shape_resizer"),
        (m.DFine, "image_resizer { identity_resizer { } }", "multiples of 32; use fixed_shape_resizer"),
        (m.DFine, "image_resizer { pad_to_multiple_resizer { multiple: 64 } }", ""),
        (m.DFine, "decoder { taps: [3, 6, 3] }", "3 numbers for 2 maps"),
        (m.DFine, "feature_extractor { strides: [8, 16, 32] }", "2 numbers for 3 maps"),
        (m.DFine, "size: S decoder { taps: [3, 6, 3] }", ""),
        (m.DFineDecoder, "depth: 24 num_heads: 16", "16 do not divide the depth of 24"),
        (m.DFineEncoder, "num_heads: 3", "3 do not divide the size's depth"),
        (m.DFineFeatureExtractor, f"type: 'hgnetv2_b0' layout {{ {HGNET} }}", "layout: type says which backbone"),
        (m.DFineFeatureExtractor, f"layout {{ {HGNET} }}", ""),
        (m.HgNetV2Layout, HGNET.replace("[8, 8]", "8"), "stem: expected two numbers, found [8]"),
        (
            m.HgNetV2Layout,
            HGNET.replace("[1, 1, 1, 1]", "1"),
            "blocks: expected a number for each of 4 stages, found 1",
        ),
        (m.DFineFeatureExtractor, "pretrained: true", "pretrained: nobody keeps weights"),
        (m.DFineFeatureExtractor, "strides: [8, 16]", "expected powers of 2 that end with 32, found [8, 16]"),
        (m.DFineFeatureExtractor, "strides: [16, 8, 32]", "strides: expected rising numbers"),
        (m.QueryPostProcessing, "score_threshold: 0.1 batch_non_max_suppression { }", "it has these fields itself"),
        (m.AlignedStep, "loss { classification_loss { weighted_softmax { } } }", "a softmax needs a background"),
        (m.FeaturePyramidNetworks, "min_level: 4 max_level: 3", "min_level: 4 is over max_level 3"),
        (
            m.Ssd,
            "box_predictor { convolutional_box_predictor { } } box_coder { square_box_coder { } }",
            "box_predictor: box_code_size is 4, but the box coder has 3 numbers",
        ),
        (
            m.Ssd,
            "box_predictor { convolutional_box_predictor { box_code_size: 10 } } "
            "box_coder { keypoint_box_coder { num_keypoints: 3 } } add_background_class: true",
            "",
        ),
    ],
)
def test_an_extractor_takes_what_its_network_reads(message: type[Message], text: str, wanted: str) -> None:
    found = [str(error) for error in contradictions(parse_message(text, message))]
    assert (len(found) == 1 and wanted in found[0]) if wanted else found == []


def test_what_is_refused_is_not_judged_further() -> None:
    text = "model { ssd { mask_head_config { } } center_net { } }".replace("center_net { } ", "")
    message = parse_message(text, m.TrainEvalPipelineConfig)
    assert list(contradictions(message)) == []


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1]", (0, 0.5, 1), (-1e-9, 1.1, float("nan"), float("inf"))),
        ("(0, 1)", (1e-9, 0.5), (0, 1, -1)),
        ("[0, inf)", (0, 1e30), (-1, float("inf"), float("nan"))),
        ("[0, inf]", (0, float("inf")), (-1, float("nan"))),
        ("(-inf, inf)", (-1e30, 0), (float("-inf"), float("inf"), float("nan"))),
    ],
)
def test_intervals(interval: str, inside: tuple[float, ...], outside: tuple[float, ...]) -> None:
    parsed = Interval.parse(interval)
    assert [parsed.problem(value) for value in inside] == [""] * len(inside)
    assert all(parsed.problem(value) for value in outside)
    with pytest.raises(ValueError, match="not an interval"):
        Interval.parse("0..1")


def test_old_spellings_are_read_and_the_new_ones_written() -> None:
    text = "random_mosaic { colour: [1, 2, 3] min_centre: 0.3 max_center: 0.6 }"
    step = parse_message(text, m.PreprocessingStep)
    assert step.random_mosaic is not None
    assert list(step.random_mosaic.color) == [1, 2, 3]
    assert step.random_mosaic.min_center == 0.3
    written = dump_message(step)
    assert "colour" not in written
    assert parse_message(written, m.PreprocessingStep) == step
    with pytest.raises(ConfigError, match="given twice"):
        parse_message("random_mosaic { min_centre: 0.3 min_center: 0.3 }", m.PreprocessingStep)
    ours = [cls for cls in Message.__subclasses__() if cls.__module__.startswith("boxwright.")]
    olds = [one.was for cls in ours for one in cls.fields.values() if one.was]
    assert len(olds) == 5


def test_a_default_that_is_a_list_is_no_part_of_what_is_set() -> None:
    table = Table()
    assert list(table.size) == [1.0, 2.0]
    assert not table.has("size")
    with pytest.raises(AttributeError):
        table.size.append(3.0)
    assert parse_message("size: [3, 4]", Table).size == [3.0, 4.0]
    assert parse_message("sides: [3, 4]", Table).to_dict() == {"size": [3.0, 4.0]}
