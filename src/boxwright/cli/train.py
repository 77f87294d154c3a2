"""`boxwright train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress, TaskID

from boxwright.cli.console import console, print_metrics, progress_bar
from boxwright.errors import ConfigError
from boxwright.training.settings import RunSettings

if TYPE_CHECKING:
    from boxwright.config.messages import TrainEvalPipelineConfig
    from boxwright.training.log import Event

__all__ = ["Narrator", "train_command"]


class Narrator:
    """Shows a run as it goes: a bar with the loss terms, and tables of evaluations."""

    def __init__(self, progress: Progress, config: TrainEvalPipelineConfig) -> None:
        """Start without a task; the first step shows the bar.

        Args:
            progress: The bar.
            config: For the number of steps, and the images of one.
        """
        train = config.train_config
        self._progress = progress
        self._task: TaskID | None = None
        self._total, self._images = (train.num_steps, train.batch_size) if train else (0, 0)

    def hear(self, step: int, event: Event) -> None:
        """Move the bar, or print a table."""
        from boxwright.training.log import Evaluated, Scalars

        if isinstance(event, Scalars) and "steps_per_sec" in event.values:
            self._step(step, event.values)
        elif isinstance(event, Evaluated):
            console.print(f"evaluation at step {step}")
            print_metrics(event.metrics, event.notes)

    def close(self) -> None:
        """Leave the bar to the one that made it."""

    def _step(self, step: int, values: Mapping[str, float]) -> None:
        """Move the bar; every hundredth of the way leaves a line where there is no terminal."""
        total = self._total
        terms = {name.removeprefix("Loss/").removesuffix("_loss"): v for name, v in values.items() if "Loss/" in name}
        numbers = "  ".join(f"{name} {value:.3f}" for name, value in terms.items())
        speed = values["steps_per_sec"] * self._images
        numbers += f"  rate {values['learning_rate']:.2e}  {speed:.1f} images/s"
        if self._task is None:
            self._task = self._progress.add_task("train", total=total, numbers="")
        self._progress.update(self._task, completed=step, numbers=numbers)
        if not console.is_terminal and (step == total or step % max(total // 20, 1) < max(total // 100, 1)):
            console.print(f"step {step}/{total}  {numbers}", markup=False)


Config = Annotated[
    Path, typer.Option("--pipeline_config_path", "--config", help="The configuration: text format, YAML or JSON.")
]
ModelDir = Annotated[
    Path,
    typer.Option(
        "--model_dir", help="The run's folder: checkpoints, log, configuration as run. A run in it is resumed."
    ),
]
_TF = "Of model_main_tf2.py"


def train_command(  # noqa: PLR0913  # the flags of model_main_tf2.py
    pipeline_config_path: Config,
    model_dir: ModelDir,
    settings: RunSettings,
    num_train_steps: Annotated[
        int | None, typer.Option("--num_train_steps", help="Steps in all; overrides train_config.num_steps.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change the configuration, as in --set train_config.batch_size=8; may be repeated."),
    ] = None,
    checkpoint_dir: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint_dir",
            help="Do not train: evaluate each new checkpoint of this folder, as boxwright evaluate --watch.",
            rich_help_panel=_TF,
        ),
    ] = None,
    eval_timeout: Annotated[
        int,
        typer.Option(
            "--eval_timeout",
            help="With --checkpoint_dir: seconds to wait for a new checkpoint.",
            rich_help_panel=_TF,
        ),
    ] = 3600,
    sample_1_of_n_eval_examples: Annotated[
        int | None,
        typer.Option("--sample_1_of_n_eval_examples", min=1, help="Evaluate every nth image.", rich_help_panel=_TF),
    ] = None,
    eval_on_train_data: Annotated[
        bool,
        typer.Option(
            "--eval_on_train_data/--noeval_on_train_data",
            help="With --checkpoint_dir: evaluate on the training data (TF2 never reads it).",
            rich_help_panel=_TF,
        ),
    ] = False,
    sample_1_of_n_eval_on_train_examples: Annotated[
        int,
        typer.Option(
            "--sample_1_of_n_eval_on_train_examples",
            min=1,
            help="With --eval_on_train_data: every nth image.",
            rich_help_panel=_TF,
        ),
    ] = 5,
    record_summaries: Annotated[
        bool,
        typer.Option(
            "--record_summaries/--norecord_summaries",
            help="Log pictures of inputs and of losses' distributions.",
            rich_help_panel=_TF,
        ),
    ] = True,
    num_workers: Annotated[
        int,
        typer.Option(
            "--num_workers",
            help="Machines; more than 1 is torchrun's to start (docs/training.md).",
            rich_help_panel=_TF,
        ),
    ] = 1,
    use_tpu: Annotated[
        bool,
        typer.Option("--use_tpu/--nouse_tpu", help="Refused: PyTorch here runs on CPUs and GPUs.", rich_help_panel=_TF),
    ] = False,
    tpu_name: Annotated[str, typer.Option("--tpu_name", help="As --use_tpu.", rich_help_panel=_TF)] = "",
) -> None:
    """Train a detector; run again to resume. Ctrl-C saves first.

    Many processes: torchrun --nproc-per-node N -m boxwright train … (train_config.batch_size counts all of them).
    """
    _refuse_what_torch_has_not(num_workers, tpu=use_tpu or bool(tpu_name))
    overrides = list(set_ or [])
    if num_train_steps is not None:
        overrides.append(f"train_config.num_steps={num_train_steps}")
    from boxwright.config.load import load_config

    config = load_config(pipeline_config_path, overrides)
    for reader in config.eval_input_reader:
        if sample_1_of_n_eval_examples:
            reader.sample_1_of_n_examples = sample_1_of_n_eval_examples
    if checkpoint_dir is not None:
        every = sample_1_of_n_eval_on_train_examples if eval_on_train_data else None
        _watch(config, checkpoint_dir, model_dir, eval_timeout, every, settings)
        return
    if eval_on_train_data:
        raise ConfigError("--eval_on_train_data goes with --checkpoint_dir; Loss/… of the training data is in the log")
    from boxwright.training.train import train

    if not record_summaries:
        settings = replace(settings, summarize_every_n=0)
    with progress_bar() as progress:
        train(config, model_dir, settings, {"console": Narrator(progress, config)})


def _refuse_what_torch_has_not(num_workers: int, *, tpu: bool) -> None:
    if tpu:
        raise ConfigError("--use_tpu, --tpu_name: there is no TPU support; remove them to train on a GPU or the CPU")
    if num_workers > 1:
        raise ConfigError(
            "--num_workers counts machines, which torchrun starts: on each of them run "
            f"torchrun --nnodes {num_workers} --nproc-per-node GPUS --rdzv-backend c10d --rdzv-endpoint HOST:PORT "
            "-m boxwright train …; --workers counts the processes that prepare samples"
        )


def _watch(
    config: TrainEvalPipelineConfig,
    checkpoint_dir: Path,
    model_dir: Path,
    timeout: int,
    every_nth_of_training: int | None,
    run: RunSettings,
) -> None:
    from boxwright.cli.evaluate import print_watched
    from boxwright.evaluation.watch import WatchSettings, evaluate_on_training_data, watch

    if every_nth_of_training is not None:
        evaluate_on_training_data(config, every_nth_of_training)
    settings = WatchSettings(timeout=timeout, device=run.device, workers=run.workers)
    watch(config, checkpoint_dir, model_dir, settings, print_watched)
