"""The public surface, the sizes of things, what files may not say."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import boxwright as bw
from tests import forked

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TABLES = ("config/messages/", "message.py", "config/support.py")


def test_exported_names_are_sorted_and_there() -> None:
    assert bw.__all__ == sorted(bw.__all__)
    assert all(hasattr(bw, name) for name in bw.__all__)
    wanted = {"load_config", "build_detector", "load_weights", "train", "evaluate", "Detections"}
    assert wanted <= set(bw.__all__)


def test_completion_shows_what_is_public() -> None:
    assert dir(bw) == sorted([*bw.__all__, "__version__"])
    assert bw.__version__.split(".")[0].isdigit()
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        bw.nothing  # noqa: B018


def test_there_are_sources() -> None:
    assert len(SOURCES) > 100


def too_long(path: Path) -> Iterator[str]:
    """Say what is longer than it may be: file ≤ 500 lines, class ≤ 300, function ≤ 60 without its docstring."""
    text = path.read_text()
    if len(text.splitlines()) > 500:
        yield str(path)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno >= 300:
            yield f"{path}:{node.lineno} {node.name}"
        if isinstance(node, ast.FunctionDef):
            said = node.body[0]
            docstring = 0 if ast.get_docstring(node) is None else (said.end_lineno or 0) - said.lineno + 1
            if (node.end_lineno or 0) - node.lineno + 1 - docstring > 60:
                yield f"{path}:{node.lineno} {node.name}"


def test_sizes() -> None:
    measured = [path for path in SOURCES if not any(table in str(path) for table in TABLES)]
    assert [found for path in measured for found in too_long(path)] == []


def test_what_is_too_long_is_found(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text("def f():\n" + "    pass\n" * 60 + "class C:\n" + "    x = 1\n" * 440)
    assert list(too_long(path)) == [str(path), f"{path}:1 f", f"{path}:62 C"]


def test_the_documents_list_the_packages_as_the_linter_layers_them() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract.get("containers") == ["boxwright"]]
    rows = re.findall(r"^\| (`\w+/`(?:, `\w+/`)*) \|", (ROOT / "docs" / "architecture.md").read_text(), re.M)
    assert [" | ".join(re.findall(r"\w+", row)) for row in rows[-len(layers) :]] == layers
    assert len(layers) == 15


def test_builders_refuse_only_what_the_table_cannot_say() -> None:
    reading = ("load", "overrides", "tf_overrides", "data_paths", "layers", "rates", "run_length", "message")
    sources = [*(ROOT / "src/boxwright/families").rglob("*.py"), *(ROOT / "src/boxwright/pipeline").rglob("*.py")]
    calls = [
        node
        for path in sources
        if path.stem not in reading
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
    ]
    names = [ast.unparse(call.exc.func).rpartition(".")[2] for call in calls if isinstance(call.exc, ast.Call)]
    assert 30 < sum(name in ("refusal", "ConfigError") for name in names) <= 42


def test_help_of_every_verb() -> None:
    from boxwright.cli.main import app

    assert "Usage" in forked.run([sys.executable, "-m", "boxwright", "train", "--help"], check=True).stdout
    for verb in ("evaluate", "predict", "demo", "convert", "export", "inspect", "config", "models"):
        result = CliRunner().invoke(app, [verb, "--help"])
        assert result.exit_code == 0, result.output
        assert "Usage" in result.output
