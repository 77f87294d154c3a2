"""D-FINE against transformers' D-FINE of the same size and weights: inference, a training step, the criterion's share.

    uv pip install --group oracles
    python benchmarks/d_fine_speed.py [--size N] [--side 640] [--threads 2] [--rounds 7] [--json FILE]

Both eager, of the same random weights, which travel by `export --format transformers`. Inference is of prepared inputs
to class scores and boxes, in inference mode, batches of 1 and 8: ours as it is built, and folded, as `predict` and
`evaluate` run it. A training step is of a batch of 4 from prepared inputs: forward, losses, backward, clipping, AdamW.
Rounds are interleaved, so that other programs disturb all alike; medians. The criterion's part of our step is matching
and losses, and their gradients until these reach the network's outputs. transformers' own losses are not quite
D-FINE's: no union of matches, no FGL on the last layer. It needs as many cells as queries: a side of 256 and more.

Aims: inference and step at most 0.8 of theirs, the criterion at most 12 % of the step.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import boxwright  # noqa: F401  # isort: skip  # before torch: it sets how threads wait
import torch
import transformers
from torch import Tensor

from boxwright.config.load import parse_message
from boxwright.families.d_fine.predictions import DFinePredictions
from boxwright.nn.criteria.terms import LossTerm
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.runtime.measure import load
from boxwright.types import Targets
from boxwright.weights.export_weights import write_transformers
from race import processor

CLASSES, OBJECTS, STEP_BATCH, WARM_UPS = 80, 8, 4, 2
Run = Callable[[], Any]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list("NSMLX"), default="N")
    parser.add_argument("--side", type=int, default=640)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    ours, theirs = both(arguments.size, arguments.side)
    folded = copy.deepcopy(ours).optimize(compile=False)
    rows: dict[str, Any] = {"machine": machine(), "size": arguments.size, "side": arguments.side}
    rows |= {"threads": arguments.threads, "rounds": arguments.rounds}
    for batch in (1, 8):
        images = torch.rand(batch, 3, arguments.side, arguments.side, generator=torch.Generator().manual_seed(0))
        runs = {"ours": inference(ours, images), "folded": inference(folded, images)}
        rows[f"inference, batch {batch}"] = compared(runs, their_inference(theirs, images), arguments.rounds)
    images = torch.rand(STEP_BATCH, 3, arguments.side, arguments.side, generator=torch.Generator().manual_seed(1))
    step, shares = training(ours, images)
    rows[f"step, batch {STEP_BATCH}"] = compared({"ours": step}, their_training(theirs, images), arguments.rounds)
    rows["criterion's share of our step"] = round(statistics.median(shares[WARM_UPS:]), 3)
    print(json.dumps(rows, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Return what the numbers depend on."""
    return {
        **processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "load per core": round(load()[0], 2),
    }


def both(size: str, side: int) -> tuple[Detector, Any]:
    """Return our detector and transformers' model, of the same random weights."""
    resizer = f"fixed_shape_resizer {{ height: {side} width: {side} resize_method: BILINEAR_ANTIALIASED }}"
    text = f"model {{ d_fine {{ num_classes: {CLASSES} size: {size} image_resizer {{ {resizer} }} }} }}"
    config = parse_message(text, m.TrainEvalPipelineConfig)
    torch.manual_seed(0)
    detector = build_detector(config)
    with tempfile.TemporaryDirectory() as folder:
        write_transformers(detector, config, folder)
        theirs = transformers.DFineForObjectDetection.from_pretrained(folder)
    return detector.to(memory_format=torch.channels_last), theirs


