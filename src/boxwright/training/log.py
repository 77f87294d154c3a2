"""A run's log: events for listeners, among them experiment trackers (Weights & Biases, MLflow) by their own libraries.

A listener that fails is disabled with a warning, and training goes on.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from boxwright.base.drawing import Details, draw_boxes, draw_cumulative, with_tracks
from boxwright.base.errors import TrainingError, first_line
from boxwright.base.files import read_file, write_whole
from boxwright.data.batch import Batch
from boxwright.evaluation.events import EventFile, draws_pictures, evaluation_folder, write_evaluation_events
from boxwright.evaluation.metrics.metric import without_nan
from boxwright.nn.criteria.criterion import Description
from boxwright.types import Categories

_LINES = "metrics.jsonl"
_LOG = logging.getLogger("boxwright.run")


@dataclass(frozen=True)
class Scalars:
    """Numbers of a step; `progress` says whether they are a line of the log, or details for curves alone."""

    values: Mapping[str, float]
    progress: bool = True


@dataclass(frozen=True)
class Evaluated:
    """An evaluation: metrics, pictures by image id, the evaluation reader's name, and why values are absent.

    Attributes:
        best_metric: The metric by which it is the run's best yet; empty if it is not.
    """

    metrics: dict[str, float]
    pictures: dict[str, NDArray[np.uint8]]
    name: str = ""
    notes: tuple[str, ...] = ()
    learning_rate: float | None = None
    best_metric: str = ""

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics, and the learning rate of the step if it is known."""
        return self.metrics if self.learning_rate is None else {**self.metrics, "learning_rate": self.learning_rate}


@dataclass(frozen=True)
class Described:
    """How a batch was assigned."""

    description: Description


@dataclass(frozen=True)
class Gradients:
    """Each variable's gradient."""

    values: Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Variables:
    """Each variable's value."""

    values: Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Inputs:
    """A batch as the network sees it, and the classes' names."""

    batch: Batch
    categories: Categories | None


Event = Scalars | Evaluated | Described | Gradients | Variables | Inputs


@runtime_checkable
class Listener(Protocol):
    """Receives the events of a run; one that raises is disabled with a warning, and the run continues."""

    def on_event(self, step: int, event: Event) -> None:
        """Handle an event, or ignore one of a kind that it has no use for."""
        ...

    def close(self) -> None:
        """Handle the end of the run."""
        ...


# A plain function is called with the step, and numbers by name.
NumbersCallback = Callable[[int, Mapping[str, float]], object]
Listeners = (
    Mapping[str, "Listener | NumbersCallback"] | Sequence["Listener | NumbersCallback"] | Listener | NumbersCallback
)


class FunctionListener:
    """Calls a function with the step and the numbers of each log line and each evaluation."""

    def __init__(self, function: NumbersCallback) -> None:
        """Call `function` with the step and numbers by name."""
        self._function = function

    def on_event(self, step: int, event: Event) -> None:
        """Pass the numbers to the function."""
        if isinstance(event, Scalars) and event.progress:
            self._function(step, dict(event.values))
        elif isinstance(event, Evaluated):
            self._function(step, dict(event.metrics))

    def close(self) -> None:
        """Do nothing: functions are not told of the end."""


class FormerListener:
    """A user's listener that still has `hear`, the method's name before `on_event`."""

    def __init__(self, listener: Any) -> None:
        """Call its `hear` and `close`."""
        warnings.warn(
            f"{type(listener).__name__}.hear is deprecated: name the method on_event", DeprecationWarning, stacklevel=4
        )
        self.on_event, self.close = listener.hear, listener.close


def named_listeners(listeners: Listeners | None) -> dict[str, Listener]:
    """Return listeners by name; those without one have the name of their function or class.

    Raises:
        TrainingError: For what is neither a listener nor can be called.
    """
    if listeners is None:
        return {}
    if not isinstance(listeners, Mapping):
        several = listeners if isinstance(listeners, Sequence) else [listeners]
        listeners = {
            f"{getattr(listener, '__name__', type(listener).__name__)}" + (f" {number}" if number else ""): listener
            for number, listener in enumerate(several)
        }
    named: dict[str, Listener] = {}
    for name, listener in listeners.items():
        if isinstance(listener, Listener):
            named[name] = listener
        elif hasattr(listener, "hear") and hasattr(listener, "close"):
            named[name] = FormerListener(listener)
        elif callable(listener):
            named[name] = FunctionListener(listener)
        else:
            raise TrainingError(
                f"listeners: expected a function of (step, numbers) or an object with on_event and close, "
                f"found {type(listener).__name__}"
            )
    return named


