"""The presets that are recipes of papers: whole, honored throughout, what their headers say."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import boxwright as bw
from boxwright.config.preset import preset_names, preset_text
from boxwright.config.support import report
from boxwright.data.label_map import load_label_map
from boxwright.families.d_fine.weights import authors_name
from boxwright.families.refinedet.network import RefineDet
from boxwright.nn.criteria.anchor import CascadeCriterion
from boxwright.nn.layers import Conv2d, Deconv2d
from boxwright.nn.network import Network
from boxwright.nn.optimization.optimizers import AdamW, grouped
from boxwright.nn.postprocessing.nms import BestOfClass
from boxwright.nn.preprocessing import ResizedAfterwards
from boxwright.nn.regularization import Regularizer, _by_regularizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation import build_augmentation
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config
from boxwright.pipeline.optimizer import OptimizerPlan
from boxwright.pipeline.training import FineTune, build_batch_mixup, build_input_sizes, build_training, wants_pretrained
from boxwright.weights.tensorflow.variables import parameter_names

NAMES = preset_names()
ALIGNED = ("align_det_", "srn_")
TWO_STAGE = ("kerod_", "torchvision_", "mask_rcnn_resnet50_fpn_coco", "mask_rcnn_mobilenet_v3", "mask_rcnn_hgnetv2")
ONE_STAGE = ("refinedet", "ssd300_", "ssd512_")
# Boxes of the papers' tables, and steps and batch of the authors' files.
ANCHORS = {"refinedet320": 6375, "refinedet512": 16320, "ssd300": 8732, "ssd512": 24564}
STEPS = {"voc": (120_000, 32), "coco": (400_000, 32), "refinedet512_resnet101_coco": (540_000, 20)}
# At which steps they lower the rate.
DROPS = {"voc": (80_000, 100_000), "coco": (280_000, 360_000), "refinedet512_resnet101_coco": (400_000, 480_000)}
# VGG-16 has 15 and two more make the fourth level; 4 levels × 4 predictors; 4 × 3 and 3 of the transfer connection.
# ResNet-101 has 1 + 33 × 3 + 4, its fourth level 4, and 2 × 4 bodies of 4; SSD has 15, 8 or 10 more, and 2 a level.
CONVOLUTIONS = {
    "refinedet320_vgg16": 15 + 2 + 16 + 15,
    "refinedet512_vgg16": 15 + 2 + 16 + 15,
    "refinedet320_resnet101": 104 + 4 + 32 + 16 + 15,
    "refinedet512_resnet101": 104 + 4 + 32 + 16 + 15,
    "ssd300_vgg16": 15 + 8 + 12,
    "ssd512_vgg16": 15 + 10 + 14,
}
# Anchors, columns of the class predictor, and convolutions: VGG-16 has 15, and its two or six further ones; a level has
# four predictors, with or without two heads of four; the transfer connection three, and one between two levels.
# ResNeXt-101 has as many as ResNet-101, two further ones, two bodies of four a level.
VARIANTS = {
    "refinedet_vgg16_wider_face": (160**2 + 80**2 + 40**2 + 20**2 + 10**2 + 5**2, 2, 15 + 4 + 6 * 4 + 6 * 3 + 5),
    "refinedet_vgg16_normalized_voc": (6375, 21, 15 + 2 + 4 * (4 + 2 * 4) + 4 * 3 + 3),
    "refinedet_resnext101_coco": (16320, 81, 104 + 2 + 4 * (4 + 2 * 4) + 4 * 3 + 3),
}
PUBLISHED = [name for name in NAMES if name.split("_")[0] in ANCHORS]


def recipes(prefixes: tuple[str, ...]) -> list[str]:
    return [name for name in NAMES if name.startswith(prefixes)]


def header(name: str) -> list[str]:
    """Return the comment at the top of a preset, without its marks."""
    return [
        line.removeprefix("#") for line in takewhile(lambda line: line.startswith("#"), preset_text(name).split("\n"))
    ]


def example(name: str, folder: Path) -> Path:
    """Write the configuration that a recipe's comment shows to a file."""
    lines = header(name)
    start = lines.index(f'   preset: "{name}"')
    path = folder / "my.config"
    path.write_text("\n".join(takewhile(str.strip, lines[start:])))
    return path


