"""Writing a configuration for data: they are recognized and split, and settings are fitted to them."""

from __future__ import annotations

import copy
import os
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from boxwright.base.device import usable_device
from boxwright.base.errors import CheckpointError, ConfigError, OutputError, TrainingError, first_line
from boxwright.base.files import is_file, make_folder, write_whole
from boxwright.base.nearest import did_you_mean
from boxwright.base.remote import is_remote
from boxwright.base.text import counted, without_secrets
from boxwright.config.preset import preset_names
from boxwright.data.recognize import recognize
from boxwright.nn.network import is_within
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import Overrides, load_config
from boxwright.pipeline.message import learns_masks
from boxwright.training.autoconfig.choices import (
    DEFAULT_PRESET,
    NO_WEIGHTS,
    Choice,
    InitSettings,
    choose_augmentation,
    choose_batch,
    choose_fine_tuning,
    choose_fine_tuning_length,
    choose_input,
    choose_length,
)
from boxwright.training.autoconfig.data import OpenedData, load_masks, open_data
from boxwright.training.autoconfig.from_run import adapt_configuration, is_run
from boxwright.training.autoconfig.from_run import config_text as run_config_text
from boxwright.training.autoconfig.write import (
    KEEPING_STATISTICS,
    Plan,
    Start,
    config_text,
    describe_fine_tuning,
    family_name,
    fine_tuning_optimizer,
    fitted_optimizer,
)
from boxwright.training.length import epochs_text, steps_through
from boxwright.training.preflight.anchors import find_anchor_generator, fit_anchors
from boxwright.training.preflight.records import Progress
from boxwright.training.rehearsal import fitting_batch
from boxwright.weights.find_weights import exists, find_weights
from boxwright.weights.load_weights import load_weights
from boxwright.weights.published import find_published, published_for, published_weights

# Anchors are changed if this many more of the objects reach the threshold.
_WORTH = 0.02
_LEAST_STEPS = 50  # however short the requested time
_PATIENCE = 1800.0
# What `--weights` may say in place of a file: words for what the weights hold.
_WORDS = {"coco": "detector", "imagenet": "backbone"}


@dataclass(frozen=True)
class WrittenConfiguration:
    """The written files, the configuration last, and the choices made."""

    config: Path
    files: tuple[Path, ...]
    choices: tuple[Choice, ...]


_DEFAULTS = InitSettings()


def init_config(
    data: str | Path,
    out: str | Path = "pipeline.config",
    settings: InitSettings = _DEFAULTS,
    *,
    force: bool = False,
    progress: Progress | None = None,
    overrides: Overrides = (),
) -> WrittenConfiguration:
    """Write a configuration that trains on data, with a label map and, if the data have none, a split.

    The same data and settings give the same bytes.

    Args:
        data: A folder or file of a format that `recognize` knows.
        out: The configuration; the other files are written beside it, with its name as a prefix.
        overrides: Changes with which the run will load the configuration: weights and times of steps are those of the
            changed network. They are not written.

    Raises:
        CheckpointError: If there are no weights where the settings say.
        DataError: If the data are not recognized, or cannot be read.
        OutputError: If a file exists already, with other content and without `force`.
    """
    out = Path(out).resolve()
    if out.is_dir():
        raise OutputError(f"{out} is a folder; name a file in it, such as {out / 'pipeline.config'}")
    stem = out.with_suffix("")
    header = _header(data, settings)
    settings.check_length()
    from_run = is_run(settings.model)
    settings, changes = (settings, ()) if from_run else _with_published(settings)
    base = None if from_run else _read_preset(settings.preset)
    if settings.weights and not (from_run and settings.weights == NO_WEIGHTS):
        _require_weights(settings.weights)  # before the data are read, which may take minutes
    recognized = recognize(data, **asdict(settings.reading))
    opened = open_data(recognized, stem, settings, progress)
    if base is not None and learns_masks(base):
        load_masks(opened.train, opened.held_out)
    if base is None:
        slots, images = opened.training.categories.num_slots, opened.facts.images
        config, choices = adapt_configuration(settings, images, slots, opened.train, opened.held_out)
        text = run_config_text(config, header)
    else:
        text, choices = _fitted(opened, base, settings.preset, header, settings, changes, overrides)
    files = {**opened.files, out: text}
    for path, content in files.items() if not force else ():
        if is_file(path) and path.read_bytes() != content.encode():
            raise OutputError(f"{path} already exists, with other content; --force replaces it, --out names another")
    make_folder(out.parent)
    for path, content in files.items():  # the configuration last, after the files that it names
        write_whole(path, content)
    return WrittenConfiguration(out, tuple(files), (*opened.choices, *choices))


