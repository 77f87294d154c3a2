"""Pictures in the documentation are what their commands make."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from boxwright.base.errors import ConfigError
from boxwright.config.field import field, number
from boxwright.config.load import parse_message
from boxwright.config.message import Message
from boxwright.config.messages import ImageResizer
from boxwright.config.rules import excludes
from boxwright.config.support import refuse_unsupported

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_picture_of_refinedet(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "docs/draw_refinedet.py",
        "preset:refinedet320_vgg16_voc",
        str(tmp_path / "refinedet.svg"),
    ]
    subprocess.run(command, check=True, cwd=ROOT)
    assert (tmp_path / "refinedet.svg").read_text() == (ROOT / "docs" / "refinedet.svg").read_text()
    # Four levels of six parts and three deconvolutions: 4 × 5 ways along a row, and two for each deconvolution.
    assert (tmp_path / "refinedet.svg").read_text().count('<path d="M') == 1 + 4 * 5 + 2 * 3


@pytest.mark.slow
def test_picture_of_d_fine(tmp_path: Path) -> None:
    command = [sys.executable, "docs/draw_d_fine.py", "preset:d_fine_s_coco", str(tmp_path / "d_fine.svg")]
    subprocess.run(command, check=True, cwd=ROOT)
    drawn = (tmp_path / "d_fine.svg").read_text()
    assert drawn == (ROOT / "docs" / "d_fine.svg").read_text()
    # Three ways of each of three levels, two between levels that are neighbors, three from queries on, and the mark.
    assert drawn.count('<path d="M') == 3 * 3 + 2 * 2 + 3 + 1
    assert "3 layers: self-attention" in drawn


def test_limits_are_all_documented() -> None:
    from boxwright.base.limits import LIMITS

    text = (ROOT / "docs" / "reliability.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `BOXWRIGHT_MAX_")]
    assert len(rows) == len(LIMITS) == 21
    for limit, row in zip(LIMITS, rows, strict=True):
        name, default = (cell.strip() for cell in row.strip("|").split("|")[:2])
        assert (name, int(default.replace(",", ""))) == (f"`{limit.variable}`", limit.default)


def test_the_message_of_the_page_on_configurations_reads_and_refuses() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    (source,) = re.findall(r"```python\n(class .*?)```", text, re.DOTALL)
    names = {"Message": Message, "field": field, "number": number, "excludes": excludes, "ImageResizer": ImageResizer}
    exec(compile(source, "docs/configuration.md", "exec", dont_inherit=True), names)
    sampler: type[Message] = names["Sampler"]  # type: ignore[assignment]
    message = parse_message("num_examples: 8 hardest: true", sampler)
    assert message.to_dict() == {"num_examples": 8, "hardest_first": True}
    with pytest.raises(ConfigError, match=r"excludes positive_fraction"):
        refuse_unsupported(parse_message("positive_fraction: 0.25 hardest_first: true", sampler), "")
    with pytest.raises(ConfigError, match=r"positive_fraction: "):
        parse_message("positive_fraction: 0", sampler)
    assert sampler.fields["use_static_shapes"].status.verdict == "without effect"


def test_faults_name_tests_that_are_there() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    named = {part for line in text.splitlines() for part in line.split("`") if part.startswith("tests/")}
    assert len(named) >= 9
    assert all((ROOT / name).is_file() for name in named)
