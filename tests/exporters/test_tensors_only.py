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
# what changes a network before it runs; anchors, which follow from sizes; the check of kernels for GPUs, before their first
# use; and what comes behind the graph, or goes round it.
NAMED = {
    "nn/suppression/image_by_image.py",
    "families/two_stage/second_stage.py",
    "nn/folding.py",
    "nn/initial_statistics.py",
    "nn/anchor_layer.py",
    "nn/ops/pasted_masks.py",
    "nn/ops/triton_kernels.py",
    "families/center_net/postprocessing/masks.py",
    "nn/postprocessing/masks.py",
}


# What builds detectors, losses, training, and names of weights.
OUTSIDE = ("build", "criteri", "nn/optimization", "families/shared", "message", "weight", "names", "label_map")
OUTSIDE += ("export_transformers", "layouts", "nn/preprocessing", "region_sampler", "table.py")


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
    files = [
        path
        for room in ("nn", "families")
        for path in sorted((PACKAGE / room).rglob("*.py"))
        if not any(word in path.relative_to(PACKAGE).as_posix() for word in OUTSIDE)
    ]
    assert len(files) > 80
    looking = {str(path.relative_to(PACKAGE)): names for path in files if (names := calls(path))}
    # An item of Inception's list of layers is no tensor's.
    assert looking.pop("nn/backbones/inception.py") == {"item"}
    assert set(looking) == NAMED
