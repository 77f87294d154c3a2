"""`boxwright train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress, TaskID

from boxwright.cli.console import console, print_evaluation, progress_bar

if TYPE_CHECKING:
    from boxwright.evaluation.evaluator import Evaluation

__all__ = ["Narrator", "train_command"]


class Narrator:
    """Prints a run as it goes: a bar with the loss terms, and lines that stay."""

    def __init__(self, progress: Progress) -> None:
        """Start without a task; the first step tells how many there are.

        Args:
            progress: The bar.
        """
        self._progress = progress
        self._task: TaskID | None = None

    def message(self, text: str) -> None:
        """Print a line.

        Args:
            text: The line.
        """
        console.print(text, markup=False)

    def step(self, step: int, total: int, values: dict[str, float], images_per_second: float) -> None:
        """Move the bar; every hundredth of the way leaves a line where there is no terminal.

        Args:
            step: Steps done.
            total: Steps in all.
            values: Loss terms and learning rate.
            images_per_second: Lately.
        """
        terms = {name.removeprefix("Loss/").removesuffix("_loss"): v for name, v in values.items() if "Loss/" in name}
        numbers = "  ".join(f"{name} {value:.3f}" for name, value in terms.items())
        numbers += f"  rate {values['learning_rate']:.2e}  {images_per_second:.1f} images/s"
        if self._task is None:
            self._task = self._progress.add_task("train", total=total, numbers="")
        self._progress.update(self._task, completed=step, numbers=numbers)
        if not console.is_terminal and (step == total or step % max(total // 20, 1) < max(total // 100, 1)):
            console.print(f"step {step}/{total}  {numbers}", markup=False)

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        """Print the table.

        Args:
            step: Steps done.
            evaluation: What was found.
        """
        console.print(f"evaluation at step {step}")
        print_evaluation(evaluation)


def train_command(  # noqa: PLR0913  # the flags of the command
    pipeline_config_path: Annotated[
        Path, typer.Option("--pipeline_config_path", "--config", help="The configuration: text format, YAML or JSON.")
    ],
    model_dir: Annotated[
        Path,
        typer.Option(
            "--model_dir", help="The run's folder: checkpoints, log, configuration as run. A run in it is gone on with."
        ),
    ],
    num_train_steps: Annotated[
        int | None, typer.Option("--num_train_steps", help="Steps in all; overrides train_config.num_steps.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change the configuration, as in --set train_config.batch_size=8; may be repeated."),
    ] = None,
    checkpoint_every_n: Annotated[
        int, typer.Option("--checkpoint_every_n", min=1, help="Steps between checkpoints.")
    ] = 1000,
    max_seconds: Annotated[
        float, typer.Option("--max_seconds", help="Save and end after so many seconds of training; 0 for no limit.")
    ] = 0.0,
    evaluate: Annotated[
        bool,
        typer.Option(
            "--evaluate/--no-evaluate", help="Evaluate at each checkpoint, where there is an eval_input_reader."
        ),
    ] = True,
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the network; worth its minute in long runs.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Decides fresh weights, order and augmentation.")] = 0,
    workers: Annotated[int, typer.Option("--workers", min=0, help="Processes that prepare samples.")] = 1,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, or auto.")] = "auto",
) -> None:
    """Train a detector; run again to go on. Ctrl-C saves first."""
    from boxwright.config.load import load_config
    from boxwright.training.train import RunSettings, train

    overrides = list(set_ or [])
    if num_train_steps is not None:
        overrides.append(f"train_config.num_steps={num_train_steps}")
    config = load_config(pipeline_config_path, overrides)
    settings = RunSettings(
        checkpoint_every_n=checkpoint_every_n,
        seed=seed,
        workers=workers,
        max_seconds=max_seconds,
        evaluate=evaluate,
        compile=compile,
        device=device,
    )
    with progress_bar() as progress:
        train(config, model_dir, settings, Narrator(progress))
