"""`boxwright.train`: load, build, restore, step, log, checkpoint, evaluate."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from boxwright.base.device import is_out_of_memory, random_devices, tf32_allowed, usable_device, usual_modes
from boxwright.base.distributed import Processes, join_processes
from boxwright.base.errors import BoxwrightError, CheckpointError, ConfigError, TrainingError, first_line
from boxwright.base.text import counted, visible_line
from boxwright.config.load import dump_message
from boxwright.config.support import refuse_unsupported, report
from boxwright.data.account import notices_of
from boxwright.data.dataset import Dataset, with_white_level
from boxwright.data.loader import BatchStream, training_batches
from boxwright.data.own_dataset import OwnDataset
from boxwright.data.pixel_cache import PixelCache
from boxwright.data.pixel_scale import measure_white_level
from boxwright.data.reading import UNKNOWN_CLASS
from boxwright.data.worker_folder import clear_worker_folders
from boxwright.evaluation.data import EvaluationData, open_evaluation_data
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.nn.detector import Detector
from boxwright.nn.initial_statistics import take_out_initial
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.input_reader import build_dataset, state_white_level, with_orientation_rule
from boxwright.pipeline.message import white_level
from boxwright.pipeline.missing import require_for_training
from boxwright.pipeline.precision import choose_precision, keep_precision, precision_of, with_precision
from boxwright.pipeline.run_length import schedule_mismatch
from boxwright.pipeline.tensorflow_version import explain_version, keep_version
from boxwright.pipeline.training import TrainingPlan, build_training
from boxwright.training.background_writer import BackgroundWriter
from boxwright.training.changes import describe_changes
from boxwright.training.evaluations import Evaluations
from boxwright.training.examples import keep_pixels, training_examples
from boxwright.training.initialize import initialize, resume_tensorflow, with_classes
from boxwright.training.lock import run_lock
from boxwright.training.log import JsonLines, Listener, TensorBoard, TrainingLog, check_tracker, open_tracker, tf1_tag
from boxwright.training.loop import Loop
from boxwright.training.losses import recompute_blocks
from boxwright.training.preflight.examine import examine_quickly
from boxwright.training.settings import RunSettings
from boxwright.training.state import (
    CHANGED_FREEZING,
    Selection,
    TrainingState,
    new_state,
    placed,
    run_seed,
    run_threads,
)
from boxwright.training.stop import RunEnd, stop_requests
from boxwright.weights.find_weights import find_weights
from boxwright.weights.initial_shares import stored_shares
from boxwright.weights.store import CheckpointStore, read_config
from boxwright.weights.tensorflow.checkpoint import find_training

# The file and the content of the checkpoint that a run is resumed from.
Checkpoint = tuple[Path, dict[str, Any]]


def train(
    config: m.TrainEvalPipelineConfig,
    model_dir: str | Path,
    settings: RunSettings | None = None,
    listeners: Mapping[str, Listener] | None = None,
    dataset: Dataset | None = None,
    detector: Detector | None = None,
) -> RunEnd:
    """Train the detector that a configuration describes, resuming where an earlier run stopped.

    Under torchrun all processes call it alike; one of them writes and logs.

    Args:
        config: The whole configuration.
        model_dir: The run's folder; it is made.
        settings: What the configuration does not say; without, the defaults.
        listeners: Are told what happens, each by a name; one that fails is disabled with a warning. Messages
            go to the logger "boxwright.run".
        dataset: The training data, in place of those that the configuration names.
        detector: The detector, trained in place; None for a new one of the configuration's `model`.

    Returns:
        The steps done in all, and why there are fewer than configured: the time was up, patience ended or the run was
        interrupted, in all cases after a checkpoint was saved.

    Raises:
        BoxwrightError: Where configuration, data or checkpoints cannot be used, or the loss is not
            finite.
    """
    settings = settings or RunSettings()
    for name in settings.track:
        check_tracker(name)
    with usual_modes(), join_processes() as processes, ExitStack() as resources:
        if processes.count > 1:
            resources.enter_context(warnings.catch_warnings())  # exchanging gradients adds filters
        run = _prepare(config, Path(model_dir), settings, listeners or {}, processes, resources, dataset, detector)
        resources.callback(run.learner.unwrap)
        if settings.profile:
            run.profile()
            return RunEnd(run.state.step)
        with _saving_before_stopping(run, processes):
            end = run.loop()
        take_out_initial(run.state.detector.network)  # what is on disk goes on; what the caller holds is used
        return end


def _lock_folder(folder: Path, processes: Processes, resources: ExitStack) -> None:
    """Lock the run's folder until the resources are closed, and remove what killed writers left there."""

    def acquire() -> None:
        if warning := resources.enter_context(run_lock(folder)):
            processes.log.warning(warning)
        # Only with the lock held: what is unfinished may otherwise be another run's that is still writing.
        CheckpointStore(folder).tidy()
        clear_worker_folders(folder)

    processes.from_leader(acquire)


