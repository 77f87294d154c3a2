"""The field's words for what a configuration says at length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from boxwright.base.errors import ConfigError
from boxwright.cli.main import app
from boxwright.cli.words import FieldOptions, apply_words, batch_override
from boxwright.config.load import parse_message
from boxwright.pipeline.load import load_config
from boxwright.pipeline.messages import TrainEvalPipelineConfig

RUNNER = CliRunner()


def changed(text: str, **words: Any) -> TrainEvalPipelineConfig:
    config = parse_message(text, TrainEvalPipelineConfig)
    apply_words(config, FieldOptions(**words))
    return config


def rate(schedule: str, lr: float) -> Any:
    text = f"train_config {{ optimizer {{ adam_optimizer {{ learning_rate {{ {schedule} }} }} }} }}"
    found = changed(text, lr=lr).train_config
    assert found is not None
    return getattr(found.optimizer.adam_optimizer.learning_rate, schedule.partition(" ")[0])  # type: ignore[union-attr]


def test_the_learning_rate_of_each_schedule() -> None:
    assert rate("constant_learning_rate { learning_rate: 0.1 }", 0.3).learning_rate == 0.3
    cosine = rate("cosine_decay_learning_rate { learning_rate_base: 0.08 warmup_learning_rate: 0.02 }", 0.04)
    assert (cosine.learning_rate_base, cosine.warmup_learning_rate) == pytest.approx((0.04, 0.01))
    decay = rate("exponential_decay_learning_rate { initial_learning_rate: 0.4 min_learning_rate: 0.1 }", 0.2)
    assert (decay.initial_learning_rate, decay.min_learning_rate, decay.burnin_learning_rate) == pytest.approx(
        (0.2, 0.05, 0)
    )
    steps = "schedule { step: 10 learning_rate: 0.02 } schedule { step: 20 learning_rate: 0.002 }"
    manual = rate(f"manual_step_learning_rate {{ initial_learning_rate: 0.2 {steps} }}", 0.1)
    assert manual.initial_learning_rate == 0.1
    assert [step.learning_rate for step in manual.schedule] == pytest.approx([0.01, 0.001])
    rising = rate(f"manual_step_learning_rate {{ initial_learning_rate: 0.004 {steps} warmup: true }}", 0.01)
    assert rising.initial_learning_rate == pytest.approx(0.002)
    assert [step.learning_rate for step in rising.schedule] == pytest.approx([0.01, 0.001])


def test_a_learning_rate_without_a_place() -> None:
    with pytest.raises(ConfigError, match="--lr: the configuration has no learning rate; name an optimizer"):
        changed("train_config { }", lr=0.1)


def test_epochs_are_steps_of_the_batch(small_config: Path) -> None:
    """Twelve images: three epochs are 36, in batches of 5 eight steps."""
    words = FieldOptions(epochs=3, batch="5")
    config = load_config(small_config, batch_override(words))
    lines = apply_words(config, words)
    assert config.train_config is not None
    assert (config.train_config.num_steps, config.train_config.batch_size) == (8, 5)
    assert lines == ["3 epochs of 12 images, 5 per step: 8 steps"]


@pytest.mark.parametrize("batch", ["0", "-1", "many", "1.5"])
def test_what_is_no_batch(batch: str) -> None:
    with pytest.raises(ConfigError, match=f"--batch {batch}: expected a number of images, or auto"):
        batch_override(FieldOptions(batch=batch))


def test_the_rates_of_a_preset_follow_the_batch(tmp_path: Path) -> None:
    """FPNLite's rate is 0.08 for 128 images: 0.005 for 8."""
    (tmp_path / "c.config").write_text('preset: "ssd_mobilenet_v2_fpnlite_320"')
    config = load_config(tmp_path / "c.config", batch_override(FieldOptions(batch="8")))
    assert config.train_config is not None
    assert config.train_config.optimizer is not None
    assert config.train_config.optimizer.momentum_optimizer is not None
    rate = config.train_config.optimizer.momentum_optimizer.learning_rate
    assert rate is not None
    assert rate.cosine_decay_learning_rate is not None
    assert rate.cosine_decay_learning_rate.learning_rate_base == pytest.approx(0.005)


def test_epochs_name_a_schedule_that_ends_elsewhere(small_config: Path) -> None:
    schedule = "train_config.optimizer.momentum_optimizer.learning_rate.cosine_decay_learning_rate"
    config = load_config(small_config, [f"{schedule}.total_steps=50", f"{schedule}.warmup_steps=0"])
    _, line = apply_words(config, FieldOptions(epochs=1))
    assert line == "the learning rate ends at step 50, the run at 3; --stretch_schedule ends both together"
    (line,) = apply_words(config, FieldOptions(stretch_schedule=True))
    assert line == "the schedule of 50 steps is stretched to 3 (total_steps 50 → 3)"
    assert apply_words(config, FieldOptions(stretch_schedule=True)) == []


def test_a_schedule_without_an_end_is_not_stretched(small_config: Path) -> None:
    with pytest.raises(
        ConfigError, match="--stretch_schedule: the learning rate has no end; a cosine's is total_steps"
    ):
        apply_words(load_config(small_config), FieldOptions(stretch_schedule=True))


def resizer(text: str, side: int) -> Any:
    config = changed(f"model {{ ssd {{ image_resizer {{ {text} }} }} }}", imgsz=str(side))
    assert config.model is not None
    assert config.model.ssd is not None
    return getattr(config.model.ssd.image_resizer, text.partition(" ")[0])


