"""What a command has to import before it trains or predicts: torchvision, timm and the compiler take seconds."""

from __future__ import annotations

import subprocess
import sys
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


# What detects with an exported file and judges it, with the two modules that are for detectors of PyTorch.
ROOMS = ("config", "runtime", "inference", "evaluation")
OF_PYTORCH = ["boxwright.evaluation.network", "boxwright.evaluation.watch"]
IMPORTS = f"""
import importlib, pkgutil, sys
import boxwright
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torchvision", "timm"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
names = [found.name for found in pkgutil.walk_packages(boxwright.__path__, "boxwright.") if found.name.split(".")[1] in {ROOMS}]
refused = []
for name in names:
    try:
        importlib.import_module(name)
    except ImportError:
        refused.append(name)
print(len(names), refused)
"""


def test_exports_are_run_and_judged_without_pytorch() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    count, _, refused = done.stdout.partition(" ")
    assert int(count) > 90
    assert refused.strip() == str(OF_PYTORCH)
