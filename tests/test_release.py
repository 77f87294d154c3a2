"""What releases are made of, as far as it can be seen without building them; `make release-check` builds them."""

from __future__ import annotations

import ctypes
import re
import runpy
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from boxwright.nn.ops import native

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def _hook(name: str) -> dict[str, Any]:
    """Return the names of a file in `release`, which is no package."""
    pytest.importorskip("hatchling")
    return runpy.run_path(str(ROOT / "release" / name))


def test_links_of_the_readme_lead_to_the_repository() -> None:
    absolute = _hook("metadata.py")["absolute_links"]
    text = "[a](docs/a.md#b) ![c](docs/c.jpg) [d](https://e.example/f) [g](#h)"
    assert absolute(text, "https://host.example/us/it") == (
        "[a](https://host.example/us/it/blob/HEAD/docs/a.md#b) ![c](https://host.example/us/it/raw/HEAD/docs/c.jpg) "
        "[d](https://e.example/f) [g](#h)"
    )


def _built(root: Path) -> tuple[dict[str, Any], list[str]]:
    """Return what a wheel's build is told in a tree, and the warnings."""
    told: dict[str, Any] = {"artifacts": [], "pure_python": True}
    warnings: list[str] = []
    hook = _hook("build_native.py")["NativeExtension"]
    app = SimpleNamespace(display_warning=warnings.append)
    hook(str(root), {}, None, None, str(root), "wheel", app).initialize("standard", told)
    return told, warnings


def test_without_a_compiler_a_wheel_is_pure_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "native", tmp_path / "native")
    older = tmp_path / "src" / "boxwright" / "_native.so"
    older.parent.mkdir(parents=True)
    for compiler, reason in (("no-such-compiler", "No such file or directory"), ("false", "it ended with 1")):
        older.touch()
        monkeypatch.setenv("CC", compiler)
        told, warnings = _built(tmp_path)
        assert told == {"artifacts": [], "pure_python": True}
        assert warnings == [f"no native extension, PyTorch's operators compute: {compiler}: {reason}"]
        assert not older.exists()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_with_a_compiler_a_wheel_names_its_platform_and_no_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    (tmp_path / "native").mkdir()
    shutil.copy(ROOT / "native" / "level.c", tmp_path / "native")
    library = tmp_path / "src" / "boxwright" / "_native.so"
    library.parent.mkdir(parents=True)
    told, warnings = _built(tmp_path)
    assert not warnings
    assert told["artifacts"] == ["src/boxwright/_native.so"]
    assert not told["pure_python"]
    assert re.fullmatch(r"py3-none-[a-z0-9_]+", told["tag"])
    assert ctypes.CDLL(str(library)).boxwright_interface() == native._INTERFACE


def test_the_sources_in_c_and_their_callers_have_the_same_constants() -> None:
    sources = "".join(path.read_text() for path in sorted((ROOT / "native").iterdir()))
    constants = {name: int(number) for name, number in re.findall(r"\b([A-Z]+) = (\d+)\b", sources)}
    assert constants["PANEL"] == native._PANEL
    assert constants["OUT"] == native._OUT
    assert f"boxwright_interface(void) {{ return {native._INTERFACE}; }}" in sources


def test_the_image_that_serves_asks_for_the_same_versions() -> None:
    ours = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["serve"]]
    lines = [line for line in (ROOT / "docker" / "serve.txt").read_text().splitlines() if not line.startswith("#")]
    assert {str(Requirement(line)) for line in lines} <= {str(Requirement(line)) for line in ours}


def test_every_extra_is_documented() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert named == set(PROJECT["optional-dependencies"])


def test_classifiers_are_the_versions_that_the_workflow_tests() -> None:
    matrix = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["ci"]["strategy"]["matrix"]
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert matrix["python"] == named


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.stem))
def test_workflows_run_targets_that_are_there_and_may_do_little(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"]
        named = set(job.get("strategy", {}).get("matrix", {}).get("target", []))
        named |= {
            target for step in job["steps"] for target in re.findall(r"make (?:-C \S+ )?([a-z-]+)", step.get("run", ""))
        }
        assert named <= targets


def test_what_the_makefile_names_is_there() -> None:
    text = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"(?<![\w./-])(?:tests|benchmarks|release)/[\w./-]+", text))
    assert len(named) >= 8
    assert {path for path in named if not (ROOT / path).exists()} == set()
