"""`boxwright demo --shapes`, `--masks` and `--keypoints`: training, evaluation and prediction on generated images."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from boxwright.base.settings import setting
from boxwright.cli.console import ap_line, console, count_progress, print_evaluation, show_progress, suggest
from boxwright.cli.process import prepare_training
from boxwright.cli.train import ProgressListener

if TYPE_CHECKING:
    from boxwright.cli.demo_data import Demo
    from boxwright.evaluation.results import Evaluation
    from boxwright.pipeline.messages import TrainEvalPipelineConfig

_PANEL = "With --shapes, --masks or --keypoints"
# What is printed beside the AP of boxes, where it was computed.
_MORE_AP = {
    "keypoint AP": "Keypoints_Precision/mAP ByCategory/figure",
    "mask AP": "DetectionMasks_Precision/mAP",
}


@dataclass(frozen=True, kw_only=True)
class MadeUpSettings:
    """What is made up, and how long a detector learns from it; `boxwright demo` has an option for each."""

    data_only: bool = setting(False, "Generate the data and the configuration only.", _PANEL)
    num_train_steps: int | None = setting(None, "Training steps.", _PANEL, 1)
    train_images: int = setting(2000, "Training images to generate.", _PANEL, 1)
    val_images: int = setting(250, "Evaluation images to generate.", _PANEL, 1)


def run_made_up_demo(out: Path, demo: Demo, settings: MadeUpSettings) -> None:
    """Generate images as TFRecords, train a detector on them, evaluate it and draw its detections."""
    from boxwright.cli.demo_data import write_demo_data
    from boxwright.pipeline.load import load_config

    began = time.monotonic()
    config_path = write_demo_data(
        out, demo, settings.train_images, settings.val_images, count_progress("make pictures")
    )
    counts = f"{settings.train_images} + {settings.val_images} images"
    console.print(f"data: {out / 'data'} ({counts}), configuration: {config_path}")
    model_dir = out / "model"
    if settings.data_only:
        suggest("train", "--pipeline_config_path", config_path, "--model_dir", model_dir)
        return
    console.print(f"\n$ boxwright train --pipeline_config_path {config_path} --model_dir {model_dir}")
    config = load_config(config_path, _schedule(settings.num_train_steps, demo.optimizer))
    done = _train(config, model_dir)
    # Interrupted: the command that resumes was printed at the start.
    if config.train_config and done < config.train_config.num_steps:
        return
    console.print(f"\n$ boxwright evaluate --model_dir {model_dir} --out {out / 'eval'}")
    evaluation = _evaluated(config, config_path, model_dir, out / "eval")
    print_evaluation(evaluation)
    console.print(f"\npictures, truth beside detections: {out / 'eval' / 'pictures'}")
    console.print(f"TensorBoard: tensorboard --logdir {model_dir}")
    suggest("predict", "IMAGES", "--model_dir", model_dir, "--out", out / "predictions")
    console.print(f"took {time.monotonic() - began:.0f} s")
    for name, metric in _MORE_AP.items():
        if metric in evaluation.metrics:
            console.print(f"{name} {evaluation.metrics[metric]:.3f}")
    console.print(ap_line(evaluation.metrics))


def _schedule(steps: int | None, optimizer: str) -> list[str]:
    """Return what changes a demo's configuration, with such an optimizer, to train for so many steps."""
    if steps is None:
        return []
    # A schedule must be longer than its warmup, which takes at most 100 steps in the demos.
    schedule = f"train_config.optimizer.{optimizer}.learning_rate.cosine_decay_learning_rate"
    return [f"train_config.num_steps={steps}", f"{schedule}.total_steps={max(steps, 101)}"]


def _train(config: TrainEvalPipelineConfig, model_dir: Path) -> int:
    """Train without evaluations between, and return the last step."""
    from boxwright.cli.progress import progress_bar
    from boxwright.training.settings import RunSettings
    from boxwright.training.stop import exit_status
    from boxwright.training.train import train

    # On two cores a worker costs the network more time than it saves.
    settings = RunSettings(checkpoint_every_n=10_000, evaluate=False, workers=0 if (os.cpu_count() or 1) <= 2 else 1)
    prepare_training(config, settings)
    with progress_bar() as progress:
        end = train(config, model_dir, settings, {"console": ProgressListener(progress, config)})
    if status := exit_status(end):
        raise typer.Exit(status)
    return end.step


def _evaluated(config: TrainEvalPipelineConfig, config_path: Path, model_dir: Path, folder: Path) -> Evaluation:
    """Evaluate a run, write the evaluation's folder, and return the evaluation."""
    from boxwright.base.files import write_whole
    from boxwright.config.load import dump_message
    from boxwright.evaluation.evaluate import evaluate, open_evaluation
    from boxwright.evaluation.settings import EvaluationSettings
    from boxwright.evaluation.write import ImageResults, about_evaluation, write_evaluation
    from boxwright.weights.open_model import OpenModel
    from boxwright.weights.restore import restore_detector

    detector, _, step = restore_detector(model_dir)
    settings = EvaluationSettings(workers=0)
    opened = open_evaluation(OpenModel(model_dir, detector, step), config, settings)
    about = about_evaluation(opened.model, settings, config_path)
    with ImageResults(folder) as results:
        evaluation = evaluate(opened, show_progress, results.add)
        write_evaluation(evaluation, results, folder, step, about=about)
    write_whole(folder / "pipeline.config", dump_message(config))
    return evaluation
