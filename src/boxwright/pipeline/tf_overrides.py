"""Overrides by the names of the TF Object Detection API (`merge_external_params_with_configs` of its `config_util`).

A name such as `learning_rate` changes several fields, `eval_input_configs:NAME:FIELD` one reader, a dotted path one
field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from boxwright.base.errors import ConfigError
from boxwright.base.nearest import did_you_mean
from boxwright.base.text import to_number
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.pipeline.overrides import apply_override
from boxwright.pipeline.run_length import SCHEDULE_RATES

# The original's first part of a path → ours.
_ROOTS = {
    "model": "model",
    "train_config": "train_config",
    "eval_config": "eval_config",
    "train_input_config": "train_input_reader",
    "graph_rewriter_config": "graph_rewriter",
}
_READER_FIELDS = ("input_path", "label_map_path", "shuffle", "mask_type", "sample_1_of_n_examples")
# The original sets an exponential schedule's first rate alone.
_KEPT_RATES = ("burnin_learning_rate", "min_learning_rate")

Changes = list[tuple[str, Any]]


def parse_hparams(text: str) -> dict[str, str]:
    """Return the values by name of `a=1,b=[2,3],c=text`; a ConfigError if it is not of that form."""
    pairs: dict[str, str] = {}
    depth, start = 0, 0
    for place, character in enumerate(f"{text},"):
        depth += (character == "[") - (character == "]")
        if character == "," and not depth:
            name, equals, value = text[start:place].partition("=")
            if not equals or not name.strip():
                raise ConfigError(f"--hparams_overrides: expected name=value,name=value, found {text[start:place]!r}")
            pairs[name.strip()] = value.strip()
            start = place + 1
    if depth:
        raise ConfigError(f"--hparams_overrides: a bracket is not closed in {text!r}")
    return pairs


def apply_tf_overrides(config: TrainEvalPipelineConfig, changes: Mapping[str, Any]) -> list[str]:
    """Change a configuration by the original's names, and return what was set, as `path=value`.

    Args:
        changes: Values by name; None and "" change nothing, as in the original.

    Raises:
        ConfigError: If a name is unknown (the original ignores it), or does not apply to this configuration.
    """
    applied = []
    for name, value in changes.items():
        if value is None or value == "":
            continue
        for path, new in _fields(config, name, value):
            applied.append(f"{path}={_to_text(new)}")
            apply_override(config, applied[-1])
    return applied


def _fields(config: TrainEvalPipelineConfig, name: str, value: Any) -> Changes:
    root, dot, rest = name.partition(".")
    if dot and root in _ROOTS:
        return [(f"{_ROOTS[root]}.{rest}", value)]
    if name.count(":") == 2:
        key, reader, field = name.split(":")
        return _reader_by_name(config, (key, reader, field), value)
    if name in _NAMES:
        return _NAMES[name](config, value)
    known = f"known: {', '.join(_NAMES)}, and paths below {', '.join(_ROOTS)}"
    raise ConfigError(f"override {name}: no such name{did_you_mean(name, _NAMES, known)}")


def _to_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(json.dumps(item) for item in value)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(name: str, value: Any) -> float:
    try:
        return to_number(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"override {name}: expected a number, found {value!r}") from None


def _optimizer(config: TrainEvalPipelineConfig, name: str, kinds: Sequence[str]) -> tuple[str, Any]:
    """Return the optimizer's path and message."""
    train = config.train_config
    optimizer = None if train is None else train.optimizer
    kind = None if optimizer is None else optimizer.which("optimizer")
    if kind is None or kind not in kinds:
        wanted = " or ".join(kinds)
        raise ConfigError(f"override {name}: needs {wanted} in train_config.optimizer, found {kind or 'none'}")
    return f"train_config.optimizer.{kind}", getattr(optimizer, kind)


