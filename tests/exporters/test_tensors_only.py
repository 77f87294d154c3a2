"""What lies between preprocessing and the list of detections looks at no data, outside named places."""

from __future__ import annotations

import ast
from pathlib import Path

import boxwright

PACKAGE = Path(boxwright.__file__).parent
FORBIDDEN = {
    "item",
    "tolist",
    "nonzero",
    "numpy",
    "from_numpy",
    "bincount",
    "unique",
    "unique_consecutive",
    "masked_select",
}
# Operators, which runtimes have or which have a meaning in tensors, and the kernel of one for GPUs; rows of padding and maps of classes
# that are skipped outside graphs;
# what changes a network before it runs; anchors, which follow from sizes; and what comes behind the graph, or goes round it.
NAMED = {
    "ops/suppression/greedy.py",
    "ops/suppression/image_by_image.py",
    "ops/suppression/mining.py",
    "models/valid_rows.py",
    "models/folding.py",
    "models/initial_statistics.py",
    "models/anchor_layer.py",
    "ops/run_lengths.py",
    "postprocessing/center_net/masks.py",
    "postprocessing/masks.py",
    "postprocessing/postprocessor.py",
}


def calls(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in FORBIDDEN:
                found.add(node.func.attr)
            if isinstance(node.func, ast.Name) and node.func.id == "bool":
                found.add("bool")
    return found


def test_no_look_at_data() -> None:
    files = [path for room in ("models", "ops", "postprocessing") for path in sorted((PACKAGE / room).rglob("*.py"))]
    assert len(files) > 80
    looking = {str(path.relative_to(PACKAGE)): names for path in files if (names := calls(path))}
    # An item of Inception's list of layers is no tensor's.
    assert looking.pop("models/backbones/inception.py") == {"item"}
    assert set(looking) == NAMED
