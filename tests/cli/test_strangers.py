"""What strangers meet first: their configuration checked, their log in a file, their data without a label map."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import boxwright as bw
from boxwright.base.drawing import NAME_AND_SCORE, SHEET_CELL, Captions
from boxwright.cli.main import app
from boxwright.config.load import parse_message
from boxwright.data.convert import encode_example, write_tfrecords
from boxwright.data.image_io import encode_png
from boxwright.data.label_map import load_label_map
from boxwright.data.open_dataset import open_dataset
from boxwright.data.record_classes import classes_of_records
from boxwright.data.shapes import ShapesDataset
from boxwright.data.tfrecord import write_records
from boxwright.evaluation.pictures import draw_detections
from boxwright.pipeline.load import load_config
from boxwright.pipeline.overrides import apply_override
from boxwright.types import Array, Detections
from tests.conftest import SMALL_MODEL, found_objects

RUNNER = CliRunner()

REFUSED_HEAD = """model { ssd { mask_head_config {
  mask_height: 16
  mask_width: 16
} } }
eval_config { num_examples: 3 max_evals: 2 }
eval_input_reader { num_readers: 1 prefetch_size: 3 label_map_path: "x" }
"""


def run(*arguments: object) -> tuple[int, str]:
    result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_check_tells_a_reason_once_and_refusals_first(tmp_path: Path) -> None:
    path = tmp_path / "a.config"
    path.write_text(REFUSED_HEAD)
    status, output = run("config", "check", path)
    lines = output.splitlines()
    assert status == 1
    assert lines[0].startswith(f"{path}:1:15: model.ssd.mask_head_config: refused: ")
    assert not any("mask_width" in line for line in lines), "what lies below goes without saying"
    assert sum("refused" in line for line in lines) == 3, lines
    queue = next(number for number, line in enumerate(lines) if "num_readers" in line)
    assert "prefetch_size" in output
    assert queue > 0
    assert lines[-1] == "training cannot start: remove or change the refused fields"


@pytest.mark.slow
def test_check_ends_with_0_exactly_where_training_can_start(small_config: Path, tmp_path: Path) -> None:
    assert run("config", "check", small_config)[0] == 0
    path = tmp_path / "model.config"
    path.write_text(SMALL_MODEL)
    status, output = run("config", "check", path)
    assert status == 1
    assert f"training cannot start, as this is missing:\n  {path}:1:1: train_config.batch_size: " in output
    cosine = "train_config { optimizer { momentum_optimizer { learning_rate { cosine_decay_learning_rate { } } } } }"
    assert run("config", "check", small_config, "--set", "train_config.num_steps=0")[0] == 0
    status, output = run("config", "check", small_config, "--set", "train_config.num_steps=0", "--set", cosine)
    assert status == 1
    assert re.search(r"as this is missing:\n  .+:\d+:\d+: train_config.num_steps: ", output)
    status, output = run("config", "check", small_config, "--set", "train_input_reader.label_map_path=")
    assert status == 1
    assert ": train_input_reader.label_map_path: " in output


def test_check_says_which_meaning_applies(mobilenet_config: Path) -> None:
    text = mobilenet_config.read_text().replace("ssd_mobilenet_v2_fpn_keras", "ssd_mobilenet_v2_fpn")
    mobilenet_config.write_text(text)
    assert (
        "ssd_mobilenet_v2_fpn is TensorFlow 1's, whose meaning applies:" in run("config", "check", mobilenet_config)[1]
    )


def test_places_are_not_taken_for_pictures(tmp_path: Path) -> None:
    """Line 100 is `:100:` in a place, which stands for a picture elsewhere."""
    path = tmp_path / "a.config"
    path.write_text("\n" * 99 + "eval_config { max_evals: 1 }")
    assert f"{path}:100:15: eval_config.max_evals" in run("config", "check", path)[1]


@pytest.mark.parametrize(
    ("text", "place", "key"),
    [
        ("eval_config {\n  num_examples:\n  max_evals: 10\n}", "2:3", "num_examples"),
        ("eval_config {\n  num_examples: 3\n  max_evals:\n}", "3:3", "max_evals"),
        ("eval_config { max_evals: }", "1:15", "max_evals"),
    ],
)
def test_a_key_without_a_value(text: str, place: str, key: str) -> None:
    with pytest.raises(bw.ConfigError, match=f"^f:{place}: {key} has no value$"):
        parse_message(text, bw.Pipeline, file="f")


def test_a_field_that_tensorflow_removed() -> None:
    text = "model { ssd { feature_extractor { batch_norm_trainable: true } } }"
    with pytest.raises(bw.ConfigError) as caught:
        parse_message(text, bw.Pipeline, file="f")
    wanted = 'f:1:35: object_detection.protos.SsdFeatureExtractor has no field named "batch_norm_trainable": TensorFlow'
    assert str(caught.value).startswith(wanted)


def test_a_repeated_field_is_emptied(small_config: Path) -> None:
    for change in ("eval_input_reader=", "eval_input_reader=[]"):
        config = load_config(small_config)
        assert config.eval_input_reader
        apply_override(config, change)
        assert config.eval_input_reader == []


NEW = ("serve", "benchmark", "exporter_main_v2", "doctor")


def test_help_shows_names_whole() -> None:
    for verb in ("train", "evaluate", "predict", "convert", "export", "inspect", "replay", "demo", *NEW):
        result = RUNNER.invoke(app, [verb, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
        assert result.exit_code == 0
        assert "…" not in result.output.replace("boxwright train …", ""), verb
        assert max(map(len, result.output.splitlines())) <= 80, verb
    assert "--sample_1_of_n_eval_on_train_examples" in RUNNER.invoke(app, ["train", "--help"]).output


@pytest.mark.slow
def test_the_log_without_a_terminal(small_config: Path, tmp_path: Path) -> None:
    """As under nohup or in a container."""
    words = ("--config", small_config, "--model_dir", tmp_path / "m", "--log_every_n", "2", "--workers", "0")
    status, output = run("train", *words, "--no_evaluate")
    assert status == 0
    steps = [line.split()[1] for line in output.splitlines() if line.startswith("step ")]
    assert steps == ["1/6", "6/6"], "a line every half a minute, beside the first and the last"


def found() -> Detections[Array]:
    import torch

    return found_objects(
        boxes=torch.tensor([[2.0, 2, 40, 40]]),
        scores=torch.tensor([0.9]),
        labels=torch.tensor([0]),
        size=(64, 64),
    )


def test_captions() -> None:
    assert NAME_AND_SCORE.of("cat", 0.5) == "cat 0.50"
    assert Captions(names=False).of("cat", 0.5) == "0.50"
    assert Captions(scores=False).of("cat", 0.5) == "cat"
    assert Captions(names=False, scores=False).of("cat", 0.5) == ""
    image = np.zeros((64, 64, 3), np.uint8)
    pictures = [draw_detections(image, found(), 0.5, 9, Captions(names=n, scores=s)) for n in (0, 1) for s in (0, 1)]  # type: ignore[arg-type]
    assert len({picture.tobytes() for picture in pictures}) == 4


def test_lines_between_keypoints(small_config: Path) -> None:
    """Where both ends can be seen; an end that is not there draws nothing."""
    from boxwright.base.drawing import Details, draw_boxes
    from boxwright.evaluation.build import build_evaluation

    config = load_config(
        small_config, ["eval_config { keypoint_edge { start: 0 end: 1 } keypoint_edge { start: 1 end: 9 } }"]
    )
    edges = build_evaluation(config).keypoint_edges
    assert edges == ((0, 1), (1, 9))
    image, box = np.zeros((400, 400, 3), np.uint8), np.array([[0, 0, 399, 399]], np.float32)
    points = np.array([[[100, 200, 1], [300, 200, 1], [200, 300, 0]]], np.float32)

    def middle(edges: tuple[tuple[int, int], ...]) -> bool:
        return bool(draw_boxes(image, box, [0], [""], Details(keypoints=points, edges=edges))[200, 200].any())

    assert middle(edges)
    assert not middle(())
    assert not middle(((0, 2), (1, 2), (-1, 0)))


def test_captions_follow_the_configuration(small_config: Path) -> None:
    from boxwright.evaluation.build import build_evaluation

    config = load_config(small_config, ["eval_config.skip_labels=true"])
    assert build_evaluation(config).captions == Captions(names=False)
    config = load_config(small_config, ["eval_config.skip_scores=true"])
    assert build_evaluation(config).captions == Captions(scores=False)


def test_inspect_takes_names_from_records(tmp_path: Path) -> None:
    write_tfrecords(ShapesDataset(6, seed=1, size=(64, 80)), tmp_path / "a.record")
    known = load_label_map(tmp_path / "label_map.pbtxt")
    (tmp_path / "label_map.pbtxt").unlink()
    status, output = run("inspect", tmp_path / "a.record", "--sheet", tmp_path / "s.png")
    assert status == 0, output
    taken = classes_of_records([str(tmp_path / "a.record")])
    assert {(one.name, one.id) for one in taken} <= {(one.name, one.id) for one in known}
    assert all(one.name in output for one in taken)


def records(path: Path, names: list[str], ids: list[int]) -> Path:
    from boxwright.types import Categories, Category

    sample = ShapesDataset(1, seed=1, size=(32, 32))[0]
    sample = sample.keep(np.arange(len(sample.boxes)) < 1)
    encoded = []
    for name, number in zip(names, ids, strict=True):
        sample.labels[:] = number - 1
        classes = Categories(
            tuple(Category(n, n + 1, name if n == number - 1 else f"other {n}") for n in range(number))
        )
        encoded.append(encode_example(sample, encode_png(sample.image), classes))
    write_records(path, encoded)
    return path


def test_names_of_records_that_contradict_each_other(tmp_path: Path) -> None:
    path = records(tmp_path / "a.record", ["cat", "dog"], [1, 1])
    with pytest.raises(bw.DataError, match="class 1 is named cat and dog; set a label_map"):
        classes_of_records([str(path)])


@pytest.mark.filterwarnings("ignore:.*is not in the label map")
def test_boxes_left_out_are_counted(tmp_path: Path) -> None:
    path = records(tmp_path / "a.record", ["cat", "dog", "cat"], [1, 2, 1])
    (tmp_path / "label_map.pbtxt").write_text('item { id: 2 name: "dog" }')
    assert sum(sample.left_out for sample in map(open_dataset(path).__getitem__, range(3))) == 2
    output = run("inspect", path, "--sheet", tmp_path / "s.png")[1]
    assert "not counted: 2 boxes of classes missing from the label map" in output


@pytest.mark.parametrize("size", [(24, 24), (40, 900), (1080, 1920)])
def test_labels_on_a_contact_sheet_can_be_read(size: tuple[int, int]) -> None:
    """A picture fills its cell, and its letters are 12 pixels high whatever the image's size was."""
    from boxwright.base.drawing import draw_boxes

    image = np.full((*size, 3), 128, np.uint8)
    box = np.array([[0.1 * size[1], 0.4 * size[0], 0.9 * size[1], 0.9 * size[0]]], np.float32)
    with_text = draw_boxes(image, box, [0], ["Mg"], fit=SHEET_CELL)
    without = draw_boxes(image, box, [0], [""], fit=SHEET_CELL)
    assert max(with_text.shape[:2]) == SHEET_CELL
    rows = np.flatnonzero((with_text != without).any((1, 2)))
    assert rows[-1] - rows[0] + 1 >= 10


def test_an_array_of_pillows_is_taken_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    from PIL import Image

    detector = bw.build_detector(parse_message(SMALL_MODEL, bw.Pipeline))
    recwarn.clear()
    detector.detect([np.asarray(Image.new("RGB", (40, 30)))])
    assert not recwarn.list


@pytest.mark.slow_except("arguments4", "arguments5")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["train", "--config", "none.config", "--model_dir", "m"],
        ["evaluate", "--model_dir", "none"],
        ["predict", "none.jpg", "--checkpoint", "none", "--out", "o"],
        ["export", "none", "o.safetensors"],
        ["inspect", "none.record"],
        ["convert", "none.record", "o"],
        ["replay", "none"],
        ["config", "check", "none.config"],
        ["config", "check", "refused.config"],
    ],
)
def test_what_needs_no_network_is_said_before_torch_is_imported(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "refused.config").write_text(REFUSED_HEAD)
    code = (
        "import sys\nfrom boxwright.cli.main import main\nsys.argv[0] = 'boxwright'\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print('status', end.code)\n"
        "print('torch', 'torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert result.stdout.splitlines()[-1] == "torch False", result.stdout + result.stderr
    wanted = "status 0" if "--help" in arguments else "status 1"
    assert wanted in result.stdout
