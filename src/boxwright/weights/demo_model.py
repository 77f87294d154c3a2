"""The detector that comes with Boxwright: `bw.load("demo")`, trained on the blood cells that come with it, too."""

from __future__ import annotations

from pathlib import Path

DEMO = "demo"
DEMO_MODEL = Path(__file__).parent.parent / "assets" / "demo"
# The network is the default preset's with another backbone, a quarter of the size: the wheel has no room for more, and
# two minutes on two cores are enough to train it.
SMALL_BACKBONE = "model.ssd.feature_extractor.type=timm/test_resnet"
# What a run, a folder of weights, a checkpoint or a SavedModel of TensorFlow has at its top.
_MODEL_FILES = ("ckpt-*", "*.pt", "*.safetensors", "checkpoint", "saved_model*")


def demo_model(source: str | Path) -> Path | None:
    """Return the folder of the shipped detector if a source of weights is its name, "demo"; None for any other source.

    A file named demo, or a folder of that name with a model in it, is that model. The folder that `boxwright demo`
    writes is none: its runs lie in folders of their own.
    """
    path = Path(source)
    if str(source) != DEMO or path.is_file() or any(next(path.glob(name), None) for name in _MODEL_FILES):
        return None
    return DEMO_MODEL


def model_name(path: Path) -> str:
    """Return what a model at a path is called: "demo" for the shipped detector, wherever it is installed."""
    return DEMO if path == DEMO_MODEL else str(path)
