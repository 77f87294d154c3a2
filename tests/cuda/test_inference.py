"""What a GPU is told to detect: counts of operations, waits and bytes, which are the same on any machine."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch

import boxwright as bw
from tests.cuda.families import FEW_LAYERS, configuration
from tests.cuda.inference import detecting_on_fake_gpu, optimize_for_gpu
from tests.exporters.small_detectors import CATEGORIES


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
