"""`export`: write a detector for another runtime, after comparing the file with the detector."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from boxwright.base.errors import ExportError, OutputError
from boxwright.base.files import make_folder, write_whole
from boxwright.base.settings import with_options
from boxwright.base.text import is_count
from boxwright.exporters.float16 import measure_agreement, to_float16
from boxwright.exporters.graph import INPUT, PREPROCESSED, Suppression, detection_program, save_pt2
from boxwright.exporters.int8 import (
    AGREEMENT,
    AVERAGE_PRECISION,
    Accuracy,
    Quantizer,
    compared_accuracy,
    precise_enough,
)
from boxwright.exporters.litert_file import litert_input, litert_model, litert_session, save_litert
from boxwright.exporters.onnx_file import onnx_bytes, onnx_model, openvino_model, save_openvino, with_output
from boxwright.exporters.other_formats import way_to
from boxwright.exporters.parity import Report, compare, find_suppression
from boxwright.exporters.pictures import Pictures, resized
from boxwright.exporters.settings import GraphOptions, Precision
from boxwright.nn.detector import Detector
from boxwright.nn.network import evaluation_mode
from boxwright.nn.postprocessing.nms import operator_arguments
from boxwright.runtime.export_file import ExportFile, read_checked
from boxwright.runtime.exported import ExportedDetector
from boxwright.runtime.litert_session import LitertSession
from boxwright.runtime.metadata import Metadata
from boxwright.runtime.optional import installed_versions
from boxwright.runtime.sessions import OnnxSession, OpenVinoSession, Session, with_fixed_shape
from boxwright.types import DetectFunction
from boxwright.types.detection_outputs import DETECTION_OUTPUTS
from boxwright.weights.export_weights import weights_sha256
from boxwright.weights.pt2_archive import Pt2Session

_COLORS = 3
_OUTPUTS = {
    "detection_boxes": "float32 [batch, D, 4]: ymin, xmin, ymax, xmax in 0..1 of the picture",
    "detection_scores": "float32 [batch, D], best first",
    "detection_classes": "float32 [batch, D]: ids, the label plus 1",
    "num_detections": "float32 [batch]: how many of D are detections; the rest is padding",
    **{kind.output: kind.meaning for kind in DETECTION_OUTPUTS},
    "detections_complete": "float32 [batch]: 0 if candidates that suppression ignored could have mattered",
    "raw_detection_boxes": "float32 [batch, A, 4]: every anchor's, in 0..1 of the network's input (regions: picture)",
    "raw_detection_scores": "float32 [batch, A, columns]: every anchor's",
}

Format = Literal["onnx", "openvino", "litert", "pt2"]
InputType = Literal["image_tensor", "float_image_tensor", "encoded_image_string_tensor", "tf_example"]
# From pictures uint8 [B, H, W, 3] to the network's inputs.
Inputs = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
# Multiples of the usual number of candidates to try until they suffice.
_TIMES = (1, 4, 16)


@dataclass(frozen=True)
class _Form:
    """The form of a graph.

    Attributes:
        times: The multiple of suppression's usual number of candidates.
        dtype: Of the pictures.
    """

    suppression: Suppression
    dtype: torch.dtype
    options: GraphOptions
    times: int = 1


@dataclass(frozen=True)
class _Kind:
    """A format.

    Attributes:
        suffix: The file's.
        libraries: That write and run it, besides PyTorch.
        make: From a detector and the form of its graph to the model that `save` takes.
        save: Writes the model, with metadata, to a path.
        session: Opens a file for the comparison.
        inputs: From a file to a function that returns its network's inputs float32 [B, C, H, W] for pictures; None if
            there is no such function.
        describe: The format-specific fields of the input's metadata.
    """

    suffix: str
    libraries: tuple[str, ...]
    make: Callable[[Detector, _Form], Any]
    save: Callable[[Any, Metadata, Path], None]
    session: Callable[[ExportFile], Session]
    inputs: Callable[[ExportFile], Inputs] | None = None
    describe: Callable[[Detector], dict[str, Any]] = lambda detector: {}


def _onnx(detector: Detector, form: _Form) -> Any:
    model = onnx_model(_program(detector, form, with_inputs=True), form.options.opset)
    return to_float16(model) if form.options.precision == Precision.FLOAT16.value else model


def _save_onnx(model: Any, metadata: Metadata, path: Path) -> None:
    write_whole(path, onnx_bytes(model, metadata))


def _program(detector: Detector, form: _Form, *, with_inputs: bool = False) -> Any:
    options = form.options
    return detection_program(
        detector,
        form.suppression,
        form.times,
        with_inputs=with_inputs,
        dtype=form.dtype,
        batch=options.batch,
        image_size=options.image_size,
    )


def _openvino(detector: Detector, form: _Form) -> Any:
    return openvino_model(_onnx(detector, form).SerializeToString(deterministic=True))


def _litert(detector: Detector, form: _Form) -> Any:
    return litert_model(detector, form.suppression, form.times, form.dtype)


def _onnx_inputs(file: ExportFile) -> Inputs:
    session = with_fixed_shape(OnnxSession(replace(file, data=with_output(file.data, PREPROCESSED))))
    return lambda images: session.run(images, [PREPROCESSED])[PREPROCESSED]


def _litert_inputs(file: ExportFile) -> Inputs:
    session = LitertSession(file)
    return lambda images: session.preprocessed(images).transpose(0, 3, 1, 2)


FORMATS: dict[str, _Kind] = {
    "onnx": _Kind(".onnx", ("onnx", "onnxscript", "onnxruntime"), _onnx, _save_onnx, OnnxSession, _onnx_inputs),
    "openvino": _Kind(".xml", ("openvino", "onnx", "onnxscript"), _openvino, save_openvino, OpenVinoSession),
    "litert": _Kind(
        ".tflite",
        ("ai-edge-litert",),
        _litert,
        save_litert,
        litert_session,
        _litert_inputs,
        litert_input,
    ),
    "pt2": _Kind(".pt2", (), _program, save_pt2, Pt2Session),
}


@dataclass(frozen=True, kw_only=True)
class ExportDescription:
    """What a file's metadata says of its detector, besides what the detector itself knows.

    Attributes:
        config: The text of its configuration.
        step: How many steps it was trained for.
        metric: A metric's name and value, if known.
        source: Where the comparison's pictures come from.
        input_type: TensorFlow's name of the input. "float_image_tensor" takes float32; for encoded images and
            tf.Examples the caller decodes, and the graph takes uint8 as for "image_tensor".
    """

    config: str = ""
    step: int = 0
    metric: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    input_type: InputType = "image_tensor"


_NO_METADATA = ExportDescription()


def export(
    detector: Detector,
    path: str | Path,
    *,
    images: Pictures,
    format: Format = "onnx",
    nms: Suppression = "operator",
    allow_difference: bool = False,
    accuracy: Accuracy | None = None,
    about: ExportDescription = _NO_METADATA,
    **graph: Any,
) -> Report:
    """Write a detector as one file that another runtime opens, and a report of how it was compared.

    The new file is opened in its runtime and compared with the detector on the pictures; only if it passes does it get
    its name.

    Args:
        detector: Trained; its mode is left unchanged.
        path: The file; its suffix is the format's.
        images: Real pictures, of several sizes if the detector will see such, uint8 [H, W, 3] in RGB.
        format: "onnx", "openvino", "litert" or "pt2".
        nms: "operator": suppression by the runtime's own operator; "padded": by plain tensor operations, for runtimes
            without one, as always in PyTorch's programs; "none": raw outputs only.
        allow_difference: Also write a file that differs; its metadata says that it does.
        accuracy: Measures average precision, which may fall by at most 0.01: an ONNX file is then quantized to 8 bits,
            calibrated on the pictures, and layers that cost more stay in float32, or it is in float16 with `precision`.
            None for float32, or for float16 whose detections are compared with the detector's instead.
        about: Further metadata of the detector.
        **graph: precision, opset, batch and image_size of `GraphOptions`.

    Returns:
        The report, which is also written beside the file as `NAME.parity.json`.

    Raises:
        ExportError: If the format cannot represent the detector, there are no pictures, or the result differs.
        OutputError: If the disk is full or the folder cannot be written.
    """
    require_format(format)
    path, kind = Path(path), FORMATS[format]
    _check(path, kind, images)
    options = with_options(GraphOptions(), graph, "export")
    if accuracy is not None and options.precision == Precision.FLOAT32.value:
        options = replace(options, precision=Precision.INT8.value)
    options.require_expressible(format, nms, measured=accuracy is not None)
    images = resized(images, options.image_size)
    # A .pt2 opens with PyTorch alone, which has no such operator.
    suppression: Suppression = "padded" if format == "pt2" and nms == "operator" else nms
    with evaluation_mode(detector):
        metadata = describe(detector, format, suppression, about)
        metadata = replace(metadata, precision=options.precision, input=options.describe_input(metadata.input))
        if options.precision == Precision.INT8.value:
            metadata = replace(metadata, calibration={"images": len(images), "source": about.source})
        with (
            tempfile.TemporaryDirectory(dir=make_folder(path.parent), prefix=f".{path.name}.") as folder,
            _naming(path, Path(folder)),
        ):
            scratch = Path(folder) / path.name
            dtype = torch.float32 if about.input_type == "float_image_tensor" else torch.uint8
            form = _Form(suppression, dtype, options)
            made, metadata, names, report = _made(detector, scratch, images, metadata, form, accuracy)
            report.images["source"] = about.source
            if not report.passed and not allow_difference:
                _refuse(path, report)
            outputs = {name: metadata.outputs.get(name, "float32") for name in names}
            # Again: the file itself says how the comparison with it went.
            kind.save(made, replace(metadata, parity=_verdict(report), outputs=outputs), scratch)
            _publish(Path(folder), path, report)
    return report


def require_format(format: str) -> None:
    """Raise an ExportError for a format that is not written, with the shortest way there."""
    if format not in FORMATS:
        raise ExportError(f"format {format!r}: {way_to(format) or 'expected ' + ', '.join(FORMATS)}")


@contextmanager
def _naming(path: Path, folder: Path) -> Iterator[None]:
    """Make write errors name the requested file, not the temporary one."""
    try:
        yield
    except OutputError as error:
        raise OutputError(str(error).replace(f"{folder}{os.sep}", f"{path.parent}{os.sep}")) from None


def _refuse(path: Path, report: Report) -> None:
    write_whole(report_path(path), report.to_json())
    raise ExportError(
        f"{path} was not written: it differs from the detector. {report.problem()}; report: {report_path(path)}"
    )


def describe(
    detector: Detector, format: Format, suppression: Suppression, about: ExportDescription = _NO_METADATA
) -> Metadata:
    """Return an export's metadata, without the comparison's result. `SOURCE_DATE_EPOCH` overrides the time.

    Args:
        detector: What is exported.
        format: A key of `FORMATS`.
        suppression: How it is done in the graph.
        about: Further metadata of the detector.

    Returns:
        The metadata, in float32.
    """
    preprocessor, nms, channels = detector.preprocessor, find_suppression(detector), detector.image_channels
    dtype = "float32" if about.input_type == "float_image_tensor" else "uint8"
    # The variable of reproducible-builds.org: equal weights then give equal files.
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    created = datetime.fromtimestamp(int(epoch), UTC) if is_count(epoch) else datetime.now(UTC)
    return Metadata(
        format=format,
        boxwright=version("boxwright"),
        config=about.config,
        num_classes=detector.num_classes,
        categories=detector.categories.to_list() if detector.categories else [],
        step=about.step,
        metric=dict(about.metric),
        created=created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        weights_sha256=weights_sha256(detector),
        input={
            "name": INPUT,
            "type": about.input_type,
            "dtype": f"{dtype} [batch, height, width, {channels}]",
            "channels": channels,
            "colour": "RGB" if channels == _COLORS else f"RGB and {channels - _COLORS} more",
            "range": [0, 255],
            **({"white_level": detector.white_level} if detector.white_level else {}),
            "resizer": f"{type(preprocessor.resizer).__name__} to {preprocessor.resizer.output_size}, within the graph",
            "scaling": {"scale": preprocessor.scaling.scale, "offset": preprocessor.scaling.offset},
            **FORMATS[format].describe(detector),
        },
        outputs=_OUTPUTS,
        suppression={"in the graph": suppression, **({} if nms is None else operator_arguments(nms))},
        versions=installed_versions("torch", *FORMATS[format].libraries),
    )


def _made(
    detector: Detector,
    scratch: Path,
    images: Pictures,
    metadata: Metadata,
    form: _Form,
    accuracy: Accuracy | None,
) -> tuple[Any, Metadata, tuple[str, ...], Report]:
    """Return the model that `kind.save` takes, with as many candidates as needed, its metadata, outputs and report."""
    kind = FORMATS[metadata.format]
    quantizer = None
    # More candidates make each later run slower: the fewest that suffice are taken.
    for times in _TIMES:
        made = kind.make(detector, replace(form, times=times))
        if metadata.precision == Precision.INT8.value:
            quantizer = Quantizer(made, images)
            made = quantizer.quantized()
        session, report = _opened(detector, made, scratch, images, metadata)
        if report.complete:
            break
    if metadata.precision == Precision.FLOAT32.value:
        return made, metadata, session.output_names, report
    measure, metric = (accuracy, AVERAGE_PRECISION) if accuracy else (_agreement(detector, images), AGREEMENT)
    before = measure(_detect_function(detector))
    report.accuracy = compared_accuracy(before, measure(ExportedDetector(session).detect), metric)
    if quantizer is not None and not report.accuracy["passed"] and before > 0:
        mixed = precise_enough(
            quantizer,
            made,
            before,
            lambda model: measure(ExportedDetector(_saved(kind, model, scratch, metadata)[0]).detect),
        )
        if mixed is not None:
            made = mixed.model
            metadata = replace(metadata, calibration={**metadata.calibration, "float32": mixed.layers})
            session, report = _opened(detector, made, scratch, images, metadata)
            report.accuracy = {**mixed.accuracy, "float32": mixed.layers}
    return made, metadata, session.output_names, report


def _detect_function(detector: Detector) -> DetectFunction:
    return lambda pictures: [detections.arrays() for detections in detector.detect(pictures)]


def _agreement(detector: Detector, images: Pictures) -> Accuracy:
    return measure_agreement(_detect_function(detector), images)


def _saved(kind: _Kind, model: Any, scratch: Path, metadata: Metadata) -> tuple[Session, ExportFile]:
    """Write a model and open it."""
    kind.save(model, metadata, scratch)
    file = read_checked(scratch)
    return with_fixed_shape(kind.session(file)), file


def _opened(
    detector: Detector, model: Any, scratch: Path, images: Pictures, metadata: Metadata
) -> tuple[Session, Report]:
    """Write a model, open it, and compare it with its detector."""
    session, file = _saved(FORMATS[metadata.format], model, scratch, metadata)
    return session, _compared(detector, session, file, images)


def _check(path: Path, kind: _Kind, images: Pictures) -> None:
    if path.suffix.lower() != kind.suffix:
        way = way_to(path.suffix.removeprefix("."))
        raise ExportError(f"{path}: expected a name that ends in {kind.suffix}{way and f' ({way})'}")
    if path.is_dir():
        raise ExportError(f"{path} is a folder; expected a file")
    for number, image in enumerate(images):
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3:
            raise ExportError(
                f"images[{number}]: expected a picture, uint8 [height, width, 3], found {_describe_type(image)}; "
                "boxwright.data.image_io.read_image reads a file"
            )
    if not len(images):
        raise ExportError("no pictures: an export is compared with its detector on pictures")


def _describe_type(image: object) -> str:
    return f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__


def _compared(detector: Detector, session: Session, file: ExportFile, images: Pictures, source: str = "") -> Report:
    metadata = session.metadata
    kind = FORMATS[metadata.format]
    stages = compare(
        detector,
        session,
        images,
        preprocessed=kind.inputs(file) if kind.inputs else None,
        raw_only=metadata.suppression.get("in the graph") == "none",
    )
    sizes = sorted({f"{image.shape[1]}x{image.shape[0]}" for image in images})
    listed = {"count": len(images), "sizes": sizes[:50], "source": source}
    return Report(stages, listed, metadata.weights_sha256, installed_versions("torch", *kind.libraries))


def _verdict(report: Report) -> dict[str, Any]:
    return {
        "verdict": "passed" if report.passed else "differs",
        "problem": report.problem(),
        "report_sha256": hashlib.sha256(report.to_json().encode()).hexdigest(),
    }


def _publish(folder: Path, path: Path, report: Report) -> None:
    """Move a file, its companions and its report to their final place; the file itself last."""
    for part in sorted(folder.iterdir(), key=lambda part: part.name == path.name):
        if part.name == path.name:
            write_whole(report_path(path), report.to_json())
        write_whole(path.parent / part.name, part.read_bytes())


def report_path(path: str | Path) -> Path:
    """Return the path of an exported file's report."""
    return Path(path).with_name(f"{Path(path).name}.parity.json")


def _find_kind(path: str | Path) -> _Kind:
    kind = next((kind for kind in FORMATS.values() if kind.suffix == Path(path).suffix.lower()), None)
    if kind is None:
        raise ExportError(f"{path}: expected {', '.join(kind.suffix for kind in FORMATS.values())}")
    return kind


def verify(
    detector: Detector,
    path: str | Path,
    images: Pictures,
    source: str = "",
    *,
    allow_edited: bool = False,
) -> Report:
    """Compare an exported file with its detector again, for example on the machine that will run it.

    Args:
        detector: The one it was exported from.
        path: The file.
        images: Real pictures, uint8 [H, W, 3].
        source: Where they come from, for the report.
        allow_edited: Whether to compare a file that was modified.

    Returns:
        The report.

    Raises:
        ExportError: If the file was exported from another detector, is damaged or modified.
    """
    kind, file = _find_kind(path), read_checked(path, allow_edited=allow_edited)
    session = with_fixed_shape(kind.session(file))
    images = resized(images, session.metadata.image_size)
    with evaluation_mode(detector):
        if session.metadata.weights_sha256 != weights_sha256(detector):
            raise ExportError(f"{path} was exported from a detector with other weights")
        return _compared(detector, session, file, images, source)
