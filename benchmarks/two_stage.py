"""Faster and Mask R-CNN here against torchvision's, with the same weights, in one run.

    python benchmarks/two_stage.py [--device cuda] [--repeats 4] [--size 640] [--only "infer"]

Ours are the presets torchvision_*, into which torchvision's random weights are loaded by name, so that both
find the same proposals and detections. Each row is timed in interleaved rounds; printed are the least milliseconds of
both, and the least and the median of the rounds' ratios (below 1 is faster). Beside them: TF's Faster R-CNN with
ResNet-50 and one map of stride 16, in which regions that are padding are not looked at; where an inference's time goes;
crops, proposals and pasting of masks apart; and the memory of a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor, nn
from torchvision.models import detection
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.ops import MultiScaleRoIAlign

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.families.two_stage.region_crop import RoiAlign
from boxwright.nn.criteria.terms import LossTerm
from boxwright.nn.detector import Detector
from boxwright.nn.ops.pasted_masks import whole_masks
from boxwright.nn.optimization.optimizers import Momentum, Optimizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.types import FoundObjects, Proposals, Targets, TwoStagePredictions
from boxwright.types.masks import InstanceMasks
from boxwright.weights.load_weights import load_weights

HERE = Path(__file__).parent
KINDS = {"fasterrcnn": "Faster R-CNN", "maskrcnn": "Mask R-CNN"}
RESNET50 = """faster_rcnn { num_classes: 90
  image_resizer { fixed_shape_resizer { height: SIZE width: SIZE } }
  feature_extractor { type: "faster_rcnn_resnet50_keras" }
  first_stage_anchor_generator { grid_anchor_generator { scales: [0.25, 0.5, 1, 2] aspect_ratios: [0.5, 1, 2] } }
  first_stage_box_predictor_conv_hyperparams { initializer { truncated_normal_initializer { stddev: 0.01 } } }
  first_stage_max_proposals: 300 initial_crop_size: 14 maxpool_kernel_size: 2 maxpool_stride: 2
  second_stage_box_predictor { mask_rcnn_box_predictor { share_box_across_classes: true } }
  second_stage_post_processing { batch_non_max_suppression {
    score_threshold: 0.05 iou_threshold: 0.6 max_detections_per_class: 100 max_total_detections: 300 }
    score_converter: SOFTMAX } }"""
Run = Callable[[], Any]


def theirs(kind: str, size: int) -> Any:
    """Make torchvision's, with weights that find something."""
    torch.manual_seed(11)
    model = getattr(detection, f"{kind}_resnet50_fpn")(
        weights=None, weights_backbone=None, min_size=size, max_size=size
    )
    state = model.state_dict()
    for key, spread in (("cls_score.weight", 0.02), ("bbox_pred.weight", 0.002), ("cls_logits.weight", 0.01)):
        for full in [full for full in state if full.endswith(key)]:
            state[full].normal_(0, spread)
    return model


def ours(kind: str, size: int, model: nn.Module) -> Detector:
    """Make ours with torchvision's weights."""
    resizer = "model.faster_rcnn.image_resizer.keep_aspect_ratio_resizer"
    config = bw.load_config(
        f"preset:torchvision_{kind}_resnet50_fpn_coco",
        [f"{resizer}.min_dimension={size}", f"{resizer}.max_dimension={size}"],
    )
    detector = build_detector(config)
    with tempfile.NamedTemporaryFile(suffix=".pth") as file:
        torch.save(model.state_dict(), file.name)
        load_weights(detector, file.name)
    # As torchvision trains its fresh weights: with a batch's statistics.
    detector.network.frozen_statistics = ()
    return detector


def scene(batch: int, size: int, device: str) -> tuple[Tensor, Targets, list[dict[str, Tensor]]]:
    """Make blotches as images, with eight objects each: uint8 [B, size, size, 3], our targets and torchvision's."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, 255, (batch, 3, 12, 12), generator=generator).float()
    images = nn.functional.interpolate(coarse, size, mode="bilinear").to(torch.uint8).permute(0, 2, 3, 1)
    boxes = torch.rand(batch, 8, 4, generator=generator) * size / 2
    boxes[..., 2:] += boxes[..., :2] + 8
    masks = torch.zeros(batch, 8, size, size, dtype=torch.uint8)
    for mask, box in zip(masks.flatten(0, 1), boxes.flatten(0, 1).long().tolist(), strict=True):
        mask[box[1] : box[3], box[0] : box[2]] = 1
    labels, ones = torch.ones(batch, 8, dtype=torch.int64), torch.ones(batch, 8)
    stored = InstanceMasks.stack([image.numpy() for image in masks], 8, (size, size))
    targets = Targets(boxes, labels - 1, ones, ones > 0, masks=stored).to(device)
    lists = [
        {"boxes": b.to(device), "labels": n.to(device), "masks": k.to(device)}
        for b, n, k in zip(boxes, labels, masks, strict=True)
    ]
    return images.to(device).contiguous(), targets, lists


def our_step(detector: Detector, batch: int, size: int, device: str) -> Run:
    """Return a training step of ours."""
    images, targets, _ = scene(batch, size, device)
    sizes = torch.full((batch, 2), size, device=device)
    optimizer = Optimizer([p for p in detector.parameters() if p.requires_grad], Momentum(0.9))
    optimizer.param_groups[0]["lr"] = 1e-6

    def run() -> None:
        detector.train()
        inputs = detector.preprocessor.normalize(images.permute(0, 3, 1, 2), sizes)
        optimizer.zero_grad()
        terms = detector.criterion(detector.predict(inputs, sizes, targets), targets)
        torch.autograd.backward(LossTerm.sum(terms))
        optimizer.step()

    return run


def their_step(model: Any, batch: int, size: int, device: str) -> Run:
    """Return a training step of torchvision's."""
    images, _, lists = scene(batch, size, device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6, momentum=0.9)
    pictures = list(images.permute(0, 3, 1, 2).float() / 255)

    def run() -> None:
        model.train()
        optimizer.zero_grad()
        torch.autograd.backward(torch.stack(list(model(pictures, lists).values())).sum())
        optimizer.step()

    return run


