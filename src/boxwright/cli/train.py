"""`boxwright train`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boxwright.base.errors import ConfigError
from boxwright.base.outputs import is_output_address
from boxwright.base.paths import require_path
from boxwright.base.read_settings import MOST_LOST, ReadSettings
from boxwright.base.settings import setting
from boxwright.cli.console import console, importing, print_metrics, suggest
from boxwright.cli.process import prepare_inference, prepare_training
from boxwright.cli.words import MOST_BATCH, FieldOptions, apply_words, batch_override
from boxwright.evaluation.settings import EvaluationSettings, WatchSettings
from boxwright.report.metric_words import evaluation_line
from boxwright.training.settings import RunSettings

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from boxwright.pipeline.messages import TrainEvalPipelineConfig
    from boxwright.training.log import Evaluated, Event
    from boxwright.training.stop import RunEnd

_TF = "From model_main_tf2.py"
_LINE_EVERY_S = 30.0


class ProgressListener:
    """Shows a run's progress: a bar with the loss, or lines if there is no terminal; a line for each evaluation.

    All metrics of the last evaluation are printed when the run ends.
    """

    def __init__(
        self, progress: Progress, config: TrainEvalPipelineConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start without a task; the first step shows the bar. Lines are spaced by the clock's seconds."""
        train = config.train_config
        self._progress, self._clock = progress, clock
        self._task: TaskID | None = None
        self._total, self._images = (train.num_steps or None, train.batch_size) if train else (None, 0)
        self._printed: float | None = None  # when the last line was printed
        self._waiting = ""  # a line that is printed only if it is the last
        self._evaluated: dict[str, tuple[int, Evaluated]] = {}  # the last by the reader's name

    def on_event(self, step: int, event: Event) -> None:
        """Advance the bar, or print an evaluation's line."""
        from boxwright.training.log import Evaluated, Scalars

        if isinstance(event, Scalars) and "steps_per_sec" in event.values:
            self._step(step, event.values)
        elif isinstance(event, Evaluated):
            console.print(evaluation_line(step, event))
            self._evaluated[event.name] = step, event

    def close(self) -> None:
        """Print the last step's line if it was not printed, and the last evaluation; the bar is closed by its creator."""
        self._print_waiting()
        for name, (step, event) in self._evaluated.items():
            console.print(f"evaluation at step {step}{name and f', {name}'}")
            print_metrics(event.metrics, event.notes)

    def _print_waiting(self) -> None:
        """Print the line of the newest step if it was not printed."""
        if self._waiting:
            console.print(self._waiting)
            self._waiting = ""

    def _step(self, step: int, values: Mapping[str, float]) -> None:
        """Advance the bar; without a terminal, print a line every half minute."""
        total, speed = self._total, values["steps_per_sec"]
        rate, numbers = f"{speed * self._images:.1f} images/s", _numbers(values)
        left = (total - step) / speed if total is not None and speed > 0 else None
        if self._task is None:
            self._task = self._progress.add_task("train", total=total)
        self._progress.update(self._task, completed=step, rate=rate, numbers=numbers, left=left)
        if self._progress.console.is_terminal:
            return
        self._waiting = "  ".join([f"step {step}/{total or '…'}", rate, *numbers])
        now = self._clock()
        if self._printed is None or now - self._printed >= _LINE_EVERY_S or step == total:
            self._print_waiting()
            self._printed = now


def _numbers(values: Mapping[str, float]) -> list[str]:
    """Return the loss, its terms and the learning rate, in this order."""
    terms = {name.removeprefix("Loss/"): value for name, value in values.items() if "Loss/" in name}
    total = terms.pop("total_loss", None)
    first = [] if total is None else [f"loss {total:.3f}"]
    others = [f"{name.removesuffix('_loss')} {value:.3f}" for name, value in terms.items()]
    return [*first, *others, f"rate {values['learning_rate']:.2e}"]


