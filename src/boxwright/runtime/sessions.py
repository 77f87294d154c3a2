"""The runtimes of exported files: ONNX Runtime, OpenVINO and LiteRT.

Each session takes pictures uint8 [B, H, W, 3] and returns TensorFlow's named outputs. Precision is pinned, as OpenVINO
by default chooses bfloat16 on processors that support it.

Dimensions: B batch, H W image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError, ExportError, translated
from boxwright.base.files import shown
from boxwright.base.threads import runtime_threads
from boxwright.runtime.devices import CPU, is_cpu, onnx_providers, openvino_device, require_cpu, require_provider
from boxwright.runtime.export_file import ABOUT, ExportFile, read_checked, unpacked_members
from boxwright.runtime.foreign_file import has_external_data
from boxwright.runtime.formats import RUNTIMES
from boxwright.runtime.litert_session import LitertSession
from boxwright.runtime.metadata import KEY, Metadata
from boxwright.runtime.optional import require_library
from boxwright.runtime.trial import try_in_child


class Session(Protocol):
    """A file opened in its runtime."""

    @property
    def metadata(self) -> Metadata:
        """The file's metadata."""
        ...

    @property
    def output_names(self) -> tuple[str, ...]:
        """The available outputs."""
        ...

    def run(self, images: NDArray[Any], names: Sequence[str] = ()) -> dict[str, NDArray[np.float32]]:
        """Return the named outputs, or all, for pictures uint8 [B, H, W, 3]."""
        ...


# Above _LARGE_BYTES of pictures, memory is freed after the run, at the cost of some time. Above _MEDIUM_BYTES it is
# kept until _SMALL_RUNS runs in a row had less than a quarter of that. A single small run means nothing: a server's
# batches alternate between 8 pictures and 1, and freeing between them cost a fifth of its throughput.
_LARGE_BYTES, _MEDIUM_BYTES, _LESS, _SMALL_RUNS = 64 * 2**20, 4 * 2**20, 4, 64


class OnnxSession:
    """An ONNX file in ONNX Runtime."""

    def __init__(self, file: ExportFile, threads: int = 0, device: str = CPU) -> None:
        """Open a file.

        Args:
            threads: How many it may use; 0 for OMP_NUM_THREADS or a container's quota, else the runtime's default.
            device: As for `onnx_providers`.

        Raises:
            ExportError: If the file is damaged or not ours, or the device cannot be used.
        """
        runtime = require_library("onnxruntime", "onnx")
        providers = onnx_providers(device, runtime.get_available_providers())
        self._name = file.name
        _refuse_external_data(file)
        options = runtime.SessionOptions()
        # Only fatal errors: the others arrive as exceptions, and need not be printed as well.
        options.log_severity_level = 4
        options.intra_op_num_threads = threads or runtime_threads()
        # As long as a thousand turns of OpenMP's threads: beside other programs a detection takes 0.6 of the time
        # that it takes with the default. Versions without this option ignore it.
        options.add_session_config_entry("session.intra_op.spin_duration_us", "50")
        with translated(ExportError, f"{file.name} cannot be opened by ONNX Runtime"):
            self._session = runtime.InferenceSession(file.data, options, providers=providers)
            text = self._session.get_modelmeta().custom_metadata_map.get(KEY)
        require_provider(device, providers, self._session.get_providers())
        self.metadata = Metadata.from_json(text, file.name)
        self.output_names = tuple(output.name for output in self._session.get_outputs())
        inputs = self._session.get_inputs()
        if len(inputs) != 1:
            raise ExportError(f"{file.name} takes {len(inputs)} inputs, expected only pictures")
        self._kept_bytes = self._small_runs = 0
        # Otherwise the arena forever keeps what the largest picture took: ten times its pixels as floats.
        self._shrink_arena = runtime.RunOptions()
        self._shrink_arena.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self._input, self._dtype = inputs[0].name, np.float32 if inputs[0].type == "tensor(float)" else np.uint8

    def run(self, images: NDArray[Any], names: Sequence[str] = ()) -> dict[str, NDArray[np.float32]]:
        """Return the named outputs, or all, for pictures uint8 [B, H, W, 3]."""
        wanted = list(names or self.output_names)
        with translated(ExportError, f"{self._name} cannot be run by ONNX Runtime"):
            options = self._shrink_arena if self._is_too_much(images.nbytes) else None
            outputs = self._session.run(wanted, {self._input: images.astype(self._dtype, copy=False)}, options)
        return dict(zip(wanted, outputs, strict=True))

    def _is_too_much(self, given: int) -> bool:
        """Return whether the runtime should free its arena after this run, and update the record of what it keeps."""
        self._kept_bytes = max(self._kept_bytes, given)
        small = self._kept_bytes > max(_MEDIUM_BYTES, _LESS * given)
        self._small_runs = self._small_runs + 1 if small else 0
        if given > _LARGE_BYTES or self._small_runs >= _SMALL_RUNS:
            self._kept_bytes = 0 if given > _LARGE_BYTES else given
            self._small_runs = 0
            return True
        return False