def whole(name: str, folder: Path) -> m.TrainEvalPipelineConfig:
    """Return what the example of a recipe stands for: all of it honored."""
    config = load_config(example(name, folder))
    assert [str(row) for row in report(config) if row.status.verdict != "honored"] == []
    assert config.train_input_reader is not None
    assert len(config.eval_input_reader) == 1
    return config


def test_all_are_there() -> None:
    sizes = {
        f"refinedet{s}_{net}_{data}" for s in (320, 512) for net in ("vgg16", "resnet101") for data in ("voc", "coco")
    }
    small = {"refinedet_mobilenet_v2_shapes", "refinedet_mobilenet_v2_bccd"}
    kerods = {"kerod_resnet50_fpn_coco", "kerod_resnet50_fpn_voc", "mask_rcnn_resnet50_fpn_coco"}
    torchvisions = {f"torchvision_{kind}_resnet50_fpn_coco" for kind in ("fasterrcnn", "maskrcnn")}
    two_stages = kerods | torchvisions | {"mask_rcnn_mobilenet_v3_fpn_shapes", "mask_rcnn_hgnetv2_fpn_small"}
    aligned = {"align_det_resnet101_coco", "align_det_resnext101_coco", "refinedetpp512_vgg16_voc"}
    faces = {"srn_resnet50_wider_face", "srn_mobilenet_v2_wider_face"}
    wanted = sizes | small | {"ssd300_vgg16_voc", "ssd512_vgg16_voc"} | two_stages | aligned | faces | set(VARIANTS)
    assert len(wanted) == 27
    assert {*recipes(ALIGNED), *recipes(TWO_STAGE), *recipes(ONE_STAGE)} == wanted


# Parameters in thousands, the rate and the backbone's, batch, epochs, plain ones at the end, and how often 640 is drawn,
# of the authors' tables.
D_FINES = {
    "d_fine_n_coco": (3783, 8e-4, 4e-4, 128, 160, 12, 0),
    "d_fine_s_coco": (10322, 2e-4, 1e-4, 32, 132, 12, 20),
    "d_fine_m_coco": (19590, 2e-4, 2e-5, 32, 132, 12, 6),
    "d_fine_l_coco": (31290, 2.5e-4, 1.25e-5, 32, 80, 8, 4),
    "d_fine_x_coco": (62715, 2.5e-4, 2.5e-6, 32, 80, 8, 3),
    "deim_d_fine_n_coco": (3783, 8e-4, 4e-4, 128, 160, 12, 0),
    "deim_d_fine_s_coco": (10322, 4e-4, 2e-4, 32, 132, 12, 20),
    "deim_d_fine_m_coco": (19590, 4e-4, 4e-5, 32, 102, 12, 6),
    "deim_d_fine_l_coco": (31290, 5e-4, 2.5e-5, 32, 58, 8, 4),
    "deim_d_fine_x_coco": (62715, 5e-4, 5e-6, 32, 58, 8, 3),
    "rt_detr_v4_s_coco": (10322, 4e-4, 2e-4, 32, 132, 12, 20),
    "rt_detr_v4_m_coco": (19590, 4e-4, 4e-5, 32, 102, 12, 6),
    "rt_detr_v4_l_coco": (31290, 5e-4, 2.5e-5, 32, 58, 8, 4),
    "rt_detr_v4_x_coco": (62715, 5e-4, 5e-6, 32, 58, 8, 3),
}
# Which names learn at the backbone's rate, and which do not decay, by the authors' names and their configurations: of
# two patterns the first counts; what neither names has the head's rate and decays.
AT_THE_BACKBONES_RATE = {"n": r"backbone", "s": r"^(?=.*backbone)(?!.*bn)", "l": r"backbone"}
UNDECAYED = {"n": r"(en|de)coder.*(norm|bn|bias)", "s": r"norm|bn", "l": r"(en|de)coder.*(norm|bn)"}


