"""The notebooks, as far as it can be seen without running them; `make notebooks` runs them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def test_there_are_five() -> None:
    assert len(NOTEBOOKS) == 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: str(path.stem))
def test_a_notebook_is_stripped_and_its_code_is_python(path: Path) -> None:
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    for source in cells(path, "code"):
        ast.parse(source)
    assert cells(path, "markdown")[0].startswith("# ")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: str(path.stem))
def test_a_notebook_imports_what_is_public(path: Path) -> None:
    """A new family alone needs what lies beneath: the parts that it is made of."""
    source = "\n".join(cells(path, "code"))
    modules = {
        name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    ours = {name for name in modules if name is not None and name.startswith("boxwright.")}
    if path.stem == "add_a_detector_family":
        assert all(name.startswith(("boxwright.nn.", "boxwright.types")) for name in ours)
    else:
        assert ours == set()


def test_the_family_is_that_of_the_page() -> None:
    page = (ROOT / "docs" / "add_a_detector.md").read_text()
    ours = "\n".join(cells(ROOT / "notebooks" / "add_a_detector_family.ipynb", "code"))
    for name in ("network", "criterion", "postprocessor"):
        (text,) = re.findall(rf'```python title="src/boxwright/families/cells/{name}.py"\n(.*?)```', page, re.DOTALL)
        definitions = [ast.unparse(node) for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
        assert definitions
        assert all(one in {ast.unparse(node) for node in ast.parse(ours).body} for one in definitions)
