"""Graphs of detection, with a stand-in for CUDA's that repeats operations in the same memory, as a replay does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import boxwright as bw
from boxwright.data.shapes import ShapesDataset
from boxwright.nn.cuda_graphs import Capture, DetectionGraphs
from boxwright.nn.postprocessing.anchor import AnchorPostprocessor
from boxwright.nn.postprocessing.nms import Nms
from boxwright.nn.postprocessing.postprocessor import Selected
from boxwright.nn.suppression import fixed_shape
from tests.cuda.families import FEW_LAYERS, configuration
from tests.cuda.inference import optimize_for_gpu
from tests.exporters.small_detectors import CATEGORIES

_WAITS = ("_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero", "nms")


class _Tape(TorchDispatchMode):
    """Notes operations, and repeats them on the same tensors; what Python decided stays as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name.split("::")[1] in _WAITS:
            raise RuntimeError(f"{func} waits for the GPU")
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self.calls:
            for old, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Captures:
    """Captures on tapes, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, compute: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self.count += 1
        compute()
        with _Tape() as tape:
            result = compute()
        return tape.replay, result


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU suppress in tensors of fixed shape."""
    monkeypatch.setattr(Nms, "without_wait", Nms.in_rounds)


def detectors(family: str, capture: Capture[Selected]) -> tuple[bw.Detector, bw.Detector]:
    """Return the same optimized detector without graphs and with."""
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        detector = optimize_for_gpu(bw.build_detector(configuration(family, "own", "float32"), CATEGORIES))
        rules = detector.postprocessor
        if isinstance(rules, AnchorPostprocessor):  # of networks that have learned nothing, no score is high
            detector.postprocessor = replace(rules, nms=replace(rules.nms, score_threshold=0.0))
        made.append(detector)
    return made[0], made[1].use_cuda_graphs(capture)


def pictures(count: int, seed: int) -> list[np.ndarray[Any, Any]]:
    dataset = ShapesDataset(count, seed=seed, size=(96, 128))
    return [dataset[number].image for number in range(count)]


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs) > 0
    for some, others in zip(ours, theirs, strict=True):
        assert len(some) == len(others)
        for name in ("boxes", "scores", "labels"):
            assert torch.equal(getattr(some, name), getattr(others, name))


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize(
    "family",
    [FEW_LAYERS, *(pytest.param(one, marks=pytest.mark.slow) for one in ("efficientdet", "d_fine", "rf_detr"))],
)
def test_a_replay_detects_what_the_detector_does(family: str) -> None:
    captures = Captures()
    plain, graphed = detectors(family, captures)
    total = 0
    for seed in range(3):
        images = pictures(2, seed)
        expected = plain.detect(images)
        assert_same(graphed.detect(images), expected)
        total += sum(len(detections) for detections in expected)
    assert captures.count == 1
    assert total > 10


@pytest.mark.usefixtures("as_on_gpu")
def test_images_for_which_candidates_do_not_suffice_are_suppressed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, graphed = detectors(FEW_LAYERS, Captures())
    monkeypatch.setattr(fixed_shape, "candidate_count", lambda most: 4)
    expected = [plain.detect(pictures(2, seed)) for seed in range(2)]
    again: list[list[int]] = []
    image_by_image = Nms.image_by_image

    def noted(nms: Nms, *given: Any, indices: list[int]) -> Any:
        again.append(indices)
        return image_by_image(nms, *given, indices=indices)

    monkeypatch.setattr(Nms, "image_by_image", noted)
    for seed in range(2):
        assert_same(graphed.detect(pictures(2, seed)), expected[seed])
    assert again, "the candidates sufficed"


def test_further_shapes_have_no_graph() -> None:
    captures = Captures()

    def double(inputs: Tensor, true_sizes: Tensor) -> Tensor:
        return inputs * 2 + true_sizes.sum()

    graphs = DetectionGraphs(double, captures)
    sizes = torch.ones(1, 2, dtype=torch.int64)
    for batch in (1, 2, 3, 4, 5, 6, 1):
        inputs = torch.rand(batch, 3)
        assert torch.equal(graphs(inputs, sizes * batch), inputs * 2 + 2 * batch)
    assert captures.count == 4


def test_what_waits_cannot_be_captured() -> None:
    graphs = DetectionGraphs(lambda inputs, _: inputs * inputs.sum().item(), Captures())
    with pytest.raises(RuntimeError, match="waits for the GPU"):
        graphs(torch.rand(1, 3), torch.ones(1, 2, dtype=torch.int64))


def test_detectors_that_have_no_graphs() -> None:
    detector = bw.build_detector(configuration(FEW_LAYERS, "own", "float32"), CATEGORIES)
    with pytest.raises(bw.ConfigError, match="optimize"):
        detector.use_cuda_graphs()
    detector = bw.build_detector(configuration(FEW_LAYERS, "pad_to_multiple", "float32"), CATEGORIES).optimize()
    with pytest.raises(bw.ConfigError, match="inputs of several sizes"):
        detector.use_cuda_graphs()