def check_groups(network: Network, plan: OptimizerPlan, size: str, rate: float, of_backbone: float) -> None:
    """Check the rate and the decay of each variable against DEIM's patterns."""
    kind = {"m": "s", "x": "l"}.get(size, size)
    groups, _ = grouped(network, plan.groups, parameter_names(network))
    names = {id(value): name for name, value in network.named_parameters()}
    assert isinstance(plan.rule, AdamW)
    for group in groups:
        for value in group.tensors:
            theirs, decay = authors_name(names[id(value)]), plan.rule.weight_decay
            slow = re.search(AT_THE_BACKBONES_RATE[kind], theirs) is not None
            undecayed = not slow and re.search(UNDECAYED[kind], theirs) is not None
            own = group.decay if group.decay is not None else decay * (value.ndim > 1)
            wanted = (of_backbone if slow else rate, 0 if undecayed else decay)
            assert (rate * group.factor, own) == pytest.approx(wanted), theirs


# The epochs in which DEIM's and RT-DETRv4's mosaic and mixup begin and end, of the same tables.
MIXING_EPOCHS = {"n": (4, 78), "s": (4, 64), "m": (4, 49), "l": (4, 29), "x": (4, 29)}


def test_all_d_fines_are_there() -> None:
    assert set(recipes(("d_fine_", "deim_", "rt_detr_"))) == D_FINES.keys()


@pytest.mark.slow_except("deim_d_fine_s_coco")
@pytest.mark.parametrize("name", D_FINES)
def test_d_fine(name: str, tmp_path: Path) -> None:
    thousands, rate, of_backbone, batch, epochs, plain, often = D_FINES[name]
    text = "\n".join(header(name))
    assert "boxwright train --pipeline_config_path my.config --model_dir" in text
    assert "Published: " in text
    assert "Not trained by us" in text
    config = whole(name, tmp_path)
    plan = build_training(config)
    with torch.device("meta"):
        detector = build_detector(config)
    dense = not name.startswith("d_fine_")
    last_rate = rate / 2 if dense and "_n_" not in name else rate
    assert round(sum(p.numel() for p in detector.network.parameters()) / 1000) == thousands
    assert plan.optimizer.schedule(3000) == pytest.approx(rate)
    assert plan.optimizer.schedule(3000) * (plan.optimizer.groups[0].factor or 1) == pytest.approx(of_backbone)
    assert plan.stream.batch_size == batch
    assert plan.num_steps == pytest.approx(epochs * 117_266 / batch, abs=50)
    assert plan.optimizer.schedule(plan.num_steps - 1) == pytest.approx(last_rate, rel=1e-3)
    assert plan.optimizer.average_statistics
    assert (plan.optimizer.average_decay, plan.optimizer.average_ramp_steps) == (0.9999, 1000)
    stages, last = build_augmentation(config), plan.num_steps * (epochs - plain) / epochs
    assert [type(one).__name__ for one in stages.at(round(last) + 1).transforms] == ["RandomHorizontalFlip"]
    assert len(stages.at(round(last) - 1).transforms) == 4
    resizer = detector.preprocessor.resizer
    sizes = build_input_sizes(config, resizer, 0)
    assert (sizes is not None) == bool(often)
    if sizes is not None:
        assert [one for one in sizes.drawn if one == resizer] == [resizer] * often
        assert sizes.until_step == pytest.approx(last, abs=1)
        assert any(isinstance(drawn, ResizedAfterwards) for drawn in sizes.drawn) == dense
    assert plan.restart_step == (pytest.approx(last, abs=1) if dense else 0)
    assert bool(plan.freezing.freeze) == (name in {"d_fine_l_coco", "d_fine_x_coco"})
    if dense:
        begin, end = (plan.num_steps * epoch / epochs for epoch in MIXING_EPOCHS[name.split("_")[-2]])
        steps = [begin - 1, begin + 1, end - 1, end + 1]
        assert [len(stages.at(round(step)).transforms) for step in steps] == [1, 5, 5, 4]
        mixup = build_batch_mixup(config, 0)
        assert mixup is not None
        assert (mixup.from_step, mixup.until_step) == pytest.approx((begin, end), abs=1)
        check_groups(detector.network, plan.optimizer, name.split("_")[-2], rate, of_backbone)
        assert plan.optimizer.schedule(1000) == pytest.approx(rate / 4)
        # Half a cosine from the end of mixing to the plain epochs: three quarters of the peak in the middle.
        assert plan.optimizer.schedule(round(end) - 9) == pytest.approx(rate)
        assert plan.optimizer.schedule(round((end + last) / 2)) == pytest.approx((rate + last_rate) / 2, rel=1e-3)
        assert plan.optimizer.schedule(round(last) + 1) == pytest.approx(last_rate)


