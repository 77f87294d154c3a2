"""Exported detectors against eager PyTorch, and against torchvision's own detector exported and run likewise.

    python benchmarks/exports.py [--rounds 9] [--threads 2] [--models fpnlite …] [--json FILE]

One picture of 640×480 from pixels to detections, in interleaved rounds of one process; in PyTorch as built, and
optimized as `boxwright predict` runs it. Ours have made-up weights whose scores spread about as a trained network's
do. torchvision's SSDLite has fresh weights, but a background that wins by far: with plain fresh weights it suppresses
thousands of boxes, which no trained one does. torchvision's detectors are exported by PyTorch's older exporter, at one
size of picture; its newer one fails on them.

Prints milliseconds and ratios within rounds (of our eager detector; of torchvision's, eager and exported), least and
median; written to `benchmarks/results/exports-cpu.json`, or FILE.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import boxwright  # noqa: F401  # first: it sets how long threads spin, which PyTorch reads when it is imported

# isort: split
import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.models.detection import retinanet_resnet50_fpn, ssdlite320_mobilenet_v3_large

from boxwright.data.shapes import ShapesDataset
from boxwright.exporters.int8 import Quantizer
from boxwright.exporters.onnx_file import onnx_model
from boxwright.exporters.openvino_file import openvino_model
from boxwright.exporters.program import detection_program
from boxwright.pipeline.load import load_config
from boxwright.runtime.measure import load, measure
from boxwright.weights.optimized import optimized
from race import processor

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from tests.exporters.small_detectors import build  # noqa: E402  # of the repository, not of the package

RESULTS = HERE / "results" / "exports-cpu.json"
GOLDEN = HERE.parent / "tests" / "golden" / "models"
BACKGROUND = 8.0  # added to its logit: of thousands of boxes none scores
Pixels = NDArray[np.uint8]
Run = Callable[[], Any]


def recorded(name: str) -> str:
    """Return the model of a recording, as text."""
    text: str = json.loads((GOLDEN / f"{name}_coco17_tpu-8.json").read_text())["model_text"]
    return text


def of_config(name: str) -> str:
    """Return the model of one of our configurations, as text."""
    from boxwright.config.load import dump_message

    model = load_config(name).model
    if model is None:
        raise ValueError(f"{name} has no model")
    return dump_message(model)


MODELS: dict[str, Callable[[], str]] = {
    "fpnlite": lambda: recorded("ssd_mobilenet_v2_fpnlite_320x320"),
    "efficientdet_d0": lambda: recorded("ssd_efficientdet_d0_512x512"),
    "refinedet320": lambda: of_config("preset:refinedet320_vgg16_coco"),
}
PEERS = {"fpnlite": "ssdlite320", "efficientdet_d0": "retinanet", "refinedet320": "retinanet"}


def onnx_session(model: bytes, threads: int) -> Any:
    """Open a graph in ONNX Runtime, with so many threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def ours(text: str, pictures: list[Pixels], threads: int) -> dict[str, Run]:
    """Return our contenders: eager, and each export."""
    import openvino

    detector = build(text)
    faster = optimized(copy.deepcopy(detector), "float32", compile=False)
    image = pictures[0][None]
    graph = onnx_model(detection_program(detector, "operator"))
    whole = graph.SerializeToString(deterministic=True)

    def onnx(model: bytes) -> Run:
        session = onnx_session(model, threads)
        return lambda: session.run(None, {"input_tensor": image})

    def vino(precision: str) -> Run:
        hints = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads}
        compiled = openvino.Core().compile_model(openvino_model(whole), "CPU", hints)
        return lambda: compiled([image])

    return {
        "eager": lambda: detector.detect([image[0]]),
        "optimized": lambda: faster.detect([image[0]]),
        "onnx": onnx(whole),
        "onnx int8": onnx(Quantizer(graph, pictures).quantized().SerializeToString()),
        "openvino": vino("f32"),
        "openvino bf16": vino("bf16"),
    }


def theirs(name: str, picture: Pixels, threads: int) -> dict[str, Run]:
    """Return torchvision's: eager, and exported to ONNX Runtime."""
    torch.manual_seed(0)
    model: Any
    if name == "ssdlite320":
        model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None).eval()
        with torch.no_grad():
            for layer in model.head.classification_head.module_list:
                layer[-1].bias.view(-1, 91)[:, 0] += BACKGROUND
    else:
        model = retinanet_resnet50_fpn(weights=None, weights_backbone=None).eval()
    given = torch.from_numpy(picture).permute(2, 0, 1).float() / 255

    @torch.inference_mode()
    def eager() -> Any:
        return model([given])

    runs: dict[str, Run] = {f"torchvision {name}": eager}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        torch.onnx.export(model, ([given],), str(path), dynamo=False, opset_version=17)
        session = onnx_session(path.read_bytes(), threads)
    inputs = {session.get_inputs()[0].name: given.numpy()}
    runs[f"torchvision {name} onnx"] = lambda: session.run(None, inputs)
    return runs


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--json", type=Path, default=RESULTS)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(given.threads)
    data = ShapesDataset(8, seed=5, size=(480, 640))
    pictures = [data[number].image for number in range(8)]
    found: dict[str, Any] = json.loads(given.json.read_text())["models"] if given.json.exists() else {}
    before, _ = load()
    for name in given.models:
        contenders = ours(MODELS[name](), pictures, given.threads) | theirs(PEERS[name], pictures[0], given.threads)
        timings = measure(contenders, 1, given.rounds)
        found[name] = [one.to_dict() for one in timings]
        walls = {one.name: np.array(one.samples_ms) for one in timings}
        peers = [one for one in walls if one.startswith("torchvision")]
        print(
            f"{name}: ms least and median; faster than our eager, and than {', '.join(peers)} (median of rounds, least)"
        )
        for one in timings:
            ratios = [walls[other] / walls[one.name] for other in ("eager", *peers)]
            shown = "  ".join(f"{np.median(ratio):5.2f}× ({ratio.min():.2f})" for ratio in ratios)
            print(f"  {one.name:28} {one.least_ms:7.1f} {one.median_ms:7.1f}   {shown}", flush=True)
    result = {
        **processor(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {given.threads} threads",
        "versions": {name: version(name) for name in ("torch", "torchvision", "onnxruntime", "openvino")},
        "load of a core before": before,
        "models": found,
    }
    given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
