"""A run's own configuration and weights for other data: `boxwright train DATA --model RUN`."""

from __future__ import annotations

from pathlib import Path

import pytest

import boxwright as bw
from boxwright.training.autoconfig.choices import InitSettings
from boxwright.training.autoconfig.from_run import is_run
from boxwright.training.autoconfig.start import init_config
from tests.conftest import small_config_text
from tests.training.autoconfig.datasets import yolo


@pytest.fixture(scope="module")
def run(shapes_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "pipeline.config").write_text(small_config_text(shapes_data))
    one = ["train_config.num_steps=1", "model.ssd.post_processing.batch_non_max_suppression.iou_threshold=0.42"]
    bw.train(folder / "pipeline.config", folder / "model", overrides=one, workers=0, evaluate=False, preflight=False)
    return folder / "model"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return yolo(tmp_path_factory.mktemp("data"))


def test_what_is_a_run(run: Path, tmp_path: Path) -> None:
    assert is_run(str(run))
    assert is_run(str(run / "ckpt-1.pt"))
    assert not any(map(is_run, ("", "d_fine_s_coco", str(tmp_path), str(run / "pipeline.config"), str(run / "no"))))


def test_a_runs_configuration_is_fitted_to_other_data(run: Path, data: Path, tmp_path: Path) -> None:
    settings = InitSettings(model=str(run), batch="2", epochs=3, imgsz="96x64")
    written = init_config(data, tmp_path / "a.config", settings)
    before, after = bw.load_config(run / "pipeline.config"), bw.load_config(written.config)
    assert after.model is not None
    assert after.model.ssd is not None
    assert before.model is not None
    assert before.model.ssd is not None
    suppression = after.model.ssd.post_processing.batch_non_max_suppression  # type: ignore[union-attr]
    assert suppression is not None
    assert suppression.iou_threshold == pytest.approx(0.42), "what no preset has"
    assert after.model.ssd.feature_extractor == before.model.ssd.feature_extractor
    assert after.model.ssd.freeze_batchnorm, "batches of two cannot estimate statistics"
    resizer = after.model.ssd.image_resizer.fixed_shape_resizer  # type: ignore[union-attr]
    assert resizer is not None
    assert (resizer.width, resizer.height) == (96, 64)
    train = after.train_config
    assert train is not None
    assert train.fine_tune_checkpoint == str(run)
    momentum = train.optimizer.momentum_optimizer.learning_rate  # type: ignore[union-attr]
    assert momentum is not None
    assert momentum.constant_learning_rate is not None
    assert momentum.constant_learning_rate.learning_rate == pytest.approx(0.01 / 4)
    assert str(data) in str(after.train_input_reader)
    assert not after.pedigree
    images = {choice.what: choice for choice in written.choices}
    assert images["model"].chosen == f"that of {run}"
    assert images["length"].why == "3 epochs"


def test_it_trains_and_the_same_call_resumes(run: Path, data: Path, tmp_path: Path) -> None:
    quick = {"workers": 0, "evaluate": False, "preflight": False}
    first = bw.train(data=data, model=str(run), out=tmp_path / "m", epochs=0.1, **quick)  # type: ignore[arg-type]
    again = bw.train(data=data, model=str(run), out=tmp_path / "m", epochs=1, **quick)  # type: ignore[arg-type]
    assert first.step < again.step
    assert [entry.name for entry in bw.load(tmp_path / "m").categories or ()] != []


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [({"minutes": 1.0}, "minutes: for presets only"), ({"imgsz": "7"}, "imgsz 7: .* minimum 32")],
)
def test_what_does_not_fit_a_run(
    settings: dict[str, float | str], wanted: str, run: Path, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(bw.ConfigError, match=wanted):
        init_config(data, tmp_path / "a.config", InitSettings(model=str(run), **settings))  # type: ignore[arg-type]


def test_weights_of_another_network_name_the_way_to_train_it(run: Path, data: Path, tmp_path: Path) -> None:
    settings = InitSettings(weights=str(run), batch="2", steps=False)
    written = init_config(data, tmp_path / "a.config", settings)
    (why,) = [choice.why for choice in written.choices if choice.what == "weights"]
    assert why.endswith(f"; --model {run} trains their own")
