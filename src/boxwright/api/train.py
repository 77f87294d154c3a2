"""`boxwright.train`: training from annotated pictures, or from a configuration.

A terminal or a notebook shows a progress bar.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Unpack

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from boxwright.api.own import copied_config, use_own_data, use_own_detector
from boxwright.api.run import Run
from boxwright.base.errors import ConfigError
from boxwright.base.files import is_file, is_folder, shown
from boxwright.base.read_settings import MOST_LOST, ReadSettings
from boxwright.base.remote import is_remote
from boxwright.base.settings import with_options
from boxwright.base.worker_pools import exit_while_importing
from boxwright.config.preset import referred
from boxwright.data.dataset import Dataset
from boxwright.data.own_dataset import Collection
from boxwright.data.recognize import is_data_file, is_record_file
from boxwright.data.recognize_shards import source_of_pattern
from boxwright.nn.detector import Detector
from boxwright.pipeline.load import Overrides, load_config
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.pipeline.precision import precision_overrides
from boxwright.pipeline.run_length import set_num_steps, stretch_schedule
from boxwright.report.metric_words import evaluation_line
from boxwright.training.autoconfig.choices import NO_WEIGHTS, InitSettings
from boxwright.training.length import steps_of_epochs
from boxwright.training.log import Evaluated, Event, Listeners, Scalars, named_listeners
from boxwright.training.mirror import run_folder
from boxwright.training.settings import RunOptions, RunSettings
from boxwright.training.stop import RunEnd
from boxwright.training.train import train as train_run


def is_watched(console: Console) -> bool:
    """Whether output goes to a terminal or a notebook, not to a file."""
    return console.is_terminal or console.is_jupyter


class ProgressBar:
    """Shows steps, time left, loss, and a line for each evaluation; notebooks without ipywidgets have lines alone."""

    def __init__(self, total: int, console: Console) -> None:
        """Create the bar, hidden until the first step.

        Args:
            total: The number of steps.
            console: Where it is shown.
        """
        columns = (BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[loss]}"))
        # Rich draws a notebook's bar with ipywidgets; without them it would warn at every step.
        hidden = console.is_jupyter and find_spec("ipywidgets") is None
        self._progress = Progress(TextColumn("train"), *columns, console=console, transient=True, disable=hidden)
        self._total = total
        self._task: TaskID | None = None  # starts with the first step, so that an earlier error leaves no bar

    def on_event(self, step: int, event: Event) -> None:
        """Advance the bar, or print an evaluation's line."""
        if isinstance(event, Scalars) and "steps_per_sec" in event.values:
            loss = event.values.get("Loss/total_loss")
            text = "" if loss is None else f"loss {loss:.3f}"
            if self._task is None:
                self._task = self._progress.add_task("train", total=self._total, loss=text)
                self._progress.start()
            self._progress.update(self._task, completed=step, loss=text)
        elif isinstance(event, Evaluated) and event.metrics:
            self._progress.console.print(evaluation_line(step, event), markup=False, highlight=False)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


_LOG = logging.getLogger("boxwright.run")
_READING = ("ignore_exif", "allow_paths_outside", "most_lost", "weights")
_OTHERS = (
    *("config", "model_dir", "listeners", "data", "model", "out", "epochs", "overrides", "dataset", "detector"),
    "stretch_schedule",
    *_READING,
)


class TrainOptions(RunOptions, total=False):
    """The keywords of `train` that are used less often."""

    out: str | Path | None
    dataset: Dataset | Collection | None
    detector: Detector | None
    ignore_exif: bool
    allow_paths_outside: bool
    most_lost: float
    weights: str | Path | None
    stretch_schedule: bool


