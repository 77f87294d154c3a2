"""A configuration in text format: a preset, and the fields that the data change, with reasons as comments."""

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
    """The content of a configuration.

    Attributes:
        header: The first line, without `#`.
        family: The member of `model` that the preset sets, such as ssd.
        input_size: (height, width); None to keep the preset's.
        anchors: Fitted anchors; None to keep the preset's.
        optimizer: The preset's, with rates for this batch size and a schedule of this length.
        augmentation: Augmentation steps; None to keep the preset's.
        checkpoint: The weights to start from; empty for random ones.
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
    """Return the member of `model` that a configuration sets, such as ssd; raise a ConfigError if there is none."""
    family = config.model.which("model") if config.model is not None else None
    if family is None:
        raise ConfigError("the configuration has no model")
    return str(family)


def schedule_text(optimizer: m.Optimizer, num_steps: int, steps: int) -> m.Optimizer:
    """Return an optimizer with its learning rate schedule stretched from `num_steps` to `steps`."""
    stretched = copy.deepcopy(optimizer)
    for message, name in find_fields(stretched, _STEPS):
        # 0, which turns warmup or burn-in off, stays 0.
        if value := getattr(message, name):
            setattr(message, name, max(round(value * steps / num_steps), 1))
    return stretched


def config_text(plan: Plan) -> str:
    """Return the configuration, in text format."""
    lines = [
        f"# {plan.header}",
        "# Edit it freely; `boxwright config show` prints the complete configuration.",
        f'preset: "{plan.preset}"',
        f"num_classes: {plan.num_classes}",
        *_model(plan),
        "train_config {",
        f"  batch_size: {plan.batch_size}",
        f"  # {plan.length.epochs:.0f} epochs.",
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
    """Return the fields that name a checkpoint to start from; none for random weights."""
    if not checkpoint:
        return []
    fields = m.TrainConfig(fine_tune_checkpoint=checkpoint, fine_tune_checkpoint_type="transfer")
    return textwrap.indent(dump_message(fields).rstrip(), "  ").splitlines()


def _block(name: str, message: Message, indent: str = "") -> list[str]:
    body = textwrap.indent(dump_message(message).rstrip(), f"{indent}  ")
    return [f"{indent}{name} {{", *body.splitlines(), f"{indent}}}"]
