"""A configuration in text format: a preset, and the fields that the data change, with reasons as comments.

Data that have no split are split, near-duplicates together, so that no image is on both sides.
"""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from boxwright.base.errors import ConfigError, DataError
from boxwright.base.text import counted
from boxwright.config.load import dump_message
from boxwright.config.message import Message, find_fields
from boxwright.data.dataset import Dataset
from boxwright.pipeline import messages as m
from boxwright.pipeline.overrides import apply_override
from boxwright.pipeline.run_length import RATES, stretch
from boxwright.training.autoconfig.choices import Choice, FineTuning, Length
from boxwright.training.length import epochs_text
from boxwright.training.preflight.images import Fingerprints, near_groups, read_fingerprints
from boxwright.training.preflight.records import Progress

_SHARE, _MOST = 0.2, 5000
_FEW_HELD_OUT = 0.1


@dataclass(frozen=True)
class Split:
    """The samples for training and for evaluation, by number and file name.

    Attributes:
        groups: The number of groups of two or more near-duplicates.
        unreadable: A line for each unreadable image, which is on neither side.
    """

    train: tuple[tuple[int, str], ...]
    held_out: tuple[tuple[int, str], ...]
    groups: int
    unreadable: tuple[str, ...]


def split_dataset(dataset: Dataset, progress: Progress | None = None, without: Collection[int] = ()) -> Split:
    """Return a deterministic split with a fifth of the images, at most 5000, held out; both sides in the data's order.

    Args:
        progress: Shows the images that are compared.
        without: Indices of samples that are on neither side.

    Raises:
        DataError: If there are fewer than two distinct images.
    """
    indices = [number for number in range(len(dataset)) if number not in without]
    prints = read_fingerprints(dataset, progress("compare images", indices) if progress else indices)
    groups = near_groups(prints, frames=True)
    held_out = choose_held_out(groups, prints)
    if not held_out:  # one video, or copies: parts of it are better than nothing to evaluate on
        groups = near_groups(prints)
        held_out = choose_held_out(groups, prints)
    if not held_out or len(held_out) == len(prints.names):
        raise DataError(
            f"{dataset.name}: {counted(len(prints.names), 'image')} in {counted(len(groups), 'group')} of "
            "near-duplicates; at least two are needed, to train on one and evaluate on the other"
        )
    rows = [(prints.indices[row], prints.names[row]) for row in range(len(prints.names))]
    return Split(
        tuple(row for number, row in enumerate(rows) if number not in held_out),
        tuple(row for number, row in enumerate(rows) if number in held_out),
        sum(len(group) > 1 for group in groups),
        prints.unreadable,
    )


def choose_held_out(groups: Sequence[Sequence[int]], prints: Fingerprints) -> set[int]:
    """Return the held-out rows: whole groups, about a fifth of the rows, in an order that depends on file bytes only.

    Args:
        groups: Rows of near-duplicates; each row is in one group. Of two or more groups at least one is held out,
            never all.
    """
    total = sum(len(group) for group in groups)
    wanted = min(max(round(total * _SHARE), 1), _MOST)
    # By hashes of the files, which is as good as shuffled, and the same wherever the data lie.
    ordered: list[Sequence[int]] = sorted(groups, key=lambda group: min(prints.exact[row] for row in group))
    chosen: set[int] = set()
    for group in ordered:
        if len(chosen) >= wanted:
            break
        # A group larger than the whole held-out share stays in training.
        if len(chosen) + len(group) <= max(wanted * 1.25, 1):
            chosen.update(group)
    if not chosen and len(ordered) > 1:
        smallest: Sequence[int] = min(ordered, key=len)
        chosen.update(smallest)
    return chosen


# By family, what lets batch normalization keep its statistics; Faster R-CNN's do by default, and CenterNet's learn.
KEEPING_STATISTICS = {
    **dict.fromkeys(("ssd", "refinedet", "srn", "align_det"), "freeze_batchnorm: true"),
    "d_fine": "feature_extractor { freeze_batchnorm: true }",
}
Start = Literal["scratch", "backbone", "detector"]


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
        changes: Of the preset's model, as overrides: what the weights need.
        start: What the run begins with: random weights, a classifier's as its backbone, or a detector's.
        fine_tuning: How the run differs, if it begins with a detector's.
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
    changes: Sequence[str] = ()
    start: Start = "scratch"
    fine_tuning: FineTuning | None = None


def family_name(config: m.TrainEvalPipelineConfig) -> str:
    """Return the member of `model` that a configuration sets, such as ssd; raise a ConfigError if there is none."""
    family = config.model.which("model") if config.model is not None else None
    if family is None:
        raise ConfigError("the configuration has no model")
    return str(family)


def fitted_optimizer(optimizer: m.Optimizer, num_steps: int, steps: int) -> m.Optimizer:
    """Return an optimizer with its schedule and average stretched from `num_steps` to `steps`."""
    stretched = copy.deepcopy(optimizer)
    stretch(stretched, steps, num_steps)
    return stretched


