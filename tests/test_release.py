"""What releases are made of, as far as it can be seen without building them; `make release-check` builds them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def _hook() -> dict[str, object]:
    """Return the names of release/metadata.py, whose folder is no package."""
    pytest.importorskip("hatchling")
    names: dict[str, object] = {}
    path = ROOT / "release" / "metadata.py"
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names


def test_links_of_the_readme_lead_to_the_repository() -> None:
    absolute = _hook()["absolute_links"]
    text = "[a](docs/a.md#b) ![c](docs/c.jpg) [d](https://e.example/f) [g](#h)"
    assert callable(absolute)
    assert absolute(text, "https://host.example/us/it") == (
        "[a](https://host.example/us/it/blob/HEAD/docs/a.md#b) ![c](https://host.example/us/it/raw/HEAD/docs/c.jpg) "
        "[d](https://e.example/f) [g](#h)"
    )


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