def test_the_input_size() -> None:
    fixed = resizer("fixed_shape_resizer { height: 300 width: 320 }", 640)
    assert (fixed.height, fixed.width) == (640, 640)
    square = resizer("keep_aspect_ratio_resizer { min_dimension: 512 max_dimension: 512 }", 640)
    assert (square.min_dimension, square.max_dimension) == (640, 640)


def test_an_input_size_without_a_place_names_the_right_way() -> None:
    """And what it names works."""
    with pytest.raises(ConfigError, match="shorter side of 600 and a longer of at most 1200") as told:
        resizer("keep_aspect_ratio_resizer { min_dimension: 600 max_dimension: 1200 }", 300)
    path = "model.ssd.image_resizer.keep_aspect_ratio_resizer"
    assert f"--set {path}.min_dimension=300 --set {path}.max_dimension=600" in str(told.value)
    with pytest.raises(ConfigError, match="is identity_resizer, which has no side") as told:
        resizer("identity_resizer { }", 300)
    from boxwright.pipeline.overrides import apply_override

    config = parse_message("model { ssd { image_resizer { identity_resizer { } } } }", TrainEvalPipelineConfig)
    apply_override(config, str(told.value).partition("--set '")[2].rstrip("'"))
    assert config.model is not None
    assert config.model.ssd is not None
    assert config.model.ssd.image_resizer is not None
    assert config.model.ssd.image_resizer.fixed_shape_resizer is not None
    assert config.model.ssd.image_resizer.fixed_shape_resizer.height == 300


def test_weights() -> None:
    train = changed("train_config { }", weights='a "b".pth').train_config
    assert train is not None
    assert (train.fine_tune_checkpoint, train.fine_tune_checkpoint_type) == ('a "b".pth', "transfer")
    train = changed('train_config { fine_tune_checkpoint_type: "full" }', weights="run").train_config
    assert train is not None
    assert (train.fine_tune_checkpoint, train.fine_tune_checkpoint_type) == ("run", "full")
    model = changed('model { ssd { feature_extractor { type: "timm/resnet18" } } }', weights="timm").model
    assert model is not None
    assert model.ssd is not None
    assert model.ssd.feature_extractor is not None
    assert model.ssd.feature_extractor.pretrained
    with pytest.raises(ConfigError, match="timm has no weights for the backbone ssd_x"):
        changed('model { ssd { feature_extractor { type: "ssd_x" } } }', weights="timm")


def said(*words: str) -> str:
    result = RUNNER.invoke(app, list(words), prog_name="boxwright")
    assert result.exit_code == 2, result.output
    assert len(result.output.splitlines()) == 1
    return result.output


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["trian"], "error: no command 'trian'; did you mean train?"),
        (["detct"], "error: no command 'detct'; did you mean detect?"),
        (["xyzzy"], "error: no command 'xyzzy'; boxwright --help lists them"),
        (["weights", "lst"], "error: no command 'lst'; did you mean list?"),
        (["config", "xyzzy"], "error: no command 'xyzzy'; boxwright config --help lists them"),
    ],
)
def test_an_unknown_command_names_the_nearest_alone(words: list[str], wanted: str) -> None:
    assert said(*words).strip() == wanted


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["train", "--modeldir", "m"], "no option --modeldir; did you mean --model_dir?"),
        (["train", "--batch-size", "4"], "no option --batch_size; here it is --batch"),
        (["train", "--resume"], "here it is --model_dir alone: a run in it is resumed"),
        (["evaluate", "--conf=0.3"], "here it is --set eval_config.min_score_threshold"),
        (["predict", "--source", "a.jpg"], "boxwright predict photos --model_dir model"),
        (["detect", "--imgsz", "640"], "train another: boxwright train --imgsz"),
        (["val", "--weights", "m"], "--model_dir: a run's folder, a checkpoint or an export"),
        (["predict", "--set", "--source", "a.jpg"], "missing option"),
        (["predict", "--xyzzy", "a.jpg"], "error: no option --xyzzy; boxwright predict --help lists the options"),
        (["train", "-z"], "error: no such option: -z; boxwright train --help explains it"),
        (["train", "--epochs", "many", "data"], "error: invalid value for '--epochs': expected a valid number"),
        (["serve", "x", "--port", "99999"], "error: invalid value for '--port': expected at most 65535"),
        (["train", "a", "b"], "error: too many arguments: b"),
    ],
)
def test_options_by_other_names_are_answered(words: list[str], wanted: str) -> None:
    assert wanted in said(*words)


def test_answers_name_options_that_are_there() -> None:
    import re

    from boxwright.cli.commands import load_command
    from boxwright.cli.words import OTHER_NAMES

    for name, answers in OTHER_NAMES.items():
        known = {flag for param in load_command(name).params for flag in param.opts}
        train = {flag for param in load_command("train").params for flag in param.opts}
        for other, answer in answers.items():
            assert f"--{other}" not in known, (name, other)
            elsewhere = train if "boxwright train" in answer else {"--min_score"} if "predict has" in answer else set()
            assert set(re.findall(r"--\w+", answer)) <= known | elsewhere, (name, other)


@pytest.mark.parametrize(("alias", "command"), [("val", "evaluate"), ("detect", "predict")])
def test_other_names_of_commands(alias: str, command: str) -> None:
    one, other = (RUNNER.invoke(app, [name, "--help"]).output.splitlines()[1:] for name in (alias, command))
    assert one == other
    assert alias not in RUNNER.invoke(app, ["--help"]).output.split()


def test_version() -> None:
    import boxwright

    result = RUNNER.invoke(app, ["--version"])
    assert (result.exit_code, result.output.strip()) == (0, boxwright.__version__)