@pytest.mark.slow_except("srn_mobilenet_v2_wider_face")
@pytest.mark.parametrize("name", recipes(ALIGNED))
def test_later_recipe(name: str, tmp_path: Path) -> None:
    """What their headers promise, and the schedules of the sources."""
    text = "\n".join(header(name))
    assert "boxwright train --pipeline_config_path my.config --model_dir" in text
    assert "Published: " in text
    assert "Not trained by us" in text
    config = whole(name, tmp_path)
    plan = build_training(config)
    with torch.device("meta"):
        detector = build_detector(config)
        numbers = sum(parameter.numel() for parameter in detector.network.parameters())
    assert isinstance(detector.criterion, CascadeCriterion)
    if name == "srn_resnet50_wider_face":
        assert numbers == 53_370_698
        rates = [plan.optimizer.schedule(step) for step in (0, 32_199, 32_200, 40_250, 48_299)]
        assert rates == pytest.approx([1e-2, 1e-2, 1e-3, 1e-4, 1e-4])
    if name.startswith("align_det"):
        rates = [plan.optimizer.schedule(step) for step in (0, 500, 59_999, 60_000, 80_000, 89_999)]
        assert rates == pytest.approx([0.01 / 3, 1e-2, 1e-2, 1e-3, 1e-4, 1e-4], rel=1e-5)
        assert plan.stream.batch_size == 16


@pytest.mark.slow_except("kerod_resnet50_fpn_coco")
@pytest.mark.parametrize("name", recipes(TWO_STAGE))
def test_two_stage_configuration(name: str, tmp_path: Path) -> None:
    text = "\n".join(header(name))
    assert "boxwright train --pipeline_config_path my.config --model_dir" in text
    assert "Published: " in text or "Reached here" in text
    config = whole(name, tmp_path)
    plan = build_training(config)
    assert plan.num_steps > 0
    with torch.device("meta"):
        network = build_detector(config).network
    assert network.learns_masks == ("mask" in name)
    if "resnet50" in name:  # 25.6 million less the classifier's 2.0, a pyramid of 3.3, dense layers of 13.9
        numbers = sum(parameter.numel() for parameter in network.parameters())
        assert 41e6 < numbers < 45e6


