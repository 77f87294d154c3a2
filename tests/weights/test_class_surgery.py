"""Other classes than the checkpoint's: what both have is kept, by name; nothing is taken for something else."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

import boxwright as bw
from boxwright.data.label_map import load_label_map
from tests.conftest import small_config_text

PLAIN = "convolutional_box_predictor { use_depthwise: true use_dropout: true conv_hyperparams { batch_norm { } } }"
HEADS = {"shared": "", "of each level": PLAIN}
LABELS = {
    "reordered": ["star", "circle", "square", "triangle"],
    "fewer": ["star", "square"],
    "more": ["moon", "circle", "square", "triangle", "star", "sun"],
}


def detector_of(config_path: Path, folder: Path, names: list[str], head: str) -> bw.Detector:
    text = "".join(f"item {{ id: {number + 1} name: '{name}' }}\n" for number, name in enumerate(names))
    (folder / "other.pbtxt").write_text(text)
    changes = [f"model.ssd.num_classes={len(names)}", *([f"model.ssd.box_predictor={{{head}}}"] if head else [])]
    config = bw.load_config(config_path, [*changes, f"train_input_reader.label_map_path={folder}/other.pbtxt"])
    torch.manual_seed(7)
    return bw.build_detector(config, load_label_map(folder / "other.pbtxt"))


@pytest.fixture(scope="module")
def runs(shapes_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run of a step, by its head; each is made when it is first asked for."""

    @cache
    def run(head: str) -> Path:
        folder = tmp_path_factory.mktemp("run")
        (folder / "pipeline.config").write_text(small_config_text(shapes_data))
        changes = [f"model.ssd.box_predictor={{{HEADS[head]}}}"] if HEADS[head] else []
        config = bw.load_config(folder / "pipeline.config", ["train_config.num_steps=1", *changes])
        bw.train(config, folder / "m", bw.RunSettings(workers=0, preflight=False, evaluate=False))
        return folder / "m"

    return run


@pytest.mark.slow_except("fewer-shared")
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("names", LABELS)
def test_logits_of_common_classes_are_the_same(
    runs: Callable[[str], Path], small_config: Path, tmp_path: Path, names: str, head: str
) -> None:
    old, _, _ = bw.restore_detector(runs(head))
    assert old.categories is not None
    new = detector_of(small_config, tmp_path, LABELS[names], HEADS[head])
    fresh = detector_of(small_config, tmp_path, LABELS[names], HEADS[head])
    report = bw.load_weights(new, runs(head), scope="transfer")
    common = [name for name in LABELS[names] if old.categories.by_name(name)]
    assert f"classes: {', '.join(common)} kept by name" in str(report)
    image = torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(0)) * 255
    with torch.no_grad():
        inputs, _ = old.preprocess(image)
        before, after = old.predict(inputs).class_logits, new.eval().predict(inputs).class_logits
    background = before.shape[-1] - 4
    # Another width of the convolution sums in another order.
    assert torch.allclose(before[..., :background], after[..., :background], atol=1e-5)
    assert len(common) >= 2
    for label, name in enumerate(LABELS[names]):
        same = old.categories.by_name(name)
        if same is not None:
            assert torch.allclose(before[..., background + same.label], after[..., background + label], atol=1e-5), name
    state, untouched = new.network.state_dict(), fresh.network.state_dict()
    biases = [
        name for name in state if name.startswith("head.classes") and name.endswith("bias") and "norm" not in name
    ]
    if names == "more":
        moon = state[biases[-1]].reshape(-1, background + 6)[:, background]
        assert torch.equal(moon, untouched[biases[-1]].reshape(-1, background + 6)[:, background]), "fresh"


def test_wholly_other_classes_start_fresh(runs: Callable[[str], Path], small_config: Path, tmp_path: Path) -> None:
    """As many classes of other names fit the shapes; they are reset all the same."""
    new = detector_of(small_config, tmp_path, ["a", "b", "c", "d"], "")
    before = {
        name: value.clone() for name, value in new.network.state_dict().items() if name.startswith("head.classes")
    }
    report = bw.load_weights(new, runs("shared"), scope="transfer")
    assert "all start fresh" in str(report)
    after = new.network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert any(name.startswith("backbone") for name in report.restored)