def _read_preset(preset: str) -> m.TrainEvalPipelineConfig:
    base = load_config(f"preset:{preset}")
    if base.model is not None and base.model.center_net is not None and base.model.center_net.keypoint_estimation_task:
        raise ConfigError(
            f"preset {preset} learns keypoints, which init does not look for; choose one without, or write a "
            "configuration that names the preset, with num_keypoints in its readers"
        )
    return base


def _with_published(settings: InitSettings) -> tuple[InitSettings, tuple[str, ...]]:
    """Return settings that name a preset and weights, and the changes of the preset that the weights need.

    A model's name that is one of published weights stands for both; `--weights` says otherwise, and may be a word:
    coco or imagenet, for what is published for the preset, or none.

    Raises:
        CheckpointError: If the weights are of a kind that is not trained.
        ConfigError: If none are published of the kind that the word asks for.
    """
    named = find_published(settings.model)
    if named is None and settings.model and settings.model not in preset_names():
        known = [*preset_names(), *(weights.name for weights in published_weights())]
        lists = "boxwright models and boxwright weights list show the names"
        raise ConfigError(
            f"--model {settings.model}: no preset or published weights of this name"
            f"{did_you_mean(settings.model, known, lists)}"
        )
    if named is not None:
        named.configuration()  # raises for what cannot be fine-tuned
        preset = settings.model if settings.model in named.presets else named.presets[0]
        settings = replace(settings, model=preset, weights=settings.weights or named.name)
    word = settings.weights.lower()
    if word == NO_WEIGHTS:
        settings = replace(settings, weights="")
    elif word in _WORDS and not exists(settings.weights):
        fitting = [entry for entry in published_for(settings.preset) if entry.holds == _WORDS[word]]
        if not fitting:
            raise ConfigError(
                f"--weights {word}: no {_WORDS[word]}'s weights are published for preset {settings.preset}; "
                "`boxwright weights list` shows the names that there are, and none starts from fresh weights"
            )
        settings = replace(settings, weights=fitting[0].name)
    weights = None if exists(settings.weights) else find_published(settings.weights)
    # Weights that fit the preset by changes of it need these, whatever the model was named by.
    detects = weights is not None and weights.holds == "detector" and settings.preset in weights.presets
    shape = weights if detects else named
    overrides = () if shape is None else shape.overrides
    return settings, tuple(change for change in overrides if ".num_classes=" not in change)


def _require_weights(weights: str) -> None:
    """Raise unless weights are on this machine or can be fetched."""
    try:
        find_weights(weights)
    except CheckpointError as error:
        if find_published(weights) is None:
            raise
        raise CheckpointError(f"{error}; or start from fresh weights: --weights {NO_WEIGHTS}") from None


def start_run(
    data: str | Path,
    folder: str | Path,
    settings: InitSettings = _DEFAULTS,
    progress: Progress | None = None,
    overrides: Overrides = (),
) -> tuple[Path, tuple[Choice, ...]]:
    """Write a configuration for data into a run's folder, unless an earlier call did; return `init.config` and choices.

    Args:
        overrides: As for `init_config`.

    Raises:
        ConfigError: If the existing configuration was written for other data or another preset.
    """
    path = Path(folder) / "init.config"
    if os.environ.get("RANK", "0") != "0" and not is_file(path):
        _wait_for(path)  # the first of torchrun's processes writes it
    if is_file(path):
        first = (path.read_bytes().decode("utf-8", "replace").splitlines() or [""])[0]
        # The first line names data and preset: the same command continues, another one must not change the run.
        if first != f"# {_header(data, settings)}":
            raise ConfigError(
                f"{path} was written for other data or another preset ({first[2:]}); use another folder, "
                "or remove it if no run of it is wanted"
            )
        return path, ()
    if any(Path(folder).glob("ckpt-*.pt")):
        raise ConfigError(
            f"{folder} contains a run of another configuration; name another folder with --model_dir, or out="
        )
    return path, init_config(data, path, settings, progress=progress, overrides=overrides).choices


def _wait_for(path: Path) -> None:
    """Wait until another process has written a file."""
    until = time.monotonic() + _PATIENCE
    while not is_file(path):
        if time.monotonic() > until:
            raise TrainingError(f"{path}: the first process has not written it within {_PATIENCE:g} s")
        time.sleep(0.2)


def _header(data: str | Path, settings: InitSettings) -> str:
    exif = " --ignore_exif" if settings.reading.ignore_exif else ""
    model = Path(settings.model).resolve() if is_run(settings.model) else settings.preset
    place = without_secrets(str(data)) if is_remote(data) else Path(data).resolve()
    return f"Written by boxwright init {place} --model {model}{exif}"


