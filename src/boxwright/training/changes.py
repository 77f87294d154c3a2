"""What a run's configuration changes when it is resumed: listed, or refused where the weights would mislead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from boxwright.base.errors import CheckpointError, shortened
from boxwright.config.message import Message
from boxwright.config.tree import joined

# How weights come about or where they come from, and what a run writes itself; classes are compared by their names.
_NOT_COMPARED = re.compile(r"num_classes$|pedigree|fine_tune_checkpoint|from_detection_checkpoint|recipe_steps$")
# What predictions mean: weights that were trained for another size, other anchors or another backbone mislead.
_MEANING = re.compile(r"model\.\w+\..*(image_resizer|anchor|box_coder|feature_extractor|encode_background_as_zeros)")
_TRAINING_ONLY = re.compile(r"(freeze_batchnorm|pretrained|regularizer|initializer|decay|batch_norm_trainable)")
_LISTED, _LONGEST = 8, 60


@dataclass(frozen=True)
class Change:
    """A field whose value differs, as its path and both values in words."""

    path: str
    before: str
    after: str

    @property
    def alters_model(self) -> bool:
        """Whether weights that were trained before it would be used for what they were not trained for."""
        return bool(_MEANING.match(self.path)) and not _TRAINING_ONLY.search(self.path)

    def __str__(self) -> str:
        return f"{self.path} {self.before} → {self.after}"


def find_changes(before: Message, after: Message, path: str = "") -> Iterator[Change]:
    """Yield the fields in which two messages of one class differ, the innermost of each."""
    for name in before.fields:
        yield from _compare(getattr(before, name), getattr(after, name), joined(path, name))


def _compare(old: object, new: object, path: str) -> Iterator[Change]:
    if _NOT_COMPARED.search(path) or old == new:
        return
    if isinstance(old, Message) and isinstance(new, Message):
        yield from find_changes(old, new, path)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, pair in enumerate(zip(old, new, strict=True)):
            yield from _compare(*pair, f"{path}[{number}]")
    else:
        yield Change(path, _in_words(old), _in_words(new))


def _in_words(value: object) -> str:
    if value is None or value == "":
        return "not set"
    if isinstance(value, Message):
        return "set"
    if isinstance(value, list):
        return f"{len(value)} entries" if len(value) != 1 else "1 entry"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return shortened(value.name if isinstance(value, Enum) else str(value), _LONGEST)


def describe_changes(before: Message, after: Message, checkpoint: Path, *, accepted: bool) -> list[str]:
    """Return lines that list what a resumed run changes.

    Args:
        before: The configuration of the checkpoint that is resumed.
        after: That of this command.
        checkpoint: Its path, for messages.
        accepted: Whether the user accepts changes of what predictions mean.

    Raises:
        CheckpointError: For such changes that are not accepted.
    """
    changes = list(find_changes(before, after))
    altering = [change for change in changes if change.alters_model]
    if altering and not accepted:
        raise CheckpointError(
            f"{checkpoint} is of another network: {_listed(altering)}; use another model_dir, and start from these "
            f"weights there (--weights {checkpoint.parent}), or resume with the change: --accept_changes"
        )
    return [f"changed since {checkpoint.name}: {_listed(changes)}"] if changes else []


def _listed(changes: list[Change]) -> str:
    more = f" and {len(changes) - _LISTED} more" if len(changes) > _LISTED else ""
    return ", ".join(map(str, changes[:_LISTED])) + more
