from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import boxwright as bw
from boxwright.config.load import dump_message, parse_message
from boxwright.config.message import Message
from boxwright.pipeline import messages as m
from boxwright.pipeline.load import load_config
from boxwright.weights.export_weights import _LOCAL, KEYPOINTS, pack_weights_folder, published_config
from boxwright.weights.restore import restore_detector, stored_config
from tests.conftest import SMALL_MODEL, SMALL_TRAINING

_READERS = """
train_input_reader { label_map_path: "/home/me/map.pbtxt" tf_record_input_reader { input_path: "/home/me/t.record" } }
eval_input_reader { label_map_path: "/home/me/map.pbtxt" tf_record_input_reader { input_path: "/home/me/v.record" } }
eval_config { visualization_export_dir: "/home/me/drawn" export_path: "/home/me/found" }
"""
# Detectors that learn something for which data have to be read in a certain way.
PRESETS = (
    "center_net_resnet50_v1_fpn_512_keypoints",
    "mask_rcnn_inception_resnet_v2_1024",
    "context_rcnn_resnet101_serengeti",
    "refinedet512_vgg16_voc",
    "d_fine_s_coco",
)


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_nothing_of_the_machine_is_in_it(tmp_path: Path) -> None:
    text = SMALL_MODEL + SMALL_TRAINING + _READERS
    text = text.replace("train_config {", 'train_config { fine_tune_checkpoint: "/home/me/ckpt-0"', 1)
    config = parse_message(text, m.TrainEvalPipelineConfig)
    assert config.train_config is not None
    assert config.train_config.fine_tune_checkpoint
    detector = bw.build_detector(config)
    folder = write(tmp_path, pack_weights_folder(detector, config, 7))
    assert "/home/me" not in (folder / "pipeline.config").read_text()
    assert config.train_input_reader is not None, "the caller's is as it was"
    restored, own, step = restore_detector(folder)
    assert step == 7
    assert own == stored_config(folder) == published_config(config)[0]
    report = bw.load_weights(restored, folder)
    assert not report.kept
    # A configuration of the same network, with other post-processing.
    other = own.replaced(model=None)
    assert restore_detector(folder, config=other)[1] == own


@pytest.mark.parametrize("name", PRESETS)
def test_configurations_can_be_read_without_their_data(name: str, tmp_path: Path) -> None:
    config, files = published_config(load_config(f"preset:{name}"))
    folder = write(
        tmp_path, {"pipeline.config": dump_message(config).encode(), **{k: v.encode() for k, v in files.items()}}
    )
    found = load_config(folder / "pipeline.config")
    center_net = found.model.center_net if found.model else None
    if center_net is not None:
        assert center_net.keypoint_label_map_path == str(folder / KEYPOINTS)
        assert b"left_ear" in (folder / KEYPOINTS).read_bytes()


def test_fields_with_places_are_known() -> None:
    """A new field that names a file or folder is to be published only once somebody has thought about it."""

    def texts(message: type[Message], seen: set[type[Message]]) -> Iterator[str]:
        seen.add(message)
        for name, field in message.fields.items():
            if field.kind == "string":
                yield name
            elif field.kind == "message" and field.type not in seen and field.type is not m.InputReader:
                yield from texts(field.type, seen)

    # `file` is the bare name in a pedigree, which is published.
    words = ("path", "dir", "checkpoint", "symmetry", "file", "folder", "master", "url")
    found = {name for name in texts(m.TrainEvalPipelineConfig, set()) if any(word in name for word in words)}
    assert found == {*_LOCAL, "keypoint_label_map_path", "fine_tune_checkpoint_type", "file"}


def test_a_missing_file_of_keypoints_is_named(tmp_path: Path) -> None:
    config = load_config(
        "preset:center_net_resnet50_v1_fpn_512_keypoints", ["model.center_net.keypoint_label_map_path=no.pbtxt"]
    )
    with pytest.raises(bw.CheckpointError, match=r"no\.pbtxt: No such file"):
        published_config(config)