def _fitted(
    data: OpenedData,
    base: m.TrainEvalPipelineConfig,
    preset: str,
    header: str,
    settings: InitSettings,
    changes: tuple[str, ...],
    overrides: Overrides,
) -> tuple[str, list[Choice]]:
    """Return the configuration's text, and the choices made for it."""
    plan, choices = _first_plan(data, base, preset, header, settings)
    plan = replace(plan, changes=changes)
    with tempfile.TemporaryDirectory() as folder:
        config = _loaded(plan, data.files, Path(folder), overrides)
        if settings.weights:
            start, choice = _start_from(settings.weights, config, data)
            plan = _plan_for_batch_size(replace(plan, start=start), preset, plan.batch_size, data, settings)
            choices.append(choice)
        if plan.start != "detector":  # whose predictors are for its anchors
            plan, anchors = _with_anchors(plan, config, data)
            choices += [anchors] if anchors else []
        if settings.steps or settings.minutes is not None:
            config = _loaded(plan, data.files, Path(folder), overrides)
            plan, choice = _tried(plan, config, preset, data, settings)
            choices.append(choice)
        else:
            why = "as requested" if settings.batch_size() else "not tried"
            choices.append(Choice("batch", counted(plan.batch_size, "image"), why))
    length = plan.length
    requested = settings.epochs is not None or settings.minutes is not None
    why = "as requested" if requested else f"for {counted(data.facts.images, 'image')}"
    choices.append(Choice("length", counted(length.steps, "step"), f"{epochs_text(length.epochs)}, {why}"))
    choices += [describe_fine_tuning(plan)] if plan.fine_tuning is not None else []
    return config_text(plan), choices


def _tried(
    plan: Plan, config: m.TrainEvalPipelineConfig, preset: str, data: OpenedData, settings: InitSettings
) -> tuple[Plan, Choice]:
    """Return a plan with a batch size that fits in memory and, if requested, a length that fits the time."""
    fits, measured = fitting_batch(config, plan.batch_size, settings.device, tried=plan.batch_size)
    if settings.batch_size() is None and fits < plan.batch_size:
        plan = _plan_for_batch_size(plan, preset, fits, data, settings)
    # As if reading and learning did not overlap, so that the run is no longer than requested.
    seconds = measured.predicted(measured.seconds, plan.batch_size) + plan.batch_size * measured.sample_seconds
    if settings.minutes is not None:
        steps = max(int(60 * settings.minutes / seconds), _LEAST_STEPS)
        epochs = steps * plan.batch_size / data.facts.images
        plan = _plan_for_batch_size(plan, preset, plan.batch_size, data, replace(settings, epochs=epochs))
    minutes = max(round(seconds * plan.length.steps / 60), 1)
    why = "as requested" if settings.batch_size() else f"fits in the {measured.device}'s memory"
    images = counted(plan.batch_size, "image")
    return plan, Choice("batch", images, f"{why}; trains for about {minutes} min")


def _first_plan(
    data: OpenedData, base: m.TrainEvalPipelineConfig, preset: str, header: str, settings: InitSettings
) -> tuple[Plan, list[Choice]]:
    """Return a plan with the preset's own anchors, and an untried batch size."""
    facts, own = data.facts, preset == DEFAULT_PRESET
    size = settings.image_size() or (choose_input(facts.size, facts.small_side(), facts.aspect) if own else None)
    shape = f"images are {facts.size[1]}×{facts.size[0]}"
    if settings.image_size():
        why = f"As requested; {shape}."
    else:
        smallest = facts.small_side() * max(size or facts.size)
        why = f"{shape[0].upper()}{shape[1:]}; a tenth of the objects are then smaller than {smallest:.0f} pixels."
    chosen = f"{size[1]}×{size[0]}" if size else "the preset's"
    reason = "as requested" if settings.model else f"from scratch; {_coco_hint(settings.device)}"
    choices = [Choice("model", preset, reason), Choice("input", chosen, why if size else shape)]
    names = [item.name for item in data.training.categories]
    steps: list[str] | None = None
    if own:
        aspect = size[1] / size[0] if size else facts.aspect
        steps, reason = choose_augmentation(facts.images, names, aspect)
        choices.append(Choice("augmentation", counted(len(steps), "step"), reason))
    plan = Plan(
        header=header,
        preset=preset,
        family=family_name(base),
        num_classes=data.training.categories.num_slots,
        input_size=size,
        input_why=why,
        anchors=None,
        anchors_why="",
        batch_size=0,
        length=choose_length(facts.images, 1),
        optimizer=m.Optimizer(),
        augmentation=steps,
        checkpoint=settings.weights,
        train=data.train,
        held_out=data.held_out,
    )
    # The recipes of other presets are for large batches.
    on_cpu = own and usable_device(settings.device).type == "cpu"
    batch = settings.batch_size() or choose_batch(facts.images, on_cpu=on_cpu)
    return _plan_for_batch_size(plan, preset, batch, data, settings), choices


