"""Rules between the fields of a message, and below them: what a table of fields says beside ranges.

A rule is given the message, and says what is wrong with it: the field at fault ("" for the message itself) and a line.
The reasons that many fields share for having no effect, and the advice where they are refused, are here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from boxwright.base.errors import shortened
from boxwright.config.field import Enum

PER_ANCHOR = "losses are per anchor always"
QUANTIZATION = "quantization-aware training is of TF1 only; the network is trained and run in floating point"
QUEUE = "tuning of TensorFlow's input queues"
SHUFFLED = "each epoch is shuffled as a whole"
TF1_EVALUATOR = "of TF1's separate evaluator"
TF1_SERVERS = "of TF1's training on parameter servers"


@dataclass(frozen=True)
class Rule:
    """What must hold between the fields of a message.

    Attributes:
        field: The field that is named where it does not; "" for the message itself.
        problem: Returns what is wrong, in a line; empty where the rule holds.
    """

    field: str
    problem: Callable[[Any], str]


def refuse(field: str, problem: str, when: Callable[[Any], Any]) -> Rule:
    """Refuse a field where `when` holds for its message.

    Args:
        field: The field; "" for the message itself.
        problem: What is wrong, and what to do. `{name}` stands for the message's field of that name.
    """

    def filled(message: Any) -> str:
        return _NAME.sub(lambda match: _shown(message, match[1]), problem) if when(message) else ""

    return Rule(field, filled)


def ordered(low: str, high: str, *, below: bool = False) -> Rule:
    """Refuse a lower bound over the upper one; with `below`, also one equal to it."""

    def problem(message: Any) -> str:
        least, most = getattr(message, low), getattr(message, high)
        if below:
            return "" if least < most else f"{least} is not below {high} {most}"
        return "" if least <= most else f"{least} is over {high} {most}"

    return Rule(low, problem)


def excludes(field: str, *others: str, why: str = "keep one") -> Rule:
    """Refuse a field that is set, or is true, beside another."""

    def problem(message: Any) -> str:
        other = next((other for other in others if _is_set(message, other)), None)
        return f"excludes {other}; {why}" if other is not None and _is_set(message, field) else ""

    return Rule(field, problem)


def together(*fields: str) -> Rule:
    """Refuse some of the fields without the others; 0 is as good as absent."""

    def problem(message: Any) -> str:
        given = [bool(getattr(message, field)) for field in fields]
        return f"set {' and '.join(fields)}, or neither" if any(given) and not all(given) else ""

    return Rule(fields[0], problem)


def rising(field: str, member: str = "") -> Rule:
    """Refuse a list that does not rise, or one whose items' member does not."""

    def problem(message: Any) -> str:
        values = [getattr(item, member) if member else item for item in getattr(message, field)]
        return "" if values == sorted(set(values)) else f"expected rising {member or 'number'}s, found {values}"

    return Rule(field, problem)


def distinct(field: str, member: str = "") -> Rule:
    """Refuse a list with a value twice, or one whose items' member has one."""

    def problem(message: Any) -> str:
        values = [getattr(item, member) if member else item for item in getattr(message, field)]
        twice = next((value for number, value in enumerate(values) if value in values[:number]), None)
        return (
            "" if twice is None else f"expected each {member or 'number'} once, found {shortened(str(twice), 80)} twice"
        )

    return Rule(field, problem)


def of_type(pattern: str) -> Callable[[Any], bool]:
    """Return whether a message's `type` matches a pattern from its beginning."""
    return lambda message: re.match(pattern, message.type) is not None


def default_only(field: str, when: Callable[[Any], Any]) -> Rule:
    """Refuse a value other than the default where `when` holds for a message with a `type`: its network reads none."""

    def problem(message: Any) -> str:
        default = message.fields[field].default
        unread = getattr(message, field) != default and when(message)
        return f"{message.type} takes only {default}; remove the line" if unread else ""

    return Rule(field, problem)


def color_only(pattern: str) -> Rule:
    """Refuse gray images for a model whose `feature_extractor` has a type that matches a pattern from its beginning."""

    def problem(model: Any) -> str:
        extractor, resizer = model.feature_extractor, model.image_resizer
        if extractor is None or resizer is None or not re.match(pattern, extractor.type):
            return ""
        chosen = resizer.which("image_resizer_oneof")
        gray = chosen is not None and getattr(getattr(resizer, chosen), "convert_to_grayscale", False)
        return f"{extractor.type} takes color images; remove convert_to_grayscale" if gray else ""

    return Rule("feature_extractor.type", problem)


def any_of(oneof: str) -> Rule:
    """Refuse a message without any member of a oneof."""

    def problem(message: Any) -> str:
        members = [name for name in message.oneofs[oneof] if message.fields[name].status.verdict == "honored"]
        return "" if message.which(oneof) else f"empty; set one of {', '.join(members)}"

    return Rule("", problem)


def _is_set(message: Any, field: str) -> bool:
    value = getattr(message, field)
    return bool(value) if isinstance(value, (bool, list, tuple)) else message.has(field)


_NAME = re.compile(r"{([\w.]+)}")


def _shown(message: Any, path: str) -> str:
    value = message
    for name in path.split("."):
        value = getattr(value, name)
    return shortened(value.name if isinstance(value, Enum) else str(value), 80)


TYPE = refuse("type", "missing; name a feature extractor", when=lambda config: not config.type)

PRETRAINED = refuse(
    "pretrained",
    "nobody keeps weights of {type} to fetch; only of timm/NAME. "
    "Name a checkpoint by train_config.fine_tune_checkpoint",
    when=lambda config: config.pretrained and not config.type.startswith("timm/"),
)
