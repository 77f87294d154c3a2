"""A day's accidents in training: no objects, junk in the log, listeners that fail."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.config.preset import preset_text
from boxwright.data.batch import Batch, stack_targets
from boxwright.data.convert import write_tfrecords
from boxwright.data.shapes import ShapesDataset
from boxwright.evaluation.images import EvaluatedImage
from boxwright.evaluation.results import Evaluation, detection_rows
from boxwright.evaluation.write import ImageResults, write_evaluation
from boxwright.pipeline import messages as m
from boxwright.training.log import Evaluated, Inputs, JsonLines, Scalars, TensorBoard, TrainingLog, draw_inputs
from boxwright.types import Categories, Category, Sample
from boxwright.weights.store import CheckpointStore
from tests.conftest import SMALL_MODEL, Silent, found_objects

LOUD = bw.RunSettings(workers=0, preflight=False, log_every_n=1, summarize_every_n=1, checkpoint_every_n=2)


class Heard(Silent):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


class Empty(ShapesDataset):
    """Images without any object."""

    def __getitem__(self, index: int) -> Sample:
        return super().__getitem__(index).keep(np.zeros(0, np.int64))


def refinedet() -> str:
    return preset_text("refinedet_mobilenet_v2_shapes")


@pytest.mark.slow_cases("refinedet")
@pytest.mark.parametrize("family", ["ssd", "refinedet"])
def test_batches_without_objects(family: str, small_config: Path, tmp_path: Path) -> None:
    write_tfrecords(Empty(8, seed=1, size=(64, 80)), tmp_path / "empty.record")
    config = bw.load_config(small_config, ["train_config.num_steps=3", "train_config.batch_size=2"])
    if family == "refinedet":
        config.model = parse_message(refinedet(), m.TrainEvalPipelineConfig).model
    assert config.train_input_reader is not None
    config.train_input_reader.tf_record_input_reader.input_path = [str(tmp_path / "empty.record")]  # type: ignore[union-attr]
    assert bw.train(config, tmp_path / "m", LOUD).step == 3
    lines = [json.loads(line) for line in (tmp_path / "m" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["Loss/total_loss"] for line in lines if "Loss/total_loss" in line and "evaluation" not in line]
    assert len(losses) == 3
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("count", [0, 3])
def test_what_is_said_of_an_assignment(count: int) -> None:
    """Two images, one without objects or both: the averages TF would log, from a count by hand."""
    detector = bw.build_detector(parse_message(SMALL_MODEL, m.TrainEvalPipelineConfig))
    boxes = np.array([[5, 5, 30, 30], [30, 30, 60, 60], [2, 40, 20, 60]], np.float32)[:count]
    some = Sample(np.zeros((64, 64, 0), np.uint8), boxes, np.zeros(count, np.int64))
    none = Sample(np.zeros((64, 64, 0), np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    predictions = detector.predict(torch.zeros(2, 3, 64, 64))
    said = detector.criterion.describe(predictions, stack_targets([some, none])).scalars
    numbers = {name.split("/")[-1]: float(value) for name, value in said.items()}
    assert numbers["AvgNumGroundtruthBoxesPerImage"] == count / 2
    assert numbers["AvgNumGroundtruthBoxesMatchedPerImage"] == count / 2, "each is forced to one anchor at least"
    anchors = predictions.anchors.shape[0]
    kinds = ("Positive", "Negative", "Ignored")
    assert sum(numbers[f"AvgNum{kind}AnchorsPerImage"] for kind in kinds) == anchors
    assert (numbers["AvgNumPositiveAnchorsPerImage"] > 0) == bool(count)


def test_what_is_said_of_mining() -> None:
    """Of so many anchors that none overlap: all positives, and three negatives to each, or two where there is none."""
    text = SMALL_MODEL.replace(
        "loss {",
        """loss { hard_example_miner { num_hard_examples: 100000 iou_threshold: 1 loss_type: CLASSIFICATION
        max_negatives_per_positive: 3 min_negatives_per_image: 2 }""",
        1,
    )
    text = re.sub(r"weighted_sigmoid_focal \{[^{}]*\}", "weighted_sigmoid { }", text)
    detector = bw.build_detector(parse_message(text, m.TrainEvalPipelineConfig))
    boxes = np.array([[5, 5, 30, 30], [30, 30, 60, 60]], np.float32)
    some = Sample(np.zeros((64, 64, 0), np.uint8), boxes, np.zeros(2, np.int64))
    none = Sample(np.zeros((64, 64, 0), np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    said = detector.criterion.describe(detector.predict(torch.zeros(2, 3, 64, 64)), stack_targets([some, none])).scalars
    positives = float(said["TargetAssignment/Loss/TargetAssignment/AvgNumPositiveAnchorsPerImage"])
    assert positives > 0
    assert float(said["HardExampleMiner/NumPositives"]) == positives
    assert float(said["HardExampleMiner/NumNegatives"]) == 3 * positives + 1


JUNK = ["[1, 2]", '"text"', "5", "{", '{"step": "x"}', '{"no": 1}', "\0\0", "[" * 9000, "{}", "null"]


def test_junk_in_the_log_does_not_keep_a_run_from_resuming(small_config: Path, tmp_path: Path) -> None:
    bw.train(bw.load_config(small_config, ["train_config.num_steps=2"]), tmp_path / "m", LOUD)
    path = tmp_path / "m" / "metrics.jsonl"
    before = path.read_text()
    path.write_bytes(before.encode() + b"\xff\xfe\n" + "\n".join(JUNK).encode())
    bw.train(bw.load_config(small_config, ["train_config.num_steps=3"]), tmp_path / "m", LOUD)
    after = path.read_text()
    assert after.startswith(before), "what was good is as it was"
    assert all("step" in json.loads(line) for line in after.splitlines())


class Failing:
    """Fails at an event, and at its end."""

    def __init__(self, error: Exception) -> None:
        self.error, self.told = error, 0

    def on_event(self, step: int, event: object) -> None:
        self.told += 1
        raise self.error

    def close(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ConnectionError(), ValueError("of its own")])
def test_a_listener_that_fails_is_named_once_disabled_and_counted(error: Exception) -> None:
    heard = Heard()
    failing, whole = Failing(error), []

    class Whole:
        def on_event(self, step: int, event: object) -> None:
            whole.append(step)

        def close(self) -> None:
            whole.append(-1)

    def broken() -> Any:
        raise error

    with TrainingLog() as log:
        log.add("network tracker", lambda: failing)
        log.add("whole", Whole)
        log.add("never", broken)
        for step in (1, 2, 3):
            log.tell(step, Scalars({"loss": 1.0}))
    assert failing.told == 1
    assert whole == [1, 2, 3, -1]
    said = heard.texts
    assert [text.split(" and has been disabled")[0] for text in said[:2]] == [
        "warning: never failed at the start",
        "warning: network tracker failed at step 1",
    ]
    assert said[2:] == ["warning: 2 of the run's listeners failed: never (at the start), network tracker (at step 1)"]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["opening", "hearing", "ending"])
def test_a_tracker_that_fails_costs_no_run(
    where: str, small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys
    from types import ModuleType, SimpleNamespace

    def fail(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no network")

    def fine(*_: Any, **__: Any) -> None:
        pass

    wandb = ModuleType("wandb")
    run = SimpleNamespace(
        define_metric=fine, log=fail if where == "hearing" else fine, finish=fail if where == "ending" else fine
    )
    wandb.init = fail if where == "opening" else lambda **_: run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    heard = Heard()
    config = bw.load_config(small_config, ["train_config.num_steps=2"])
    from dataclasses import replace

    assert bw.train(config, tmp_path / "m", replace(LOUD, track=("wandb",)), {"heard": heard}).step == 2
    named = [text for text in heard.texts if text.startswith("warning: wandb failed")]
    assert len(named) == 1
    assert "no network" in named[0]
    assert CheckpointStore(tmp_path / "m").paths()


@pytest.mark.slow
def test_tensorboards_folder_goes(small_config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its files are written where they are asked for, so no thread prints a traceback."""
    heard = Heard()

    class Remover(Heard):
        def step(self, step: int) -> None:
            if step == 1:
                shutil.rmtree(tmp_path / "m" / "train")
                (tmp_path / "m" / "eval").write_text("in the way")

    config = bw.load_config(small_config, ["train_config.num_steps=3"])
    assert bw.train(config, tmp_path / "m", LOUD, {"test": Remover()}).step == 3
    named = [text for text in heard.texts if text.startswith("warning: TensorBoard failed at step 2")]
    assert len(named) == 1, heard.texts
    assert "Traceback" not in "".join(capfd.readouterr())


def test_events_are_what_tensorboard_reads(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path, start=3, evaluated=2)
    board.on_event(4, Scalars({"loss": 2.5, "nan": float("nan")}))
    board.on_event(4, Evaluated({"mAP": 0.5}, {"a": np.zeros((4, 5, 3), np.uint8)}))
    lines = JsonLines(tmp_path, 0, -1)
    lines.on_event(4, Scalars({"loss": float("inf")}))
    board.close()
    lines.close()
    for folder, tag, value in (("train", "loss", 2.5), ("eval", "mAP", 0.5)):
        events = EventAccumulator(str(tmp_path / folder)).Reload()
        assert [(one.step, one.value) for one in events.Scalars(tag)] == [(4, value)]
    assert EventAccumulator(str(tmp_path / "eval")).Reload().Images("eval_side_by_side_0_0")[0].width == 5
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 4, "loss": None}


