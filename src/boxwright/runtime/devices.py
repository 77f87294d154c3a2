"""The devices on which runtimes run exports; a device that is missing is an error, never silently the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from boxwright.base.errors import ConfigError, ExportError
from boxwright.base.text import is_count
from boxwright.runtime.formats import AUTO, EXPORT_FORMATS, RUNTIMES, TORCH, is_export

CPU = "cpu"
# The name of an ONNX Runtime device → its provider, and the providers that take what it does not support.
_PROVIDERS = {
    "cuda": ("CUDAExecutionProvider",),
    "tensorrt": ("TensorrtExecutionProvider", "CUDAExecutionProvider"),
}
# Devices that PyTorch has under no such name, and the runtime that has them.
_ONLY_OF = {"tensorrt": "onnxruntime", "gpu": "openvino", "npu": "openvino"}
Providers = list[str | tuple[str, dict[str, Any]]]


def is_cpu(device: str) -> bool:
    """Return whether exports run on the CPU for a device's name; they do for "auto"."""
    return device.lower() in (CPU, AUTO)


def onnx_providers(device: str, available: Sequence[str]) -> Providers:
    """Return the providers for a device, the preferred first.

    Args:
        device: "cpu", "auto" for it, "cuda", "tensorrt", or one of several GPUs as "cuda:1".
        available: Those of the installed ONNX Runtime.

    Raises:
        ExportError: If the device is unknown, or the installed ONNX Runtime does not support it.
    """
    kind, _, number = device.lower().partition(":")
    if is_cpu(device):
        return ["CPUExecutionProvider"]
    if kind not in _PROVIDERS or (number and not is_count(number)) or device.endswith(":"):
        raise ExportError(f"device {device!r}: ONNX Runtime runs exports on cpu, cuda and tensorrt, or cuda:1")
    if _PROVIDERS[kind][0] not in available:
        names = ", ".join(available)
        raise ExportError(
            f"device {device!r}: the installed ONNX Runtime has no {_PROVIDERS[kind][0]}, only {names}; "
            "pip install onnxruntime-gpu in its place, or choose --device cpu"
        )
    options: dict[str, Any] = {"device_id": int(number or 0)}
    chosen: Providers = []
    for name in _PROVIDERS[kind]:
        # By default factors of float32 products are rounded to 10 bits.
        exact = {"use_tf32": 0} if name == "CUDAExecutionProvider" else {}
        chosen.append((name, {**options, **exact}))
    # Shapes are computed on the CPU in any case, and suppression where the GPU has no kernel.
    return [*chosen, "CPUExecutionProvider"]


def require_provider(device: str, wanted: Providers, used: Sequence[str]) -> None:
    """Raise an ExportError if a session uses other providers than wanted: a driver or library may not load."""
    first = wanted[0] if isinstance(wanted[0], str) else wanted[0][0]
    if first not in used:
        raise ExportError(
            f"device {device!r}: ONNX Runtime cannot start {first}, and would use {', '.join(used)}; its driver or "
            "libraries (CUDA, cuDNN, TensorRT) are missing or of other versions; choose --device cpu"
        )


def openvino_device(device: str, available: Sequence[str]) -> str:
    """Return OpenVINO's name of a device: "CPU", "GPU", "GPU.1", "NPU", …; ExportError if it is not available."""
    if is_cpu(device):
        return "CPU"
    wanted = device.upper().replace(":", ".")
    # "GPU" is the first of several.
    if wanted in available or f"{wanted}.0" in available:
        return wanted
    raise ExportError(
        f"device {device!r}: OpenVINO finds {', '.join(available) or 'no device'} here; choose --device cpu"
    )


def require_cpu(device: str, runtime: str) -> None:
    """Raise an ExportError if another device than the CPU is chosen for a runtime that has no other."""
    if not is_cpu(device):
        raise ExportError(f"device {device!r}: {runtime} runs exports on the CPU; choose --device cpu")


def require_runtime(path: Path, runtime: str, device: str) -> None:
    """Raise an error unless a model runs in the requested runtime, and a device of that name may be one of it.

    Args:
        path: A run's folder or a checkpoint, which run in PyTorch, or an exported file, which has its own runtime.
        runtime: "auto" for the model's own, "torch", or a key of `EXPORT_FORMATS`.
        device: The name of the device that is requested.

    Raises:
        ConfigError: If there is no such runtime.
        ExportError: If the model runs in another; a run or checkpoint has to be exported for it.
    """
    if runtime not in (AUTO, TORCH, *EXPORT_FORMATS):
        raise ConfigError(f"runtime {runtime}: expected {AUTO}, {TORCH}, {', '.join(EXPORT_FORMATS)}")
    if is_export(path):
        own = RUNTIMES.get(path.suffix.lower(), TORCH)
        if runtime not in (AUTO, own):
            raise ExportError(f"runtime {runtime}: {path} is exported, and runs in {own}")
        return
    needed = runtime if runtime in EXPORT_FORMATS else runtime_for_device(device)
    if needed is not None:
        asked = f"runtime {runtime}" if needed == runtime else f"device {device!r}"
        raise ExportError(
            f"{asked}: {path} runs in PyTorch; run `boxwright export {path} --format {EXPORT_FORMATS[needed]}`, "
            "and name the file that it writes"
        )


def runtime_for_device(device: str) -> str | None:
    """Return the only runtime that has a device of that name; None if several may."""
    return _ONLY_OF.get(device.lower().partition(":")[0].partition(".")[0])
