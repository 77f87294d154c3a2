"""`boxwright export`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boxwright.base.errors import CheckpointError, ExportError
from boxwright.base.outputs import check_output, is_output_address, local_output
from boxwright.base.settings import setting
from boxwright.base.text import counted
from boxwright.cli.console import console, suggest
from boxwright.cli.options import model_option, require_checkpoint, source_path
from boxwright.exporters.other_formats import way_to
from boxwright.exporters.settings import ExportSettings, Nms, Precision

if TYPE_CHECKING:
    from boxwright.exporters.int8 import Accuracy
    from boxwright.exporters.parity import Report
    from boxwright.nn.detector import Detector
    from boxwright.pipeline.messages import TrainEvalPipelineConfig


class Format(str, Enum):
    """The formats that a detector is written in."""

    ONNX = "onnx"
    OPENVINO = "openvino"
    PT2 = "pt2"
    LITERT = "litert"
    TRITON = "triton"
    SAFETENSORS = "safetensors"
    TENSORFLOW = "tensorflow"
    TF2 = "tf2"
    TF1 = "tf1"
    TRANSFORMERS = "transformers"


_SUFFIXES = {
    ".onnx": Format.ONNX,
    ".xml": Format.OPENVINO,
    ".tflite": Format.LITERT,
    ".pt2": Format.PT2,
    ".safetensors": Format.SAFETENSORS,
}
# How TensorFlow names checkpoints, with a step at the end.
_CHECKPOINT = re.compile(r"ckpt-[0-9]+$")
# Weights alone, which nothing is compared with.
_WEIGHTS = (Format.SAFETENSORS, Format.TENSORFLOW, Format.TF2, Format.TF1, Format.TRANSFORMERS)
_TENSORFLOW_VERSIONS = {Format.TF1: 1, Format.TF2: 2}
_NAMES = {format: f"detector{suffix}" for suffix, format in _SUFFIXES.items()}


Source = Annotated[
    str | None,
    typer.Argument(
        metavar="SOURCE",
        help="A run's folder or one of its checkpoints, a TF2 checkpoint, a SavedModel, or a name of boxwright weights "
        "list; or use --model_dir.",
    ),
]
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="PATH",
        help="Output file: *.onnx, *.xml (OpenVINO), *.tflite (LiteRT), *.pt2, *.safetensors, out/ckpt-1 for a "
        "TensorFlow checkpoint, or a folder for transformers; here or at s3:// or gs://; default: export/detector.onnx in the "
        "run's folder.",
    ),
]
FormatName = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="onnx, openvino, litert, pt2, triton (a model repository, the target's folder; the .onnx is in the run's "
        "export, too), safetensors, tensorflow (tf1 or tf2, if it has to be that one), or (D-FINE) transformers; default: "
        "by the target's name.",
    ),
]
Images = Annotated[
    list[Path] | None,
    typer.Option(
        "--images",
        help="Images, or folders of them, on which to compare the export with the detector; default: those of the "
        "configuration's eval_input_reader.",
    ),
]
ModelDir = Annotated[
    Path | None,
    model_option("The source, as in other commands."),
]
Verify = Annotated[
    Path | None,
    typer.Option("--verify", help="Write nothing: compare this exported file with the detector, on this machine."),
]


@dataclass(frozen=True, kw_only=True)
class ExportConfiguration:
    """The configuration of the model, and its changes; `boxwright export` has an option for each."""

    pipeline_config_path: Path | None = setting(
        None,
        "The model's configuration: weights of TF2 need it; a run's may change its post-processing.",
        flags=("--pipeline_config_path", "--config"),
    )
    changes: tuple[str, ...] = setting(
        (), "Change the configuration, as in --set num_classes=4; may be repeated.", flags=("--set",)
    )


_OWN = ExportConfiguration()


def export_command(
    settings: ExportSettings,
    source: Source = None,
    target: Target = None,
    format: FormatName = None,
    configuration: ExportConfiguration = _OWN,
    images: Images = None,
    model_dir: ModelDir = None,
    verify: Verify = None,
) -> None:
    """Export a detector to another runtime, after comparing the two; or write its weights alone."""
    path, named = _named(source, target, model_dir)
    if named is not None:
        check_output(named, "target")
    require_checkpoint(path)
    model = _Source(path, configuration, settings.require_license)
    with nullcontext() if named is None else local_output(named, "target") as place:
        words = _export(model, place, _find_format(format, place), images or [], settings, verify)
    if named is not None and is_output_address(named):
        console.print(f"copied to {named}")
    else:
        suggest(*words)


def _export(
    model: _Source,
    target: Path | None,
    chosen: Format,
    images: list[Path],
    settings: ExportSettings,
    verify: Path | None,
) -> tuple[str | Path, ...]:
    """Write a file, or compare one; return the words of the next command."""
    if verify is None and chosen in _WEIGHTS:
        return _write_weights(model, target, chosen)
    if chosen is Format.TRITON:
        settings, chosen, target = _repository_settings(model.path, target, settings, verify), Format.ONNX, None
    if settings.triton is not None and (chosen is not Format.ONNX or verify is not None):
        raise ExportError("--triton: Triton serves .onnx files; use it with --format onnx")
    if verify is not None:
        return _verify(model, verify, images, settings)
    return _write_export(model, target, chosen, images, settings)


@dataclass(frozen=True)
class _Source:
    """A trained model, what replaces its own configuration, and the licenses that its weights may have; "" for any."""

    path: Path
    replacing: ExportConfiguration
    licenses: str

    def restore(self) -> tuple[Detector, TrainEvalPipelineConfig, int]:
        """Return the detector on the CPU, its configuration and its step; an ExportError for another license."""
        from boxwright.weights.pedigree import require_licenses
        from boxwright.weights.restore import replacing_config, restore_detector

        config = replacing_config(self.path, self.replacing.pipeline_config_path, self.replacing.changes)
        detector, config, step = restore_detector(self.path, config=config)
        if self.licenses:
            require_licenses(config, [word.strip() for word in self.licenses.split(",")])
        return detector, config, step


def _find_format(name: str | None, target: Path | None) -> Format:
    """Return a format by its name or that of a file; an ExportError that names the way to one that is not written."""
    if name is None:
        return Format.ONNX if target is None else _format_of_name(target)
    try:
        return Format(name.lower())
    except ValueError:
        way = way_to(name) or f"expected {', '.join(format.value for format in Format)}"
        raise ExportError(f"--format {name}: {way}") from None


def _format_of_name(target: Path) -> Format:
    """Return the format of a name; an ExportError that names the right command if its ending is of none."""
    suffix = target.suffix.lower()
    if target.is_dir():
        raise CheckpointError(f"{target} is a folder; name a file in it, as {target}/detector.onnx or {target}/ckpt-1")
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if _CHECKPOINT.search(target.name):
        return Format.TENSORFLOW
    endings = f"{', '.join(_SUFFIXES)}, or ckpt-N for a TensorFlow checkpoint"
    if way := way_to(suffix.removeprefix(".")):
        raise ExportError(f"{target}: {way}")
    raise ExportError(f"{target}: no format is known by this name; expected {endings}, or name it with --format")


def _repository_settings(
    source: Path, target: Path | None, settings: ExportSettings, verify: Path | None
) -> ExportSettings:
    """Return the settings of an export to ONNX from which Triton's repository is made."""
    from boxwright.weights.open_model import export_folder

    if verify is not None:
        raise ExportError(
            "--format triton: --verify compares one file; name the repository's model.onnx, without --format"
        )
    if settings.triton is not None:
        raise ExportError("--format triton and --triton both name a model repository; remove one")
    if target is not None and (target.suffix.lower() in _SUFFIXES or target.is_file()):
        raise ExportError(f"{target}: a model repository is a folder; name one")
    return replace(settings, triton=target or export_folder(source) / "triton")


