"""What a command has to import before it trains or predicts: PyTorch, torchvision, timm and the compiler take seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

import boxwright

HEAVY = (
    "timm",
    "torchvision",
    "torch._dynamo",
    "torch.distributed.tensor",
    "sympy",
    "pandas",
    "matplotlib",
    "torch.utils.tensorboard",
)
NAMES_HEAVY = f"print([name for name in {HEAVY} if name in sys.modules])"

TRAINS = f"""
import os, sys
import boxwright as bw
from boxwright.data.convert import write_tfrecords
from boxwright.data.shapes import ShapesDataset
from boxwright.training.train import train
os.chdir(sys.argv[1])
write_tfrecords(ShapesDataset(4, seed=5, size=(96, 96)), "shapes.record")
with open("pipeline.config", "w") as file:
    file.write('preset: "' + sys.argv[2] + '" train_input_reader {{ tf_record_input_reader {{ input_path: "shapes.record" }} '
               'label_map_path: "label_map.pbtxt" }}')
changes = ["model.ssd.num_classes=4", "train_config.batch_size=2", "train_config.num_steps=1"]
train(bw.load_config("pipeline.config", changes), "run", bw.RunSettings(evaluate=False, workers=0, device="cpu"))
{NAMES_HEAVY}
"""

PREDICTS = f"""
import sys
import boxwright.training.train, boxwright.inference.predict, boxwright.evaluation.evaluate, boxwright.api
{NAMES_HEAVY}
import torch
import boxwright as bw
detector = bw.build_detector(bw.load_config(sys.argv[1])).eval()
with torch.no_grad():
    detector.predict(*detector.preprocess(torch.zeros(1, 96, 96, 3, dtype=torch.uint8)))
{NAMES_HEAVY}
"""


@pytest.mark.parametrize("preset", ["", pytest.param("efficientdet_d0", marks=pytest.mark.slow)])
def test_commands_and_the_first_prediction_import_neither_torchvision_nor_a_compiler(
    preset: str, tmp_path: Path
) -> None:
    shapes = (Path(boxwright.__file__).parent / "assets" / "shapes.config").read_text()
    config = tmp_path / "pipeline.config"
    config.write_text(f'preset: "{preset}"' if preset else shapes)
    words = [sys.executable, "-c", PREDICTS, str(config)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    # A maximum's shape, of EfficientDet's pyramid, is found by PyTorch's own means.
    assert done.stdout.splitlines()[-2:] == ["[]", "['sympy']" if preset else "[]"]


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["ssd_mobilenet_v2_320", "ssd_mobilenet_v2_fpnlite_320"])
def test_the_first_step_imports_no_compiler(preset: str, tmp_path: Path) -> None:
    """Among others torch.optim's optimizers, the meta device and broadcast_shapes do at their first use."""
    words = [sys.executable, "-c", TRAINS, str(tmp_path), preset]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.splitlines()[-1] == "[]"


# What a command imports before it knows whether PyTorch is needed, and what runs exported detectors.
WITHOUT_PYTORCH = (
    "base", "cli", "config", "data", "evaluation", "inference", "pipeline", "report", "runtime", "types",
    "weights.tensorflow", "families.*.message",
)  # fmt: skip
# The modules of these packages that compute with PyTorch, or import one that does.
NEED_PYTORCH = {
    "base": {"device", "distributed", "safetensors_file"},
    "cli": {"benchmarking.facts", "benchmarking.networks"},
    "data": {
        "augmentation.autoaugment", "augmentation.caffe", "augmentation.crop",
        "augmentation.expanded_crop", "augmentation.flip",
        "augmentation.functional.geometry", "augmentation.functional.warp", "augmentation.mosaic", "augmentation.pad",
        "augmentation.user_transforms", "batch", "loader", "smaller_pictures",
    },
    "evaluation": {"network", "watch"},
    "pipeline": {"augmentation", "detector", "optimizer", "precision", "training"},
    "report": {
        "compare", "content", "data_report", "events", "explained", "factors", "monitor", "pictures", "verdict", "write",
    },
    "types": {"context_features", "masks", "packing", "padded_detections", "predictions", "targets"},
    "weights": {"tensorflow.variables"},
}  # fmt: skip
TRIES_EACH = """
import importlib, json, sys
sys.modules["torch"] = None
failed = {}
for name in json.load(sys.stdin):
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed[name] = str(error)
print(json.dumps(failed))
"""


def test_what_is_imported_without_pytorch() -> None:
    package = Path(boxwright.__file__).parent
    paths = [path.relative_to(package.parent).with_suffix("") for path in sorted(package.rglob("*.py"))]
    modules = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    chosen = [
        name
        for name in modules
        if any(
            fnmatch(name, pattern)
            for room in WITHOUT_PYTORCH
            for pattern in (f"boxwright.{room}", f"boxwright.{room}.*")
        )
    ]
    needing = {f"boxwright.{room}.{name}" for room, names in NEED_PYTORCH.items() for name in names}
    words = [sys.executable, "-c", TRIES_EACH]
    tried = subprocess.run(words, input=json.dumps(chosen), capture_output=True, text=True, check=True, timeout=300)
    failed = json.loads(tried.stdout)
    assert {name: why for name, why in failed.items() if name not in needing} == {}
    assert needing - failed.keys() == set(), "these no longer need PyTorch, or are not there: take them off the list"
    assert len(chosen) - len(failed) >= 200
    assert {"boxwright.cli.main", "boxwright.cli.commands", "boxwright.runtime.sessions"} <= {*chosen} - needing


def test_the_program_imports_nothing_before_it_minds_ctrl_c() -> None:
    """What is imported before `run` is called would end with Python's traceback."""
    script = "import sys; before = {*sys.modules}; import boxwright.__main__; print(sorted({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "['__future__', 'boxwright', 'boxwright.__main__']\n"
