"""Exports of Context R-CNN carry the memory of one camera."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from boxwright.base.errors import ConfigError, DataError
from boxwright.exporters.export import export
from boxwright.runtime.exported import open_exported
from boxwright.types.context_features import ContextFeatures
from boxwright.weights.open_model import remember
from tests.exporters.small_detectors import build, pictures
from tests.two_stage_models import FASTER_RCNN

LENGTH = 11
CONTEXT_RCNN = FASTER_RCNN.replace(
    "faster_rcnn {",
    f"""faster_rcnn {{ context_config {{ context_feature_length: {LENGTH} max_num_context_features: 5
      attention_bottleneck_dimension: 8 attention_temperature: 0.5 }}""",
    1,
)


@pytest.mark.slow
def test_a_memory_is_part_of_the_file(tmp_path: Path) -> None:
    """The export, given pictures alone, finds what the detector finds with that context."""
    detector = build(CONTEXT_RCNN)
    memory = np.random.default_rng(1).normal(size=(3, LENGTH)).astype(np.float32)
    np.save(tmp_path / "camera.npy", memory)
    images = pictures(2)
    plain = detector.detect(images)
    remember(detector, tmp_path / "camera.npy")
    assert export(detector, tmp_path / "d.onnx", images=images).passed
    found = open_exported(tmp_path / "d.onnx").detect(images)
    context = ContextFeatures(torch.from_numpy(memory).expand(len(images), -1, -1), torch.tensor([3] * len(images)))
    for ours, theirs, without in zip(detector.detect(images, context=context), found, plain, strict=True):
        np.testing.assert_allclose(theirs.scores, ours.scores.numpy(), rtol=1e-3, atol=1e-5)
        assert not np.allclose(without.scores[: len(ours.scores)], ours.scores[: len(without.scores)], atol=1e-5)


def test_what_is_no_memory_is_refused(tmp_path: Path) -> None:
    detector, path = build(CONTEXT_RCNN), tmp_path / "camera.npy"
    with pytest.raises(DataError, match=r"camera.npy"):
        remember(detector, path)
    np.save(path, np.zeros((3, LENGTH), np.float32))
    with pytest.raises(ConfigError, match="this detector has no context_config"):
        remember(build(FASTER_RCNN), path)
    whole = path.read_bytes()
    for bad in (b"", whole[:40], whole[:-3], b"PK" + whole, b"\x93NUMPY\x01\x00\xff\xff" + whole):
        path.write_bytes(bad)
        with pytest.raises(DataError, match=r"camera.npy: not a .npy file of context features"):
            remember(detector, path)
    for wrong in (np.zeros((3, LENGTH)), np.full((3, LENGTH), np.nan, np.float32), np.array([{}], object)):
        np.save(path, wrong, allow_pickle=True)
        with pytest.raises(DataError, match=r"camera.npy: not a .npy file of context features"):
            remember(detector, path)
    np.save(path, np.zeros((3, LENGTH - 1), np.float32))
    with pytest.raises(DataError, match=rf"camera.npy: context features of shape \[3, 10\], but .* is {LENGTH}"):
        remember(detector, path)
