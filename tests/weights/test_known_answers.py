"""Published weights answer as recorded, or are not opened: made-up ones, recorded with transformers."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.families.d_fine.weights import authors_name
from boxwright.weights.known_answers import made_image, read_known_answers
from boxwright.weights.published import published_weights
from tests.golden.weights import uniform_stream

SIDE = 128
CHANGES = [
    *(f"model.d_fine.image_resizer.fixed_shape_resizer.{side}={SIDE}" for side in ("height", "width")),
    "model.d_fine.decoder.num_queries=60",
]
# Made by tests/golden/known_answers.py, with transformers, from the file that `made_up_weights` writes.
RECORDING = Path(__file__).parent / "known_answers_d_fine_n.json"


def made_up_weights(path: Path) -> Path:
    """Write a D-FINE-N as its authors write it, whose weights follow from their names; return the path."""
    network = bw.build_detector(bw.load_config("preset:d_fine_n_coco", CHANGES)).network
    state = network.state_dict()
    for name, value in state.items():
        if value.dtype != torch.float32 or name.endswith(("up", "reg_scale")):
            continue
        numbers = torch.from_numpy(uniform_stream(name, value.numel()) * 2 - 1).float().reshape(value.shape)
        if value.ndim > 1:
            value.copy_(numbers * (3 / value[0].numel()) ** 0.5)
        else:
            value.copy_(0.2 * numbers + (1.0 if name.endswith(("weight", "running_var", "scale")) else 0.0))
    torch.save({"model": {authors_name(name): value for name, value in state.items()}}, path)
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights, outside of any cache."""
    return made_up_weights(tmp_path_factory.mktemp("weights") / "made_up_n.pth")


Publish = Callable[[str, str], Path]


@pytest.fixture
def publish(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publish]:
    """A function that publishes the weights in a team's table, with further overrides and a recording."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()

    def write(recording: str, activation: str = "RELU") -> Path:
        overrides = json.dumps([*CHANGES, f"model.d_fine.decoder.activation={activation}"])
        (tmp_path / "table.toml").write_text(
            '[made_up]\npublisher = "nobody"\npage = "https://example.com/page"\nlicense = "MIT"\ncode_license = "MIT"\n'
            'data = ["nothing"]\nclasses = "coco80"\nshown = "recordings"\naddress = "https://example.com/{file}"\n'
            f'[made_up.weights.made_up_n]\nfile = "{file.name}"\nsize = {file.stat().st_size}\nsha256 = "{digest}"\n'
            f'digest_by = "publisher"\npresets = ["d_fine_n_coco"]\noverrides = {overrides}\n'
        )
        (tmp_path / "known_answers").mkdir(exist_ok=True)
        (tmp_path / "known_answers" / f"{digest}.json").write_text(recording)
        published_weights.cache_clear()
        return file

    monkeypatch.setenv("BOXWRIGHT_WEIGHTS_TABLE", str(tmp_path / "table.toml"))
    monkeypatch.setenv("BOXWRIGHT_WEIGHTS", str(tmp_path / "cache"))
    yield write
    published_weights.cache_clear()


def test_weights_that_answer_as_recorded_say_so_once(publish: Publish, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "boxwright")
    bw.load(publish(RECORDING.read_text(), "RELU"), device="cpu")
    assert caplog.text.count("made_up_n answers as published (8 detections, transformers") == 1


def test_another_activation_is_noticed(publish: Publish) -> None:
    """SiLU in the place of ReLU, which fits every tensor; a configuration of the user's own is not compared."""
    path = publish(RECORDING.read_text(), "SILU")
    with pytest.raises(bw.CheckpointError, match=r"made_up_n: does not answer as published .*transformers") as raised:
        bw.load(path, device="cpu")
    assert "\n" not in str(raised.value)
    assert bw.load(path, device="cpu", config=bw.load_config("preset:d_fine_n_coco", CHANGES)).step == 0


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"score": 0.2}, r"off by 0\.\d+ in its score \(at most 0.001\) and by 0.\d pixels"),
        ({"box": [0.0, 0.0, 1.0, 1.0]}, r"off by 0.0\d+ in its score .* and by \d+\.\d pixels \(at most 0.5\)"),
        ({"label": 80}, r"class 80 with score .* was recorded, and nothing of that class is detected"),
    ],
)
def test_what_differs_is_said(publish: Publish, change: dict[str, object], problem: str) -> None:
    content = json.loads(RECORDING.read_text())
    content["detections"][3] |= change
    with pytest.raises(bw.CheckpointError, match=problem):
        bw.load(publish(json.dumps(content), "RELU"), device="cpu")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value"),
        ("[]", "list indices"),
        ('{"detections": []}', "it has no detections"),
        ('{"detections": [{}], "score_tolerance": 0, "box_tolerance": 1}', "tolerances have to be above 0"),
        ("\x00", "Expecting value"),
    ],
)
def test_damaged_recordings(publish: Publish, text: str, problem: str) -> None:
    digest = hashlib.sha256(publish(text, "RELU").read_bytes()).hexdigest()
    with pytest.raises(bw.CheckpointError, match=f"not a recording of known answers: .*{problem}"):
        read_known_answers(digest)
    assert read_known_answers("0" * 64) is None


def test_the_image_is_that_of_its_formula() -> None:
    """Single pixels, by hand: the background, the disc and the rectangle."""
    image = made_image(96, 160)
    assert (image.shape, image.dtype) == ((96, 160, 3), np.uint8)
    assert image[0, 159].tolist() == [0, 253, 104]  # 255 * 159 // 160; (9 ^ 0) * 40 % 256
    assert image[95, 0].tolist() == [252, 0, 200]  # 255 * 95 // 96; (0 ^ 5) * 40
    assert image[32, 53].tolist() == [230, 230, 230]
    assert image[48, 80].tolist() == [20, 60, 150]
    assert image[83, 119].tolist() == [20, 60, 150]
    assert image[84, 119].tolist() == [223, 189, 80]  # below the rectangle: 255 * 84 // 96, 255 * 119 // 160, 5 ^ 7


@pytest.mark.slow
def test_the_recording_is_what_transformers_computes(file: Path, publish: Publish, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the oracle: uv pip install --group oracles")
    from tests.golden.known_answers import record

    path = publish(RECORDING.read_text(), "RELU")
    shutil.rmtree(tmp_path / "known_answers")
    made = json.loads(record(path, tmp_path).read_text())
    kept = json.loads(RECORDING.read_text())
    for row, other in zip(made["detections"], kept["detections"], strict=True):
        assert row["label"] == other["label"]
        np.testing.assert_allclose(row["score"], other["score"], atol=1e-4)
        np.testing.assert_allclose(row["box"], other["box"], atol=0.05)
