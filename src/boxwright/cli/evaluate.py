"""`boxwright evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boxwright.cli.console import ap_line, console, count_progress, print_evaluation
from boxwright.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from boxwright.config.messages import TrainEvalPipelineConfig
    from boxwright.evaluation.results import Evaluation

__all__ = ["evaluate_command", "print_watched"]

_WATCH = "Following a run"


def print_watched(step: int, evaluation: Evaluation | None, text: str) -> None:
    """Print what a watch found.

    Args:
        step: Steps that the detector was trained.
        evaluation: What was found; None for a line of text.
        text: The line.
    """
    if evaluation is None:
        console.print(text, markup=False)
        return
    console.print(f"evaluation at step {step}")
    print_evaluation(evaluation)


def evaluate_command(  # noqa: PLR0913  # the flags of the command
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
        int, typer.Option("--reader", "--eval_index", min=0, help="Which of the configuration's eval_input_readers.")
    ] = 0,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, or auto for a GPU where there is one.")] = "auto",
    workers: Annotated[int, typer.Option("--workers", min=0, help="Processes that read and decode images.")] = 1,
    class_agnostic: Annotated[
        bool, typer.Option("--class_agnostic", help="Count all classes as one: are objects found at all?")
    ] = False,
    sample_1_of_n_eval_examples: Annotated[
        int | None, typer.Option("--sample_1_of_n_eval_examples", min=1, help="Evaluate every nth image.")
    ] = None,
    eval_on_train_data: Annotated[
        bool,
        typer.Option(
            "--eval_on_train_data", help="Evaluate on the training data, every 5th image unless told otherwise."
        ),
    ] = False,
    multi_scale: Annotated[
        str, typer.Option("--multi_scale", help="Look at many sizes and mirror images, and vote: as refinedet320-voc.")
    ] = "",
    watch_: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Wait for checkpoints and evaluate each, until the last step; writes to TensorBoard.",
            rich_help_panel=_WATCH,
        ),
    ] = False,
    wait_interval: Annotated[
        int,
        typer.Option("--wait_interval", min=0, help="Least seconds between two evaluations.", rich_help_panel=_WATCH),
    ] = 300,
    timeout: Annotated[
        int,
        typer.Option(
            "--timeout",
            "--eval_timeout",
            min=0,
            help="Seconds without a new checkpoint after which to end.",
            rich_help_panel=_WATCH,
        ),
    ] = 3600,
) -> None:
    """Compute the metrics of eval_config.metrics_set (COCO's unless set) and the losses; draw detections beside truth."""
    from boxwright.checkpoints.restore import restore_detector
    from boxwright.checkpoints.sources import is_tensorflow
    from boxwright.evaluation.results import write_evaluation
    from boxwright.evaluation.run import run_evaluation
    from boxwright.evaluation.watch import WatchSettings, evaluate_on_training_data, watch
    from boxwright.models.detector import usable_device
    from boxwright.models.multi_scale import at_scales

    if watch_ and pipeline_config_path is None:
        raise ConfigError(
            "--watch begins before there is a checkpoint: name the configuration by --pipeline_config_path"
        )
    if not watch_ and not model_dir.exists() and not is_tensorflow(model_dir):
        raise CheckpointError(f"{model_dir}: no such folder or checkpoint")
    config = _configuration(model_dir, pipeline_config_path, set_ or [])
    if sample_1_of_n_eval_examples is not None:
        for one in config.eval_input_reader:
            one.sample_1_of_n_examples = sample_1_of_n_eval_examples
    if eval_on_train_data:
        evaluate_on_training_data(config, sample_1_of_n_eval_examples or 5)
    if watch_:
        settings = WatchSettings(
            wait_interval=wait_interval,
            timeout=timeout,
            eval_index=reader,
            class_agnostic=class_agnostic,
            device=device,
            workers=workers,
        )
        watch(config, model_dir, out or model_dir, settings, print_watched)
        return
    detector, _, step = restore_detector(model_dir, config=config)
    detector.to(usable_device(device))
    evaluation = run_evaluation(
        config,
        at_scales(detector, multi_scale),
        reader,
        lambda items, title: count_progress(title)(items),
        class_agnostic=class_agnostic,
        workers=workers,
    )
    folder = out or (model_dir if model_dir.is_dir() else model_dir.parent) / "eval"
    write_evaluation(evaluation, folder)
    console.print(f"evaluation at step {step}")
    print_evaluation(evaluation)
    console.print(f"metrics, detections and {len(evaluation.pictures)} pictures: {folder}", markup=False)
    console.print(ap_line(evaluation.metrics))


def _configuration(model_dir: Path, given: Path | None, changes: list[str]) -> TrainEvalPipelineConfig:
    """Take the configuration that is given, else the one beside the checkpoint, else the one inside it."""
    from boxwright.checkpoints.restore import find_config, restore_detector
    from boxwright.checkpoints.sources import is_tensorflow
    from boxwright.config.load import load_config
    from boxwright.config.overrides import apply_override
    from boxwright.tensorflow.bundle import find_bundle

    overrides = [*changes, "eval_config.include_metrics_per_category=true"]
    beside = (model_dir if model_dir.is_dir() else model_dir.parent) / "pipeline.config"
    if given is None and is_tensorflow(model_dir):
        given = find_config(find_bundle(model_dir))
    elif given is None and beside.is_file():
        given = beside
    if given is not None:
        console.print(f"configuration: {given}", markup=False)
        return load_config(given, overrides)
    _, config, _ = restore_detector(model_dir)
    for override in overrides:
        apply_override(config, override)
    return config
