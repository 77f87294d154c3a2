"""Presets: there, whole, and those of TensorFlow's zoo as TensorFlow's files are, field by field."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from boxwright.base.errors import ConfigError
from boxwright.config.message import Message
from boxwright.config.preset import FOLDER, preset_names, preset_path, preset_text
from boxwright.config.support import field_status, report
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config
from boxwright.types import Categories, Category
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
# The stem of TensorFlow's file → the preset. One file's name says v1 FPN, its contents v2.
CENTER_NETS = {
    "centernet_hourglass104_512x512_coco17_tpu-8": "center_net_hourglass104_512",
    "centernet_hourglass104_1024x1024_coco17_tpu-32": "center_net_hourglass104_1024",
    "centernet_hourglass104_512x512_kpts_coco17_tpu-32": "center_net_hourglass104_512_keypoints",
    "centernet_hourglass104_1024x1024_kpts_coco17_tpu-32": "center_net_hourglass104_1024_keypoints",
    "centernet_resnet50_v1_fpn_512x512_kpts_coco17_tpu-8": "center_net_resnet50_v1_fpn_512_keypoints",
    "centernet_resnet50_v2_512x512_kpts_coco17_tpu-8": "center_net_resnet50_v2_512_keypoints",
    "centernet_resnet101_v1_fpn_512x512_coco17_tpu-8": "center_net_resnet101_v2_512",
    "center_net_deepmac_1024x1024_coco_tpu-128": "center_net_deepmac_1024_coco",
    "center_net_deepmac_1024x1024_voc_only_tpu-128": "center_net_deepmac_1024_voc",
    "center_net_deepmac_1024x1024_non_voc_only_tpu-128": "center_net_deepmac_1024_non_voc",
    "center_net_deepmac_512x512_voc_only_tpu-32": "center_net_deepmac_512_voc",
}

CONTEXT_RCNN = "context_rcnn_resnet101_serengeti"


def test_all_of_the_zoo_are_there() -> None:
    assert len(ZOO) == 29
    assert len(CENTER_NETS) == 11
    assert set(preset_names()) >= {*ZOO, *CENTER_NETS.values(), CONTEXT_RCNN}
    # The zoo's, its CenterNets, its Context R-CNN, the published recipes, D-FINE's, DEIM's, RT-DETRv4's, RF-DETR's, and what boxwright init
    # begins with, now and before.
    assert len(preset_names()) == 29 + 11 + 1 + 27 + 5 + 5 + 4 + 11 + 2


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


@pytest.mark.slow
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
        children = list(getattr(message, name)) if spec.repeated else [getattr(message, name)]
        if children and children[0] is not None and set(children[0].fields) == {"key", "value"}:
            children.sort(key=lambda entry: entry.key)  # a map has no order
        for number, child in enumerate(children):
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
        assert differences(path, of_zoo(path.stem)) == {}, path.stem
        compared += 1
    assert compared == 29


@pytest.mark.slow
def test_center_nets_are_tensorflows_files() -> None:
    """But for the keypoint label map, which is ours; both name the same class, TensorFlow by its code in Open Images."""
    folder = extra_folder("BOXWRIGHT_CONFIGS")
    if folder is None:
        pytest.skip("BOXWRIGHT_CONFIGS names no folder of pipeline.config files; presets are not compared with them")
    assert set(CENTER_NETS) == {path.stem for path in (folder / "tf2").glob("center*.config")}
    for stem, name in CENTER_NETS.items():
        different = differences(folder / "tf2" / f"{stem}.config", name)
        assert {key.rsplit(".", 1)[1]: pair for key, pair in different.items()} == (
            {
                "keypoint_label_map_path": ("PATH_TO_BE_CONFIGURED", "preset:coco_keypoint_label_map.pbtxt"),
                "keypoint_class_name": ("/m/01g317", "person"),
            }
            if name.endswith("_keypoints")
            else {}
        ), stem


def test_context_rcnn_is_tensorflows_file() -> None:
    folder = extra_folder("BOXWRIGHT_CONFIGS")
    if folder is None:
        pytest.skip("BOXWRIGHT_CONFIGS names no folder of pipeline.config files; presets are not compared with them")
    assert differences(folder / "tf1" / "context_rcnn_resnet101_snapshot_serengeti_sync.config", CONTEXT_RCNN) == {}


def differences(path: Path, name: str) -> dict[str, tuple[Any, Any]]:
    """Return what a preset says otherwise than a file."""
    theirs, ours = load_config(path), load_config(f"preset:{name}")
    for config in (theirs, ours):
        config.clear("train_input_reader")
        config.clear("eval_input_reader")
        config.train_config.clear("fine_tune_checkpoint")  # type: ignore[union-attr]
        config.train_config.clear("batch_size")  # type: ignore[union-attr]
    wanted, found = dict(values(theirs)), dict(values(ours))
    assert len(wanted) > 200
    pairs = {key: (wanted.get(key), found.get(key)) for key in wanted | found}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


@pytest.mark.slow_except("center_net_resnet50_v1_fpn_512_keypoints")
@pytest.mark.parametrize("name", sorted(CENTER_NETS.values()))
def test_center_nets_know_the_persons_keypoints(name: str) -> None:
    """COCO's 17, in its order; from data whose class is called person, or coded with that display name."""
    with torch.device("meta"):
        for person in (Category(0, 1, "person"), Category(0, 1, "/m/01g317", "person")):
            categories = Categories((person, Category(89, 90, "toothbrush")))
            tasks = build_detector(load_config(f"preset:{name}"), categories).postprocessor.keypoints
            assert [task.indices for task in tasks] == ([tuple(range(17))] if name.endswith("_keypoints") else [])


def test_an_unknown_preset_is_told_with_the_closest(tmp_path: Path) -> None:
    path = tmp_path / "my.config"
    path.write_text('# mine\n\npreset: "ssd_mobilnet_v2_fpnlite_320"\n')
    with pytest.raises(ConfigError, match=r"my.config:3:1: preset: .*did you mean ssd_mobilenet_v2_fpnlite_320\?"):
        load_config(path)
    with pytest.raises(ConfigError, match=r"^no preset is named .*efficientdet_d"):
        load_config("preset:efficientdet_d9")
    with pytest.raises(ConfigError, match=r"no preset is named 'zzz'; `boxwright models --all` lists them"):
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