def fine_tuning_optimizer(optimizer: m.Optimizer, factor: float) -> m.Optimizer:
    """Return an optimizer whose rates are multiplied by a factor, and end at 0 if they follow a cosine."""
    changed = copy.deepcopy(optimizer)
    for message, name in find_fields(changed, RATES):
        setattr(message, name, getattr(message, name) * factor)
    for message, name in find_fields(changed, {"end_factor", "hold_base_rate_steps"}):
        setattr(message, name, 0)
    return changed


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
        f"  # {epochs_text(plan.length.epochs)}.",
        f"  num_steps: {plan.length.steps}",
        "  # The schedules below are for so many steps; with another num_steps, or --epochs, they are stretched.",
        f"  recipe_steps: {plan.length.steps}",
        *_block("optimizer", plan.optimizer, "  "),
        *_start(plan.checkpoint),
        *_frozen(plan.fine_tuning),
        *[f"  data_augmentation_options {{ {step} }}" for step in plan.augmentation or ()],
        "}",
        *_block("train_input_reader", plan.train),
        *_block("eval_input_reader", plan.held_out),
    ]
    return "\n".join(lines) + "\n"


def _model(plan: Plan) -> list[str]:
    lines = _changed(plan)
    if plan.input_size is not None:
        height, width = plan.input_size
        lines += [
            f"    # {plan.input_why}",
            f"    image_resizer {{ fixed_shape_resizer {{ height: {height} width: {width} }} }}",
        ]
    if plan.anchors is not None:
        name = "first_stage_anchor_generator" if plan.family == "faster_rcnn" else "anchor_generator"
        lines += [f"    # {plan.anchors_why}", *_block(name, plan.anchors, "    ")]
    if plan.fine_tuning is not None and plan.fine_tuning.keep_statistics:
        why = f"    # Batches of {plan.batch_size} are too small to estimate statistics."
        lines += [why, f"    {KEEPING_STATISTICS[plan.family]}"]
    return ["model {", f"  {plan.family} {{", *lines, "  }", "}"] if lines else []


def _changed(plan: Plan) -> list[str]:
    """Return a plan's changes of the model as fields of its message, without those that the plan sets otherwise."""
    chosen = {".image_resizer.": plan.input_size, "anchor_generator.": plan.anchors}
    config = m.TrainEvalPipelineConfig()
    for change in plan.changes:
        if not any(field in change and value is not None for field, value in chosen.items()):
            apply_override(config, change)
    if config.model is None:
        return []
    return textwrap.indent(dump_message(config.model.chosen("model")).rstrip(), "    ").splitlines()


def _start(checkpoint: str) -> list[str]:
    """Return the fields that name a checkpoint to start from; none for random weights."""
    if not checkpoint:
        return []
    fields = m.TrainConfig(fine_tune_checkpoint=checkpoint, fine_tune_checkpoint_type="transfer")
    return textwrap.indent(dump_message(fields).rstrip(), "  ").splitlines()


def _frozen(fine_tuning: FineTuning | None) -> list[str]:
    """Return the stage in which only what starts fresh, and what reads the backbone, learns."""
    if fine_tuning is None or not fine_tuning.backbone_from:
        return []
    return [f'  freeze_stage {{ variables: "^backbone\\\\." until_step: {fine_tuning.backbone_from} }}']


def _block(name: str, message: Message, indent: str = "") -> list[str]:
    body = textwrap.indent(dump_message(message).rstrip(), f"{indent}  ")
    return [f"{indent}{name} {{", *body.splitlines(), f"{indent}}}"]


def describe_split(split: Split) -> Choice:
    """Return a split as a choice that is shown."""
    share = len(split.held_out) / (len(split.train) + len(split.held_out))
    why = f"{share:.0%} held out"
    if split.groups:
        why += f"; near-duplicates stay together ({counted(split.groups, 'group')})"
    if share < _FEW_HELD_OUT:
        why += "; too few for meaningful metrics: add different images"
    if split.unreadable:
        why += f"; unreadable, and not used: {len(split.unreadable)}"
    return Choice("split", f"{len(split.train)} to train, {len(split.held_out)} to evaluate", why)


def describe_fine_tuning(plan: Plan) -> Choice:
    """Return the recipe of a run that starts from a detector as a choice that is shown."""
    chosen = plan.fine_tuning
    if chosen is None:
        raise TypeError("the plan starts from no detector")
    parts = [f"rates × {chosen.rate:g}"]
    if next(find_fields(plan.optimizer, {"learning_rate_base"}), None) is not None:
        parts.append("a cosine to 0")
    if chosen.keep_statistics:
        parts.append("batch normalization keeps its statistics")
    if chosen.backbone_from:
        parts.append(f"the backbone learns from step {chosen.backbone_from}")
    return Choice("fine-tuning", "a recipe of its own", ", ".join(parts))