@contextmanager
def _saving_before_stopping(run: Loop, processes: Processes) -> Iterator[None]:
    """Save when an error ends the run, unless saving is what failed; raise errors of libraries as TrainingError."""
    try:
        yield
    except CheckpointError:
        raise
    except BaseException as error:
        with suppress(CheckpointError):  # the error at hand is the one to report
            run.save_before_stopping(at_once=isinstance(error, KeyboardInterrupt))
        translated = _translate_error(error, processes)
        if translated is None:
            raise
        raise translated from None


def _translate_error(error: BaseException, processes: Processes) -> TrainingError | None:
    if isinstance(error, BoxwrightError) or not isinstance(error, RuntimeError):
        return None
    if "DataLoader worker" in str(error):  # of torch's signal handler, which a loader of the user's own installs
        return TrainingError(f"a data worker died: {error}")
    if is_out_of_memory(error):
        return TrainingError(f"not enough memory: {first_line(error)}; a smaller batch_size needs less")
    if processes.count > 1:
        return TrainingError(f"process {processes.rank}: another process is gone: {error}")
    return None


def _prepare(
    config: m.TrainEvalPipelineConfig,
    model_dir: Path,
    settings: RunSettings,
    listeners: Mapping[str, Listener],
    processes: Processes,
    resources: ExitStack,
    own_dataset: Dataset | None,
    own_detector: Detector | None,
) -> Loop:
    """Load, build, restore. What is to be closed at the end (lock, log, signals) goes to the resources."""
    refuse_unsupported(config, "")
    require_for_training(config)
    config = with_precision(config, settings.precision)
    plan = build_training(config, workers=settings.workers, skip_bad=settings.skip_bad_records)
    _check_processes(plan, processes)
    _log_unsupported_fields(config, processes)
    _find_first_weights(plan, model_dir, processes)
    dataset = build_dataset(config.train_input_reader, "train_input_reader") if own_dataset is None else own_dataset
    evaluations = _open_evaluations(config, plan, settings, dataset)  # a mistake there must not leave a folder behind
    cache = keep_pixels(dataset) if settings.cache else None
    store = CheckpointStore(model_dir, settings.max_to_keep, plan.keep_every_n_hours)
    if not settings.profile:
        _lock_folder(model_dir, processes, resources)
    newest = processes.from_leader(store.latest)
    resources.enter_context(run_threads(settings.threads, None if newest is None else newest[1], processes.log))
    device = resources.enter_context(_device(settings, processes))
    begun = _with_white_level(_with_kept_semantics(config, newest, device, processes), dataset, newest, processes)
    if begun != with_orientation_rule(config):
        plan = build_training(begun, workers=settings.workers, skip_bad=settings.skip_bad_records)
        dataset = _open_as_begun(begun, own_dataset)
        evaluations = _open_evaluations(begun, plan, settings, dataset)
        cache = keep_pixels(dataset) if settings.cache else None
    config = begun
    _log_changes(config, newest, settings, processes)
    plan = plan.with_seed(run_seed(newest, settings.seed))
    _log_reading(config, dataset, cache, processes)
    resources.enter_context(torch.random.fork_rng(random_devices(device)))  # the caller's numbers go on as before
    detector = _place_detector(config, plan, dataset, own_detector, device)
    state, config.pedigree = _restore(config, plan, detector, store, newest, settings, processes)
    if settings.preflight and newest is None:
        _log_preflight(config, plan, dataset, state, processes)
    elif config.train_config is not None and (line := schedule_mismatch(config.train_config)):
        processes.log.info(line)
    _change_execution(state, plan, settings, processes)
    log, folder = None, None if settings.profile else model_dir  # a profile leaves the run's folder alone
    if processes.leads and not settings.profile:
        log = resources.enter_context(_open_log(store.folder, dump_message(config), state, listeners, settings))
    return Loop(
        config=config,
        plan=plan,
        settings=settings,
        state=state,
        store=store,
        batches=_batches(config, plan, settings, state, dataset, processes, folder),
        log=log,
        evaluations=Evaluations(evaluations, state, processes, log, settings.workers, folder, plan.optimizer.schedule),
        processes=processes,
        stop_requested=resources.enter_context(stop_requests()),
        writer=resources.enter_context(BackgroundWriter(processes.log.info)),
    )


