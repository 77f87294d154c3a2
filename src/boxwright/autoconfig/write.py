"""A configuration in text format: a preset, and what of it the data change, with the reasons as comments."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from boxwright.autoconfig.choices import Length
from boxwright.base.errors import ConfigError
from boxwright.config import messages as m
from boxwright.config.load import dump_message
from boxwright.config.message import Message, find_fields

# Fields that count steps.
_STEPS = frozenset({"total_steps", "warmup_steps", "hold_base_rate_steps", "decay_steps", "step", "burnin_steps"})


@dataclass(frozen=True, eq=False)
class Plan:
    """What a configuration says beside its preset.

    Attributes:
        header: The first line, without its mark.
        preset: Its name.
        family: The member of `model` that it sets, such as ssd.
        num_classes: Of the label map.
        input_size: (height, width); None to keep the preset's.
        input_why: Why that size.
        anchors: Fitted anchors; None to keep the preset's.
        anchors_why: How well they fit.
        batch_size: Images of a step.
        length: How long the run is.
        optimizer: The preset's, with rates for this batch size and steps of this length.
        augmentation: Steps of augmentation; None to keep the preset's.
        checkpoint: Where the run starts; empty for fresh weights.
        train: Reads the samples for training.
        held_out: Reads those for evaluation.
    """

    header: str
    preset: str
    family: str
    num_classes: int
    input_size: tuple[int, int] | None
    input_why: str
    anchors: m.AnchorGenerator | None
    anchors_why: str
    batch_size: int
    length: Length
    optimizer: m.Optimizer
    augmentation: Sequence[str] | None
    checkpoint: str
    train: m.InputReader
    held_out: m.InputReader


def family_of(config: m.TrainEvalPipelineConfig) -> str:
    """Return which family a configuration's model is of, such as ssd or faster_rcnn.

    Returns:
        The member of its `model`.

    Raises:
        ConfigError: Where it has no model.
    """
    family = config.model.which("model") if config.model is not None else None
    if family is None:
        raise ConfigError("the configuration has no model")
    return str(family)


def schedule_text(optimizer: m.Optimizer, num_steps: int, steps: int) -> m.Optimizer:
    """Return an optimizer whose schedule of learning rates is stretched from one number of steps to another."""
    stretched = copy.deepcopy(optimizer)
    for message, name in find_fields(stretched, _STEPS):
        if value := getattr(message, name):
            setattr(message, name, max(round(value * steps / num_steps), 1))
    return stretched


def config_text(plan: Plan) -> str:
    """Return the configuration, in text format."""
    lines = [
        f"# {plan.header}",
        "# Yours to change; `boxwright config show` prints all that it stands for.",
        f'preset: "{plan.preset}"',
        f"num_classes: {plan.num_classes}",
        *_model(plan),
        "train_config {",
        f"  batch_size: {plan.batch_size}",
        f"  # {plan.length.epochs:.0f} times through the images.",
        f"  num_steps: {plan.length.steps}",
        *_block("optimizer", plan.optimizer, "  "),
        *_start(plan.checkpoint),
        *[f"  data_augmentation_options {{ {step} }}" for step in plan.augmentation or ()],
        "}",
        *_block("train_input_reader", plan.train),
        *_block("eval_input_reader", plan.held_out),
    ]
    return "\n".join(lines) + "\n"


def _model(plan: Plan) -> list[str]:
    lines = []
    if plan.input_size is not None:
        height, width = plan.input_size
        lines += [
            f"    # {plan.input_why}",
            f"    image_resizer {{ fixed_shape_resizer {{ height: {height} width: {width} }} }}",
        ]
    if plan.anchors is not None:
        name = "first_stage_anchor_generator" if plan.family == "faster_rcnn" else "anchor_generator"
        lines += [f"    # {plan.anchors_why}", *_block(name, plan.anchors, "    ")]
    return ["model {", f"  {plan.family} {{", *lines, "  }", "}"] if lines else []


def _start(checkpoint: str) -> list[str]:
    """Return the fields that name a checkpoint to start from; none for fresh weights."""
    if not checkpoint:
        return []
    fields = m.TrainConfig(fine_tune_checkpoint=checkpoint, fine_tune_checkpoint_type="transfer")
    return textwrap.indent(dump_message(fields).rstrip(), "  ").splitlines()


def _block(name: str, message: Message, indent: str = "") -> list[str]:
    body = textwrap.indent(dump_message(message).rstrip(), f"{indent}  ")
    return [f"{indent}{name} {{", *body.splitlines(), f"{indent}}}"]