class TrainingLog:
    """Tells listeners; a context that closes them."""

    def __init__(self) -> None:
        """Begin with no listener."""
        self._listeners: dict[str, Listener] = {}
        self._dropped: dict[str, str] = {}

    def add(self, name: str, make: Callable[[], Listener]) -> None:
        """Add a listener, unless it fails to start."""
        with self._dropping(name, "at the start"):
            self._listeners[name] = make()

    def tell(self, step: int, event: Event) -> None:
        """Tell every listener."""
        for name, listener in list(self._listeners.items()):
            with self._dropping(name, f"at step {step}"):
                listener.on_event(step, event)

    @contextmanager
    def _dropping(self, name: str, when: str) -> Iterator[None]:
        """Drop a listener that fails: it is others' code, on others' networks and disks."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # of any library
            self._drop(name, error, when)

    def _drop(self, name: str, error: Exception, when: str) -> None:
        listener = self._listeners.pop(name, None)
        if listener is not None:
            with suppress(Exception):  # it has failed already
                listener.close()
        self._dropped[name] = when
        _LOG.warning("%s failed %s and has been disabled; the run continues: %s", name, when, first_line(error))

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, listener in list(self._listeners.items()):
            del self._listeners[name]
            with self._dropping(name, "at the end"):
                listener.close()
        if self._dropped:
            lost = ", ".join(f"{name} ({when})" for name, when in self._dropped.items())
            _LOG.warning("%d of the run's listeners failed: %s", len(self._dropped), lost)


class JsonLines:
    """Numbers as lines of `metrics.jsonl`; those of steps that are done again are taken out."""

    def __init__(self, model_dir: Path, start: int, evaluated: int) -> None:
        """Open the file.

        Args:
            start: The step at which the run begins or resumes.
            evaluated: The step of the last evaluation that counts.
        """
        path = model_dir / _LINES
        _forget_after(path, start, evaluated)
        self._file = path.open("a", encoding="utf-8")

    def on_event(self, step: int, event: Event) -> None:
        """Write numbers."""
        if isinstance(event, Scalars) and event.progress:
            self._line({"step": step, **without_nan(dict(event.values))})
        elif isinstance(event, Evaluated):
            self._line({"step": step, "evaluation": event.name or "eval", **without_nan(event.numbers)})

    def _line(self, values: dict[str, object]) -> None:
        self._file.write(json.dumps(values) + "\n")
        # A killed run keeps what it has logged.
        self._file.flush()

    def close(self) -> None:
        """End the file."""
        self._file.close()


def tf1_tag(name: str) -> str:
    """Return the tag that TF1's legacy trainer gives to a number of a step; the name if it has none."""
    known = {"Loss/total_loss": "Losses/TotalLoss", "learning_rate": "LearningRate"}
    return known.get(name, f"Losses/{name}" if name.startswith("Loss/") else name)


class TensorBoard:
    """Everything, for TensorBoard: training in `train/`, evaluations in `eval/` or `eval/<name>`."""

    def __init__(self, model_dir: Path, start: int, evaluated: int, tag_of: Callable[[str], str] = str) -> None:
        """Open the file of training.

        Args:
            start: The step at which the run begins or resumes.
            evaluated: The step of the last evaluation that counts.
            tag_of: Returns the tag of a number of a step.
        """
        self._tag_of = tag_of
        self._folder, self._evaluated, self._described = model_dir, evaluated, start
        self._before: dict[str, int] = {}
        # TensorBoard drops what an earlier process logged from here on: those steps are done again.
        self._train = EventFile(model_dir / "train", purge_step=start + 1)
        self._eval: dict[str, EventFile] = {}

    def on_event(self, step: int, event: Event) -> None:
        """Write it."""
        if isinstance(event, Evaluated):
            folder = evaluation_folder(self._folder, event.name)
            if event.name not in self._eval:
                self._eval[event.name] = EventFile(folder, purge_step=self._evaluated + 1)
            before = self._before.get(event.name, self._evaluated)
            self._before[event.name] = step
            write_evaluation_events(self._eval[event.name], step, event.numbers, event.pictures, before)
        elif isinstance(event, Scalars):
            for name, value in event.values.items():
                self._train.scalar(self._tag_of(name), value, step)
        elif isinstance(event, Variables):
            for name, variable in event.values.items():
                self._train.histogram(f"ModelVars/{name}", variable, step)
        elif isinstance(event, Gradients):
            for name, gradient in event.values.items():
                self._train.scalar(f"gradient_norm/{name}", float(np.linalg.norm(gradient)), step)
                self._train.histogram(f"gradients/{name}", gradient, step)
        else:
            self._draw(step, event)
        self._train.flush()

    def _draw(self, step: int, event: Described | Inputs) -> None:
        drawn = draws_pictures(step, self._described)
        if isinstance(event, Inputs):  # comes after the description of the same step
            self._described = step
            if not drawn:
                return
            for row, picture in enumerate(draw_inputs(event.batch, event.categories, 3)):
                self._train.image(f"train_input_images/{row}", picture, step)
            return
        for tag, number in event.description.scalars.items():
            self._train.scalar(tag, float(number), step)
        for tag, values in event.description.distributions.items() if drawn else ():
            self._train.image(tag, draw_cumulative(values.cpu().numpy()), step)

    def close(self) -> None:
        """End the files."""
        for events in (*self._eval.values(), self._train):
            events.close()


