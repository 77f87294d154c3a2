"""Real pipeline.config files: those whose networks are here build, predict, assign, lose and learn."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from boxwright.base.errors import ConfigError
from boxwright.cli.config import build_plans
from boxwright.config.load import dump_message, parse_message
from boxwright.config.support import report
from boxwright.families.shared.feature_extractor import SSD_EXTRACTORS
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.optimization.optimizers import Optimizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline
from boxwright.pipeline.optimizer import build_optimizer
from boxwright.pipeline.tensorflow_version import tensorflow_version
from boxwright.types import AnchorPredictions, Targets
from boxwright.types.masks import InstanceMasks
from tests.center_nets import give_keypoint_label_map
from tests.conftest import SMALL_MODEL, extra_folder
from tests.nn.shapes import only_shapes

FOLDER = extra_folder("BOXWRIGHT_CONFIGS")
FILES = sorted(FOLDER.rglob("*.config")) if FOLDER else []
_ABSENT = "BOXWRIGHT_CONFIGS names no folder of pipeline.config files"


def plain(path: Path) -> str:
    """Read a file without comments and line breaks: reading all as messages took a third of the collection's time."""
    return re.sub(r"\s+", " ", re.sub("#.*", "", path.read_text(errors="replace")))


def extractor(text: str) -> str:
    found = re.search(r"""feature_extractor ?:? ?\{[^{}]*?type ?: ?["']([^"']*)["']""", text)
    return found[1] if found else ""


def model_text(text: str) -> str:
    """Cut out the model, without spaces and separators."""
    start = re.search(r"\bmodel ?:? ?\{", text)
    assert start
    depth = 1
    end = next(
        index
        for index in range(start.end(), len(text))
        if (depth := depth + (text[index] == "{") - (text[index] == "}")) == 0
    )
    return re.sub("[ ,;:]", "", text[start.end() : end])


OURS = [path for path in FILES if extractor(plain(path)) in SSD_EXTRACTORS]


def test_how_many_there_are() -> None:
    if FOLDER is None:
        pytest.skip(_ABSENT)
    count = {name: sum(path.parent.name == name for path in OURS) for name in ("tf1", "tf2")}
    assert count == {"tf1": 35, "tf2": 18}


def strangers() -> list[Path]:
    """List the strangers' files that can be built, one for each model."""
    folder = extra_folder("BOXWRIGHT_USER_CONFIGS")
    texts = {path: plain(path) for path in (sorted(folder.rglob("*.config")) if folder else [])}
    found: dict[str, Path] = {}
    seen: set[str] = set()
    for path, text in texts.items():
        if extractor(text) not in SSD_EXTRACTORS or model_text(text) in seen:
            continue
        try:
            config = load_config(path)
        except ConfigError:
            continue
        if config.model and config.train_config and config.train_config.optimizer:
            seen.add(model_text(text))
            found.setdefault(dump_message(config.model), path)
    return list(found.values())


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.slow
def test_how_many_strangers_there_are() -> None:
    if not extra_folder("BOXWRIGHT_USER_CONFIGS"):
        pytest.skip("BOXWRIGHT_USER_CONFIGS names no folder of pipeline.config files")
    assert len(strangers()) == 58


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parse the strangers' files, which takes seconds, only where what is slow may run."""
    if metafunc.function is test_a_step_at_full_size:
        quick = metafunc.config.option.markexpr == "not slow"
        metafunc.parametrize("path", OURS if quick else [*OURS, *strangers()], ids=name_of)