def _learning_rate(config: TrainEvalPipelineConfig, value: Any) -> Changes:
    """Set the first rate; the schedule's others keep their ratio to it."""
    kinds = ("rms_prop_optimizer", "momentum_optimizer", "adam_optimizer", "adamw_optimizer")
    path, optimizer = _optimizer(config, "learning_rate", kinds)
    kind = None if optimizer.learning_rate is None else optimizer.learning_rate.which("learning_rate")
    if kind is None:
        raise ConfigError(f"override learning_rate: {path} has no learning_rate")
    schedule, path = getattr(optimizer.learning_rate, kind), f"{path}.learning_rate.{kind}"
    first, *others = (name for name in SCHEDULE_RATES[kind] if name not in _KEPT_RATES)
    new, old = _number("learning_rate", value), getattr(schedule, first)
    if (others or kind == "manual_step_learning_rate") and not old > 0:
        raise ConfigError(f"override learning_rate: {path}.{first} is {old}, to which the other rates have no ratio")
    rates = [(f"{path}.{other}", getattr(schedule, other) / old * new) for other in others]
    if kind == "manual_step_learning_rate":
        rates += [
            (f"{path}.schedule[{number}].learning_rate", step.learning_rate / old * new)
            for number, step in enumerate(schedule.schedule)
        ]
    return [(f"{path}.{first}", new), *rates]


def _momentum(config: TrainEvalPipelineConfig, value: Any) -> Changes:
    path, _ = _optimizer(config, "momentum_optimizer_value", ("rms_prop_optimizer", "momentum_optimizer"))
    return [(f"{path}.momentum_optimizer_value", min(max(_number("momentum_optimizer_value", value), 0.0), 1.0))]


def _family(config: TrainEvalPipelineConfig, name: str) -> str:
    family = None if config.model is None else config.model.which("model")
    if family not in ("ssd", "faster_rcnn"):
        raise ConfigError(f"override {name}: needs model.ssd or model.faster_rcnn, found {family or 'none'}")
    return family


def _loss_ratio(config: TrainEvalPipelineConfig, value: Any) -> Changes:
    """Set the weight of classes (and objectness), with boxes at 1."""
    name = "classification_localization_weight_ratio"
    ratio = _number(name, value)
    if _family(config, name) == "ssd":
        return [("model.ssd.loss.localization_weight", 1.0), ("model.ssd.loss.classification_weight", ratio)]
    weights = {"localization": 1.0, "objectness": ratio}, {"localization": 1.0, "classification": ratio}
    return [
        (f"model.faster_rcnn.{stage}_stage_{what}_loss_weight", weight)
        for stage, of_stage in zip(("first", "second"), weights, strict=True)
        for what, weight in of_stage.items()
    ]


def _focal(member: str) -> Callable[[TrainEvalPipelineConfig, Any], Changes]:
    def change(config: TrainEvalPipelineConfig, value: Any) -> Changes:
        name = f"focal_loss_{member}"
        ssd = _family(config, name) == "ssd"
        path = "model.ssd.loss.classification_loss" if ssd else "model.faster_rcnn.second_stage_classification_loss"
        message: Any = config
        for part in path.split("."):
            message = None if message is None else getattr(message, part)
        if message is None or message.weighted_sigmoid_focal is None:
            raise ConfigError(f"override {name}: {path} must be weighted_sigmoid_focal")
        return [(f"{path}.weighted_sigmoid_focal.{member}", _number(name, value))]

    return change


def _classes(config: TrainEvalPipelineConfig, value: Any) -> Changes:
    return [(f"model.{_family(config, 'num_classes')}.num_classes", value)]


def _field(path: str, convert: Callable[[Any], Any] = lambda value: value) -> Callable[..., Changes]:
    return lambda config, value: [(path, convert(value))]


def _whole(name: str) -> Callable[[Any], int]:
    return lambda value: round(_number(name, value))


def _all_readers(field: str, *, train: bool = True) -> Callable[[TrainEvalPipelineConfig, Any], Changes]:
    def change(config: TrainEvalPipelineConfig, value: Any) -> Changes:
        of_training = ["train_input_reader"] if train else []
        of_evaluation = [f"eval_input_reader[{number}]" for number in range(len(config.eval_input_reader))]
        return [(f"{reader}.{field}", value) for reader in (*of_training, *of_evaluation)]

    return change


