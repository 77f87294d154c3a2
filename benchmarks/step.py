"""One training step and one inference: our SSDs against torchvision's, at equal batch and size.

    python benchmarks/step.py [--device cuda] [--repeats 10]

Prints milliseconds, ratios within this run (ours over theirs; below 1 is faster), and the share of
time that is spent outside convolutions. All models have 91 columns of classes and fresh weights;
images are random, with eight boxes each. Inference includes resizing and suppression.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor
from torchvision.models.detection import ssd300_vgg16, ssdlite320_mobilenet_v3_large

from boxwright.config.load import parse_message
from boxwright.nn.criteria.terms import LossTerm
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.messages import DetectionModel
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.types import Targets

HERE = Path(__file__).parent
BATCHES = (1, 8)
ANCHORS = """
anchor_generator { ssd_anchor_generator { num_layers: 6 aspect_ratios: [1.0, 2.0, 0.5, 3.0, 0.3333] } }
box_predictor { convolutional_box_predictor { conv_hyperparams { batch_norm { } } use_dropout: false USE } }
"""
PYRAMID = """
anchor_generator { multiscale_anchor_generator { aspect_ratios: [1.0, 2.0, 0.5] } }
box_predictor { weight_shared_convolutional_box_predictor {
  depth: 128 num_layers_before_predictor: 4 use_depthwise: true share_prediction_tower: true
  conv_hyperparams { activation: RELU_6 batch_norm { } } } }
"""
COMMON = """
ssd {
  num_classes: 90
  image_resizer { fixed_shape_resizer { height: SIZE width: SIZE } }
  feature_extractor { type: "TYPE" use_depthwise: true EXTRA conv_hyperparams { activation: RELU_6 batch_norm { } } }
  box_coder { faster_rcnn_box_coder { } }
  similarity_calculator { iou_similarity { } }
  matcher { argmax_matcher { force_match_for_each_row: true } }
  loss { classification_loss { weighted_sigmoid_focal { alpha: 0.25 } } localization_loss { weighted_smooth_l1 { } } }
  post_processing { batch_non_max_suppression { score_threshold: 0.01 } score_converter: SIGMOID }
  encode_background_as_zeros: true
  HEAD
}
"""

Model = tuple[Callable[[int], Any], Callable[[int], Any]]


def ours(kind: str, size: int, head: str, extra: str, device: str) -> Model:
    """Build one of ours.

    Args:
        kind: The feature extractor's type.
        size: The side of the input.
        head: Anchors and box predictor.
        extra: More of the feature extractor.
        device: Where it runs.

    Returns:
        A training step and an inference, as functions of the batch size.
    """
    text = COMMON.replace("SIZE", str(size)).replace("TYPE", kind).replace("EXTRA", extra).replace("HEAD", head)
    detector = build_detector(parse_message(text.replace("USE", "use_depthwise: true"), DetectionModel))
    detector.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(detector.parameters(), 1e-4, momentum=0.9)

    def train(batch: int) -> None:
        detector.train()
        images, boxes = samples(batch, size, device)
        labels = torch.ones(batch, 8, dtype=torch.int64, device=device)
        targets = Targets(boxes, labels, torch.ones(batch, 8, device=device), labels > 0)
        losses = detector.criterion(
            detector.predict(detector.preprocessor.normalize(images, torch.full((batch, 2), size))), targets
        )
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(LossTerm.sum(losses))
        optimizer.step()

    def detect(batch: int) -> None:
        images, _ = samples(batch, size, device)
        detector.detect(list(images))

    return train, detect


def theirs(build: Callable[..., Any], size: int, device: str) -> Model:
    """Build one of torchvision's.

    Args:
        build: Its builder.
        size: The side of the input.
        device: Where it runs.

    Returns:
        A training step and an inference, as functions of the batch size.
    """
    model = build(weights=None, weights_backbone=None, num_classes=91).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)

    def train(batch: int) -> None:
        model.train()
        images, boxes = samples(batch, size, device)
        labels = torch.ones(8, dtype=torch.int64, device=device)
        losses = model([image.float() / 255 for image in images], [{"boxes": b, "labels": labels} for b in boxes])
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(torch.stack(list(losses.values())).sum())
        optimizer.step()

    @torch.no_grad()
    def detect(batch: int) -> None:
        model.eval()
        model([image.float() / 255 for image in samples(batch, size, device)[0]])

    return train, detect


def samples(batch: int, size: int, device: str) -> tuple[Tensor, Tensor]:
    """Make random images with eight boxes each.

    Args:
        batch: How many.
        size: Their side.
        device: Where.

    Returns:
        uint8 [B, 3, size, size], and float [B, 8, 4].
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 255, (batch, 3, size, size), dtype=torch.uint8, generator=generator)
    boxes = torch.rand(batch, 8, 4, generator=generator) * size / 2
    boxes[..., 2:] += boxes[..., :2] + 8
    return images.to(device), boxes.to(device)


