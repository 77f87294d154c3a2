"""Make the run and the export that later versions must read: `python -m tests.kept.make`, by hand and once.

Whoever makes them anew gives up that what was made before can still be read.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import chdir
from pathlib import Path

import boxwright as bw
from boxwright.data.convert import write_tfrecords
from boxwright.data.shapes import ShapesDataset
from tests.conftest import SMALL_MODEL, SMALL_TRAINING
from tests.kept.contents import FOLDER, detections_of, losses_of, resumed_to, sums_of

READER = """
train_input_reader {
  label_map_path: "label_map.pbtxt"
  tf_record_input_reader { input_path: "train.record" }
}
"""


def configuration() -> str:
    """Return a detector of a few thousand weights, with frozen normalization, as its statistics amplify rounding."""
    model = SMALL_MODEL.replace("ssd_mobilenet_v2_fpn_keras", "ssd_mobilenet_v1_fpn_keras")
    model = model.replace("depth_multiplier: 0.25", "depth_multiplier: 0.05").replace("min_depth: 8", "min_depth: 2")
    model = model.replace("additional_layer_depth: 32", "additional_layer_depth: 8").replace("depth: 32", "depth: 8")
    model = model.replace("num_classes: 4", "num_classes: 4 freeze_batchnorm: true")
    return model.replace("bias_init: -4.6", "bias_init: -1") + SMALL_TRAINING + READER


def main() -> None:
    """Write all files anew."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        write_tfrecords(ShapesDataset(8, seed=5, size=(64, 80)), work / "train.record")
        (work / "pipeline.config").write_text(configuration())
        checkpoint = resumed_to(3, work)
        with chdir(work):
            bw.load(checkpoint).export("onnx", work / "detector.onnx")
        for file in (checkpoint, work / "detector.onnx"):
            shutil.copy(file, FOLDER / file.name)
        for data in ("pipeline.config", "train.record", "label_map.pbtxt"):
            shutil.copy(work / data, FOLDER / data)
        expected = {"sums": sums_of(checkpoint), "detections": detections_of(work / "detector.onnx")}
        resumed_to(6, work)
        expected["losses"] = losses_of(work / "run")
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