def train(
    config: str | Path | TrainEvalPipelineConfig | None = None,
    model_dir: str | Path | None = None,
    settings: RunSettings | None = None,
    listeners: Listeners | None = None,
    *,
    data: str | Path | None = None,
    model: str | None = None,
    epochs: float | None = None,
    overrides: Overrides = (),
    **options: Unpack[TrainOptions],
) -> Run:
    """Train a detector, resuming from an earlier run in the same folder.

    From annotated pictures, for which a configuration is written into the run's folder first, as `boxwright train DATA`
    does; or from a configuration, `train("pipeline.config", "model")`. Under torchrun all processes make the same call.

    Examples:
        >>> run = boxwright.train("my-data", epochs=1)
        >>> run.step > 0, run.best.name
        (True, 'best.pt')

    Args:
        config: Annotated pictures, as `data`: a folder or a data.yaml; or the configuration: a file, "preset:NAME", or
            the result of `load_config`.
        model_dir: The run's folder; it is created. With data, "model" by default. A run at an address (s3://…, gs://…)
            lives on this machine, is copied there after each checkpoint, and fetched from there to go on.
        settings: Settings outside the configuration.
        listeners: Receive events: a function of (step, numbers by name) such as `print`, an object with `on_event` and
            `close`, or several in a list or by name. One that fails is reported and disabled. By default a terminal or
            notebook shows a bar.
        data: Annotated pictures, in any format that `boxwright init` recognizes.
        model: With `data`, a preset, a name of published weights ("d_fine_s_coco"), which the run starts from and
            which are fetched once, or a run's folder, whose configuration and weights it takes; by default a preset
            that fits the data.
        epochs: Passes over the training data; replaces train_config.num_steps.
        overrides: Changes of the configuration, such as "train_config.batch_size=8"; or a dictionary with the names of
            the TF Object Detection API, as for `load_config`.
        **options: `out`, an alias of `model_dir`; `dataset`, training data of your own in place of the configuration's:
            samples by index (`bw.Sample`, with the classes as its `categories`), or one of torchvision's detection data
            sets; `detector`, a detector of your own, trained in place instead of a new one of the configuration's
            `model`; with `data`, `weights` to start from, None for fresh ones, and `ignore_exif`,
            `allow_paths_outside` and `most_lost`, as of `boxwright train`; `stretch_schedule`, whether the learning
            rate's decay is made to end with the run; and single fields of `RunSettings`, such as device="cpu",
            workers=0, seed=3.

    Returns:
        The run: its step, metrics, best checkpoint, model. It is incomplete only if `max_seconds` ended it.

    Raises:
        BoxwrightError: If configuration, data or checkpoints cannot be used, or the loss is not finite.
        KeyboardInterrupt: After Ctrl-C, once a checkpoint is saved; the same call goes on. Other signals that end the
            run (SIGTERM, SIGHUP, SIGUSR1) then do what the caller's program has them do.
    """
    exit_while_importing()
    dataset, detector = options.pop("dataset", None), options.pop("detector", None)
    if isinstance(config, str | Path) and is_data(config):
        if data is not None:
            raise ConfigError(f"train: {config} and data={str(data)!r} both name annotated pictures; pass one of them")
        config, data = None, config
    named_folder = _folder(model_dir, options.pop("out", None), data)
    stretched = options.pop("stretch_schedule", False)
    reading = _reading(options, data)
    chosen = with_options(settings or RunSettings(), options, "train", _OTHERS)
    init = InitSettings(model=model or "", epochs=epochs, device=chosen.device, **reading)
    with run_folder(named_folder) as folder:
        plan = _configuration(config, data, init, folder, overrides, chosen.precision)
        own = None if dataset is None else use_own_data(plan, dataset)
        if detector is not None:
            use_own_detector(plan, detector)
        # After the caller's data are known, whose number of samples decides.
        if epochs is not None:
            set_num_steps(plan.train_config, steps_of_epochs(plan, epochs, own)[0])  # type: ignore[arg-type]  # it has one, or that raised
        if stretched and plan.train_config is not None and (line := stretch_schedule(plan.train_config)):
            plan.notes.append(line)
        # Standard output belongs to the caller's program.
        console = Console(stderr=True)
        named = named_listeners(listeners)
        if listeners is None and is_watched(console) and plan.train_config is not None:
            named = {"progress": ProgressBar(plan.train_config.num_steps, console)}
        end = train_run(plan, folder, chosen, named, own, detector)
    if end.signal:
        _raise_signal(end, folder)
    return Run(folder, end.step)


