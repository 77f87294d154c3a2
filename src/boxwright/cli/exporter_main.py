"""`boxwright exporter_main_v2`: the command line of TensorFlow's exporter."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from boxwright.base.errors import ExportError, OutputError
from boxwright.cli.console import console
from boxwright.cli.export import comparison_pictures, print_report
from boxwright.cli.options import require_checkpoint
from boxwright.exporters.settings import ExporterFlags


class InputType(str, Enum):
    """The inputs of an exported detector, by TensorFlow's names."""

    IMAGE_TENSOR = "image_tensor"
    FLOAT_IMAGE_TENSOR = "float_image_tensor"
    ENCODED_IMAGE_STRING_TENSOR = "encoded_image_string_tensor"
    TF_EXAMPLE = "tf_example"


def exporter_command(
    flags: ExporterFlags,
    pipeline_config_path: Annotated[Path, typer.Option("--pipeline_config_path", help="The model's configuration.")],
    trained_checkpoint_dir: Annotated[
        Path, typer.Option("--trained_checkpoint_dir", help="Checkpoint folder: TensorFlow's or Boxwright's.")
    ],
    output_directory: Annotated[Path, typer.Option("--output_directory", help="Output folder; it is created.")],
    input_type: Annotated[
        InputType,
        typer.Option(
            "--input_type",
            metavar="TYPE",
            help="Input type: image_tensor, float_image_tensor, encoded_image_string_tensor or tf_example.",
        ),
    ] = InputType.IMAGE_TENSOR,
    images: Annotated[
        list[Path] | None,
        typer.Option("--images", help="Images to compare on; default: those of the configuration's eval_input_reader."),
    ] = None,
) -> None:
    """Write what TensorFlow's exporter writes, with detector.onnx (same names) in place of the SavedModel."""
    if flags.side_inputs:
        raise ExportError(
            "--use_side_inputs: use boxwright export --context, which puts a camera's memory into the file"
        )
    require_checkpoint(trained_checkpoint_dir)
    # TensorFlow's exports have no detector.onnx, but a checkpoint of the same name as the one to be written.
    if any((output_directory / name).exists() for name in ("detector.onnx", "checkpoint", "saved_model")):
        raise OutputError(f"{output_directory} already contains an export; name another folder")
    from boxwright.config.load import dump_message
    from boxwright.exporters.export import ExportDescription, export
    from boxwright.pipeline.load import load_config
    from boxwright.weights.export_weights import write_description, write_tensorflow_checkpoint
    from boxwright.weights.restore import restore_detector

    config = load_config(pipeline_config_path, [flags.config_override] if flags.config_override else [])
    detector, config, step = restore_detector(trained_checkpoint_dir, config=config)
    # The name in TensorFlow's exports, whatever the step.
    write_tensorflow_checkpoint(detector, output_directory / "checkpoint" / "ckpt-0", step=step)
    write_description(output_directory, config, detector.categories)
    pictures, origin = comparison_pictures(images or [], config, detector)
    with console.status("exporting …"):
        report = export(
            detector,
            output_directory / "detector.onnx",
            images=pictures,
            about=ExportDescription(config=dump_message(config), step=step, source=origin, input_type=input_type.value),
        )
    print_report(report)
    console.print(f"{output_directory}: detector.onnx, checkpoint/ckpt-0, pipeline.config")
    console.print("there is no saved_model/: writing one needs TensorFlow; `boxwright serve` speaks its protocol")
    if input_type in (InputType.ENCODED_IMAGE_STRING_TENSOR, InputType.TF_EXAMPLE):
        console.print(
            f"{input_type.value}: ONNX has no decoder; ExportedDetector.detect_encoded and `boxwright serve` decode"
        )