def _with_kept_semantics(
    config: m.TrainEvalPipelineConfig, newest: Checkpoint | None, device: torch.device, processes: Processes
) -> m.TrainEvalPipelineConfig:
    """Return a run's configuration; a resumed one keeps a part of its first, even if the default has changed since.

    That is the version of TensorFlow whose semantics it has, which way up its labels see pictures, what is white in
    them, and the precision: they must not move in the middle of a run.
    """
    if newest is None:
        chosen, line = choose_precision(config, device)
        if line:
            processes.log.info(line)
        return with_orientation_rule(chosen)
    path, content = newest
    begun = read_config(content, path)
    kept = keep_precision(keep_version(config, begun), begun)
    if kept.train_config is not None and (precision := precision_of(kept.train_config)) != "float32":
        processes.log.info(f"training in {precision}, as the run began")
    return state_white_level(with_orientation_rule(kept, begun), white_level(begun))


def _with_white_level(
    config: m.TrainEvalPipelineConfig, dataset: Dataset, newest: Checkpoint | None, processes: Processes
) -> m.TrainEvalPipelineConfig:
    """Return a configuration that states what is white in images that are not of 8 bits, if the data have such.

    A run that is resumed reads files as it began.
    """
    if white_level(config) or (newest is not None and not isinstance(dataset, OwnDataset)):
        return config
    # One process chooses: a caller's own data may be augmented at random, and show each another range.
    level, line = processes.from_leader(partial(measure_white_level, dataset))
    if line:
        processes.log.warning(line)
    return state_white_level(config, level)


def _log_reading(
    config: m.TrainEvalPipelineConfig, dataset: Dataset, cache: PixelCache | None, processes: Processes
) -> None:
    """Say which TensorFlow's rules hold, which boxes are left out, and where decoded pictures are kept, from now on."""
    if cache is not None:
        processes.log.info(cache.reserve())
    if meaning := explain_version(config):
        processes.log.info(meaning)
    boxes = notices_of(dataset).boxes
    if count := boxes.counts[UNKNOWN_CLASS]:
        left_out = f"{counted(count, 'box', 'boxes')} {UNKNOWN_CLASS} ({visible_line(boxes.examples[UNKNOWN_CLASS])})"
        processes.log.warning(f"{dataset.name}: left out: {left_out}")


def _place_detector(
    config: m.TrainEvalPipelineConfig,
    plan: TrainingPlan,
    dataset: Dataset,
    own_detector: Detector | None,
    device: torch.device,
) -> Detector:
    """Return a new detector, or the caller's own, on a device."""
    # Fresh weights are drawn on the CPU and moved then: the same on every device and in every process.
    torch.manual_seed(plan.stream.seed)
    built = build_detector(config, dataset.categories) if own_detector is None else with_classes(own_detector, dataset)
    detector = placed(built, device)
    detector.white_level = white_level(config)  # of a caller's own detector, too
    return detector


def _open_as_begun(config: m.TrainEvalPipelineConfig, own_dataset: Dataset | None) -> Dataset:
    """Return the training data, or a caller's own, read as the configuration of a run that began states it."""
    if own_dataset is None:
        return build_dataset(config.train_input_reader, "train_input_reader")
    return with_white_level(own_dataset, white_level(config))


def _log_changes(
    config: m.TrainEvalPipelineConfig, newest: Checkpoint | None, settings: RunSettings, processes: Processes
) -> None:
    """List what a resumed run's configuration changes; raise a CheckpointError where the weights would mislead."""
    if newest is None:
        return
    path, content = newest
    for line in describe_changes(read_config(content, path), config, path, accepted=settings.accept_changes):
        processes.log.info(line)


