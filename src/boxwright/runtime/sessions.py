"""The runtimes that exported files are run by: ONNX Runtime, OpenVINO and LiteRT.

Each session takes pictures uint8 [B, H, W, 3] and returns TensorFlow's named outputs. Precision is pinned: OpenVINO
would choose bfloat16 by itself where the processor has it.

Dimensions: B batch, H W image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from boxwright.errors import ExportError
from boxwright.files import is_file, shown
from boxwright.runtime.formats import RUNTIMES
from boxwright.runtime.litert_session import LitertSession
from boxwright.runtime.metadata import KEY, Metadata
from boxwright.runtime.optional import first_line, require_library
from boxwright.threads import runtime_threads

__all__ = ["OnnxSession", "OpenVinoSession", "Session", "open_session"]


class Session(Protocol):
    """A file that is opened in its runtime."""

    @property
    def metadata(self) -> Metadata:
        """What the file says of itself."""
        ...

    @property
    def output_names(self) -> tuple[str, ...]:
        """The outputs that there are."""
        ...

    def run(self, images: NDArray[Any], names: Sequence[str] = ()) -> dict[str, NDArray[np.float32]]:
        """Return the outputs of some names, or all, for pictures uint8 [B, H, W, 3]."""
        ...


class OnnxSession:
    """An ONNX file in ONNX Runtime, on the CPU."""

    def __init__(self, source: str | Path | bytes, threads: int = 0) -> None:
        """Open a file.

        Args:
            source: The file, or its bytes.
            threads: How many it may use; 0 for what OMP_NUM_THREADS or a container says, else what the runtime chooses.

        Raises:
            ExportError: Where the file is damaged, or not ours.
        """
        runtime = require_library("onnxruntime", "onnx")
        where = "an ONNX model" if isinstance(source, bytes) else shown(source)
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads or runtime_threads()
        try:
            model = source if isinstance(source, bytes) else str(source)
            self._session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001  # the runtime's own errors share no base of theirs
            raise ExportError(f"{where} cannot be opened by ONNX Runtime: {first_line(error)}") from None
        self.metadata = Metadata.from_json(self._session.get_modelmeta().custom_metadata_map.get(KEY), where)
        self.output_names = tuple(output.name for output in self._session.get_outputs())
        given = self._session.get_inputs()[0]
        self._input, self._dtype = given.name, np.float32 if given.type == "tensor(float)" else np.uint8

    def run(self, images: NDArray[Any], names: Sequence[str] = ()) -> dict[str, NDArray[np.float32]]:
        """Return the outputs of some names, or all, for pictures uint8 [B, H, W, 3]."""
        wanted = list(names or self.output_names)
        found = self._session.run(wanted, {self._input: images.astype(self._dtype, copy=False)})
        return dict(zip(wanted, found, strict=True))


class OpenVinoSession:
    """An OpenVINO model (.xml with its .bin) on the CPU."""

    def __init__(self, source: str | Path, threads: int = 0) -> None:
        """Open a file.

        Args:
            source: The .xml; or an .onnx, which OpenVINO reads, too.
            threads: How many it may use; 0 for what OMP_NUM_THREADS or a container says, else what the runtime chooses.

        Raises:
            ExportError: Where the file is damaged, or not ours.
        """
        runtime = require_library("openvino", "openvino")
        core = runtime.Core()
        try:
            model = core.read_model(str(source))
            text = None
            with suppress(RuntimeError):
                text = model.get_rt_info(KEY).astype(str)
        except Exception as error:  # noqa: BLE001  # the runtime's own errors share no base of theirs
            raise ExportError(f"{shown(source)} cannot be opened by OpenVINO: {first_line(error)}") from None
        self.metadata = Metadata.from_json(text, shown(source))
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
        if count := threads or runtime_threads():
            settings["INFERENCE_NUM_THREADS"] = count
        self._compiled = core.compile_model(model, "CPU", settings)
        floats = self._compiled.inputs[0].get_element_type().get_type_name().startswith("f")
        self._dtype = np.float32 if floats else np.uint8
        self.output_names = tuple(output.get_any_name() for output in self._compiled.outputs)

    def run(self, images: NDArray[Any], names: Sequence[str] = ()) -> dict[str, NDArray[np.float32]]:
        """Return the outputs of some names, or all, for pictures uint8 [B, H, W, 3]."""
        found = self._compiled([images.astype(self._dtype, copy=False)])
        return {name: np.array(found[name]) for name in names or self.output_names}


_SESSIONS: dict[str, Callable[..., Session]] = {".onnx": OnnxSession, ".xml": OpenVinoSession, ".tflite": LitertSession}


def open_session(path: str | Path, threads: int = 0) -> Session:
    """Open an exported file in the runtime of its format.

    Args:
        path: The file: .onnx, OpenVINO's .xml, or .tflite.
        threads: How many the runtime may use; 0 for what it chooses.

    Returns:
        The session.

    Raises:
        ExportError: Where there is no such file, it is of another format, damaged or not ours, or its runtime is not
            installed.
    """
    suffix = Path(path).suffix
    if suffix not in _SESSIONS:
        raise ExportError(f"{shown(path)}: expected {' or '.join(RUNTIMES)}")
    if not is_file(path):
        raise ExportError(f"{shown(path)}: no such file")
    return _SESSIONS[suffix](path, threads)
