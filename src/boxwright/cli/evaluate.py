"""`boxwright evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from boxwright.cli.console import ap_line, console, count_progress, print_evaluation
from boxwright.errors import CheckpointError

__all__ = ["evaluate_command"]


def evaluate_command(
    model_dir: Annotated[
        Path,
        typer.Option(
            "--model_dir",
            "--checkpoint",
            help="A run's folder, one of its checkpoints, or a TF2 checkpoint or SavedModel.",
        ),
    ],
    pipeline_config_path: Annotated[
        Path | None,
        typer.Option(
            "--pipeline_config_path",
            "--config",
            help="Where eval_config and eval_input_reader come from; without, what the checkpoint carries.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for metrics.json, detections.json and pictures; default: eval in the run's folder."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change the configuration, as in --set eval_config.num_visualizations=50."),
    ] = None,
    reader: Annotated[
        int, typer.Option("--reader", min=0, help="Which of the configuration's eval_input_readers.")
    ] = 0,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
) -> None:
    """Compute the metrics of eval_config.metrics_set (COCO's unless set); draw truth beside detections."""
    from boxwright.checkpoints.sources import is_tensorflow
    from boxwright.config.load import load_config
    from boxwright.config.overrides import apply_override
    from boxwright.evaluation.evaluate import find_config, restore_detector, run_evaluation
    from boxwright.evaluation.evaluator import write_evaluation
    from boxwright.models.detector import usable_device
    from boxwright.tensorflow.bundle import find_bundle

    if not model_dir.exists() and not is_tensorflow(model_dir):
        raise CheckpointError(f"{model_dir}: no such folder or checkpoint")
    overrides = [*(set_ or []), "eval_config.include_metrics_per_category=true"]
    beside = (model_dir if model_dir.is_dir() else model_dir.parent) / "pipeline.config"
    if pipeline_config_path is None and is_tensorflow(model_dir):
        pipeline_config_path = find_config(find_bundle(model_dir))
    elif pipeline_config_path is None and beside.is_file():
        pipeline_config_path = beside
    if pipeline_config_path is None:
        _, config, _ = restore_detector(model_dir)
        for override in overrides:
            apply_override(config, override)
    else:
        config = load_config(pipeline_config_path, overrides)
        console.print(f"configuration: {pipeline_config_path}", markup=False)
    detector, _, step = restore_detector(model_dir, config=config)
    detector.to(usable_device(device))
    evaluation = run_evaluation(config, detector, reader, lambda items, title: count_progress(title)(items))
    folder = out or (model_dir if model_dir.is_dir() else model_dir.parent) / "eval"
    write_evaluation(evaluation, folder)
    console.print(f"evaluation at step {step}")
    print_evaluation(evaluation)
    console.print(f"metrics, detections and {len(evaluation.pictures)} pictures: {folder}", markup=False)
    console.print(ap_line(evaluation.metrics))
