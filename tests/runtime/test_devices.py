"""Devices of runtimes: those that are missing are named, and the CPU never takes their place unsaid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from boxwright.base.errors import ConfigError, ExportError
from boxwright.runtime import sessions
from boxwright.runtime.devices import (
    is_cpu,
    onnx_providers,
    openvino_device,
    require_provider,
    require_runtime,
    runtime_for_device,
)
from boxwright.runtime.export_file import read_export_file
from boxwright.runtime.optional import require_library
from boxwright.runtime.sessions import OnnxSession, OpenVinoSession, open_bytes, require_device
from tests.exporters.tiny_exports import tiny_export

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"


def test_providers() -> None:
    for device in ("cpu", "auto", "CPU"):
        assert onnx_providers(device, [CUDA, CPU]) == [CPU]
        assert is_cpu(device)
    assert onnx_providers("cuda", [CUDA, CPU]) == [(CUDA, {"device_id": 0, "use_tf32": 0}), CPU]
    found = onnx_providers("tensorrt:1", [TENSORRT, CUDA, CPU])
    assert found == [(TENSORRT, {"device_id": 1}), (CUDA, {"device_id": 1, "use_tf32": 0}), CPU]
    assert not is_cpu("cuda")


@pytest.mark.parametrize(
    ("device", "available", "message"),
    [
        ("cuda", [CPU], f"the installed ONNX Runtime has no {CUDA}, only {CPU}; pip install onnxruntime-gpu"),
        ("tensorrt", [CUDA, CPU], f"has no {TENSORRT}, only {CUDA}, {CPU}"),
        ("cuda:x", [CUDA], "runs exports on cpu, cuda and tensorrt, or cuda:1"),
        ("cuda:", [CUDA], "runs exports on cpu, cuda and tensorrt"),
        ("gpu", [CUDA], "device 'gpu': ONNX Runtime runs exports on cpu, cuda and tensorrt"),
    ],
)
def test_missing_providers(device: str, available: list[str], message: str) -> None:
    with pytest.raises(ExportError, match=message) as raised:
        onnx_providers(device, available)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_a_provider_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = onnx_providers("tensorrt", [TENSORRT, CUDA, CPU])
    require_provider("tensorrt", wanted, [TENSORRT, CUDA, CPU])
    with pytest.raises(ExportError, match=f"cannot start {TENSORRT}, and would use {CUDA}, {CPU}"):
        require_provider("tensorrt", wanted, [CUDA, CPU])
    # ONNX Runtime itself would take the CPU, with a warning that libraries print.
    monkeypatch.setattr(require_library("onnxruntime", "onnx"), "get_available_providers", lambda: [CUDA, CPU])
    with (
        pytest.warns(UserWarning, match="not in available provider names"),
        pytest.raises(ExportError, match=f"cannot start {CUDA}, and would use {CPU}"),
    ):
        OnnxSession(read_export_file(tiny_export(".onnx")), device="cuda")


def test_openvino_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert openvino_device("auto", []) == openvino_device("cpu", ["CPU"]) == "CPU"
    several = ["CPU", "GPU.0", "GPU.1", "NPU"]
    assert [openvino_device(name, several) for name in ("gpu", "gpu:1", "GPU.0", "npu")] == [
        "GPU",
        "GPU.1",
        "GPU.0",
        "NPU",
    ]
    for device in ("gpu", "gpu.2", "cuda"):
        with pytest.raises(ExportError, match=f"device '{device}': OpenVINO finds CPU here; choose --device cpu"):
            openvino_device(device, ["CPU"])
    asked: dict[str, Any] = {}

    class Core:
        available_devices = ("CPU", "GPU")

        def read_model(self, *parts: bytes) -> Any:
            return core.read_model(*parts)

        def compile_model(self, model: Any, device: str, settings: dict[str, Any]) -> Any:
            asked.update(settings, device=device)
            return core.compile_model(model, "CPU", settings)

    core = sessions._openvino_core()
    monkeypatch.setattr(sessions, "_openvino_core", Core)
    OpenVinoSession(read_export_file(tiny_export(".xml")), threads=1, device="gpu")
    # Only the CPU has threads to set.
    assert asked == {"device": "GPU", "INFERENCE_PRECISION_HINT": "f32"}
    require_device("openvino", "gpu")
    with pytest.raises(ExportError, match="OpenVINO finds CPU, GPU here"):
        require_device("openvino", "npu")


def test_runtimes_with_the_cpu_alone() -> None:
    with pytest.raises(ExportError, match="device 'cuda': LiteRT runs exports on the CPU"):
        open_bytes(read_export_file(tiny_export(".tflite")), device="cuda")


def test_requested_runtimes() -> None:
    for path, runtime, device in (
        ("run", "auto", "cuda"),
        ("run", "torch", "auto"),
        ("a.onnx", "auto", "tensorrt"),
        ("a.onnx", "onnxruntime", "cuda"),
        ("a.xml", "openvino", "npu"),
        ("a.tflite", "auto", "cpu"),
        ("a.pt2", "torch", "cpu"),
    ):
        require_runtime(Path(path), runtime, device)
    with pytest.raises(ConfigError, match="runtime tensorrt: expected auto, torch, onnxruntime, openvino"):
        require_runtime(Path("run"), "tensorrt", "cpu")
    for path, runtime, own in (("a.onnx", "torch", "onnxruntime"), ("a.pt2", "openvino", "torch")):
        with pytest.raises(ExportError, match=f"runtime {runtime}: {path} is exported, and runs in {own}"):
            require_runtime(Path(path), runtime, "cpu")


@pytest.mark.parametrize(
    ("runtime", "device", "what", "format"),
    [
        ("onnxruntime", "cpu", "runtime onnxruntime", "onnx"),
        ("auto", "tensorrt", "device 'tensorrt'", "onnx"),
        ("torch", "npu", "device 'npu'", "openvino"),
    ],
)
def test_what_only_exports_can(runtime: str, device: str, what: str, format: str) -> None:
    said = f"{what}: run runs in PyTorch; run `boxwright export run --format {format}`, and name the file"
    with pytest.raises(ExportError, match=said):
        require_runtime(Path("run"), runtime, device)


def test_the_only_runtime_with_a_device() -> None:
    assert (runtime_for_device("tensorrt:1"), runtime_for_device("GPU.1"), runtime_for_device("cuda")) == (
        "onnxruntime",
        "openvino",
        None,
    )