@pytest.mark.slow
def test_a_step_at_full_size(path: Path) -> None:
    """One image; the largest take some 16 GB and half a minute."""
    config = load_config(path)
    assert config.train_config is not None
    assert config.train_config.optimizer is not None
    detector = build_detector(config)
    inputs, sizes = detector.preprocess(torch.randint(0, 255, (1, 480, 640, 3), dtype=torch.uint8))
    detector.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with torch.no_grad():
        (found,) = detector.postprocess(detector.predict(inputs), sizes)
    assert torch.isfinite(found.boxes).all()
    boxes = torch.tensor([[[50.0, 60, 200, 220], [10, 10, 90, 60]]])
    targets = Targets(boxes, torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2), torch.ones(1, 2) > 0)
    detector.train()
    with torch.autocast("cpu", torch.bfloat16, enabled=config.train_config.use_bfloat16):
        predictions = detector.predict(inputs)
    total = LossTerm.sum(detector.criterion(predictions, targets))
    assert torch.isfinite(total)
    torch.autograd.backward(total)
    plan = build_optimizer(config.train_config.optimizer, version=tensorflow_version(config.model))
    parameters = [parameter for parameter in detector.network.parameters() if parameter.requires_grad]
    optimizer = Optimizer(parameters, plan.rule)
    optimizer.param_groups[0]["lr"] = max(plan.schedule(0), 1e-3)
    # Of what the last level predicts, mining may have chosen nothing.
    some = [*parameters[:4], *parameters[-4:]]
    before = [parameter.detach().clone() for parameter in some]
    optimizer.step()
    assert any(not torch.equal(old, new) for old, new in zip(before, some, strict=True))


TWO_STAGES = [path for path in FILES if re.search(r"\bmodel ?:? ?\{ ?faster_rcnn", plain(path))]


def test_how_many_two_stages_there_are() -> None:
    if FOLDER is None:
        pytest.skip(_ABSENT)
    count = {name: sum(path.parent.name == name for path in TWO_STAGES) for name in ("tf1", "tf2")}
    assert count == {"tf1": 29, "tf2": 11}


# Other backbones are in tests/parity; masks and context are small in tests/models.
@pytest.mark.slow_except("tf1/faster_rcnn_inception_v2_coco", "tf2/faster_rcnn_resnet50_v1_1024x1024_coco17_tpu-8")
@pytest.mark.parametrize("path", TWO_STAGES, ids=name_of)
def test_two_stages_detect_and_lose(path: Path) -> None:
    """As configured, but for the size of the picture and the number of proposals."""
    model = load_config(path).model
    assert model is not None
    assert model.faster_rcnn is not None
    model.faster_rcnn.image_resizer = parse_message("fixed_shape_resizer { height: 96 width: 128 }", m.ImageResizer)
    model.faster_rcnn.first_stage_max_proposals = 6
    model.faster_rcnn.second_stage_batch_size = 4
    torch.manual_seed(0)
    detector = build_detector(model)
    (found,) = detector.detect([torch.randint(0, 255, (3, 60, 90), dtype=torch.uint8)])
    assert torch.isfinite(found.boxes).all()
    boxes = torch.tensor([[[10.0, 12, 60, 70], [70, 20, 90, 60]]])
    mask = np.zeros((2, 96, 128), np.uint8)
    mask[:, 20:60, 15:80] = 1
    masks = InstanceMasks.stack([mask], 2, (96, 128))
    ones = torch.ones(1, 2)
    targets = Targets(boxes, torch.zeros(1, 2, dtype=torch.int64), ones, ones > 0, masks=masks)
    detector.train()
    with torch.no_grad():
        inputs, sizes = detector.preprocess(torch.randint(0, 255, (1, 60, 90, 3), dtype=torch.uint8))
        terms = LossTerm.values(detector.criterion(detector.predict(inputs, sizes, targets), targets))
    stages = model.faster_rcnn.number_of_stages
    assert len(terms) == {1: 2, 2: 4, 3: 5}[stages]
    assert not any(value.isnan() for value in terms.values())