def _write_export(
    model: _Source, target: Path | None, chosen: Format, images: list[Path], settings: ExportSettings
) -> tuple[str | Path, ...]:
    """Export a detector, and print its comparison; return the words of the next command."""
    from boxwright.config.load import dump_message
    from boxwright.exporters.export import ExportDescription, export, report_path
    from boxwright.weights.open_model import export_folder, remember

    path, graph = target or export_folder(model.path) / _NAMES[chosen], settings.to_graph_options()
    if settings.triton is not None and graph.batch:
        raise ExportError("--batch: Triton's repository lets its server choose how many pictures it takes; remove one")
    # On the CPU, whatever the machine has: graphs are traced and compared there.
    detector, config, step = model.restore()
    if settings.context is not None:
        remember(detector, settings.context)
    pictures, origin = comparison_pictures(images, config, detector)
    console.print(f"compared on {counted(len(pictures), 'image')}: {origin}")
    with console.status("exporting …"):
        report = export(
            detector,
            path,
            images=pictures,
            format=chosen.value,  # type: ignore[arg-type]  # the table's keys
            nms=settings.nms.value,
            allow_difference=settings.allow_difference,
            accuracy=_accuracy(settings, config, detector),
            about=ExportDescription(config=dump_message(config), step=step, source=origin),
            **asdict(graph),
        )
    print_report(report)
    if not report.passed:
        console.print("warning: written although it differs, because of --allow_difference")
    console.print(f"step {step}: {path}; report: {report_path(path)}")
    if settings.triton is not None:
        _write_triton(path, settings.triton, detector.image_channels)
    return _next_words(path, detects_any=settings.nms is not Nms.NONE and not graph.image_size)


