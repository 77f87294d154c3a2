"""Pages of the notebooks, run when the site is built: their text, code and what the code shows."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import boxwright

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
_MOST_LINES = 40
# Where the package is on the machine that builds the site says nothing to readers.
_INSTALLED = str(Path(boxwright.__file__).parent)
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


def page_name(notebook: Path) -> str:
    """Return the name of a notebook's page in the site."""
    return f"notebook_{notebook.stem}.md"


def run(notebook: Path, folder: Path) -> dict[str, Any]:
    """Run a notebook in a folder; one that fails ends the build.

    Returns:
        The notebook with the outputs of its cells.
    """
    import nbformat
    from nbclient import NotebookClient

    opened = nbformat.read(notebook, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    # Cells train, for as long as a machine takes that has other work.
    NotebookClient(opened, timeout=None, kernel_name="python3", resources=resources).execute()
    content: dict[str, Any] = json.loads(nbformat.writes(opened))
    return content


def render(content: dict[str, Any], name: str, pages: Path) -> str:
    """Return the Markdown of a notebook that was run, and write its pictures below a folder of pages.

    Args:
        content: The notebook, in the format of version 4.
        name: The notebook's name, which its pictures are named after.
        pages: The folder of the site's pages.
    """
    parts: list[str] = []
    pictures = 0
    for cell in content["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            picture = output.get("data", {}).get("image/png")
            if picture is None:
                parts += _text(output)
                continue
            pictures += 1
            path = pages / "notebooks" / f"{name}-{pictures}.png"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(base64.b64decode("".join(picture)))
            parts.append(f"![What this cell shows](notebooks/{path.name})")
    about = f"*This is the notebook `notebooks/{name}.ipynb`, run when this page was built.*"
    return "\n\n".join([parts[0], about, *parts[1:]]) + "\n"


def _text(output: dict[str, Any]) -> list[str]:
    """Return the block with a cell's text; none for warnings and progress, which are written to standard error."""
    if output.get("name") == "stderr":
        return []
    text = "".join(output.get("text") or output.get("data", {}).get("text/plain", "")).replace(_INSTALLED, "boxwright")
    lines = [line.rstrip() for line in _COLORS.sub("", text).strip().splitlines()]
    shown = lines if len(lines) <= _MOST_LINES else [*lines[:_MOST_LINES], "…"]
    return ["\n".join(["```text", *shown, "```"])] if lines else []