def _refuse_external_data(file: ExportFile) -> None:
    try:
        outside = has_external_data(file.data)
    except ValueError as error:
        raise ExportError(f"{file.name} is not an ONNX file, or damaged: {error}") from None
    if outside:
        raise ExportError(f"{file.name} refers to data in other files, which Boxwright never writes; it is not opened")


@cache
def _openvino_core() -> Any:
    """Return the one `openvino.Core` of this process, which is never freed.

    A Core that compiles gives the calling thread an alternate signal stack and unmaps it when freed, restoring the
    previous one. With two Cores, freeing one restores a stack that the other has unmapped: the next signal that Python
    handles (SIGTERM, SIGCHLD) is a SIGSEGV.
    """
    return require_library("openvino", "openvino").Core()


class OpenVinoSession:
    """An OpenVINO model (.xml with its .bin)."""

    def __init__(self, file: ExportFile, threads: int = 0, device: str = CPU) -> None:
        """Open a file, the bytes of the .xml and the .bin.

        Args:
            threads: How many it may use; 0 for OMP_NUM_THREADS or a container's quota, else the runtime's default.
            device: As for `openvino_device`.

        Raises:
            ExportError: If the file is damaged or not ours, or the device is not there.
        """
        core = _openvino_core()
        place = openvino_device(device, core.available_devices)
        if not file.data.startswith((b"<?xml", b"<net")):  # it would also read other formats, and their files
            raise ExportError(f"{file.name} is not an OpenVINO model, or damaged")
        self._name = file.name
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
        if (count := threads or runtime_threads()) and is_cpu(device):
            settings["INFERENCE_NUM_THREADS"] = count
        text = None
        with translated(ExportError, f"{file.name} cannot be opened by OpenVINO"):
            model = core.read_model(*file.parts)
            with suppress(RuntimeError):
                text = model.get_rt_info(KEY).astype(str)
        self.metadata = Metadata.from_json(text, file.name)
        with translated(ExportError, f"{file.name} cannot be compiled by OpenVINO"):
            self._compiled = core.compile_model(model, place, settings)
            self.output_names = tuple(output.get_any_name() for output in self._compiled.outputs)
            (given,) = self._compiled.inputs
        self._dtype = np.float32 if given.get_element_type().get_type_name().startswith("f") else np.uint8

    def run(self, images: NDArray[Any], names: Sequence[str] = ()) -> dict[str, NDArray[np.float32]]:
        """Return the named outputs, or all, for pictures uint8 [B, H, W, 3]."""
        with translated(ExportError, f"{self._name} cannot be run by OpenVINO"):
            outputs = self._compiled([images.astype(self._dtype, copy=False)])
            return {name: np.array(outputs[name]) for name in names or self.output_names}