def _next_words(path: Path, *, detects_any: bool) -> tuple[str | Path, ...]:
    """Return the next command: one that works, as a file without suppression has no detections for `predict`."""
    return ("predict", "IMAGES", "--model_dir", path) if detects_any else ("inspect", path)


def _verify(model: _Source, file: Path, images: list[Path], settings: ExportSettings) -> tuple[str | Path, ...]:
    """Compare an exported file with its detector on this machine; return the words of the next command."""
    from boxwright.exporters.export import verify
    from boxwright.runtime.sessions import read_metadata
    from boxwright.weights.open_model import remember

    detector, config, _ = model.restore()
    if settings.context is not None:
        remember(detector, settings.context)
    pictures, origin = comparison_pictures(images, config, detector)
    report = verify(detector, file, pictures, origin, allow_edited=settings.allow_edited)
    print_report(report)
    if not report.passed:
        raise ExportError(f"{file} differs from the detector. {report.problem()}")
    about = read_metadata(file, allow_edited=settings.allow_edited)
    is_raw = about.suppression.get("in the graph") == Nms.NONE.value
    return _next_words(file, detects_any=not is_raw and not about.image_size)


def _named(source: str | None, target: str | None, model_dir: Path | None) -> tuple[Path, str | None]:
    """Return source and target: with --model_dir, the positional argument is the target."""
    if model_dir is not None:
        if target is not None:
            raise ExportError(f"--model_dir {model_dir} and {source} both name the source; remove one")
        return model_dir, source
    if source is None:
        raise ExportError("name what to export: a run's folder or a checkpoint, as in boxwright export model")
    return source_path(source), target


def comparison_pictures(
    images: list[Path], config: TrainEvalPipelineConfig, detector: Detector
) -> tuple[Sequence[Any], str]:
    """Return images to compare on, and where they are from."""
    from boxwright.api.export import pictures_of_data
    from boxwright.api.pictures import iterate_pictures
    from boxwright.exporters.pictures import varied
    from boxwright.inference.files import find_images

    if images:
        files, channels = find_images(images), detector.image_channels
        return varied(
            lambda number: next(
                iterate_pictures(files[number], channels=channels, white_level=detector.white_level)
            ).image,
            len(files),
        ), str(images[0])
    return pictures_of_data(config, detector)