def without_gradient(model: m.DetectionModel | Pipeline) -> list[str]:
    """Name the weights that no output depends on; nothing is computed but shapes."""
    with only_shapes():
        detector = build_detector(model).train()
        height, width = detector.preprocessor.resizer.output_size or (256, 256)
        found = detector.predict(torch.zeros(2, detector.preprocessor.resizer.channels, height, width))
    parts = [found] if isinstance(found, AnchorPredictions) else found.steps
    torch.autograd.backward(torch.stack([part.box_codes.sum() + part.class_logits.sum() for part in parts]).sum())
    learnt = [(name, p) for name, p in detector.network.named_parameters() if p.requires_grad]
    assert learnt
    return [name for name, parameter in learnt if parameter.grad is None]


@pytest.mark.slow_except("tf1/embedded_ssd_mobilenet_v1_coco")
@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_every_weight_gets_a_gradient(path: Path) -> None:
    assert without_gradient(load_config(path)) == []


@pytest.mark.slow_except("2-3-ssd_mobilenet_v1_fpn", "2-3-ssd_mobilenet_v2_fpn")
@pytest.mark.parametrize("kind", ["ssd_mobilenet_v1_fpn", "ssd_mobilenet_v2_fpn", "ssd_resnet50_v1_fpn"])
@pytest.mark.parametrize(("low", "high"), [(3, 4), (2, 3), (3, 7)])
def test_a_pyramid_ends_the_backbone(kind: str, low: int, high: int) -> None:
    """What lies beyond the last tap is not built: it would never learn, and several processes would wait for it."""
    text = SMALL_MODEL.replace("ssd_mobilenet_v2_fpn_keras", f"{kind}_keras").replace(
        "max_level: 5", f"max_level: {high}"
    )
    text = text.replace("min_level: 3", f"min_level: {low}")
    text = text.replace("use_depthwise: true", "use_depthwise: false", 1) if "resnet" in kind else text
    assert without_gradient(parse_message(text, Pipeline)) == []


# Family → what becomes of its files: how many run, and how many are refused or cannot be read, by the first reason.
Table = dict[str, dict[str, int]]
TF_CONFIGS: Table = {
    "center_net": {"runs": 11},
    "faster_rcnn": {"runs": 40},
    "ssd_efficientdet": {"runs": 8},
    "ssd_inception": {"runs": 3},
    "ssd_mobiledet": {"runs": 4},
    "ssd_mobilenet_edgetpu": {"runs": 2},
    "ssd_mobilenet_v1": {"runs": 14},
    "ssd_mobilenet_v2": {"runs": 12},
    "ssd_mobilenet_v3": {"runs": 2},
    "ssd_resnet": {"runs": 8},
}
USER_CONFIGS: Table = {
    "center_net": {"runs": 3},
    "faster_rcnn": {
        "runs": 33,
        "proposals per image are to be sampled": 1,
    },
    "ssd_efficientdet": {"runs": 12, "type: refused": 1},
    "ssd_inception": {"runs": 11},
    "ssd_mobiledet": {"runs": 2},
    "ssd_mobilenet_v1": {"runs": 25},
    "ssd_mobilenet_v2": {"runs": 40},
    "ssd_resnet": {"runs": 16},
    "unreadable": {
        'has no field named "batch_norm_trainable"': 1,
        "num_examples has no value": 1,
        "malformed number": 1,
        "unexpected character": 2,
    },
}
# Each field by itself is honored; TF, too, refuses the two together.
CONTRADICTORY = {"proposals per image are to be sampled"}
TABLES = {"BOXWRIGHT_CONFIGS": (104, TF_CONFIGS), "BOXWRIGHT_USER_CONFIGS": (149, USER_CONFIGS)}
_FAMILIES = {"ssd_efficientnet": "ssd_efficientdet", "embedded_ssd_mobilenet_v1": "ssd_mobilenet_v1"}


def family(config: Pipeline) -> str:
    assert config.model is not None
    if config.model.ssd is None or config.model.ssd.feature_extractor is None:
        return config.model.which("model") or "nothing"
    kind = config.model.ssd.feature_extractor.type
    families = {**_FAMILIES, **{name: name for name in (*TF_CONFIGS, *USER_CONFIGS)}}
    return next(name for start, name in families.items() if kind.startswith(start))