def measure(run: Callable[[], Any], device: str, repeats: int) -> float:
    """Time something.

    Args:
        run: What.
        device: Where it runs.
        repeats: How often.

    Returns:
        Milliseconds, the median.
    """
    times = []
    for _ in range(repeats + 2):
        began = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
    return sorted(times[2:])[repeats // 2]


def outside_convolutions(run: Callable[[], Any]) -> float:
    """Find the share of time that is not spent in convolutions and their gradients.

    Args:
        run: What to look at.

    Returns:
        A share, of the time of all operations.
    """
    with torch.profiler.profile() as profile:
        run()
    rows = [(row.key, row.self_cpu_time_total + row.self_device_time_total) for row in profile.key_averages()]
    convolutions = sum(time for key, time in rows if "conv" in key.lower() and key.startswith("aten::"))
    return float(1 - convolutions / sum(time for _, time in rows))


def main() -> None:
    """Measure all models, print the table, write it beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=8)
    arguments = parser.parse_args()
    device, repeats = arguments.device, arguments.repeats
    keep_freed_memory()  # for both: it is not what is compared
    models: dict[str, Model] = {
        "ssdlite_mobilenet_v2 320": ours("ssd_mobilenet_v2_keras", 320, ANCHORS, "", device),
        "ssd_mobilenet_v2_fpnlite 320": ours(
            "ssd_mobilenet_v2_fpn_keras", 320, PYRAMID, "fpn { additional_layer_depth: 128 }", device
        ),
        "torchvision ssdlite320": theirs(ssdlite320_mobilenet_v3_large, 320, device),
        "torchvision ssd300_vgg16": theirs(ssd300_vgg16, 300, device),
    }
    rows: dict[str, dict[str, float]] = {}
    for name, (train, detect) in models.items():
        row = {f"detect {batch}": measure(lambda b=batch, f=detect: f(b), device, repeats) for batch in BATCHES}  # type: ignore[misc]
        row["train 8"] = measure(lambda f=train: f(8), device, max(repeats // 2, 2))  # type: ignore[misc]
        row["outside convolutions, detect 8"] = outside_convolutions(lambda f=detect: f(8))  # type: ignore[misc]
        row["outside convolutions, train 8"] = outside_convolutions(lambda f=train: f(8))  # type: ignore[misc]
        rows[name] = row
        print(f"{name:30}" + "  ".join(f"{key} {value:.2f}" for key, value in row.items()), flush=True)
    ratios = {
        f"{ours_name} / {other}": {
            key: rows[ours_name][key] / rows[other][key] for key in ("detect 1", "detect 8", "train 8")
        }
        for ours_name in list(models)[:2]
        for other in list(models)[2:]
    }
    for name, ratio in ratios.items():
        print(f"{name:62}" + "  ".join(f"{key} {value:.2f}" for key, value in ratio.items()))
    versions = (
        f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}, torchvision {torchvision.__version__}"
    )
    (HERE / "results").mkdir(exist_ok=True)
    report = {"machine": versions, "milliseconds and shares": rows, "ratios": ratios}
    (HERE / "results" / f"step-{device}.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
