"""Short options for fields of a configuration: `--epochs`, `--batch`, `--lr`, `--imgsz`, `--weights`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from boxwright.base.errors import ConfigError
from boxwright.base.read_settings import IGNORE_EXIF, LOST, MOST_LOST, PATHS_OUTSIDE, ReadSettings
from boxwright.base.settings import setting
from boxwright.base.text import counted

if TYPE_CHECKING:
    from boxwright.config.message import Message
    from boxwright.pipeline.messages import TrainEvalPipelineConfig

_PANEL = "Common settings"
# For --batch auto: above this, the learning rate would have to change with the batch.
MOST_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class FieldOptions:
    """Options that other trainers have for fields of a configuration; applied after `--set`."""

    epochs: float | None = setting(None, "Passes over the training data; sets train_config.num_steps.", _PANEL, 0)
    stretch_schedule: bool = setting(
        False,
        "Stretch the learning rate schedule, and all else that counts steps, to the run's length, even where you set it.",
        _PANEL,
    )
    minutes: float | None = setting(
        None, "With DATA: train for about this long on this machine; steps are timed first.", _PANEL, 0
    )
    batch: str = setting(
        "", "Batch size (train_config.batch_size); auto for as many images as fit in memory, at most 64.", _PANEL
    )
    lr: float | None = setting(None, "The schedule's base learning rate; other rates keep their ratio.", _PANEL, 0)
    imgsz: str = setting("", "The side of the network's input, as 320; or WIDTHxHEIGHT, as 320x240.", _PANEL)
    weights: str = setting(
        "",
        "Weights to start from; sets train_config.fine_tune_checkpoint: a TensorFlow or Boxwright checkpoint, "
        ".safetensors, .pth of timm's, torchvision's, D-FINE's or effdet's names, hf://USER/NAME, a name of boxwright "
        "weights list; coco or imagenet with DATA; timm, to fetch a timm backbone's; or none, for fresh ones.",
        _PANEL,
    )
    ignore_exif: bool = setting(False, f"With DATA: {IGNORE_EXIF}", _PANEL)
    allow_paths_outside: bool = setting(False, f"With DATA: {PATHS_OUTSIDE}", _PANEL)
    most_lost: float = setting(MOST_LOST, f"With DATA: {LOST}", _PANEL, 0)

    def reading(self) -> ReadSettings:
        """Return how a folder of images is read."""
        return ReadSettings(ignore_exif=self.ignore_exif, allow_paths_outside=self.allow_paths_outside)


def apply_words(config: TrainEvalPipelineConfig, words: FieldOptions) -> list[str]:
    """Apply the options to a configuration, with `--set` applied, in place; return lines that explain the result.

    Raises:
        ConfigError: If the configuration has no field for an option; it names the right one.
    """
    from boxwright.pipeline.overrides import apply_override
    from boxwright.pipeline.run_length import schedule_mismatch, set_num_steps, stretch_schedule

    notes: list[str] = []
    changes: list[str] = []
    if words.lr is not None:
        changes += _rates(config, words.lr)
    if words.imgsz:
        changes += _input_size(config, words.imgsz)
    if words.weights:
        changes += _weights(config, words.weights)
    for change in changes:
        apply_override(config, change)
    if words.epochs is not None:  # last: it depends on the batch size
        steps, line = _steps(config, words.epochs)
        # There is a train_config, or that raised.
        notes += [line, set_num_steps(config.train_config, steps)]  # type: ignore[arg-type]
    if config.train_config is not None and words.stretch_schedule:
        notes.append(stretch_schedule(config.train_config))
    elif config.train_config is not None and words.epochs is not None:
        notes.append(schedule_mismatch(config.train_config))
    return [note for note in notes if note]


def batch_override(words: FieldOptions) -> list[str]:
    """Return `--batch` as an override, as a preset's rates follow it when the configuration is read; none for auto.

    Raises:
        ConfigError: If it is neither a number of images nor auto.
    """
    from boxwright.training.autoconfig.choices import parse_batch_size

    size = parse_batch_size(words.batch or "auto", "--batch")
    return [] if size is None else [f"train_config.batch_size={size}"]


def _steps(config: TrainEvalPipelineConfig, epochs: float) -> tuple[int, str]:
    from boxwright.training.length import steps_of_epochs

    steps, count = steps_of_epochs(config, epochs)
    batch = config.train_config.batch_size if config.train_config else 0
    return (
        steps,
        f"{epochs:g} epoch{'' if epochs == 1 else 's'} of {counted(count, 'image')}, {batch} per step: {counted(steps, 'step')}",
    )


def _schedule(config: TrainEvalPipelineConfig) -> tuple[str, str, Any] | None:
    """Return the path of the learning rate schedule, its kind, and the schedule; None if there is no schedule."""
    optimizer = config.train_config.optimizer if config.train_config else None
    kind = optimizer.which("optimizer") if optimizer else None
    rate = getattr(optimizer, kind or "", None)
    rate = rate.learning_rate if rate is not None else None
    schedule = rate.which("learning_rate") if rate is not None else None
    if schedule is None:
        return None
    return f"train_config.optimizer.{kind}.learning_rate.{schedule}", schedule, getattr(rate, schedule)


# Each schedule's base field, and the fields that keep their ratio to it.
_BASES = {
    "constant_learning_rate": ("learning_rate", ()),
    "exponential_decay_learning_rate": ("initial_learning_rate", ("burnin_learning_rate", "min_learning_rate")),
    "manual_step_learning_rate": ("initial_learning_rate", ()),
    "cosine_decay_learning_rate": ("learning_rate_base", ("warmup_learning_rate",)),
}


def _rates(config: TrainEvalPipelineConfig, wanted: float) -> list[str]:
    located = _schedule(config)
    if located is None:
        raise ConfigError(
            "--lr: the configuration has no learning rate; name an optimizer, as in "
            "--set 'train_config { optimizer { adam_optimizer { learning_rate { constant_learning_rate { learning_rate: "
            f"{wanted:g} }} }} }} }} }}'"
        )
    path, kind, schedule = located
    base, others = _BASES[kind]
    steps = list(getattr(schedule, "schedule", []))
    warm = kind == "manual_step_learning_rate" and schedule.warmup and steps  # rises to the first step's rate
    before = steps[0].learning_rate if warm else getattr(schedule, base)
    if before <= 0:
        raise ConfigError(f"--lr: {path} starts at {before:g}, which cannot be scaled; set its rates with --set")
    share = wanted / before
    fields = {base: getattr(schedule, base) * share, **{name: getattr(schedule, name) * share for name in others}}
    fields |= {f"schedule[{number}].learning_rate": step.learning_rate * share for number, step in enumerate(steps)}
    if not warm:
        fields[base] = wanted
    # Rates of 0 are unset and stay so; repr keeps all digits.
    return [f"{path}.{name}={value!r}" for name, value in fields.items() if value > 0 or name == base]


def _model(config: TrainEvalPipelineConfig) -> tuple[str, Message]:
    name = config.model.which("model") if config.model else None
    if config.model is None or name is None:
        raise ConfigError("the configuration has no model")
    return name, getattr(config.model, name)


def _input_size(config: TrainEvalPipelineConfig, text: str) -> list[str]:
    from boxwright.training.autoconfig.choices import parse_size

    height, width = parse_size(text)
    side = min(height, width)
    name, model = _model(config)
    path = f"model.{name}.image_resizer"
    resizer = getattr(model, "image_resizer", None)
    kind = resizer.which("image_resizer_oneof") if resizer is not None else None
    chosen: Any = getattr(resizer, kind or "", None)
    if kind == "fixed_shape_resizer":
        return [f"{path}.{kind}.height={height}", f"{path}.{kind}.width={width}"]
    if kind == "keep_aspect_ratio_resizer" and chosen.min_dimension == chosen.max_dimension and height == width:
        return [f"{path}.{kind}.min_dimension={side}", f"{path}.{kind}.max_dimension={side}"]
    if kind == "keep_aspect_ratio_resizer":
        raise ConfigError(
            f"--imgsz {text}: images keep their aspect ratio, with a shorter side of {chosen.min_dimension} and a longer "
            f"of at most {chosen.max_dimension} pixels; set both: --set {path}.{kind}.min_dimension={side} "
            f"--set {path}.{kind}.max_dimension={round(side * chosen.max_dimension / max(chosen.min_dimension, 1))}"
        )
    change = f"model {{ {name} {{ image_resizer {{ fixed_shape_resizer {{ height: {height} width: {width} }} }} }} }}"
    raise ConfigError(
        f"--imgsz {text}: {path} is {kind or 'missing'}, which has no side; choose another: --set '{change}'"
    )


def _weights(config: TrainEvalPipelineConfig, source: str) -> list[str]:
    if source == "none":
        family, chosen_model = _model(config)
        fetched = getattr(getattr(chosen_model, "feature_extractor", None), "pretrained", False)
        path = f"model.{family}.feature_extractor.pretrained"
        return ["train_config.fine_tune_checkpoint=", *([f"{path}=false"] if fetched else [])]
    if source != "timm":
        train = config.train_config
        chosen = train is not None and (train.fine_tune_checkpoint_type or train.from_detection_checkpoint)
        # Without a type in the configuration, whatever fits is restored: the file may be of any model.
        kind = [] if chosen else ["train_config.fine_tune_checkpoint_type=transfer"]
        return [f"train_config.fine_tune_checkpoint={_quoted(source)}", *kind]
    name, model = _model(config)
    extractor = getattr(model, "feature_extractor", None)
    kind_of = getattr(extractor, "type", "")
    if not kind_of.startswith("timm/"):
        raise ConfigError(
            f"--weights timm: timm has no weights for the backbone {kind_of or '(not named)'}; name a checkpoint, or a "
            f"timm backbone: --set model.{name}.feature_extractor.type=timm/resnet50"
        )
    return ["train_config.fine_tune_checkpoint=", f"model.{name}.feature_extractor.pretrained=true"]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_SIZE = "fixed by the model's image_resizer; train another: boxwright train --imgsz …"
_THRESHOLD = "--min_score"
_OVERLAP = "--set model.ssd.post_processing.batch_non_max_suppression.iou_threshold=…"
_OF_TRAINED = {
    "weights": "--model_dir: a run's folder, a checkpoint or an export",
    "ckpt": "--model_dir, or --checkpoint",
    "imgsz": _SIZE,
    "img_size": _SIZE,
}
# By command: other programs' names of options, and what to write instead.
OTHER_NAMES: dict[str, dict[str, str]] = {
    "train": {
        "data": "a positional argument: boxwright train DATA, which writes a configuration for it first",
        "cfg": "--pipeline_config_path",
        "batch_size": "--batch",
        "learning_rate": "--lr",
        "lr0": "--lr",
        "img_size": "--imgsz",
        "epoch": "--epochs",
        "num_steps": "--num_train_steps",
        "pretrained": "--weights",
        "resume": "--model_dir alone: a run in it is resumed",
        "resume_from": "--model_dir alone: a run in it is resumed",
        "optimizer": "--set 'train_config { optimizer { adam_optimizer { } } }'",
        "name": "--model_dir",
        "project": "--model_dir",
        "work_dir": "--model_dir",
        "output_dir": "--model_dir",
        "out": "--model_dir",
        "amp": "--precision bfloat16 (of presets the default on a GPU)",
        "half": "--precision float16",
        "bf16": "--precision bfloat16",
        "fp16": "--precision float16",
        "conf": "--set eval_config.min_score_threshold=…; predict has --min_score",
    },
    "evaluate": {
        **_OF_TRAINED,
        "conf": "--set eval_config.min_score_threshold=… (for pictures; metrics use all scores)",
        "iou": _OVERLAP,
        "batch": "--set eval_config.batch_size=…",
        "batch_size": "--set eval_config.batch_size=…",
        "data": "in the configuration: --set eval_input_reader.tf_record_input_reader.input_path=…",
    },
    "predict": {
        **_OF_TRAINED,
        "source": "a positional argument: boxwright predict photos --model_dir model",
        "conf_thres": _THRESHOLD,
        "threshold": _THRESHOLD,
        "score_threshold": _THRESHOLD,
        "iou": _OVERLAP,
        "batch": "--batch_size, if --out ends in .parquet; otherwise images are processed singly",
        "save_crop": "--save_crops",
        "class": "--classes",
        "output": "--out",
        "project": "--out",
        "name": "--out",
    },
    "export": {
        **_OF_TRAINED,
        "include": "--format",
        "half": "--precision float16",
        "int8": "--precision int8",
        "imgsz": "--image_size, of the pictures; the file resizes them to the network's input",
        "dynamic": "the default; --batch and --image_size fix sizes",
        "output": "a positional argument: boxwright export model detector.onnx",
    },
}