class FixedShapeSession:
    """A file that takes a fixed number of pictures at a time, or pictures of one size."""

    def __init__(self, session: Session) -> None:
        """Wrap an opened file."""
        self.session = session
        self.metadata = session.metadata
        self.output_names = session.output_names

    def run(self, images: NDArray[Any], names: Sequence[str] = ()) -> dict[str, NDArray[np.float32]]:
        """Return the named outputs, or all, for any number of pictures uint8 [B, H, W, 3].

        Raises:
            DataError: If the pictures have another size than the file takes.
        """
        size, batch = self.metadata.image_size, self.metadata.batch or len(images)
        if size and images.shape[1:3] != size:
            raise DataError(
                f"the exported file takes pictures of {size[1]}x{size[0]} pixels alone, found {images.shape[2]}x"
                f"{images.shape[1]}; resize them, or export without --image_size"
            )
        outputs = []
        for start in range(0, len(images), batch):
            part = images[start : start + batch]
            # The last picture fills up the batch, and what it gives is dropped.
            missing = np.repeat(part[-1:], batch - len(part), axis=0)
            given = self.session.run(np.concatenate([part, missing]), names)
            outputs.append({name: value[: len(part)] for name, value in given.items()})
        return {name: np.concatenate([part[name] for part in outputs]) for name in outputs[0]}


def with_fixed_shape(session: Session) -> Session:
    """Return a session for any number of pictures, also if its file takes a fixed number."""
    fixed = session.metadata.batch or session.metadata.image_size
    return FixedShapeSession(session) if fixed else session


def _litert(file: ExportFile, threads: int, device: str) -> LitertSession:
    require_cpu(device, "LiteRT")
    return LitertSession(file, threads)


_SESSIONS: dict[str, Callable[[ExportFile, int, str], Session]] = {
    ".onnx": OnnxSession,
    ".xml": OpenVinoSession,
    ".tflite": _litert,
}
# A malformed file can crash or hang these runtimes; a missing input is enough.
_TRIED_FIRST = (".tflite", ".xml")


def open_bytes(file: ExportFile, threads: int = 0, device: str = CPU) -> Session:
    """Open an export's bytes in the runtime of its format, without checking them.

    Args:
        threads: How many the runtime may use; 0 for its default.
        device: "cpu", or another that the runtime has (`devices.py`).

    Raises:
        ExportError: If the file has another format, is damaged or not ours, or its runtime or device is missing.
    """
    if file.suffix.lower() not in _SESSIONS:
        raise ExportError(f"{file.name}: expected {' or '.join(RUNTIMES)}")
    return with_fixed_shape(_SESSIONS[file.suffix.lower()](file, threads, device))


def open_session(path: str | Path, threads: int = 0, device: str = CPU, *, allow_edited: bool = False) -> Session:
    """Open an exported file in the runtime of its format.

    Args:
        path: The file: .onnx, OpenVINO's .xml, or .tflite.
        threads: How many the runtime may use; 0 for its default.
        device: "cpu", or another that the runtime has.
        allow_edited: Whether to open a file that was modified.

    Raises:
        ExportError: If the file is missing, modified, or as for `open_bytes`.
    """
    if Path(path).suffix.lower() not in _SESSIONS:
        raise ExportError(f"{shown(path)}: expected {' or '.join(RUNTIMES)}")
    file = read_checked(path, allow_edited=allow_edited)
    if file.suffix.lower() in _TRIED_FIRST:
        try_in_child(file, __name__)
    return open_bytes(file, threads, device)


def require_device(runtime: str, device: str) -> None:
    """Raise an ExportError if a runtime, onnxruntime or openvino, is not installed or has no such device."""
    if runtime == "openvino":
        openvino_device(device, _openvino_core().available_devices)
    else:
        onnx_providers(device, require_library("onnxruntime", "onnx").get_available_providers())


def read_metadata(path: str | Path, *, allow_edited: bool = False) -> Metadata:
    """Return an exported file's metadata.

    Args:
        path: The file: .onnx, .xml, .tflite or .pt2 (which does not need PyTorch).
        allow_edited: Whether to read a file that was modified.

    Raises:
        ExportError: If the file is missing, damaged, modified or not ours, or its runtime is not installed.
    """
    if Path(path).suffix.lower() != ".pt2":
        return open_session(path, allow_edited=allow_edited).metadata
    file = read_checked(path, allow_edited=allow_edited)
    members = unpacked_members(file.data, file.name)
    return Metadata.from_json(members.get(ABOUT, b"").decode("utf-8", "replace"), file.name)