def print_report(report: Report) -> None:
    """Print the differences at each stage of a comparison."""
    from rich.table import Table

    from boxwright.exporters.int8 import AGREEMENT

    table = Table("stage", "largest", "allowed", "compared", box=None, padding=(0, 2, 0, 0))
    for stage in report.stages:
        mark = "" if stage.passed and stage.gated else "  FAILED" if stage.gated else "  (reported)"
        table.add_row(stage.name, f"{stage.largest:.2g}{mark}", f"{stage.allowed:g}", stage.compared)
    console.print(table)
    for stage in report.stages:
        if stage.ties:
            console.print(f"{stage.name}: {len(stage.ties)} ties, listed in the report")
    if report.accuracy:
        before, after = report.accuracy["detector"], report.accuracy["export"]
        is_agreement = report.accuracy.get("metric") == AGREEMENT
        console.print(
            f"{after:.1%} of the detections are the same"
            if is_agreement
            else f"average precision {before:.4f} in float32, {after:.4f} exported",
        )
        if layers := report.accuracy.get("float32"):
            console.print(f"{len(layers)} layers stay in float32: {', '.join(layers)}")


def _accuracy(settings: ExportSettings, config: TrainEvalPipelineConfig, detector: Detector) -> Accuracy | None:
    """Return a measure of average precision on the evaluation data; None if float16's detections are compared instead."""
    if settings.precision is Precision.FLOAT32:
        return None
    from boxwright.exporters.int8 import average_precision
    from boxwright.pipeline.data_paths import placeholder_of_data
    from boxwright.pipeline.input_reader import build_dataset

    reader = config.eval_input_reader[0] if config.eval_input_reader else None
    if settings.precision is Precision.FLOAT16 and (reader is None or placeholder_of_data(reader)):
        return None
    if reader is None:
        raise ExportError("--precision int8 is measured on eval_input_reader, which the configuration lacks")
    return average_precision(build_dataset(reader, "eval_input_reader", detector.categories))


def _write_triton(path: Path, folder: Path, channels: int) -> None:
    from boxwright.exporters.triton import tensorrt_line, write_triton

    console.print(f"Triton: {write_triton(path, folder)}; tritonserver --model-repository={folder}")
    console.print(f"TensorRT (not tried here): {tensorrt_line(path, channels)}")


def _require_version(config: TrainEvalPipelineConfig, chosen: Format) -> None:
    """Raise an ExportError if the requested TensorFlow is not the one whose checkpoints a network has."""
    from boxwright.pipeline.tensorflow_version import tensorflow_version

    version = tensorflow_version(config.model)
    if _TENSORFLOW_VERSIONS.get(chosen, version) != version:
        raise ExportError(
            f"--format {chosen.value}: this network is one of TensorFlow {version}; use --format tf{version}"
        )


def _write_weights(model: _Source, target: Path | None, chosen: Format) -> tuple[str | Path, ...]:
    """Write weights alone; return the words of the next command."""
    if target is None:
        raise ExportError(f"--format {chosen.value}: name what to write")
    from boxwright.weights.export_weights import (
        refuse_other_models_folder,
        write_description,
        write_safetensors,
        write_tensorflow_checkpoint,
        write_transformers,
    )

    detector, config, step = model.restore()
    _require_version(config, chosen)
    if chosen is Format.TRANSFORMERS:
        target = write_transformers(detector, config, target)
    elif target.is_dir():
        raise CheckpointError(f"{target} is a folder; name a checkpoint in it, such as {target}/ckpt-{step}")
    elif chosen is Format.SAFETENSORS:
        write_safetensors(detector, target)
    else:
        refuse_other_models_folder(target.parent, config)
        write_tensorflow_checkpoint(detector, target, step=step)
        write_description(target.parent, config, detector.categories)
    console.print(f"{len(list(detector.network.parameters()))} variables at step {step}: {target}")
    if chosen is not Format.SAFETENSORS:
        return "predict", "IMAGES", "--model_dir", target
    return "train", "--weights", target, "--pipeline_config_path", "pipeline.config", "--model_dir", "model-2"
