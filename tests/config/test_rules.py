"""Rules between fields: hand-worked cases, and all that is broken said at once, with its place."""

from __future__ import annotations

import pytest

from boxwright.base.errors import ConfigError
from boxwright.config import messages as m
from boxwright.config.field import Interval, field, number
from boxwright.config.load import dump_message, parse_message
from boxwright.config.message import Message
from boxwright.config.rules import excludes, ordered, refuse, rising, together
from boxwright.config.support import contradictions, refuse_unsupported


class Table(Message):
    """A message for these tests."""

    low: int = number(1, "[0, 10]", "Low.")
    high: int = number(3, "[0, 10]", "High.")
    size: list[float] = number([1.0, 2.0], "(0, inf)", "Two sides.", length=2, was="sides")
    on: bool = field(False, "On.")
    height: int = field(0, "Height.")
    width: int = field(0, "Width.")

    rules = (
        ordered("low", "high", below=True),
        rising("size"),
        excludes("on", "height", why="remove one"),
        together("height", "width"),
        refuse("low", "found {low} of {high}", when=lambda c: c.low == 9),
    )


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", []),
        ("low: 2 high: 3 size: [1, 2]", []),
        ("low: 3 high: 3", ["Table.low: 3 is not below high 3"]),
        ("low: 4", ["Table.low: 4 is not below high 3"]),
        ("size: [2, 1]", ["Table.size: expected rising numbers, found [2.0, 1.0]"]),
        ("size: [1, 1]", ["Table.size: expected rising numbers, found [1.0, 1.0]"]),
        ("on: true height: 2 width: 1", ["Table.on: excludes height; remove one"]),
        ("on: false height: 2 width: 1", []),
        ("height: 2", ["Table.height: set height and width, or neither"]),
        ("width: 2", ["Table.height: set height and width, or neither"]),
        ("low: 9 high: 10", ["Table.low: found 9 of 10"]),
        ("low: 9", ["Table.low: 9 is not below high 3", "Table.low: found 9 of 3"]),
    ],
)
def test_rules(text: str, problems: list[str]) -> None:
    found = [str(error).split(": ", 1)[1] for error in contradictions(parse_message(text, Table))]
    assert found == problems


def test_every_contradiction_of_a_configuration_is_said_at_once_with_its_place() -> None:
    text = """train_config {
      batch_size: 2
      gradient_accumulation_steps: 3
      data_augmentation_options { random_adjust_contrast { min_delta: 2 max_delta: 1 } }
    }
    model { ssd { loss { expected_loss_weights: EXPECTED_SAMPLING hard_example_miner { } } } }"""
    with pytest.raises(ConfigError) as caught:
        refuse_unsupported(parse_message(text, m.TrainEvalPipelineConfig, file="f"), "")
    assert sorted(str(caught.value).splitlines()) == [
        "f:3:7: train_config.gradient_accumulation_steps: 3 parts of a batch of 2; each needs an image",
        "f:4:60: train_config.data_augmentation_options[0].random_adjust_contrast.min_delta: 2.0 is over max_delta 1.0",
        "f:6:26: model.ssd.loss.expected_loss_weights: excludes hard_example_miner; it takes its place; remove one of "
        "the two",
    ]


def test_what_is_refused_is_not_judged_further() -> None:
    text = "model { ssd { mask_head_config { } } center_net { } }".replace("center_net { } ", "")
    message = parse_message(text, m.TrainEvalPipelineConfig)
    assert list(contradictions(message)) == []


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1]", (0, 0.5, 1), (-1e-9, 1.1, float("nan"), float("inf"))),
        ("(0, 1)", (1e-9, 0.5), (0, 1, -1)),
        ("[0, inf)", (0, 1e30), (-1, float("inf"), float("nan"))),
        ("[0, inf]", (0, float("inf")), (-1, float("nan"))),
        ("(-inf, inf)", (-1e30, 0), (float("-inf"), float("inf"), float("nan"))),
    ],
)
def test_intervals(interval: str, inside: tuple[float, ...], outside: tuple[float, ...]) -> None:
    parsed = Interval.parse(interval)
    assert [parsed.problem(value) for value in inside] == [""] * len(inside)
    assert all(parsed.problem(value) for value in outside)
    with pytest.raises(ValueError, match="not an interval"):
        Interval.parse("0..1")


def test_old_spellings_are_read_and_the_new_ones_written() -> None:
    text = "random_mosaic { colour: [1, 2, 3] min_centre: 0.3 max_center: 0.6 }"
    step = parse_message(text, m.PreprocessingStep)
    assert step.random_mosaic is not None
    assert list(step.random_mosaic.color) == [1, 2, 3]
    assert step.random_mosaic.min_center == 0.3
    written = dump_message(step)
    assert "colour" not in written
    assert parse_message(written, m.PreprocessingStep) == step
    with pytest.raises(ConfigError, match="given twice"):
        parse_message("random_mosaic { min_centre: 0.3 min_center: 0.3 }", m.PreprocessingStep)
    olds = [one.was for cls in Message.__subclasses__() if cls is not Table for one in cls.fields.values() if one.was]
    assert len(olds) == 5


def test_a_default_that_is_a_list_is_no_part_of_what_is_set() -> None:
    table = Table()
    assert list(table.size) == [1.0, 2.0]
    assert not table.has("size")
    with pytest.raises(AttributeError):
        table.size.append(3.0)
    assert parse_message("size: [3, 4]", Table).size == [3.0, 4.0]
    assert parse_message("sides: [3, 4]", Table).to_dict() == {"size": [3.0, 4.0]}
