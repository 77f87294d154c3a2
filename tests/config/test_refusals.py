"""Whatever a configuration is refused for, the error names the file, the line and the whole path."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from boxwright.base.errors import ConfigError
from boxwright.cli.config import build_plans
from boxwright.config.load import parse_message
from boxwright.config.message import Message
from boxwright.config.support import refuse_unsupported
from boxwright.pipeline import messages
from boxwright.pipeline.load import load_config
from boxwright.pipeline.missing import missing_for_training
from tests.conftest import extra_folder

FOLDER = extra_folder("BOXWRIGHT_CONFIGS")
FILES = sorted(FOLDER.rglob("*.config")) if FOLDER else []
PRESETS = sorted((Path(__file__).parents[2] / "src" / "boxwright" / "presets").glob("*.config"))

SCALAR = re.compile(r"^(\s*)(\w+)\s*:\s*([^#\[{]+?)\s*(#.*)?$")
OPENS = re.compile(r"^(\s*)(\w+)\s*:?\s*\{\s*$")
# A place, and after it a path whose first part is a field of the root.
ROOTS = "model|train_config|train_input_reader|eval_config|eval_input_reader|graph_rewriter|num_classes|preset"
LOCATED = re.compile(rf"^\s*\S+\.config:[1-9]\d*:[1-9]\d*: ({ROOTS})\b[\w.\[\]]*: ")
# What cannot be read as text format, or names a field that there is not, has a place and a word in the place of a path.
SYNTAX = re.compile(r"^\S+\.config:[1-9]\d*:[1-9]\d*: .*(unknown field|has no field named|expected|has no value)")
READER = 'train_input_reader { label_map_path: "m" tf_record_input_reader { input_path: "r" } }\n'
NUMBERS = ("-1", "0", "3", "97", "0.5", "1e30", "nan", "'text'", "true", "99999999999")


def rivals() -> dict[str, list[str]]:
    """Return for each message that is a member of a oneof the other messages of it."""
    found: dict[str, list[str]] = {}
    for cls in Message.__subclasses__():
        for members in cls.oneofs.values():
            blocks = [name for name in members if cls.fields[name].kind == "message"]
            for name in blocks:
                found.setdefault(name, []).extend(other for other in blocks if other != name)
    return {name: others for name, others in found.items() if others}


RIVALS = rivals()


def changed(lines: list[str], rng: random.Random) -> list[str]:
    number = rng.choice([n for n, line in enumerate(lines) if SCALAR.match(line)])
    indent, name, value, _ = SCALAR.match(lines[number]).groups()  # type: ignore[union-attr]
    others = NUMBERS if re.match(r"[-\d.]", value) else ("7", "-0.5", "NO_SUCH_VALUE", "'no such value'", "{ }")
    return [*lines[:number], f"{indent}{name}: {rng.choice(others)}", *lines[number + 1 :]]


def left_out(lines: list[str], rng: random.Random) -> list[str]:
    number = rng.choice([n for n, line in enumerate(lines) if SCALAR.match(line) or OPENS.match(line)])
    end, depth = number, 0
    while True:
        depth += lines[end].count("{") - lines[end].count("}")
        if depth <= 0:
            return [*lines[:number], *lines[end + 1 :]]
        end += 1


def added(lines: list[str], rng: random.Random) -> list[str]:
    number = rng.choice([n for n, line in enumerate(lines) if SCALAR.match(line)])
    indent, name, value, _ = SCALAR.match(lines[number]).groups()  # type: ignore[union-attr]
    more = rng.choice([f"{name}_too: {value}", f"{name}: {value}", "type: 'x'", "num_classes: 2", f"{name} {{ }}"])
    return [*lines[:number], lines[number], indent + more, *lines[number + 1 :]]


def rival_lines(lines: list[str]) -> list[int]:
    """Return the numbers of the lines that begin a member of a oneof."""
    return [n for n, line in enumerate(lines) if (match := OPENS.match(line)) and match[2] in RIVALS]


def two_members(lines: list[str], rng: random.Random) -> list[str]:
    number = rng.choice(rival_lines(lines))
    indent, name = OPENS.match(lines[number]).groups()  # type: ignore[union-attr]
    return [*lines[:number], f"{indent}{rng.choice(RIVALS[name])} {{ }}", *lines[number:]]


KINDS: tuple[Callable[[list[str], random.Random], list[str]], ...] = (changed, left_out, added, two_members)


def refusals(path: Path) -> list[str]:
    """Return what is wrong with a configuration, a line each; nothing where it can be built and trained."""
    try:
        config = load_config(path)
        refuse_unsupported(config, "")
        if missing := missing_for_training(config):
            return [str(field) for field in missing]
        build_plans(config)
    except ConfigError as error:
        return str(error).splitlines()
    return []


def mutants(files: Sequence[Path], count: int, folder: Path, seed: int) -> tuple[Counter[str], Counter[str], list[str]]:
    """Change files at random; return how many there were of each kind, how many refused, and refusals without a place."""
    rng, tried, refused, unplaced = random.Random(seed), Counter[str](), Counter[str](), list[str]()
    for number in range(count):
        source, kind = files[number % len(files)], KINDS[number // len(files) % len(KINDS)]
        path = folder / "mutant.config"
        text = "\n".join(kind(source.read_text().splitlines(), rng)) + "\n"
        path.write_text(text + (READER if source in PRESETS else ""))
        found = refusals(path)
        tried[kind.__name__] += 1
        refused[kind.__name__] += bool(found)
        unplaced += [f"{kind.__name__} of {source.name}: {line}" for line in found if not placed(line)]
    return tried, refused, unplaced


def placed(line: str) -> bool:
    return bool(LOCATED.match(line) or SYNTAX.match(line))


def test_what_counts_as_placed() -> None:
    assert placed("/a/b.config:12:5: model.ssd.loss.hard_example_miner: focal loss weighs hard examples itself")
    assert placed("b.config:1:1: train_config.data_augmentation_options[1].ssd_random_crop.operations[0]: x")
    assert placed("b.config:3:4: no_such: unknown field of Ssd")
    assert not placed("model.ssd.loss.hard_example_miner: focal loss weighs hard examples itself")
    assert not placed("b.config:12:5: loss.hard_example_miner: focal loss weighs hard examples itself")
    assert not placed("b.config:12:5: focal loss weighs hard examples itself")
    assert len(RIVALS) > 100


def test_text_is_no_number() -> None:
    with pytest.raises(ConfigError, match="l2_regularizer.weight: expected a number, found '1'"):
        parse_message('l2_regularizer { weight: "1" }', messages.Regularizer)


def test_mutated_presets_are_refused_with_file_line_and_path(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with_readers = [path for path in PRESETS if "train_config" in path.read_text() and has_rivals(path)]
    assert len(with_readers) > 20
    check_mutants(with_readers[::8], tmp_path)


@pytest.mark.slow
def test_mutants_of_every_preset(tmp_path: Path) -> None:
    torch.manual_seed(0)
    check_mutants([path for path in PRESETS if "train_config" in path.read_text() and has_rivals(path)], tmp_path)


def has_rivals(path: Path) -> bool:
    """Return whether a second member of a oneof can be written into a file; short ones name another preset."""
    return bool(rival_lines(path.read_text().splitlines()))


def check_mutants(files: Sequence[Path], folder: Path) -> None:
    """Change each file in three ways, and the first nine in the fourth."""
    count = 3 * len(files) + min(9, len(files))
    tried, refused, unplaced = mutants(files, count, folder, seed=0)
    assert unplaced == []
    assert sum(tried.values()) == count
    assert refused["two_members"] == tried["two_members"] > 5
    assert sum(refused.values()) > count / 2


@pytest.mark.slow
def test_2000_mutated_official_configurations(tmp_path: Path) -> None:
    """The official ones, each with a value changed, a field left out or added, or two members of a oneof."""
    if not FILES:
        pytest.skip("BOXWRIGHT_CONFIGS names no folder of pipeline.config files")
    tried, refused, unplaced = mutants(FILES, 2000, tmp_path, seed=1)
    assert unplaced == []
    assert len(FILES) == 104
    assert sum(tried.values()) == 2000
    assert sum(refused.values()) >= 1200