def outcome(error: ConfigError, reasons: Iterable[str]) -> str:
    """Return the known reason that the first line gives, the longest if there are several, or the line."""
    line = str(error).splitlines()[0]
    return max((reason for reason in reasons if reason in line), key=len, default=line)


@pytest.mark.slow
@pytest.mark.parametrize("variable", TABLES)
def test_check_passes_what_builds(variable: str, tmp_path: Path) -> None:
    """Nothing is refused in a file exactly when its model, training and evaluation can be built."""
    folder = extra_folder(variable)
    if folder is None:
        pytest.skip(f"{variable} names no folder of pipeline.config files")
    files, table = TABLES[variable]
    reasons = {reason for row in table.values() for reason in row}
    found: dict[str, Counter[str]] = defaultdict(Counter)
    differ = []
    for path in sorted(folder.rglob("*.config")):
        try:
            config = load_config(path)
        except ConfigError as error:
            found["unreadable"][outcome(error, reasons)] += 1
            continue
        give_keypoint_label_map(config, tmp_path)
        passes = all(row.status.verdict != "refused" for row in report(config))
        try:
            with torch.device("meta"):  # shapes, and no numbers
                build_plans(config)
            found[family(config)]["runs"] += 1
        except ConfigError as error:
            reason = outcome(error, reasons)
            found[family(config)][reason] += 1
            differ += [f"{path.name}: {error}"] if passes and reason not in CONTRADICTORY else []
        else:
            differ += [] if passes else [path.name]
    assert differ == []
    assert {name: dict(row) for name, row in found.items()} == table
    assert sum(sum(row.values()) for row in table.values()) == files


DEEP_MACS = [path for path in FILES if path.stem.startswith("center_net_deepmac")]


def test_how_many_deep_macs_there_are() -> None:
    if FOLDER is None:
        pytest.skip(_ABSENT)
    assert len(DEEP_MACS) == 4


@pytest.mark.slow
@pytest.mark.parametrize("path", DEEP_MACS, ids=lambda path: path.stem)
def test_a_step_of_deep_mac(path: Path) -> None:
    """As configured, but on pictures of 256 pixels: 240 million weights, whose optimizer remembers two numbers of each."""
    config = load_config(path)
    assert config.model is not None
    assert config.model.center_net is not None
    assert config.train_config is not None
    assert config.train_config.optimizer is not None
    text = "fixed_shape_resizer { height: 256 width: 256 }"
    config.model.center_net.image_resizer = parse_message(text, m.ImageResizer)
    torch.manual_seed(0)
    detector = build_detector(config.model).train()
    inputs, sizes = detector.preprocess(torch.randint(0, 255, (1, 256, 256, 3), dtype=torch.uint8))
    mask = np.zeros((2, 256, 256), np.uint8)
    mask[:, 30:180, 20:100] = 1
    ones = torch.ones(1, 2)
    boxes = torch.tensor([[[10.0, 20, 120, 200], [60, 30, 220, 180]]])
    masks = InstanceMasks.stack([mask], 2, (256, 256))
    targets = Targets(boxes, torch.tensor([[0, 7]]), ones, ones > 0, masks=masks)
    total = LossTerm.sum(detector.criterion(detector.predict(inputs, sizes, targets), targets))
    assert torch.isfinite(total)
    torch.autograd.backward(total)
    parameters = [parameter for parameter in detector.network.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None for parameter in parameters)
    plan = build_optimizer(config.train_config.optimizer, version=tensorflow_version(config.model))
    optimizer = Optimizer(parameters, plan.rule)
    optimizer.param_groups[0]["lr"] = 1e-4
    before = parameters[0].detach().clone()
    optimizer.step()
    assert not torch.equal(before, parameters[0])