def test_the_pictures_of_a_long_run_take_little_room(tmp_path: Path) -> None:
    """Of evaluations 1.25 times apart: the first ones, and 1 + log(300) / log(1.25) = 26 of 300 at most."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    noise = np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8)
    board = TensorBoard(tmp_path, start=0, evaluated=-1)
    for number in range(1, 301):
        if number == 200:  # a run that is resumed goes on as it would have
            board.close()
            board = TensorBoard(tmp_path, start=1990, evaluated=1990)
        board.on_event(10 * number, Evaluated({"mAP": 0.5}, {"a": noise, "b": noise}))
    board.close()
    # Files of one second are read in the order of their numbers' text, 10 before 9.
    sizes = {"images": 0, "scalars": 0}
    events = EventAccumulator(str(tmp_path / "eval"), size_guidance=sizes, purge_orphaned_data=False).Reload()
    steps = sorted(one.step for one in events.Images("eval_side_by_side_0_0"))
    assert steps[:4] == [10, 20, 30, 40]
    assert len(steps) <= 26
    assert all(later <= 1.25 * 1.25 * step for step, later in itertools.pairwise(steps[4:]))
    assert steps[-1] >= 3000 / 1.25
    assert len(events.Scalars("mAP")) == 300
    size = sum(path.stat().st_size for path in (tmp_path / "eval").iterdir())
    assert size < 26 * 2 * noise.size + 300 * 100


def test_large_pictures_are_made_as_small_as_a_screen(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path, start=0, evaluated=-1)
    board.on_event(1, Evaluated({}, {"a": np.random.default_rng(0).integers(0, 256, (2000, 4000, 3), np.uint8)}))
    board.close()
    (picture,) = EventAccumulator(str(tmp_path / "eval")).Reload().Images("eval_side_by_side_0_0")
    assert (picture.width, picture.height) == (1280, 640)
    assert len(picture.encoded_image_string) < 1280 * 640 * 3 / 2, "noise as PNG would have a byte a value"


@pytest.mark.parametrize("size", [(3, 2000), (2000, 3), (1, 1)])
def test_pictures_of_inputs_of_any_size(tmp_path: Path, size: tuple[int, int]) -> None:
    objects = Sample(np.zeros((*size, 0), np.uint8), np.array([[0, 0, 1e30, 1e30]], np.float32), np.zeros(1, np.int64))
    batch = Batch(torch.zeros(1, 3, *size, dtype=torch.uint8), torch.tensor([size]), stack_targets([objects]), ("a",))
    (picture,) = draw_inputs(batch, None, 3)
    assert max(picture.shape) <= 4096
    board = TensorBoard(tmp_path, 0, -1)
    board.on_event(1, Inputs(batch, None))
    board.close()


IDS = ["x" * 100_000, "a/b", "a_b", "²", "../../x", "", "a", "a", "\0", "浣熊"]


def test_ids_of_any_text_have_a_picture_each(tmp_path: Path) -> None:
    pictures = {
        f"{name}" if name else "none": np.full((2, 2, 3), n, np.uint8) for n, name in enumerate(dict.fromkeys(IDS))
    }
    found = found_objects(torch.zeros(1, 4), torch.ones(1), torch.zeros(1, dtype=torch.int64), (2, 2))
    none, pixels = np.zeros((0, 4), np.float32), np.zeros((2, 2, 0), np.uint8)
    with ImageResults(tmp_path / "e") as results:
        for number, name in enumerate(IDS):
            sample = Sample(pixels, none, np.zeros(0, np.int64), id=name)
            results.add(EvaluatedImage(number, sample, found, {}, None, None), Categories((Category(0, 1, "a"),)))
        write_evaluation(Evaluation({"mAP": float("nan")}, [], pictures), results, tmp_path / "e")
    assert len(list((tmp_path / "e" / "pictures").iterdir())) == len(pictures)
    assert [row["image_id"] for row in json.loads((tmp_path / "e" / "detections.json").read_text())] == IDS
    assert [row["id"] for row in json.loads((tmp_path / "e" / "truth.json").read_text())["images"]] == IDS
    assert detection_rows(found, "123", None)[0]["image_id"] == 123
    assert detection_rows(found, "0123", None)[0]["image_id"] == "0123"


def test_two_samples_of_one_id_have_a_picture_each(small_config: Path, tmp_path: Path) -> None:
    from tests.evaluation.evaluate import evaluate_detector

    class Same(ShapesDataset):
        def __getitem__(self, index: int) -> Sample:
            from dataclasses import replace

            return replace(super().__getitem__(index), id="same")

    write_tfrecords(Same(3, seed=2, size=(40, 40)), tmp_path / "same.record")
    config = bw.load_config(
        small_config, [f"eval_input_reader[0].tf_record_input_reader.input_path={tmp_path}/same.record"]
    )
    config.eval_config.num_visualizations = 3  # type: ignore[union-attr]
    detector = bw.build_detector(config, ShapesDataset(1).categories)
    assert len(evaluate_detector(config, detector).pictures) == 3


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64])
def test_seeds_that_cannot_be(seed: int) -> None:
    with pytest.raises(bw.TrainingError, match="seed: expected 0 to"):
        bw.RunSettings(seed=seed)


@pytest.mark.parametrize("name", ["max_seconds", "data_timeout", "patience"])
def test_settings_that_are_no_numbers(name: str) -> None:
    with pytest.raises(bw.TrainingError, match=name):
        bw.RunSettings(**{name: float("nan")})


@pytest.mark.slow_cases("tf2")
@pytest.mark.parametrize("tags", ["tf2", "tf1"])
def test_tags_of_tensorboard_and_histograms_of_variables(small_config: Path, tmp_path: Path, tags: str) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = bw.load_config(small_config, ["train_config.num_steps=1"])
    run = bw.RunSettings(
        workers=0,
        preflight=False,
        device="cpu",
        evaluate=False,
        event_tags=tags,
        summarize_variables=tags == "tf1",
        summarize_every_n=1,
    )
    bw.train(config, tmp_path / "m", run)
    events = EventAccumulator(str(tmp_path / "m" / "train")).Reload()
    names = {
        "tf2": {"Loss/total_loss", "Loss/localization_loss", "learning_rate"},
        "tf1": {"Losses/TotalLoss", "Losses/Loss/localization_loss", "LearningRate"},
    }
    (other,) = names.keys() - {tags}
    found = set(events.Tags()["scalars"])
    assert names[tags] <= found
    assert not names[other] & found
    variables = {f"ModelVars/{name}" for name, _ in bw.restore_detector(tmp_path / "m")[0].network.named_parameters()}
    assert {name for name in events.Tags()["histograms"] if "ModelVars" in name} == (
        variables if tags == "tf1" else set()
    )


def test_tags_of_no_tensorflow() -> None:
    with pytest.raises(bw.TrainingError, match="event_tags: expected tf2 or tf1, found 'tf3'"):
        bw.RunSettings(event_tags="tf3")
