"""A preset's recipe for a run of another length, and for another batch."""

from __future__ import annotations

from pathlib import Path

import pytest

import boxwright as bw
from boxwright.pipeline import messages as m
from boxwright.pipeline.run_length import schedule_mismatch, set_num_steps, stretch_schedule

DEIM = 'preset: "deim_d_fine_s_coco"\nnum_classes: 3\n'


def trained(tmp_path: Path, text: str, *overrides: str) -> m.TrainConfig:
    path = tmp_path / "my.config"
    path.write_text(text)
    config = bw.load_config(path, overrides)
    assert config.train_config is not None
    return config.train_config


def steps_of(train: m.TrainConfig) -> list[tuple[int, int]]:
    return [(step.from_step, step.until_step) for step in train.data_augmentation_options]


def test_everything_that_counts_steps_keeps_its_share_of_the_run(tmp_path: Path) -> None:
    """DEIM's 483,700 steps as 4000, each number by hand: its mosaic would begin at step 14,658 otherwise."""
    train = trained(tmp_path, f"{DEIM}train_config {{ num_steps: 4000 }}")
    assert steps_of(train) == [(121, 1939), *[(121, 3636)] * 3, (0, 0)]
    assert train.batch_mixup is not None
    assert (train.batch_mixup.from_step, train.batch_mixup.until_step) == (121, 1939)
    assert train.restart_from_best_step == 3636
    assert train.multi_scale is not None
    assert train.multi_scale.until_step == 3636
    assert train.optimizer is not None
    assert train.optimizer.adamw_optimizer is not None
    cosine = train.optimizer.adamw_optimizer.learning_rate.cosine_decay_learning_rate  # type: ignore[union-attr]
    assert cosine is not None
    assert (cosine.total_steps, cosine.warmup_steps, cosine.hold_base_rate_steps) == (3636, 17, 1923)
    # A window of 10,000 steps of 483,700 is one of 82.7 of 4000.
    assert train.optimizer.moving_average_decay == pytest.approx(1 - 1 / 82.7, abs=1e-5)
    assert not train.has("recipe_steps")


def test_what_a_file_or_an_override_says_stays(tmp_path: Path) -> None:
    own = """optimizer { adamw_optimizer { learning_rate { cosine_decay_learning_rate { warmup_steps: 777 } } }
      moving_average_decay: 0.9995 }"""
    train = trained(tmp_path, f"{DEIM}train_config {{ {own} }}", "train_config.num_steps=4000",
                    "train_config.multi_scale.until_step=99")  # fmt: skip
    assert train.optimizer is not None
    assert train.optimizer.moving_average_decay == pytest.approx(0.9995)
    assert train.optimizer.adamw_optimizer is not None
    cosine = train.optimizer.adamw_optimizer.learning_rate.cosine_decay_learning_rate  # type: ignore[union-attr]
    assert cosine is not None
    assert (cosine.total_steps, cosine.warmup_steps) == (3636, 777)
    assert train.multi_scale is not None
    assert train.multi_scale.until_step == 99


def test_the_presets_own_length_changes_nothing_and_says_nothing() -> None:
    config = bw.load_config("preset:deim_d_fine_s_coco")
    assert config.train_config is not None
    assert steps_of(config.train_config)[0] == (14658, 234521)
    assert config.notes == []


def test_a_later_length_starts_from_the_one_before(tmp_path: Path) -> None:
    train = trained(tmp_path, f"{DEIM}train_config {{ num_steps: 8000 }}")
    note = set_num_steps(train, 4000)
    assert "recipe of 8000 steps is fitted to 4000" in note
    assert steps_of(train)[1] == (121, 3636)
    assert set_num_steps(train, 4000) == ""


def test_a_file_without_a_preset_says_what_is_done(tmp_path: Path) -> None:
    train = trained(
        tmp_path, "train_config { num_steps: 50 data_augmentation_options { caffe_distort { } until_step: 900 } }"
    )
    assert set_num_steps(train, 100) == ""
    assert steps_of(train) == [(0, 900)]


@pytest.mark.parametrize(
    ("preset", "said"),
    [
        ("d_fine_n_coco", "learning rates stay those of the preset, for batches of 128, though train_config.batch_size is 8: AdamW"),
        ("ssd_mobilenet_v2_fpn_small", "for batches of 16, though train_config.batch_size is 8: Adam divides"),
        ("ssd_mobilenet_v2_fpnlite_320", "learning rates are scaled by 8 / 128"),
    ],
)  # fmt: skip
def test_of_another_batch_rates_are_scaled_or_a_line_says_why_not(preset: str, said: str) -> None:
    notes = bw.load_config(f"preset:{preset}", ["train_config.batch_size=8"]).notes
    assert len(notes) == 1
    assert said in notes[0]


