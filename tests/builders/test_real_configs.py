"""Real pipeline.config files: those whose networks are here build, predict, assign, lose and learn."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from boxwright.builders.detector import build_detector
from boxwright.builders.feature_extractor import SSD_EXTRACTORS
from boxwright.builders.optimizer import build_optimizer
from boxwright.builders.plans import build_plans
from boxwright.config import Pipeline, load_config, parse_message
from boxwright.config import messages as m
from boxwright.config.support import report
from boxwright.criteria.terms import LossTerm
from boxwright.errors import ConfigError
from boxwright.optimization.optimizers import Optimizer
from boxwright.types import AnchorPredictions, Targets
from tests.conftest import SMALL_MODEL, extra_folder

FOLDER = extra_folder("BOXWRIGHT_CONFIGS")
FILES = sorted(FOLDER.rglob("*.config")) if FOLDER else []
_ABSENT = "BOXWRIGHT_CONFIGS names no folder of pipeline.config files"


def extractor(path: Path) -> str:
    model = load_config(path).model
    ssd = model.ssd if model else None
    return ssd.feature_extractor.type if ssd and ssd.feature_extractor else ""


OURS = [path for path in FILES if extractor(path) in SSD_EXTRACTORS]
OTHERS = [path for path in FILES if extractor(path) and path not in OURS]


def test_how_many_there_are() -> None:
    if FOLDER is None:
        pytest.skip(_ABSENT)
    count = {name: sum(path.parent.name == name for path in OURS) for name in ("tf1", "tf2")}
    assert count["tf2"] >= 18
    assert count["tf1"] >= 21
    assert len(OTHERS) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("path", OURS, ids=lambda path: f"{path.parent.name}/{path.stem}")
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
    total = LossTerm.sum(detector.criterion(predictions, targets)) + detector.regularization()
    assert torch.isfinite(total)
    torch.autograd.backward(total)
    plan = build_optimizer(config.train_config.optimizer)
    parameters = [parameter for parameter in detector.network.parameters() if parameter.requires_grad]
    optimizer = Optimizer(parameters, plan.rule)
    optimizer.param_groups[0]["lr"] = max(plan.schedule(0), 1e-3)
    before = [parameter.detach().clone() for parameter in parameters[-4:]]
    optimizer.step()
    assert any(not torch.equal(old, new) for old, new in zip(before, parameters[-4:], strict=True))


def without_gradient(model: m.DetectionModel | Pipeline) -> list[str]:
    """Name the weights that no output depends on; nothing is computed but shapes."""
    with torch.device("meta"):
        detector = build_detector(model).train()
        height, width = detector.preprocessor.resizer.output_size or (256, 256)
        found = detector.predict(torch.zeros(2, detector.preprocessor.resizer.channels, height, width))
    parts = [found] if isinstance(found, AnchorPredictions) else [found.refinement, found.detection]
    torch.autograd.backward(torch.stack([part.box_codes.sum() + part.class_logits.sum() for part in parts]).sum())
    learnt = [(name, p) for name, p in detector.network.named_parameters() if p.requires_grad]
    assert learnt
    return [name for name, parameter in learnt if parameter.grad is None]


@pytest.mark.parametrize("path", OURS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_weight_gets_a_gradient(path: Path) -> None:
    assert without_gradient(load_config(path)) == []


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


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_other_extractors_are_refused_by_name(path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        build_detector(load_config(path))
    message = str(caught.value)
    assert "refused" in message
    assert extractor(path) in message


# Folder → how many files there are, how many can be read, how many build, and a digest of the names of these.
COUNTS = {"BOXWRIGHT_CONFIGS": (104, 104, 29, "f0acc28903a1"), "BOXWRIGHT_USER_CONFIGS": (149, 144, 71, "e8f4adc4be7e")}


@pytest.mark.parametrize("variable", COUNTS)
def test_check_passes_what_builds(variable: str) -> None:
    """Nothing is refused in a file exactly when its model, training and evaluation can be built."""
    folder = extra_folder(variable)
    if folder is None:
        pytest.skip(f"{variable} names no folder of pipeline.config files")
    files = sorted(folder.rglob("*.config"))
    readable, built, differ = 0, [], []
    for path in files:
        try:
            config = load_config(path)
        except ConfigError:
            continue
        readable += 1
        passes = all(row.status.verdict != "refused" for row in report(config))
        try:
            build_plans(config)
            built.append(path.stem)
        except ConfigError as error:
            differ += [f"{path.name}: {error}"] if passes else []
        else:
            differ += [] if passes else [path.name]
    assert differ == []
    digest = hashlib.sha256("\n".join(sorted(built)).encode()).hexdigest()[:12]
    assert (len(files), readable, len(built), digest) == COUNTS[variable]
