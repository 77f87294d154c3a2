"""What a GPU is told to detect: counts of operations, waits and bytes, which are the same on any machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import boxwright as bw
from tests.cuda.families import FEW_LAYERS, configuration
from tests.cuda.inference import detecting_on_fake_gpu, optimize_for_gpu
from tests.cuda.table import DETECTORS, detection
from tests.exporters.small_detectors import CATEGORIES

DOCUMENTED = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def documented(preset: str) -> list[str]:
    """Return the cells of a preset's row in the table of detections."""
    table = DOCUMENTED[DOCUMENTED.index("| preset | operations, float32 |") :]
    return cells(next(line for line in table.splitlines() if line.startswith(f"| `{preset}` |")))


@pytest.mark.slow
@pytest.mark.parametrize("preset", DETECTORS)
def test_the_documented_table_is_what_a_detection_does(preset: str) -> None:
    """Its waits and copies; operations are counted by the release of PyTorch that the text names."""
    name, whole, half, *numbers = documented(preset)
    made_name, made_whole, made_half, *made_numbers = cells(detection(preset))
    assert (name, numbers[2:]) == (made_name, made_numbers[2:])
    for gigabytes, made in zip(numbers[:2], made_numbers[:2], strict=True):
        assert float(made) <= 1.05 * float(gigabytes) + 0.1
    assert int(made_whole) <= 1.05 * int(whole)
    assert int(made_half) <= 1.05 * int(half)


def test_casting_weights_once_leaves_few_casts() -> None:
    """43 % more operations were autocast's, which cast all weights at each call."""
    for preset in ("ssd_mobilenet_v2_fpnlite_320", "ssd_resnet50_v1_fpn_640", "efficientdet_d0"):
        _, whole, half, *_ = documented(preset)
        assert int(half) <= 1.1 * int(whole)


def detector_of(family: str, resizer: str = "own") -> bw.Detector:
    torch.manual_seed(0)
    return optimize_for_gpu(bw.build_detector(configuration(family, resizer, "float32"), CATEGORIES))


@pytest.mark.slow
def test_images_of_one_size_are_resized_together() -> None:
    detector = detector_of(FEW_LAYERS)
    with detecting_on_fake_gpu(detector) as recorder:
        counts = []
        for images in (1, 16):
            recorder.clear()
            detector.preprocess(torch.zeros(images, 96, 128, 3, dtype=torch.uint8))
            counts.append(sum(recorder.kernels.values()))
        assert counts[0] == counts[1] <= 12
        assert not recorder.waits


@pytest.mark.slow
@pytest.mark.parametrize("preset", [one for one in DETECTORS if "seg" not in one and "torchvision" not in one])
def test_a_graph_leaves_few_launches(preset: str) -> None:
    """Copies to the GPU, resizing and padding, two copies into the graph, its launch, and what is detected."""
    torch.manual_seed(0)
    config = bw.load_config(f"preset:{preset}", ["train_config.fine_tune_checkpoint="])
    detector = optimize_for_gpu(bw.build_detector(config))
    images = [np.zeros((480, 640, 3), np.uint8)] * 16
    captured: list[int] = []
    with detecting_on_fake_gpu(detector) as recorder:

        def capture(compute: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
            compute()  # anchors are laid once
            before, waits = recorder.kernels.total(), sum(recorder.waits.values())
            result = compute()
            captured.append(recorder.kernels.total() - before)
            assert sum(recorder.waits.values()) == waits, "a graph cannot wait"
            return (lambda: None), result

        detector.use_cuda_graphs(capture)
        detector.detect(images)
        recorder.clear()
        detector.detect(images)
        assert len(captured) == 1
        assert captured[0] > 200
        assert recorder.kernels.total() + 1 <= (13 if preset == "efficientdet_d0" else 11)  # which pads
        assert sum(recorder.waits.values()) == 1


@pytest.mark.slow
def test_images_of_two_sizes_in_turn_are_two_batches() -> None:
    """Each neighbor has another size; a batch for each image took 16 passes."""
    images = [np.zeros((96, 128, 3) if number % 2 else (128, 96, 3), np.uint8) for number in range(16)]
    detector = detector_of("faster_rcnn", "keep_aspect_ratio")
    with (
        detecting_on_fake_gpu(detector) as recorder,
        mock.patch.object(detector, "predict", wraps=detector.predict) as passes,
    ):
        detector.detect(images)
        assert [len(call.args[0]) for call in passes.call_args_list] == [8, 8]
        # Regions, proposals and results of each batch.
        assert sum(recorder.waits.values()) <= 6


@pytest.mark.slow
def test_images_that_are_not_complete_are_suppressed_again_without_copying_maps() -> None:
    """One of two images is done again on the GPU: what is copied are detections, not scores of all anchors."""
    images = [np.zeros((96, 128, 3), np.uint8)] * 2
    detector = detector_of("ssd")
    with detecting_on_fake_gpu(detector) as recorder:
        detector.detect(images)
        once = recorder.copied_bytes
        recorder.clear()
        with mock.patch("boxwright.nn.postprocessing.postprocessor.incomplete_images", return_value=[1]):
            detector.detect(images)
        assert 0 < once <= recorder.copied_bytes <= 2 * once + 4096
        assert "image_by_image.py" in str(recorder.waits)