def compared(ours: dict[str, Run], theirs: Run, rounds: int) -> dict[str, float | list[float]]:
    """Return median milliseconds, and ratios to theirs: of medians, and the least and largest of a round."""
    runs = {**ours, "theirs": theirs}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(WARM_UPS + rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if number >= WARM_UPS:
                times[name].append(1000 * (time.perf_counter() - began))
    medians = {name: statistics.median(one) for name, one in times.items()}
    found: dict[str, float | list[float]] = {f"{name}_ms": round(value, 1) for name, value in medians.items()}
    for name in ours:
        each = [one / other for one, other in zip(times[name], times["theirs"], strict=True)]
        found[f"{name}_ratio"] = round(medians[name] / medians["theirs"], 3)
        found[f"{name}_ratios"] = [round(min(each), 3), round(max(each), 3)]
    return found


def inference(detector: Detector, images: Tensor) -> Run:
    """Return a run of the network and the decoding of its outputs."""
    inputs = images.contiguous(memory_format=torch.channels_last)

    @torch.inference_mode()
    def run() -> Any:
        return detector.eval().postprocessor.decode(detector.predict(inputs))

    return run


def their_inference(model: Any, images: Tensor) -> Run:
    """Return a run of transformers' model; its outputs have scores before the sigmoid."""

    @torch.inference_mode()
    def run() -> Any:
        found = model.eval()(pixel_values=images)
        return found.logits.sigmoid(), found.pred_boxes

    return run


def objects(side: int) -> tuple[Tensor, Tensor]:
    """Return boxes [B, G, 4], xyxy in pixels, and labels [B, G] of made up objects."""
    generator = torch.Generator().manual_seed(2)
    low = torch.rand(STEP_BATCH, OBJECTS, 2, generator=generator) * side * 0.7
    high = low + 8 + torch.rand(STEP_BATCH, OBJECTS, 2, generator=generator) * side * 0.25
    return torch.cat([low, high], -1), torch.randint(0, CLASSES, (STEP_BATCH, OBJECTS), generator=generator)


def training(detector: Detector, images: Tensor) -> tuple[Run, list[float]]:
    """Return a run of a training step, and the list to which it adds the criterion's share of each."""
    inputs = images.contiguous(memory_format=torch.channels_last)
    boxes, labels = objects(images.shape[-1])
    valid = torch.ones_like(labels, dtype=torch.bool)
    targets = replace(Targets(boxes, labels, valid.float(), valid), keys=torch.arange(STEP_BATCH))
    sizes = torch.tensor([images.shape[2:]] * STEP_BATCH)
    weights, shares = list(detector.parameters()), list[float]()
    optimizer = torch.optim.AdamW(weights, 1e-9)

    def run() -> None:
        detector.train()
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        predictions = detector.predict(inputs, sizes, targets)
        outputs = [one for one in outputs_of(predictions) if one.requires_grad]
        predicted = time.perf_counter()
        loss = LossTerm.sum(detector.criterion(predictions, targets))
        gradients = torch.autograd.grad(loss, outputs, retain_graph=True, allow_unused=True)
        learned = time.perf_counter()
        used = [(one, gradient) for one, gradient in zip(outputs, gradients, strict=True) if gradient is not None]
        torch.autograd.backward([one for one, _ in used], [gradient for _, gradient in used])
        torch.nn.utils.clip_grad_norm_(weights, 0.1)
        optimizer.step()
        shares.append((learned - predicted) / (time.perf_counter() - began))

    return run, shares


def outputs_of(predictions: DFinePredictions) -> list[Tensor]:
    """Return what the criterion reads of all layers."""
    decoders = [predictions.queries, *([predictions.denoised.outputs] if predictions.denoised is not None else [])]
    sets = [
        predictions.encoder,
        *(one for decoder in decoders for one in (*decoder.layers, decoder.pre) if one is not None),
    ]
    return [value for one in sets for value in (one.logits, one.boxes, one.distances) if value is not None]


def their_training(model: Any, images: Tensor) -> Run:
    """Return a run of transformers' training step."""
    boxes, labels = objects(images.shape[-1])
    relative = (
        torch.cat([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], -1) / images.shape[-1]
    )
    told = [{"class_labels": names, "boxes": places} for names, places in zip(labels, relative, strict=True)]
    optimizer = torch.optim.AdamW(list(model.parameters()), 1e-9)

    def run() -> None:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(model(pixel_values=images, labels=told).loss)
        torch.nn.utils.clip_grad_norm_(list(model.parameters()), 0.1)
        optimizer.step()

    return run


if __name__ == "__main__":
    main()