@pytest.mark.slow_except("ssd512_vgg16_voc")
@pytest.mark.parametrize("name", recipes(ONE_STAGE))
def test_configuration(name: str, tmp_path: Path) -> None:
    text = "\n".join(header(name))
    assert "boxwright train --pipeline_config_path my.config --model_dir" in text
    assert "Published" in text
    assert "CVPR 2018" in text or "ECCV 2016" in text
    config = whole(name, tmp_path)
    with torch.device("meta"):
        network = build_detector(config).network
        model: Any = config.model.refinedet or config.model.ssd  # type: ignore[union-attr]
        size = model.image_resizer.fixed_shape_resizer
        predictions = network(torch.zeros(1, 3, size.height, size.width), torch.zeros(1, 2))
        predictions = getattr(predictions, "detection", predictions)
    family = name.split("_")[0]
    if family in ANCHORS:
        assert predictions.class_logits.shape[1] == ANCHORS[family]
        plan = build_training(config)
        steps, batch = STEPS.get(name, STEPS[name.split("_")[-1]])
        assert (plan.num_steps, plan.stream.batch_size) == (steps, batch)
        classes = 80 if "coco" in name else 20
        assert predictions.class_logits.shape[2] == classes + 1


@pytest.mark.slow_except("refinedet320_vgg16_coco", "refinedet512_vgg16_coco", "refinedet512_vgg16_voc")
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_recipe(name: str, tmp_path: Path) -> None:
    """The authors' solver files: rate, momentum, decay of kernels alone, biases twice as fast, augmentation."""
    config = whole(name, tmp_path)
    plan = build_training(config)
    first, second = DROPS.get(name, DROPS[name.split("_")[-1]])
    rates = [plan.optimizer.schedule(step) for step in (0, first - 1, first, second - 1, second, plan.num_steps - 1)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])
    momentum = config.train_config.optimizer.momentum_optimizer  # type: ignore[union-attr]
    assert momentum.momentum_optimizer_value == pytest.approx(0.9)  # type: ignore[union-attr]
    assert plan.optimizer.average_decay is None
    assert plan.bias_multiplier == 2
    steps = [step.which("preprocessing_step") for step in config.train_config.data_augmentation_options]  # type: ignore[union-attr]
    wanted = ["caffe_distort", "random_expand", "overlap_crop", "random_interpolation_resize", "random_horizontal_flip"]
    assert steps == wanted
    # Blue comes first in conversions of Caffe's ResNet; VGG's public file takes red first.
    start = plan.fine_tune
    assert FineTune(start.source, start.scope, start.channels) == FineTune(
        "resnet101_caffe.pth" if "resnet" in name else "vgg16_reducedfc.pth",
        "classification",
        "BGR" if "resnet" in name else "RGB",
    )
    with torch.device("meta"):
        detector = build_detector(config)
    convs = [module for module in detector.network.modules() if isinstance(module, (Conv2d, Deconv2d))]
    assert len(convs) == CONVOLUTIONS[name.split("_voc")[0].split("_coco")[0]]
    assert {(conv.regularizer.l1, round(conv.regularizer.l2, 8)) for conv in convs} == {(0.0, 5e-4)}
    assert {conv.bias_regularizer for conv in convs} == {Regularizer()}
    if "refinedet" in name:
        assert isinstance(detector.criterion, CascadeCriterion)
        assert isinstance(detector.network, RefineDet)
        assert detector.network.second_step.filter is not None
        assert detector.network.second_step.filter.objectness_threshold == pytest.approx(0.01)
        nms = detector.postprocessor.detection.nms  # type: ignore[attr-defined]
        assert nms.candidates == BestOfClass(1000)
        assert (nms.lowering is not None) == ("coco" in name)