def _reader(config: TrainEvalPipelineConfig, path: str, field: str, value: Any) -> Changes:
    if field not in ("input_path", "append_input_path"):
        return [(f"{path}.{field}", value)]
    number = int(path.partition("[")[2].rstrip("]") or 0)
    reader = config.train_input_reader if path == "train_input_reader" else config.eval_input_reader[number]
    if reader is None or reader.tf_record_input_reader is None:
        raise ConfigError(f"override input_path: {path} must be a tf_record_input_reader")
    paths = value if isinstance(value, list | tuple) else [value]
    if isinstance(value, str) and value.startswith("["):
        paths = [text.strip().strip("'\"") for text in value.strip("[]").split(",")]
    if field == "append_input_path":
        paths = [*reader.tf_record_input_reader.input_path, *paths]
    return [(f"{path}.tf_record_input_reader.input_path", list(paths))]


def _training_reader_override(field: str) -> Callable[[TrainEvalPipelineConfig, Any], Changes]:
    return lambda config, value: _reader(config, "train_input_reader", field, value)


def _evaluation_reader_override(field: str) -> Callable[[TrainEvalPipelineConfig, Any], Changes]:
    def change(config: TrainEvalPipelineConfig, value: Any) -> Changes:
        if len(config.eval_input_reader) != 1:
            raise ConfigError(
                f"override eval_{field}: there are {len(config.eval_input_reader)} eval_input_readers; name one, as in "
                f"eval_input_configs:NAME:{field}"
            )
        return _reader(config, "eval_input_reader[0]", field, value)

    return change


def _reader_by_name(config: TrainEvalPipelineConfig, override: tuple[str, str, str], value: Any) -> Changes:
    key, name, field = override
    where = f"override {key}:{name}:{field}"
    if field not in _READER_FIELDS:
        raise ConfigError(f"{where}: expected one of {', '.join(_READER_FIELDS)}, found {field!r}")
    if key == "train_input_config":
        readers = [] if config.train_input_reader is None else [("train_input_reader", config.train_input_reader)]
    elif key == "eval_input_configs":
        readers = [(f"eval_input_reader[{number}]", reader) for number, reader in enumerate(config.eval_input_reader)]
    else:
        raise ConfigError(f"{where}: expected train_input_config or eval_input_configs, found {key!r}")
    named = [path for path, reader in readers if reader.name == name]
    if len(named) != 1:
        raise ConfigError(f"{where}: expected one reader of the name {name!r}, found {len(named)}")
    return _reader(config, named[0], field, value)


_NAMES: dict[str, Callable[[TrainEvalPipelineConfig, Any], Changes]] = {
    "learning_rate": _learning_rate,
    "batch_size": _field("train_config.batch_size", lambda value: max(1, _whole("batch_size")(value))),
    "momentum_optimizer_value": _momentum,
    "classification_localization_weight_ratio": _loss_ratio,
    "focal_loss_gamma": _focal("gamma"),
    "focal_loss_alpha": _focal("alpha"),
    "num_classes": _classes,
    "train_steps": _field("train_config.num_steps", _whole("train_steps")),
    "eval_steps": _field("eval_config.num_examples", _whole("eval_steps")),
    "label_map_path": _all_readers("label_map_path"),
    "mask_type": _all_readers("mask_type"),
    "sample_1_of_n_eval_examples": _all_readers("sample_1_of_n_examples", train=False),
    "eval_num_epochs": _all_readers("num_epochs", train=False),
    "eval_with_moving_averages": _field("eval_config.use_moving_averages"),
    "retain_original_images_in_eval": _field("eval_config.retain_original_images"),
    "use_bfloat16": _field("train_config.use_bfloat16"),
    "train_input_path": _training_reader_override("input_path"),
    "eval_input_path": _evaluation_reader_override("input_path"),
    "append_train_input_path": _training_reader_override("append_input_path"),
    "append_eval_input_path": _evaluation_reader_override("append_input_path"),
    "train_shuffle": _training_reader_override("shuffle"),
    "eval_shuffle": _evaluation_reader_override("shuffle"),
}
