"""Count what a reader of the code meets: lines, files, packages, imports between them, and files behind a step.

    python benchmarks/counts.py [CHECKOUT] [--against COMMIT] [--list]

Imports for type checkers count. An arrow is a top-level package that imports another. Files of a step are those whose
functions run between a batch and its losses. `--against` prints a commit's numbers first, `--list` what was counted.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_SMALL = "image_resizer={ fixed_shape_resizer { height: 128 width: 128 } }"
PRESETS = {
    "ssd": "ssd_mobilenet_v2_fpnlite_320",
    "faster_rcnn": "torchvision_fasterrcnn_resnet50_fpn_coco",
    "refinedet": "refinedet_mobilenet_v2_shapes",
    "srn": "srn_mobilenet_v2_wider_face",
    "align_det": "align_det_resnet101_coco",
    "center_net": "center_net_resnet101_v2_512",
    "d_fine": "d_fine_n_coco",
    "rf_detr": "rf_detr_nano_coco",
}


def files_of_step(family: str) -> list[str]:
    """Return the files of the imported package whose functions run between a batch and its losses."""
    import torch

    import boxwright as bw

    torch.manual_seed(0)
    detector = bw.build_detector(bw.load_config(f"preset:{PRESETS[family]}", [f"model.{family}.{_SMALL}"])).train()
    inputs, true_sizes = detector.preprocess(torch.randint(0, 256, (2, 128, 128, 3), dtype=torch.uint8))
    boxes, ones = torch.tensor([[[12.0, 12, 70, 80], [30, 50, 115, 120]]] * 2), torch.ones(2, 2)
    targets = bw.Targets(boxes, torch.zeros(2, 2, dtype=torch.int64), ones, ones > 0)
    # The first step also compiles and caches.
    detector.criterion(detector.predict(inputs, true_sizes, targets), targets)
    package, files = f"{Path(str(bw.__file__)).parent}{os.sep}", set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(package):
            files.add(code.co_filename.removeprefix(package))

    sys.setprofile(note)
    detector.criterion(detector.predict(inputs, true_sizes, targets), targets)
    sys.setprofile(None)
    return sorted(files)


def imported(text: str, modules: set[str]) -> Iterator[str]:
    """Yield those of the modules that a source imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from modules.intersection(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            names = [f"{node.module}.{name.name}" for name in node.names]
            # A name is a module of its own, or something in the module that stands before it.
            yield from (name if name in modules else str(node.module) for name in names)


def lines_of(folder: Path) -> int:
    """Return the lines of Python and C in a folder."""
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("*.*") if path.suffix in (".py", ".c", ".h"))


def counts(checkout: Path) -> dict[str, list[str] | int]:
    """Return what is counted of a checkout: numbers, or the names behind them."""
    package = checkout / "src" / "boxwright"
    texts = {str(path.relative_to(package)): path.read_text() for path in sorted(package.rglob("*.py"))}
    module = {name: re.sub(r"(/?__init__)?\.py$", "", f"boxwright/{name}").replace("/", ".") for name in texts}
    imports = {(module[name], other) for name, text in texts.items() for other in imported(text, {*module.values()})}
    others = [other for _, other in imports]
    packages = sorted(path.parent.name for path in package.glob("*/__init__.py"))
    pairs = {(f"{name}.".split(".")[1], f"{other}.".split(".")[1]) for name, other in imports}
    arrows = {pair for pair in pairs if len({*pair}) > 1 and {*pair} <= {*packages}}
    reached = {*arrows}
    for middle in packages:
        reached |= {(start, end) for start, to in reached if to == middle for begin, end in reached if begin == middle}
    steps = subprocess.check_output(["env", f"PYTHONPATH={checkout}/src", sys.executable, __file__, "--steps"])
    return {
        **{f"lines of {folder}": lines_of(checkout / folder) for folder in ("src", "tests", "benchmarks")},
        "Python files in src": [*texts],
        "packages": packages,
        "files under 40 lines": [name for name, text in texts.items() if text.count("\n") < 40],
        "modules imported once": sorted(f"{other} by {name}" for name, other in imports if others.count(other) == 1),
        "lines with __class__ =": re.findall(r".*__class__ *=[^=].*", "\n".join(texts.values())),
        "arrows between packages": sorted(" → ".join(pair) for pair in arrows),
        "packages in circles": sorted(start for start, end in reached if start == end),
        **{f"files of a step, {family}": files for family, files in json.loads(steps).items()},
    }


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="?", default=Path(__file__).parent.parent)
    parser.add_argument("--against", metavar="COMMIT", help="a commit to count, too")
    parser.add_argument("--list", action="store_true", help="print what was counted")
    parser.add_argument("--steps", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.steps:
        print(json.dumps({family: files_of_step(family) for family in PRESETS}))
        return
    columns = [counts(given.checkout.resolve())]
    if given.against:
        with tempfile.TemporaryDirectory() as folder:
            git = ["git", "-C", str(given.checkout), "worktree"]
            subprocess.run([*git, "add", "--quiet", "--detach", folder, given.against], check=True)
            columns.insert(0, counts(Path(folder)))
            subprocess.run([*git, "remove", "--force", folder], check=True)
    for name, last in columns[-1].items():
        values = [column[name] for column in columns]
        print(f"{name:30}" + "".join(f"{len(value) if isinstance(value, list) else value:>10,}" for value in values))
        if given.list and isinstance(last, list):
            print("\n".join(f"    {line}" for line in last))


if __name__ == "__main__":
    main()