@pytest.mark.slow_cases("refinedet_resnext101_coco", "refinedet_vgg16_normalized_voc")
@pytest.mark.parametrize("name", VARIANTS)
def test_variant_of_refinedet(name: str, tmp_path: Path) -> None:
    """Its maps, what is penalized and normalized, and where its weights come from."""
    config = whole(name, tmp_path)
    assert "Not trained by us" in "\n".join(header(name))
    plan = build_training(config)
    model = config.model.refinedet  # type: ignore[union-attr]
    assert model is not None
    side = model.image_resizer.fixed_shape_resizer.height  # type: ignore[union-attr]
    with torch.device("meta"):
        network = build_detector(config).network
        predictions = network(torch.zeros(1, 3, side, side), torch.zeros(1, 2)).detection
    anchors, columns, convolutions = VARIANTS[name]
    assert predictions.class_logits.shape == (1, anchors, columns)
    convs = [module for module in network.modules() if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d))]
    assert len(convs) == convolutions
    norms = [key for key, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)]
    outputs = [key for key in norms if ".boxes." in key or ".classes." in key]
    if "normalized" in name:
        assert len(outputs) == 16
        assert len(norms) == len(convs) - 15 - 2
        assert (plan.fine_tune.source, plan.fine_tune.scope) == ("vgg_16.ckpt", "classification")
        assert plan.bias_multiplier == 1
        penalized = _penalized(network, 1e-4)
        assert penalized == {key for key, _ in network.named_parameters()}
    else:
        assert outputs == []
        kernels = {f"{key}.weight" for key, module in network.named_modules() if module in convs}
        assert _penalized(network, 5e-4) == kernels
    if "resnext" in name:
        assert plan.fine_tune.source == ""
        assert wants_pretrained(config.model)  # type: ignore[arg-type]


def _penalized(network: nn.Module, decay: float) -> set[str]:
    """Return the names of the parameters that a penalty of so much lies on; fail if another has one."""
    names = {id(value): name for name, value in network.named_parameters()}
    by_regularizer = _by_regularizer(network)
    assert [(price.l1, pytest.approx(price.l2)) for price, _ in by_regularizer] == [(0.0, decay)]
    return {names[id(value)] for values in by_regularizer.values() for value in values}


def test_label_map_of_voc() -> None:
    assert len(load_label_map("preset:voc_label_map.pbtxt")) == 20


@pytest.mark.slow
def test_anchors_of_ssd300() -> None:
    """The first of the finest level and the last of all, by the paper's sizes (section 2.2 and the released code)."""
    detector = bw.build_detector(load_config("preset:ssd300_vgg16_voc"))
    anchors = detector.network.anchors.generator([(n, n) for n in (38, 19, 10, 5, 3, 1)], (300, 300))  # type: ignore[operator]
    assert anchors[0][0].tolist() == pytest.approx([4 - 15, 4 - 15, 4 + 15, 4 + 15])
    half = (30 * 60) ** 0.5 / 2
    assert anchors[0][1].tolist() == pytest.approx([4 - half, 4 - half, 4 + half, 4 + half], abs=1e-3)
    wide, high = 264 * 2**0.5 / 2, 264 / 2**0.5 / 2
    assert anchors[5][2].tolist() == pytest.approx([150 - wide, 150 - high, 150 + wide, 150 + high], abs=1e-3)


@pytest.mark.slow
def test_anchors_of_ssd512() -> None:
    """Sides of 7, 15, 30, 45, 60, 75, 90 and 105 % of the input; a further square between each two."""
    detector = bw.build_detector(load_config("preset:ssd512_vgg16_voc"))
    grids = [(n, n) for n in (64, 32, 16, 8, 4, 2, 1)]
    levels = detector.network.anchors.generator(grids, (512, 512))  # type: ignore[operator]
    shares = [0.07, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.05]
    assert [len(level) for level in levels] == [n * n * (6 if 2 < n < 64 else 4) for n, _ in grids]
    for level, (n, _), least, most in zip(levels, grids, shares, shares[1:], strict=False):
        sides = (level[:3, 2:] - level[:3, :2]) / 512
        stride = 512 / n
        centres = (level[:3, 2:] + level[:3, :2]) / 2
        assert centres.flatten().tolist() == pytest.approx([stride / 2] * 6, abs=1e-3)
        between = (least * most) ** 0.5
        wanted = [least, least, between, between, least * 2**0.5, least / 2**0.5]
        assert sides.flatten().tolist() == pytest.approx(wanted, rel=1e-4)