@dataclass(frozen=True, kw_only=True)
class TfFlags:
    """The flags of model_main_tf2.py that the run's settings lack."""

    # Defaults are TensorFlow's, so that its command lines mean the same here.
    num_train_steps: int | None = setting(None, "Total steps; overrides train_config.num_steps.", _TF, 1)
    checkpoint_dir: Path | None = setting(
        None, "Do not train: evaluate each new checkpoint in this folder, as boxwright evaluate --watch does.", _TF
    )
    eval_timeout: float = setting(3600.0, "With --checkpoint_dir: seconds to wait for a new checkpoint.", _TF, 0)
    hparams_overrides: str = setting(
        "", "Changes by TF's names: learning_rate=0.01,batch_size=8 (docs/tensorflow_users.md).", _TF
    )
    sample_1_of_n_eval_examples: int | None = setting(None, "Evaluate every nth image.", _TF, 1)
    eval_on_train_data: bool = setting(
        False,
        "With --checkpoint_dir: evaluate on the training data (TF2 never reads it).",
        _TF,
        flags=("--eval_on_train_data/--noeval_on_train_data",),
    )
    sample_1_of_n_eval_on_train_examples: int = setting(5, "With --eval_on_train_data: every nth image.", _TF, 1)
    record_summaries: bool = setting(
        True,
        "Log images of inputs and of loss distributions.",
        _TF,
        flags=("--record_summaries/--norecord_summaries",),
    )
    num_workers: int = setting(1, "Machines; for more than 1 use torchrun (docs/training.md).", _TF)
    engine: str = setting("", "Refused: torchrun starts processes, and on a Ray cluster its TorchTrainer.", _TF)
    use_tpu: bool = setting(False, "Refused: there is no TPU support.", _TF, flags=("--use_tpu/--nouse_tpu",))
    tpu_name: str = setting("", "As --use_tpu.", _TF)


Data = Annotated[
    str | None,
    typer.Argument(help="Annotated images, instead of a configuration: one is written first, as by boxwright init."),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--pipeline_config_path", "--config", help="The configuration (text format, YAML or JSON), or preset:NAME."
    ),
]
ModelDir = Annotated[
    str | None,
    typer.Option(
        "--model_dir",
        metavar="PATH",
        help="The run's folder, for checkpoints, log and configuration. A run in it is resumed. Default with DATA: model. "
        "At s3:// or gs:// it is a copy of one on this machine.",
    ),
]
Preset = Annotated[
    str,
    typer.Option(
        "--model",
        help="With DATA: a preset of boxwright models, a name of boxwright weights list, whose weights it starts from, or a "
        "run's folder, whose configuration and weights it takes.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change the configuration, as in --set train_config.batch_size=8; may be repeated."),
]


def train_command(
    words: FieldOptions,
    settings: RunSettings,
    flags: TfFlags,
    data: Data = None,
    pipeline_config_path: Config = None,
    model_dir: ModelDir = None,
    model: Preset = "",
    set_: Set = None,
) -> None:
    """Train a detector; run again to resume. Ctrl-C saves first.

    It takes a folder of annotated images, for which it writes a configuration, or a configuration.

    Many processes: torchrun --nproc-per-node N -m boxwright train … (train_config.batch_size is their total).

    Exit status: 0 when the run is complete or its patience ended, 75 after --max_seconds, 128 plus a signal's number
    when one stopped it, 1 for errors.
    """
    _refuse_unsupported(flags)
    if words.epochs is not None and flags.num_train_steps is not None:
        raise ConfigError("--epochs and --num_train_steps set the same field; remove one")
    changes = set_ or []
    with _run_folder(model_dir) as here:
        path, folder = _prepare_configuration(data, pipeline_config_path, here, model, words, settings, changes)
        if data is not None and words.batch == "auto":  # chosen when the configuration was written
            words = replace(words, batch="")
        config = _configured(path, words, flags, changes, settings)
        if flags.checkpoint_dir is not None:
            _watch(config, flags.checkpoint_dir, folder, flags, settings)
            return
        end = _train(config, folder, flags, settings)
    if os.environ.get("RANK", "0") == "0" and not settings.profile:  # only one of torchrun's processes prints
        _suggest_next(config, folder, end.step, ("--pipeline_config_path", path, "--model_dir", model_dir or folder))
    from boxwright.training.stop import exit_status

    if status := exit_status(end):
        raise typer.Exit(status)