def inference(detect: Callable[[Any], Any], pictures: Any) -> Run:
    """Return an inference."""

    def run() -> None:
        with torch.inference_mode():
            detect(pictures)

    return run


def pairs(size: int, device: str) -> dict[str, tuple[Run, Run]]:
    """List what is timed of both: a row's name to ours and torchvision's."""
    rows: dict[str, tuple[Run, Run]] = {}
    batches = (1, 2) if device == "cpu" else (1, 8)
    for kind, title in KINDS.items():
        model = theirs(kind, size).to(device, memory_format=torch.channels_last)
        detector = ours(kind, size, model).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        for batch in (1, 8):
            images, _, _ = scene(batch, size, device)
            plain, floats = list(images.permute(0, 3, 1, 2)), list(images.permute(0, 3, 1, 2).float() / 255)
            rows[f"{title}, infer {batch}"] = (
                inference(detector.detect, plain),
                inference(lambda found, t=model: t.eval()(found), floats),  # type: ignore[misc]
            )
        # Steps have copies of their own, so that inference sees the weights that both were given.
        for batch in batches:
            again = theirs(kind, size).to(device, memory_format=torch.channels_last)
            own = ours(kind, size, again).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
            rows[f"{title}, train {batch}"] = (
                our_step(own, batch, size, device),
                their_step(again, batch, size, device),
            )
    model = theirs("fasterrcnn", size).to(device, memory_format=torch.channels_last).eval()
    torch.manual_seed(0)
    one_map = build_detector(parse_message(RESNET50.replace("SIZE", str(size)), m.DetectionModel))
    one_map = one_map.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    images, _, _ = scene(1, size, device)
    rows["ResNet-50 of one map, infer 1, against the pyramid"] = (
        inference(one_map.detect, list(images.permute(0, 3, 1, 2))),
        inference(model, list(images.permute(0, 3, 1, 2).float() / 255)),
    )
    return rows | parts(size, device)


