"""Devices: which can be opened, how float32 is rounded on them, and what is done where their memory is too small."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.base.device import (
    constants,
    in_halves,
    is_out_of_memory,
    random_devices,
    set_tf32,
    tf32_allowed,
    usable_device,
)
from tests.cuda.fake import CUDA, fake_cuda

CUDA_1 = torch.device("cuda", 1)
# As PyTorch 2.8 to 2.15 word them.
TOO_SMALL: list[BaseException] = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.75 GiB"),
    RuntimeError(
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call"
    ),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("GET was unable to find an engine to execute this computation"),
    RuntimeError("FIND was unable to find an engine to execute this computation after trying all engines"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("[enforce fail] data. DefaultCPUAllocator: not enough memory: you tried to allocate 400 bytes."),
]
ANOTHER: list[BaseException] = [
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
    MemoryError("out of memory"),
    bw.TrainingError("step 3: not enough memory: out of memory"),
]


@pytest.mark.parametrize("error", TOO_SMALL, ids=lambda error: str(error)[:30])
def test_memory_that_is_too_small_is_known_by_each_of_its_texts(error: BaseException) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", ANOTHER, ids=lambda error: str(error)[:30])
def test_other_errors_are_other_errors(error: BaseException) -> None:
    assert not is_out_of_memory(error)


def test_an_error_of_the_accelerator_is_known_where_torch_has_its_type() -> None:
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    assert is_out_of_memory(kind("CUDA error: out of memory"))
    assert not is_out_of_memory(kind("CUDA error: an illegal memory access was encountered"))


@pytest.mark.parametrize("name", ["xpu", "meta", "hpu"])
def test_kinds_that_nobody_tried_are_refused(name: str) -> None:
    with pytest.raises(
        bw.ConfigError, match=r"is not supported: expected cpu, cuda, a GPU such as cuda:1, mps, or auto"
    ):
        usable_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there(name: str) -> None:
    with pytest.raises(bw.ConfigError, match=f"device '{name}' cannot be used: "):
        usable_device(name)


def test_auto_without_a_gpu_is_the_cpu() -> None:
    with mock.patch("torch.cuda.is_available", return_value=False):
        assert usable_device("auto") == torch.device("cpu")


@pytest.mark.parametrize(("name", "wanted"), [("cuda", torch.device("cuda", 0)), ("cuda:1", CUDA_1), ("auto", CUDA_1)])
def test_a_gpu_has_its_number(name: str, wanted: torch.device) -> None:
    """Two GPUs are made believe."""
    current = 1 if name == "auto" else 0
    with (
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.current_device", return_value=current),
        mock.patch("torch.empty"),
        mock.patch("torch.cuda.set_device") as chosen,
    ):
        assert usable_device(name) == wanted
    chosen.assert_not_called()


@pytest.fixture
def rounding() -> Iterator[Callable[[], tuple[bool, bool]]]:
    """Return whether products and convolutions may round to TF32; afterwards they do as before."""

    def now() -> tuple[bool, bool]:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    before = now()
    yield now
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def test_tf32_is_allowed_for_a_while(rounding: Callable[[], tuple[bool, bool]]) -> None:
    before = rounding()
    with tf32_allowed():
        assert rounding() == (True, True)
    assert rounding() == before
    set_tf32(products=False)
    assert rounding() == (False, True)
    with pytest.raises(ZeroDivisionError), tf32_allowed():
        _ = 1 / 0
    assert rounding() == (False, True)


def test_random_numbers_of_one_device_are_saved() -> None:
    assert random_devices(torch.device("cpu")) == []
    assert random_devices(CUDA_1) == [CUDA_1]


def test_one_place_decides_how_devices_round() -> None:
    """Else an evaluation rounds otherwise than the run that it judges."""
    package = Path(bw.__file__).parent
    deciding = {"allow_tf32", ".set_float32_matmul_precision", "fp32_precision"}
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in deciding)
    }
    assert found == {"base/device.py"}


def in_parts(count: int, fits: int, most: int | None = None) -> tuple[list[tuple[int, int]], list[int]]:
    tried: list[tuple[int, int]] = []

    def compute(start: int, stop: int) -> list[int]:
        tried.append((start, stop))
        if stop - start > fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return list(range(start, stop))

    found = [number for _, some in in_halves(compute, count, most) for number in some]
    return tried, found


@pytest.mark.parametrize(
    ("count", "fits", "most", "tried"),
    [
        (0, 1, None, []),
        (5, 5, None, [(0, 5)]),
        (5, 3, None, [(0, 5), (0, 3), (3, 5)]),
        (5, 1, None, [(0, 5), (0, 3), (0, 2), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]),
        (5, 2, 2, [(0, 2), (2, 4), (4, 5)]),
        (2, 5, 8, [(0, 2)]),
    ],
)
def test_halves(count: int, fits: int, most: int | None, tried: list[tuple[int, int]]) -> None:
    assert in_parts(count, fits, most) == (tried, list(range(count)))


def test_one_item_that_is_too_large_is_an_error() -> None:
    with pytest.raises(bw.BoxwrightError, match=r"not enough memory for one image \(CUDA out of memory"):
        in_parts(4, 0)


def test_another_error_is_passed_on() -> None:
    def compute(start: int, stop: int) -> None:
        raise RuntimeError("device-side assert triggered")

    with pytest.raises(RuntimeError, match="device-side assert"):
        list(in_halves(compute, 2))


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a detector's network have no room for more than two images."""

    def limit(detector: bw.Detector) -> list[int]:
        seen: list[int] = []
        forward = detector.network.forward

        def limited(inputs: torch.Tensor, *others: Any) -> Any:
            seen.append(len(inputs))
            if len(inputs) > 2:
                raise RuntimeError("CUDA error: out of memory")
            return forward(inputs, *others)

        monkeypatch.setattr(detector.network, "forward", limited)
        return seen

    return limit