@contextmanager
def _run_folder(named: str | None) -> Iterator[Path | None]:
    """Yield the run's folder on this machine, if one is named; that of an address is kept up to date there."""
    if named is None:
        yield None
    elif not is_output_address(named):
        yield require_path(named, "--model_dir")
    else:
        with importing():
            from boxwright.training.mirror import run_folder
        with run_folder(named) as folder:
            yield folder


def _train(config: TrainEvalPipelineConfig, folder: Path, flags: TfFlags, settings: RunSettings) -> RunEnd:
    """Train; return how the run ended."""
    if flags.eval_on_train_data:
        raise ConfigError("--eval_on_train_data needs --checkpoint_dir; the log has Loss/… of the training data")
    from boxwright.pipeline.missing import require_for_training

    require_for_training(config)  # before PyTorch is imported
    if flags.sample_1_of_n_eval_examples is not None:
        for reader in config.eval_input_reader:
            reader.sample_1_of_n_examples = flags.sample_1_of_n_eval_examples
    with importing():
        from boxwright.cli.progress import progress_bar
        from boxwright.training.train import train

    if not flags.record_summaries:
        settings = replace(settings, summarize_every_n=0)
    settings = _ask_about_changes(config, folder, settings)
    prepare_training(config, settings)
    with progress_bar() as progress:
        return train(config, folder, settings, {"console": ProgressListener(progress, config)})


def _prepare_configuration(
    data: str | None,
    config: Path | None,
    model_dir: Path | None,
    model: str,
    words: FieldOptions,
    settings: RunSettings,
    changes: list[str],
) -> tuple[Path, Path]:
    """Return the configuration and the run's folder; for data, a configuration is written into the folder first."""
    if (data is None) == (config is None):
        raise ConfigError(
            "expected a configuration, --pipeline_config_path, or a folder of annotated images"
            + ("; not both" if data is not None else "")
        )
    if config is not None:
        if model:
            raise ConfigError(
                f"--model {model} names a preset for a folder of images; a configuration has its own model. Did you mean "
                "--model_dir?"
            )
        if words.minutes is not None:
            raise ConfigError("--minutes is for a folder of images; with a configuration, use --max_seconds")
        if words.reading() != ReadSettings() or words.most_lost != MOST_LOST:
            raise ConfigError(
                "--ignore_exif, --allow_paths_outside and --most_lost are for a folder of images; a configuration's "
                "readers have fields of these names"
            )
        if model_dir is None:
            raise ConfigError("name the run's folder with --model_dir")
        return config, model_dir
    with importing():
        from boxwright.pipeline.precision import precision_overrides
        from boxwright.training.autoconfig.choices import InitSettings
        from boxwright.training.autoconfig.start import start_run
    from boxwright.cli.console import track_progress
    from boxwright.cli.init import print_choices
    from boxwright.cli.options import require_data

    require_data(str(data))
    init = InitSettings(
        model=model,
        imgsz=words.imgsz,
        batch=words.batch or "auto",
        epochs=words.epochs,
        minutes=words.minutes,
        weights="" if words.weights == "timm" else words.weights,
        device=settings.device,
        reading=words.reading(),
        most_lost=words.most_lost,
    )
    folder = model_dir or Path("model")
    overrides = [*changes, *precision_overrides(settings.precision)]  # steps are tried as the run computes them
    path, choices = start_run(str(data), folder, init, track_progress, overrides)
    print_choices(choices)
    console.print(f"configuration: {path}")
    return path, folder