def _raise_signal(end: RunEnd, folder: Path) -> None:
    """Let a signal that ended the run do, once that is saved, what it does elsewhere in the caller's program.

    Ctrl-C raises KeyboardInterrupt, so that no line after `train` takes the run for a complete one; SIGTERM, SIGHUP and
    SIGUSR1 end the process. A handler of the caller's own may return instead.
    """
    try:
        signal.raise_signal(end.signal)
    except KeyboardInterrupt as error:
        error.add_note(f"the run is saved in {folder} at step {end.step}: train it again to go on, or open it with Run")
        raise


def _reading(options: TrainOptions, data: str | Path | None) -> dict[str, Any]:
    """Take the options of reading `data` out, and return them as fields of `InitSettings`."""
    named = [name for name in _READING if name in options]
    if named and data is None:
        raise ConfigError(f"train: {', '.join(named)}: for data=; a configuration's readers have fields of these names")
    reading = ReadSettings(
        ignore_exif=options.pop("ignore_exif", False), allow_paths_outside=options.pop("allow_paths_outside", False)
    )
    weights = options.pop("weights", "")
    return {
        "reading": reading,
        "most_lost": options.pop("most_lost", MOST_LOST),
        "weights": NO_WEIGHTS if weights is None else str(weights),
    }


def is_data(source: str | Path) -> bool:
    """Return whether what is to be trained on is annotated pictures, not a configuration.

    Args:
        source: A path, an address of shards, or preset:NAME.

    Returns:
        True for pictures.

    Raises:
        ConfigError: If it is neither.
    """
    path = Path(source)
    if referred(source) is not None or path.suffix in (".config", ".pbtxt"):
        return False
    if is_remote(source) or source_of_pattern(str(source)) is not None:
        return True
    if (str(source) and is_folder(path)) or is_record_file(path) or path.suffix == ".csv":
        return True
    if path.suffix in (".yaml", ".yml", ".json", ".xml") and is_file(path):
        return is_data_file(path)
    missing = "" if is_file(path) else ", and no such file"
    raise ConfigError(
        f"train: {shown(path)} is neither annotated pictures (a folder, data.yaml, COCO's .json, TFRecords, .tar, "
        f".parquet) nor a configuration (.config, .yaml, .json, preset:NAME){missing}"
    )


def _folder(model_dir: str | Path | None, out: str | Path | None, data: str | Path | None) -> str | Path:
    if model_dir is not None and out is not None:
        raise ConfigError("train: model_dir and out are aliases; pass one of them")
    folder = out if model_dir is None else model_dir
    if folder is None and data is not None:
        folder = "model"
    if folder is None:
        raise ConfigError('train: name the run\'s folder: train("pipeline.config", "model"), or out="model"')
    return folder


def _configuration(
    config: str | Path | TrainEvalPipelineConfig | None,
    data: str | Path | None,
    init: InitSettings,
    folder: Path,
    overrides: Overrides,
    precision: str,
) -> TrainEvalPipelineConfig:
    """Return the configuration to train, a copy that the caller may change; the run sets the precision itself."""
    if (config is None) == (data is None):
        raise ConfigError('train: pass annotated pictures, train("my-data"), or a configuration; not both')
    if data is not None:
        from boxwright.training.autoconfig.start import start_run

        # Steps are tried as the run computes them; names of TensorFlow's API are not mixed with others.
        tried = overrides if isinstance(overrides, Mapping) else [*overrides, *precision_overrides(precision)]
        written, choices = start_run(data, folder, init, overrides=tried)
        for choice in choices:
            _LOG.info("%s: %s (%s)", choice.what, choice.chosen, choice.why)
        return load_config(written, overrides)
    if init.model:
        raise ConfigError(f"train: model={init.model!r} names a preset for data=…; a configuration has its own model")
    return copied_config(config, overrides)  # type: ignore[arg-type]  # not None, as checked above