def parts(size: int, device: str) -> dict[str, tuple[Run, Run]]:
    """List parts of an inference apart: crops of a pyramid, and pasting of masks."""
    torch.manual_seed(0)
    maps = [
        torch.randn(1, 256, size // s, size // s, device=device).contiguous(memory_format=torch.channels_last)
        for s in (4, 8, 16, 32)
    ]
    corners = torch.rand(1000, 2, 2).sort(1).values.flatten(1).to(device) * size
    pooler = MultiScaleRoIAlign(["0", "1", "2", "3"], 7, 2)
    named = {str(number): level for number, level in enumerate(maps)}
    crop = RoiAlign(7, 2, aligned=False)
    masks, boxes = torch.rand(100, 28, 28, device=device), corners[:100] / size * 1000
    probe = masks[:, None]
    found = FoundObjects(
        boxes.cpu().numpy(), np.ones(100, np.float32), np.zeros(100, np.int64), (1000, 1000), masks=masks.cpu().numpy()
    )
    return {
        "crop 1000 regions": (
            inference(lambda b: crop(maps, b[None], (size, size)), corners),
            inference(lambda b: pooler(named, [b], [(size, size)]), corners),
        ),
        "paste 100 masks of 1000 by 1000": (
            lambda: whole_masks(found),
            inference(lambda b: paste_masks_in_image(probe, b, (1000, 1000)) > 0.5, boxes),
        ),
    }


def timed(run: Run, device: str) -> float:
    """Return the milliseconds of one run."""
    if device != "cpu":
        torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1000


def shares(size: int, device: str) -> dict[str, float]:
    """Return where the milliseconds of one inference of Mask R-CNN go."""
    model = theirs("maskrcnn", size)
    detector = ours("maskrcnn", size, model).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    network: Any = detector.eval().network
    images, _, _ = scene(1, size, device)
    with torch.inference_mode():
        inputs, sizes = detector.preprocess(images)
        maps = network.feature_maps(inputs)
        first = network.rpn(maps, (size, size))
        proposals: Proposals = network.rpn.propose(first, sizes, training=False)
        regions = network.second(maps, proposals, (size, size))
        predictions: TwoStagePredictions = detector.predict(inputs, sizes)
        post: Any = detector.postprocessor
        crop: Any = network.second.crop
        steps: dict[str, Run] = {
            "preprocess": lambda: detector.preprocess(images),
            "backbone and pyramid": lambda: network.feature_maps(inputs),
            "region proposal head": lambda: network.rpn(maps, (size, size)),
            "proposals (outside the network)": lambda: network.rpn.propose(first, sizes, training=False),
            "crops (outside the network)": lambda: crop(maps, proposals.boxes, (size, size)),
            "box classifier with crops": lambda: network.second(maps, proposals, (size, size)),
            "suppression (outside the network)": lambda: post.detect(
                TwoStagePredictions(first, proposals, regions), sizes
            ),
            "whole network": lambda: detector.predict(inputs, sizes),
            "detections as a list": lambda: detector.postprocess(predictions, sizes),
        }
        return {name: min(timed(run, device) for _ in range(4)) for name, run in steps.items()}


def variants(size: int, device: str) -> dict[str, float]:
    """Return milliseconds of an inference of Faster R-CNN as it is, in bfloat16, and with a compiled backbone."""
    detector = ours("fasterrcnn", size, theirs("fasterrcnn", size)).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    network: Any = detector.eval().network
    images, _, _ = scene(1, size, device)
    pictures = list(images.permute(0, 3, 1, 2))

    def low() -> None:
        with torch.autocast(device, torch.bfloat16):
            detector.detect(pictures)

    found = {"float32": least(lambda: detector.detect(pictures), device), "bfloat16": least(low, device)}
    network.backbone.compile(dynamic=False)
    network.neck.compile(dynamic=False)
    found["float32, backbone and pyramid compiled"] = least(lambda: detector.detect(pictures), device)
    return found


def least(run: Run, device: str) -> float:
    """Return the least milliseconds of some runs, after one that is not counted."""
    run()
    return min(timed(run, device) for _ in range(4))


def peak_memory(what: str, size: int) -> float:
    """Return the MiB that a process takes at most beyond what it takes before a step of two images, on the CPU."""
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import two_stage; two_stage.one_step({what!r}, {size})"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(output.stdout.splitlines()[-1])


def one_step(what: str, size: int) -> None:
    """Take two training steps of two images, and print the growth of memory in MiB."""
    kind, who = what.split()
    model = theirs(kind, size)
    run = their_step(model, 2, size, "cpu") if who == "theirs" else our_step(ours(kind, size, model), 2, size, "cpu")
    before = _kibibytes("VmRSS")
    run()
    run()
    print((_kibibytes("VmHWM") - before) / 1024)


def _kibibytes(name: str) -> int:
    """Return what Linux says of this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main() -> None:
    """Time every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--only", default="", help="rows whose names contain it")
    parser.add_argument("--out", default="", help="a file for the results, as JSON")
    arguments = parser.parse_args()
    keep_freed_memory()
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}, {arguments.device}, "
          f"{torch.get_num_threads()} threads, {arguments.size} pixels")  # fmt: skip
    results: dict[str, Any] = {}
    for name, (our_run, their_run) in pairs(arguments.size, arguments.device).items():
        if arguments.only not in name:
            continue
        our_run(), their_run()
        rounds = [
            (timed(our_run, arguments.device), timed(their_run, arguments.device)) for _ in range(arguments.repeats)
        ]
        ratios = [one / other for one, other in rounds]
        least_of = [min(column) for column in zip(*rounds, strict=True)]
        results[name] = {"ours_ms": least_of[0], "theirs_ms": least_of[1], "ratio_of_least": least_of[0] / least_of[1],
                         "ratio_min": min(ratios), "ratio_median": statistics.median(ratios)}  # fmt: skip
        compared = f"ratio of least {least_of[0] / least_of[1]:.2f}, median {statistics.median(ratios):.2f}"
        print(f"{name:52} {least_of[0]:8.1f} ms  {least_of[1]:8.1f} ms   {compared}", flush=True)
    if not arguments.only:
        for title, found in (("inference of Mask R-CNN", shares), ("inference of Faster R-CNN", variants)):
            results[title] = found(arguments.size, arguments.device)
            print(title)
            for name, value in results[title].items():
                print(f"  {name:50} {value:8.1f} ms", flush=True)
        if arguments.device == "cpu":
            memory = {
                what: peak_memory(what, arguments.size) for kind in KINDS for what in (f"{kind} ours", f"{kind} theirs")
            }
            results["MiB of a step of two"] = memory
            print("MiB of a step of two:", {name: round(value) for name, value in memory.items()})
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