def _configured(
    path: Path, words: FieldOptions, flags: TfFlags, changes: list[str], settings: RunSettings
) -> TrainEvalPipelineConfig:
    """Return the configuration with all changes of the command line."""
    from boxwright.pipeline.load import load_config
    from boxwright.pipeline.tf_overrides import apply_tf_overrides, parse_hparams

    overrides = [*changes, *batch_override(words)]
    if flags.num_train_steps is not None:
        overrides.append(f"train_config.num_steps={flags.num_train_steps}")
    if flags.hparams_overrides:
        changed = apply_tf_overrides(load_config(path, overrides), parse_hparams(flags.hparams_overrides))
        console.print("\n".join(changed))
        overrides += changed
    # From the file again: a preset's learning rates follow the batch size when it is read.
    config = load_config(path, overrides)
    if words.batch == "auto":
        from boxwright.pipeline.missing import require_for_training

        require_for_training(config)
        with importing():
            from boxwright.pipeline.precision import with_precision
            from boxwright.training.rehearsal import fitting_batch
        asked = with_precision(config, settings.precision)
        size, measured = fitting_batch(asked, MOST_BATCH, settings.device)
        console.print(f"a batch of {size} fits in the {measured.device}'s memory")
        config = load_config(path, [*overrides, f"train_config.batch_size={size}"])
    for line in apply_words(config, words):
        console.print(line)
    return config


def _ask_about_changes(config: TrainEvalPipelineConfig, model_dir: Path, settings: RunSettings) -> RunSettings:
    """Return the settings; they accept a change of what the run's weights were trained for if the user says so.

    Only a terminal is asked; elsewhere training refuses such a change.
    """
    from boxwright.pipeline.load import load_config
    from boxwright.training.changes import find_changes

    path = model_dir / "pipeline.config"
    if settings.accept_changes or not (sys.stdin.isatty() and console.is_terminal and path.is_file()):
        return settings
    altering = [str(change) for change in find_changes(load_config(path), config) if change.alters_model]
    if not altering or not any(model_dir.glob("ckpt-*.pt")):
        return settings
    console.print(f"the run in {model_dir} was trained with another network: {', '.join(altering)}")
    return replace(settings, accept_changes=typer.confirm("Resume with this change?"))


def _suggest_next(config: TrainEvalPipelineConfig, model_dir: Path, done: int, continuing: tuple[object, ...]) -> None:
    """Print the next command; `continuing` are the words of one that goes on with the run."""
    if config.train_config is not None and done < config.train_config.num_steps:
        suggest("train", *continuing, when="to continue")
    elif config.eval_input_reader:
        suggest("evaluate", "--model_dir", model_dir)
    else:
        suggest("predict", "IMAGES", "--model_dir", model_dir)


def _refuse_unsupported(flags: TfFlags) -> None:
    if flags.use_tpu or flags.tpu_name:
        raise ConfigError("--use_tpu, --tpu_name: there is no TPU support; remove them to train on a GPU or the CPU")
    if flags.engine:
        raise ConfigError(
            f"--engine {flags.engine}: a run's processes are started by torchrun (torchrun --nproc-per-node N -m boxwright "
            "train …) or, on a Ray cluster, by its TorchTrainer, as docs/train_on_ray.py does; remove it for one process"
        )
    if flags.num_workers > 1:
        raise ConfigError(
            "--num_workers counts machines, which need torchrun: on each machine run "
            f"torchrun --nnodes {flags.num_workers} --nproc-per-node GPUS --rdzv-backend c10d --rdzv-endpoint HOST:PORT "
            "-m boxwright train …; --workers counts the processes that prepare samples"
        )


def _watch(
    config: TrainEvalPipelineConfig, checkpoint_dir: Path, model_dir: Path, flags: TfFlags, run: RunSettings
) -> None:
    from boxwright.cli.evaluate import print_watched

    with importing():
        from boxwright.evaluation.watch import watch

    prepare_inference()
    of_training = flags.eval_on_train_data
    settings = EvaluationSettings(
        eval_on_train_data=of_training,
        sample_1_of_n_eval_examples=(
            flags.sample_1_of_n_eval_on_train_examples if of_training else flags.sample_1_of_n_eval_examples
        ),
        device=run.device,
        workers=run.workers,
    )
    watch(config, checkpoint_dir, model_dir, settings, WatchSettings(timeout=flags.eval_timeout), print_watched)