def test_detect_halves_what_does_not_fit_and_says_so(little_memory: Any, caplog: pytest.LogCaptureFixture) -> None:
    from tests.exporters.small_detectors import FAMILIES, build, pictures

    images = [picture for picture in pictures(8) if picture.shape == (96, 128, 3)]
    detector = build(FAMILIES["ssd"])
    whole = detector.detect(images)
    assert len(images) > 4
    seen = little_memory(detector)
    with caplog.at_level(logging.WARNING, "boxwright"):
        halved = detector.detect(images)
    assert seen[0] == len(images)
    assert caplog.messages[0].startswith(f"not enough memory for {len(images)} images at once: taking ")
    for one, other in zip(whole, halved, strict=True):
        torch.testing.assert_close(one.boxes, other.boxes, rtol=1e-3, atol=1e-2)
        assert one.labels.tolist() == other.labels.tolist()
    seen.clear()
    caplog.clear()
    detector.detect(images)
    assert max(seen) <= 2, "later calls begin with what fitted"
    assert not caplog.messages


def test_one_image_that_does_not_fit_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.exporters.small_detectors import FAMILIES, build

    detector = build(FAMILIES["ssd"])

    def nothing_fits(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore lines")

    monkeypatch.setattr(detector.network, "forward", nothing_fits)
    with pytest.raises(bw.BoxwrightError, match="not enough memory for one image") as error:
        detector.detect([np.zeros((64, 64, 3), np.uint8)] * 2)
    assert "\n" not in str(error.value)


def test_evaluation_halves_losses_and_all(small_config: Path, little_memory: Any) -> None:
    """The criterion is part of what is halved; each image has the losses of its half."""
    from boxwright.evaluation.settings import EvaluationSettings
    from tests.evaluation.evaluate import evaluate_detector

    config = bw.load_config(small_config, ["eval_config.batch_size=4"])
    torch.manual_seed(0)
    detector = bw.build_detector(config)
    whole = evaluate_detector(config, detector, EvaluationSettings(workers=0))
    seen = little_memory(detector)
    halved = evaluate_detector(config, detector, EvaluationSettings(workers=0))
    assert seen[0] == 4
    assert max(seen[1:]) == 2
    assert halved.metrics.keys() == whole.metrics.keys()
    name = "DetectionBoxes_Precision/mAP"
    assert halved.metrics[name] == pytest.approx(whole.metrics[name], abs=1e-3)
    assert halved.metrics["Loss/total_loss"] > 0


def test_commands_round_alike(small_config: Path, tmp_path: Path, rounding: Callable[[], tuple[bool, bool]]) -> None:
    """Each command leaves PyTorch's default, which rounds convolutions to TF32 on a GPU, and no products."""
    from PIL import Image
    from typer.testing import CliRunner

    from boxwright.cli.main import app

    run, pictures = tmp_path / "run", tmp_path / "pictures"
    pictures.mkdir()
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(pictures / "one.png")
    commands = [
        ["train", "--pipeline_config_path", str(small_config), "--model_dir", str(run),
         "--num_train_steps", "1", "--workers", "0", "--no-evaluate", "--no-preflight"],
        ["evaluate", "--model_dir", str(run), "--workers", "0"],
        ["predict", str(pictures), "--model_dir", str(run), "--out", str(tmp_path / "found")],
        ["benchmark", str(run), "--rounds", "3", "--batch", "1"],
    ]  # fmt: skip
    for arguments in commands:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = True, False
        done = CliRunner().invoke(app, [*arguments, "--device", "cpu"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert rounding() == (False, True), arguments[0]


def test_they_are_rounded_once() -> None:
    numbers = [1 / 3, 640.0, 1e-30, -7.0]
    assert torch.equal(constants(numbers, torch.device("cpu")), torch.tensor(numbers))
    found = constants([3, 2**40], torch.device("cpu"), torch.int64)
    assert found.tolist() == [3, 2**40]
    assert found.dtype == torch.int64


def test_a_gpu_is_not_waited_for() -> None:
    with fake_cuda() as recorder:
        found = constants([1.0, 2.0], CUDA)
        assert (found.device, found.shape) == (CUDA, (2,))
        assert not recorder.waits
        torch.tensor([1.0, 2.0], device=CUDA)
        assert recorder.waits