def _find_first_weights(plan: TrainingPlan, model_dir: Path, processes: Processes) -> None:
    """Raise if a new run's weights are nowhere, before its data are read; a run that is resumed needs none."""

    def find() -> None:
        if not CheckpointStore(model_dir).paths() and find_training(model_dir) is None:
            find_weights(plan.fine_tune.source, plan.fine_tune.folder)

    if plan.fine_tune.source:
        processes.from_leader(find)  # whose folder decides: others' may have no checkpoints


def _log_unsupported_fields(config: m.TrainEvalPipelineConfig, processes: Processes) -> None:
    for note in config.notes:
        processes.log.info(note)
    for field in report(config):
        # A preset's fields are not the user's to change.
        if field.worth_saying and not field.in_preset:
            processes.log.info(str(field))


def _log_preflight(
    config: m.TrainEvalPipelineConfig, plan: TrainingPlan, dataset: Dataset, state: TrainingState, processes: Processes
) -> None:
    if processes.leads:
        for finding in examine_quickly(config, plan, dataset, state.detector):
            processes.log.warning(str(finding).removeprefix("warning: "))


def _open_log(
    folder: Path, config: str, state: TrainingState, listeners: Mapping[str, Listener], settings: RunSettings
) -> TrainingLog:
    """Return the log with its listeners."""
    step, evaluated = state.step, state.selection.evaluated
    log = TrainingLog()
    log.add("metrics.jsonl", lambda: JsonLines(folder, step, evaluated))
    tag_of = tf1_tag if settings.event_tags == "tf1" else str
    log.add("TensorBoard", lambda: TensorBoard(folder, step, evaluated, tag_of))
    for name in listeners:
        log.add(name, partial(listeners.__getitem__, name))
    for name in settings.track:
        log.add(name, partial(open_tracker, name, folder, config))
    return log


def _batches(
    config: m.TrainEvalPipelineConfig,
    plan: TrainingPlan,
    settings: RunSettings,
    state: TrainingState,
    dataset: Dataset,
    processes: Processes,
    folder: Path | None,
) -> BatchStream:
    """Return the stream of this process's parts of the batches, from where the run stopped."""
    examples = training_examples(config, dataset, state.detector, state.seed, skip_bad=plan.stream.skip_bad)
    return training_batches(
        examples, plan.stream, state.samples, processes, settings.data_timeout, folder, first_step=state.step
    )


def _check_processes(plan: TrainingPlan, processes: Processes) -> None:
    share, rest = divmod(plan.stream.batch_size, processes.count)
    if rest:
        raise TrainingError(
            f"train_config.batch_size {plan.stream.batch_size} cannot be shared evenly by {processes.count} processes; "
            "it counts the images of all of them"
        )
    if plan.accumulation > share:
        raise TrainingError(
            f"train_config.gradient_accumulation_steps: {plan.accumulation} parts of {share} images a process"
        )


def _change_execution(state: TrainingState, plan: TrainingPlan, settings: RunSettings, processes: Processes) -> None:
    """Compile, or recompute maps: numbers stay the same but for rounding."""
    network = state.detector.network
    if settings.cuda_graphs:
        _check_graphs(state, plan, processes)
    elif settings.compile:
        network.compile()
    if settings.shard:
        _check_shards(plan, processes)
    if settings.recompute:
        blocks = recompute_blocks(network.get_submodule("backbone"))
        processes.log.info(f"the maps of {blocks} blocks of the backbone are computed again in the backward pass")


def _check_shards(plan: TrainingPlan, processes: Processes) -> None:
    for wrong, why in (
        (processes.count == 1, "one process has nobody to share with; torchrun starts more"),
        (plan.precision == "float16", "the scale of float16's gradients is not shared; bfloat16 needs none"),
        (plan.restart_step > 0, "sharded weights cannot go back to others (train_config.restart_from_best_step)"),
        (plan.summarize_gradients, "no process has whole gradients for train_config.summarize_gradients"),
    ):
        if wrong:
            raise TrainingError(f"--shard: {why}")


