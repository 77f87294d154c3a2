"""Presets: there, whole, and those of TensorFlow's zoo as TensorFlow's files are, field by field."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from boxwright.base.errors import ConfigError
from boxwright.config import load_config
from boxwright.config.message import Message
from boxwright.config.preset import FOLDER, preset_names, preset_path, preset_text
from boxwright.config.support import field_status, report
from tests.conftest import extra_folder

SIDES = ("640", "1024", "800x1333")
ZOO = {
    "ssd_mobilenet_v1_fpn_640",
    "ssd_mobilenet_v2_320",
    "ssd_mobilenet_v2_fpnlite_320",
    "ssd_mobilenet_v2_fpnlite_640",
}
ZOO |= {f"ssd_resnet{depth}_v1_fpn_{side}" for depth in (50, 101, 152) for side in SIDES[:2]}
ZOO |= {f"efficientdet_d{level}" for level in range(8)}
ZOO |= {f"faster_rcnn_resnet{depth}_v1_{side}" for depth in (50, 101, 152) for side in SIDES}
ZOO |= {"faster_rcnn_resnet50_v1_fpn_640", "mask_rcnn_inception_resnet_v2_1024"}


def test_all_of_the_zoo_are_there() -> None:
    assert len(ZOO) == 29
    assert set(preset_names()) >= ZOO
    assert len(preset_names()) == 29 + 26 + 1  # the zoo's, the published recipes, and what boxwright init begins with


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_whole_and_names_no_data(name: str) -> None:
    config = load_config(f"preset:{name}")
    assert config.train_input_reader is None
    assert config.eval_input_reader == []
    assert [str(row) for row in report(config) if row.status.verdict != "honored"] == []
    assert config.notes == []
    train = config.train_config
    assert train is not None
    assert train.num_steps > 0
    assert train.has("batch_size")
    assert train.optimizer is not None
    text = preset_text(name)
    assert text.startswith("# ")
    assert "learning_rate_batch_size" not in text or f"batch_size: {train.batch_size}\n" in text


def test_rates_of_momentum_are_meant_for_the_batch_of_the_preset() -> None:
    """The rates of a preset do not change as it is read alone; Adam's are meant for no batch in particular."""
    for name in preset_names():
        texts = [preset_text(name)]
        while match := re.search(r'^preset: "(\w+)"', texts[-1], re.MULTILINE):
            texts.append(preset_text(match[1]))
        said = [match[1] for text in texts if (match := re.search(r"learning_rate_batch_size: (\d+)", text))]
        config = load_config(f"preset:{name}")
        optimizer = config.train_config.optimizer.which("optimizer")  # type: ignore[union-attr]
        assert said[:1] == ([str(config.train_config.batch_size)] if optimizer == "momentum_optimizer" else []), name  # type: ignore[union-attr]


def of_zoo(stem: str) -> str:
    """Return the preset of one of TensorFlow's files."""
    short = re.sub(r"_coco17_.*", "", stem).removeprefix("ssd_efficient")
    if stem.startswith("ssd_efficient"):
        return f"efficient{short.rsplit('_', 1)[0]}"
    return re.sub(r"_(\d+)x\1$", r"_\1", short)


def values(message: Message, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every field that does something: of scalars their value, set or default; of messages that they are there."""
    specs = message.fields
    for name, spec in specs.items():
        where = f"{path}.{name}"
        if field_status(type(message), name).verdict == "without effect":
            continue
        if spec.kind != "message":
            yield where, getattr(message, name)
            continue
        for number, child in enumerate(getattr(message, name) if spec.repeated else [getattr(message, name)]):
            yield f"{where}[{number}]", child is not None
            if child is not None:
                yield from values(child, f"{where}[{number}]")


def test_presets_are_tensorflows_files() -> None:
    """Apart from paths, readers, the checkpoint and the batch size."""
    folder = extra_folder("BOXWRIGHT_CONFIGS")
    if folder is None:
        pytest.skip("BOXWRIGHT_CONFIGS names no folder of pipeline.config files; presets are not compared with them")
    paths = [path for path in (folder / "tf2").glob("*.config") if not path.stem.startswith("center")]
    assert {of_zoo(path.stem) for path in paths} == ZOO
    compared = 0
    for path in paths:
        theirs, ours = load_config(path), load_config(f"preset:{of_zoo(path.stem)}")
        for config in (theirs, ours):
            config.clear("train_input_reader")
            config.clear("eval_input_reader")
            config.train_config.clear("fine_tune_checkpoint")  # type: ignore[union-attr]
            config.train_config.clear("batch_size")  # type: ignore[union-attr]
        wanted, found = dict(values(theirs)), dict(values(ours))
        different = {key: (wanted.get(key), found.get(key)) for key in wanted | found}
        assert {key: pair for key, pair in different.items() if pair[0] != pair[1]} == {}, path.stem
        assert len(wanted) > 200
        compared += 1
    assert compared == 29


def test_an_unknown_preset_is_told_with_the_closest(tmp_path: Path) -> None:
    path = tmp_path / "my.config"
    path.write_text('# mine\n\npreset: "ssd_mobilnet_v2_fpnlite_320"\n')
    with pytest.raises(ConfigError, match=r"my.config:3:1: preset: .*did you mean ssd_mobilenet_v2_fpnlite_320 or "):
        load_config(path)
    with pytest.raises(ConfigError, match=r"^preset: there is none named .*efficientdet_d"):
        load_config("preset:efficientdet_d9")
    with pytest.raises(ConfigError, match=r"there is none named 'zzz'; `boxwright models` lists them all"):
        preset_path("zzz")


def test_places_in_a_preset_name_its_file() -> None:
    config = load_config("preset:efficientdet_d3")
    first, second = config.model.ssd.location("anchor_generator"), config.model.ssd.feature_extractor.location("type")  # type: ignore[union-attr]
    assert first is not None
    assert first.file == str(FOLDER / "efficientdet_d0.config")
    assert second is not None
    assert second.file == str(FOLDER / "efficientdet_d3.config")


def test_reading_a_preset_needs_no_torch() -> None:
    code = "import sys, boxwright as bw; bw.load_config('preset:efficientdet_d0'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
