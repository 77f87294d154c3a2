"""Learning rates in proportion to the batch: numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxwright.pipeline.load import load_config
from boxwright.pipeline.run_length import scaled_rate


@pytest.mark.parametrize(
    ("rate", "batch_size", "meant_for", "wanted"),
    [
        (0.08, 128, 128, 0.08),
        (0.08, 16, 128, 0.01),  # an eighth of the batch
        (0.1, 8192, 256, 3.2),  # Goyal et al., section 5.1: 0.1 × 8192 / 256
        (0.04, 1, 64, 0.000625),
        (0.0, 7, 3, 0.0),
    ],
)
def test_in_proportion(rate: float, batch_size: int, meant_for: int, wanted: float) -> None:
    assert scaled_rate(rate, batch_size, meant_for) == pytest.approx(wanted, rel=1e-12)


def file(folder: Path, text: str) -> Path:
    path = folder / "my.config"
    path.write_text(text)
    return path


def test_rates_of_a_preset_follow_the_batch(tmp_path: Path) -> None:
    path = file(tmp_path, 'preset: "ssd_mobilenet_v2_fpnlite_320"\ntrain_config { batch_size: 32 }')
    config = load_config(path)
    rate = config.train_config.optimizer.momentum_optimizer.learning_rate.cosine_decay_learning_rate  # type: ignore[union-attr]
    # A quarter of 0.08 and of 0.026666.
    assert (rate.learning_rate_base, rate.warmup_learning_rate) == pytest.approx((0.02, 0.0066665))  # type: ignore[union-attr]
    assert (rate.total_steps, rate.warmup_steps) == (50_000, 1000)  # type: ignore[union-attr]
    (note,) = config.notes
    assert note.startswith("learning rates are scaled by 32 / 128")
    assert "learning_rate_base 0.08 → 0.02" in note


def test_steps_with_rates_of_their_own_follow_too() -> None:
    config = load_config("preset:ssd300_vgg16_voc", ["train_config.batch_size=8"])
    rate = config.train_config.optimizer.momentum_optimizer.learning_rate.manual_step_learning_rate  # type: ignore[union-attr]
    # A quarter of 1e-3, 1e-4 and 1e-5.
    assert rate.initial_learning_rate == pytest.approx(2.5e-4)  # type: ignore[union-attr]
    assert [step.learning_rate for step in rate.schedule] == pytest.approx([2.5e-5, 2.5e-6])  # type: ignore[union-attr]


RATE = "train_config.optimizer.momentum_optimizer.learning_rate.cosine_decay_learning_rate"


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (f"{RATE}.learning_rate_base=0.05", 0.05),
        (f"{RATE}.warmup_learning_rate=0.001", 0.08),
        (f"{RATE}.total_steps=900", 0.01),  # no rate: the preset's are scaled
    ],
)
def test_a_rate_that_somebody_set_is_taken_as_it_is(change: str, wanted: float) -> None:
    config = load_config("preset:ssd_mobilenet_v2_fpnlite_320", ["train_config.batch_size=16", change])
    rate = config.train_config.optimizer.momentum_optimizer.learning_rate.cosine_decay_learning_rate  # type: ignore[union-attr]
    assert rate.learning_rate_base == pytest.approx(wanted)  # type: ignore[union-attr]
    assert bool(config.notes) == (wanted == 0.01)


def test_another_optimizer_is_taken_as_it_is(tmp_path: Path) -> None:
    text = """preset: "ssd_mobilenet_v2_fpnlite_320"
      train_config { batch_size: 4 optimizer { adam_optimizer { learning_rate { constant_learning_rate {
        learning_rate: 0.002 } } } } }"""
    config = load_config(file(tmp_path, text))
    assert config.notes == []
    assert config.train_config.optimizer.which("optimizer") == "adam_optimizer"  # type: ignore[union-attr]


def test_rates_of_a_file_alone_never_change(tmp_path: Path) -> None:
    text = """train_config { batch_size: 4 optimizer { momentum_optimizer { learning_rate { constant_learning_rate {
        learning_rate: 0.01 } } } } }"""
    config = load_config(file(tmp_path, text), ["train_config.batch_size=400"])
    rate = config.train_config.optimizer.momentum_optimizer.learning_rate.constant_learning_rate  # type: ignore[union-attr]
    assert rate.learning_rate == pytest.approx(0.01)  # type: ignore[union-attr]


def test_what_was_scaled_once_stays(tmp_path: Path) -> None:
    """A run's own configuration names no preset: read again, its rates are those that were used."""
    from boxwright.config.load import dump_message

    first = load_config("preset:ssd_resnet50_v1_fpn_640", ["train_config.batch_size=8"])
    again = load_config(file(tmp_path, dump_message(first)))
    assert again == first
    assert again.notes == []