def _coco_hint(device: str) -> str:
    """Return which published name to start from, by its authors' figures: the best that the device trains soon."""
    name = "ssd_mobilenet_v2_fpnlite_320_coco17" if usable_device(device).type == "cpu" else "d_fine_s_coco"
    return f"--model {name} starts from weights trained on COCO"


def _plan_for_batch_size(plan: Plan, preset: str, batch_size: int, data: OpenedData, settings: InitSettings) -> Plan:
    """Return a plan for another batch size, with its length and the preset's rates and schedule for both."""
    images = data.facts.images
    from_detector = plan.start == "detector"
    length = (choose_fine_tuning_length if from_detector else choose_length)(images, batch_size)
    if settings.epochs is not None:
        steps = steps_through(images, settings.epochs, batch_size)
        length = replace(length, steps=steps, warmup=max(round(steps / 20), 1), epochs=settings.epochs)
    train = load_config(f"preset:{preset}", [f"train_config.batch_size={batch_size}"]).train_config
    if train is None or train.optimizer is None:
        raise ConfigError(f"preset {preset} cannot be trained: it has no optimizer")
    optimizer = fitted_optimizer(train.optimizer, train.num_steps or length.steps, length.steps)
    fine_tuning = choose_fine_tuning(images, batch_size, length.steps) if from_detector else None
    if fine_tuning is not None:
        keep = fine_tuning.keep_statistics and plan.family in KEEPING_STATISTICS
        fine_tuning = replace(fine_tuning, keep_statistics=keep)
        optimizer = fine_tuning_optimizer(optimizer, fine_tuning.rate)
    return replace(plan, batch_size=batch_size, length=length, optimizer=optimizer, fine_tuning=fine_tuning)


def _start_from(weights: str, config: m.TrainEvalPipelineConfig, data: OpenedData) -> tuple[Start, Choice]:
    """Return what a run from these weights begins with, by what of them the network takes."""
    detector = build_detector(config, data.training.categories)
    path, _ = find_weights(weights)
    own = f"; --model {weights} trains their own" if is_run(weights) else ""
    try:
        loaded = load_weights(detector, path, "transfer")
    except CheckpointError as error:  # the network may still be changed on the command line
        return "backbone", Choice("weights", weights, f"they do not fit this network: {first_line(error)}{own}")
    parts = detector.network.parts
    restored = f"{len(loaded.restored)} tensors restored, {len(loaded.kept)} start fresh"
    if any(is_within(name, parts.heads) for name in loaded.restored):
        return "detector", Choice("weights", weights, f"a detector's: {restored}")
    return "backbone", Choice("weights", weights, f"the backbone's alone: {restored}; a recipe as from scratch{own}")


def _loaded(plan: Plan, files: dict[Path, str], folder: Path, overrides: Overrides) -> m.TrainEvalPipelineConfig:
    """Return a plan's configuration, read back from a temporary folder as a run would read it."""
    plan = replace(plan, train=copy.deepcopy(plan.train), held_out=copy.deepcopy(plan.held_out))
    for path, content in files.items():
        write_whole(folder / path.name, content)
    for reader in (plan.train, plan.held_out):
        reader.label_map_path = str(folder / Path(reader.label_map_path).name)
        if reader.sample_list:
            reader.sample_list = str(folder / Path(reader.sample_list).name)
    write_whole(folder / "pipeline.config", config_text(plan))
    return load_config(folder / "pipeline.config", overrides)


def _with_anchors(plan: Plan, config: m.TrainEvalPipelineConfig, data: OpenedData) -> tuple[Plan, Choice | None]:
    """Return a plan with fitted anchors, if they reach notably more objects than the preset's."""
    anchors = find_anchor_generator(config.model)
    if anchors is None:
        return plan, None
    generator, threshold = anchors
    own, better = fit_anchors(build_detector(config, data.training.categories), generator, data.records, threshold)
    reached = f"{own.share:.0%} of the objects reach IoU {threshold:g}"
    if better is None or better[1].share <= own.share + _WORTH:
        return plan, Choice("anchors", "the preset's", reached)
    why = f"{better[1].share:.0%} of the objects reach IoU {threshold:g}; {own.share:.0%} with the preset's"
    return replace(plan, anchors=better[0], anchors_why=f"Fitted: {why}."), Choice("anchors", "fitted", why)