def test_steps_of_a_schedule_rise_in_the_shortest_run() -> None:
    train = bw.load_config("preset:refinedet320_vgg16_voc", ["train_config.num_steps=3"]).train_config
    assert train is not None
    momentum = train.optimizer.momentum_optimizer  # type: ignore[union-attr]
    schedule = momentum.learning_rate.manual_step_learning_rate.schedule  # type: ignore[union-attr]
    steps = [one.step for one in schedule]
    assert len(steps) > 1
    assert steps == sorted(set(steps))


def test_what_is_set_in_python_stays() -> None:
    train = bw.load_config("preset:ssd_mobilenet_v2_fpnlite_320").train_config
    assert train is not None
    cosine = train.optimizer.momentum_optimizer.learning_rate.cosine_decay_learning_rate  # type: ignore[union-attr]
    assert cosine is not None
    cosine.warmup_steps = 50
    assert "total_steps 50000 → 1000" in set_num_steps(train, 1000)
    assert (cosine.total_steps, cosine.warmup_steps) == (1000, 50)


OWN = """train_config { num_steps: 100 %s
  optimizer { momentum_optimizer { learning_rate { cosine_decay_learning_rate { total_steps: 100 warmup_steps: 10 } } } }
}"""


def cosine_of(train: m.TrainConfig) -> tuple[int, int]:
    assert train.optimizer is not None
    assert train.optimizer.momentum_optimizer is not None
    cosine = train.optimizer.momentum_optimizer.learning_rate.cosine_decay_learning_rate  # type: ignore[union-attr]
    assert cosine is not None
    return cosine.total_steps, cosine.warmup_steps


def test_schedules_of_a_file_that_says_for_how_many_steps_they_are_follow_the_run(tmp_path: Path) -> None:
    train = trained(tmp_path, OWN % "recipe_steps: 100", "train_config.num_steps=300")
    assert cosine_of(train) == (300, 30)
    note = set_num_steps(train, 600)
    assert cosine_of(train) == (600, 60)
    assert f"the recipe of {tmp_path / 'my.config'}, of 300 steps is fitted to 600" in note
    assert not train.has("recipe_steps"), "what a run writes is as it is"


def test_schedules_of_a_file_that_does_not_say_so_stay_and_a_line_names_the_switch(tmp_path: Path) -> None:
    train = trained(tmp_path, OWN % "", "train_config.num_steps=300")
    assert cosine_of(train) == (100, 10)
    line = "the learning rate ends at step 100, the run at 300; --stretch_schedule ends both together"
    assert schedule_mismatch(train) == line
    assert "stretched to 300" in stretch_schedule(train)
    assert cosine_of(train) == (300, 30)
    assert (schedule_mismatch(train), stretch_schedule(train)) == ("", "")


def test_a_rate_that_stays_at_its_end_value_for_the_last_steps_is_meant_so(tmp_path: Path) -> None:
    train = trained(tmp_path, OWN.replace("warmup_steps: 10", "end_factor: 0.5") % "", "train_config.num_steps=300")
    assert schedule_mismatch(train) == ""
    assert stretch_schedule(train) == (
        "nothing is stretched: from step 100 on the learning rate stays at its end_factor, to step 300"
    )


def test_what_an_override_says_of_such_a_file_stays(tmp_path: Path) -> None:
    warmup = "train_config.optimizer.momentum_optimizer.learning_rate.cosine_decay_learning_rate.warmup_steps=7"
    assert cosine_of(trained(tmp_path, OWN % "recipe_steps: 100", warmup, "train_config.num_steps=300")) == (300, 7)


def test_a_preset_below_such_a_file_is_fitted_to_it_first(tmp_path: Path) -> None:
    """DEIM's mosaic begins at step 14,658 of 483,700: at 121 of 4000, and at 242 of 8000."""
    own = "train_config { num_steps: 4000 recipe_steps: 4000 freeze_stage { variables: 'backbone' until_step: 400 } }"
    train = trained(tmp_path, f"{DEIM}{own}")
    assert steps_of(train)[0] == (121, 1939)
    longer = trained(tmp_path, f"{DEIM}{own}", "train_config.num_steps=8000")
    assert steps_of(longer)[0] == (242, 3878)
    assert longer.freeze_stage[0].until_step == 800