def draw_inputs(batch: Batch, categories: Categories | None, most: int) -> list[NDArray[np.uint8]]:
    """Return pictures, uint8 [H, W, 3]."""
    pictures = []
    targets = batch.targets.to("cpu")
    for row in range(min(len(batch), most)):
        image = np.ascontiguousarray(batch.images[row].permute(1, 2, 0).cpu().numpy())
        # Gray inputs have one channel; boxes are drawn in color.
        image = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image[..., :3]
        valid = targets.valid[row].numpy()
        labels = targets.labels[row].numpy()[valid].tolist()
        names = [categories.by_label(label).title if categories else str(label + 1) for label in labels]
        points, surface, tracks = (
            None if of is None else of[row].numpy()[valid]
            for of in (targets.keypoints, targets.dense_pose, targets.track_ids)
        )
        masks = None if targets.masks is None else targets.masks.dense(row).numpy()[valid]
        colors, texts = with_tracks(labels, names, None if tracks is None else tracks.tolist())
        boxes, details = targets.boxes[row].numpy()[valid], Details(masks, points, (), surface)
        pictures.append(draw_boxes(image, boxes, colors, texts, details))
    return pictures


def _forget_after(path: Path, step: int, evaluated: int) -> None:
    """Take out of the JSON lines what is to be done again, a line that a kill cut off, and what never was one."""
    if not path.is_file():
        return
    kept = []
    for line in read_file(path).decode(errors="replace").splitlines():
        values = _parsed(line)
        done = values.get("step")
        # Evaluations may be logged after later steps, so they have a limit of their own: the last that the checkpoint
        # has.
        if isinstance(done, int) and done <= (evaluated if "evaluation" in values else step):
            kept.append(line + "\n")
    write_whole(path, "".join(kept))


def read_lines(model_dir: Path) -> list[dict[str, object]]:
    """Return the lines of a run's metrics.jsonl, in order; none where there is no such file."""
    path = model_dir / _LINES
    if not path.is_file():
        return []
    rows = [_parsed(line) for line in read_file(path).decode(errors="replace").splitlines()]
    return [row for row in rows if isinstance(row.get("step"), int)]


def _parsed(line: str) -> dict[str, object]:
    """Read a line; one that is no object of JSON has nothing in it."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


class TrackerListener:
    """Passes numbers to an experiment tracker."""

    def __init__(self, write: Callable[[int, Mapping[str, float]], object], close: Callable[[], None]) -> None:
        """Remember the tracker's functions: one that takes a step and its numbers, and one that ends the run there."""
        self._write, self.close = write, close

    def on_event(self, step: int, event: Event) -> None:
        """Pass the numbers to the tracker."""
        if isinstance(event, Scalars) and event.progress:
            self._write(step, event.values)
        elif isinstance(event, Evaluated):
            folder = evaluation_folder(Path(), event.name)
            self._write(step, {f"{folder}/{tag}": value for tag, value in event.numbers.items()})


def _open_wandb(library: Any, model_dir: Path, config_text: str) -> TrackerListener:
    # Kept beside the checkpoints, so that a resumed run resumes there too.
    note = model_dir / "wandb_run_id"
    if not note.is_file():
        write_whole(note, uuid4().hex)
    run = library.init(
        project="boxwright",
        name=model_dir.resolve().name,
        id=note.read_text(encoding="utf-8"),
        resume="allow",
        dir=str(model_dir),
        config={"pipeline_config": config_text},
    )
    # Its own count of steps never goes back, and evaluations may be known after later steps.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return TrackerListener(lambda step, values: run.log({**values, "step": step}), run.finish)


def _open_mlflow(library: Any, model_dir: Path, config_text: str) -> TrackerListener:
    library.set_experiment("boxwright")
    note = model_dir / "mlflow_run_id"
    known = note.read_text(encoding="utf-8").strip() if note.is_file() else None
    run = library.start_run(run_id=known, run_name=None if known else model_dir.resolve().name)
    write_whole(note, run.info.run_id)
    library.log_text(config_text, "pipeline.config")

    def write(step: int, values: Mapping[str, float]) -> None:
        # What MLflow allows in a metric's name; COCO's have @ and parentheses.
        allowed = {re.sub(r"[^/\w.\- ]", "_", name): value for name, value in values.items()}
        library.log_metrics(allowed, step=step)

    return TrackerListener(write, library.end_run)


_TRACKERS: dict[str, Callable[[Any, Path, str], TrackerListener]] = {"wandb": _open_wandb, "mlflow": _open_mlflow}


def open_tracker(name: str, model_dir: Path, config_text: str) -> Listener:
    """Return a listener that passes numbers to a tracker.

    Args:
        model_dir: The run's folder, whose name the run has there.

    Raises:
        TrainingError: As `check_tracker`.
    """
    return _TRACKERS[name](check_tracker(name), model_dir, config_text)


def check_tracker(name: str) -> Any:
    """Import a tracker's library.

    Raises:
        TrainingError: Where the name is not known or the library is not installed.
    """
    if name not in _TRACKERS:
        raise TrainingError(f"track {name}: not known; known: {', '.join(_TRACKERS)}")
    try:
        return import_module(name)
    except ImportError:
        raise TrainingError(f"track {name}: the library is not installed: pip install 'boxwright[{name}]'") from None