def _check_graphs(state: TrainingState, plan: TrainingPlan, processes: Processes) -> None:
    detector = state.detector
    for wrong, why in (
        (next(detector.parameters()).device.type != "cuda", "there is no GPU to train on"),
        (processes.count > 1, f"{processes.count} processes train together"),
        (plan.accumulation > 1, "gradients are accumulated (gradient_accumulation_steps)"),
        (detector.preprocessor.resizer.output_size is None, "the resizer gives inputs of several sizes"),
        (plan.several_sizes, "train_config.multi_scale gives inputs of several sizes"),
    ):
        if wrong:
            raise TrainingError(f"--cuda_graphs: {why}")


def _restore(
    config: m.TrainEvalPipelineConfig,
    plan: TrainingPlan,
    detector: Detector,
    store: CheckpointStore,
    newest: Checkpoint | None,
    settings: RunSettings,
    processes: Processes,
) -> tuple[TrainingState, list[m.WeightsOrigin]]:
    """Restore the newest checkpoint, else the fine-tune checkpoint; return the state, and the weights' pedigree."""
    tensorflow = find_training(store.folder) if newest is None else None
    pedigree: list[m.WeightsOrigin] = []
    if newest is None and tensorflow is None:
        pedigree = initialize(detector, config, plan, processes)
    state = new_state(detector, plan, Selection(settings.best_metric, settings.patience))
    if tensorflow is not None:
        restored = resume_tensorflow(state, tensorflow, plan.stream.batch_size)
        processes.log.info(f"resuming where TensorFlow stopped, from {tensorflow}, step {state.step}\n{restored}")
    if newest is not None:
        path, content = newest
        if detector.categories is None or content["categories"] != detector.categories.to_list():
            raise BoxwrightError(f"{path} was trained on other classes than the data have; use another model_dir")
        state.restore({**content, **stored_shares(content, config, path)})
        pedigree = list(read_config(content, path).pedigree)
        processes.log.info(f"resuming from {path}, step {state.step}")
        if changed := content.get(CHANGED_FREEZING):
            processes.log.warning(
                f"{changed} weights were frozen or unfrozen in Python (requires_grad); the resumed run freezes what "
                "train_config says"
            )
        if content.get("compiled_kernels"):
            processes.log.info("an earlier version computed some layers otherwise: the last bits of numbers may change")
    return state, pedigree


def _open_evaluations(
    config: m.TrainEvalPipelineConfig, plan: TrainingPlan, settings: RunSettings, training: Dataset
) -> tuple[EvaluationData, ...]:
    """Open what is evaluated on, once for the run, so that a mistake in it shows now and not after hours."""
    if not (settings.evaluate and config.eval_input_reader):
        if settings.patience or settings.best_metric or settings.evaluate_every_n:
            why = "there is no eval_input_reader" if settings.evaluate else "evaluation is switched off"
            raise TrainingError(f"patience, best_metric and evaluate_every_n are about evaluations, but {why}")
        return ()
    opened = tuple(
        open_evaluation_data(config, EvaluationSettings(eval_index=number), training.categories)
        for number in range(len(config.eval_input_reader))
    )
    first = opened[0]
    if first.plan.use_average and plan.optimizer.average_decay is None:
        raise ConfigError("eval_config.use_moving_averages is set, but optimizer.use_moving_average is not")
    if settings.best_metric and not settings.best_metric.startswith("Loss/"):
        names = [name for make in first.plan.metrics for name in make(first.dataset.categories).compute().values]
        if settings.best_metric not in names:
            raise ConfigError(f"best_metric {settings.best_metric!r} is not computed; computed: {', '.join(names)}")
    return opened


@contextmanager
def _device(settings: RunSettings, processes: Processes) -> Iterator[torch.device]:
    """Yield this process's device; a GPU is the current one while the run lasts, and rounds to TF32 if asked."""
    name = settings.device
    if name == "cuda" or (name == "auto" and torch.cuda.is_available()):
        name = f"cuda:{processes.local_rank}" if processes.count > 1 else "cuda"
    elif processes.count > 1 and name.startswith("cuda:"):
        raise TrainingError(
            f"--device {name}: one GPU is for one process; of {processes.count}, cuda gives each that of its local rank"
        )
    device = usable_device(name)
    with ExitStack() as lasting:
        if device.type == "cuda":
            lasting.enter_context(torch.cuda.device(device))
            if settings.tf32:
                lasting.enter_context(tf32_allowed())
        yield device
