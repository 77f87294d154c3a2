"""What RoIConv costs: AlignDet's second step by kernel size and kind of sampling, on one image.

    python benchmarks/roi_conv.py [--height 256] [--width 320] [--rounds 3] [--backbone timm/resnet50] [--device cpu]

AlignDet with ResNet-50 and a pyramid of 256 channels. Each row is timed in interleaved rounds: the whole network's
inference, and a training step's forward and backward. The share is that of the second step in the network's time: the
difference from `none`, the same network without a second step. Memory is the most that a run needs above what its
process held before, on the CPU as Linux counts it. Writes `benchmarks/results/roi-conv-DEVICE.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.pipeline import messages as m
from boxwright.types import Targets

HERE = Path(__file__).parent
ROWS = {
    "none": "",
    "window K=7": "step { sampling: WINDOW }",
    "RoIConv K=3": "step { kernel_size: 3 }",
    "RoIConv K=5": "step { kernel_size: 5 }",
    "RoIConv K=7": "step { }",
    "RoIConv K=7, K=3 on P3": "step { ignore_finest: true }",
    "RoIAlign K=7": "step { sampling: ROI_ALIGN }",
}


def detector_of(row: str, arguments: argparse.Namespace) -> bw.Detector:
    """Return the detector of a row, with fresh weights."""
    text = f"""align_det {{ num_classes: 80 {ROWS[row]} feature_extractor {{ type: "{arguments.backbone}" }}
      image_resizer {{ fixed_shape_resizer {{ height: {arguments.height} width: {arguments.width} }} }} }}"""
    torch.manual_seed(0)
    return bw.build_detector(parse_message(text, m.DetectionModel)).to(arguments.device)


def work(row: str, arguments: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """Return what is timed of a row: inference of the network, and a step without the optimizer."""
    detector = detector_of(row, arguments)
    image = torch.rand(1, 3, arguments.height, arguments.width, device=arguments.device)
    sizes = torch.tensor([[arguments.height, arguments.width]], device=arguments.device)
    boxes = torch.tensor([[[40.0, 40, 200, 180], [210, 60, 330, 300]]], device=arguments.device)
    some = torch.ones(1, 2, device=arguments.device)
    targets = Targets(boxes, some.long(), some, some > 0)

    def inference() -> None:
        detector.eval()
        with torch.no_grad():
            detector.predict(image, sizes)

    def step() -> None:
        detector.train()
        losses = detector.criterion(detector.predict(image, sizes), targets)
        torch.autograd.backward(torch.stack([term.value for term in losses.values()]).sum())
        detector.zero_grad(set_to_none=True)

    return {"inference": inference, "step": step}


def timed(run: Callable[[], None], device: str) -> float:
    """Return milliseconds."""
    began = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began)


def memory(row: str, what: str, arguments: argparse.Namespace) -> float:
    """Return the MiB that a run needs above what its process needed before."""
    if arguments.device != "cpu":
        run = work(row, arguments)[what]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    command = [sys.executable, __file__, "--memory_of", row, what]
    command += ["--height", str(arguments.height), "--width", str(arguments.width), "--backbone", arguments.backbone]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def resident(kind: str) -> int:
    """Return the KiB that Linux says of this process: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:"))


def main() -> None:
    """Measure, print the table, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--height", type=int, default=256)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backbone", default="timm/resnet50")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory_of", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        run = work(arguments.memory_of[0], arguments)[arguments.memory_of[1]]
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        run()
        print((resident("VmHWM") - before) / 1024)
        return
    runs = {row: work(row, arguments) for row in ROWS}
    times: dict[str, dict[str, list[float]]] = {row: {"inference": [], "step": []} for row in ROWS}
    for number in range(arguments.rounds + 1):
        for row, parts in runs.items():
            for what, run in parts.items():
                taken = timed(run, arguments.device)
                if number:  # the first round warms up
                    times[row][what].append(taken)
    del runs
    found: dict[str, dict[str, float]] = {}
    print(f"{'':24}{'inference ms':>14}{'share':>8}{'step ms':>10}{'share':>8}{'MiB inf.':>10}{'MiB step':>10}")
    for row, taken_ms in times.items():
        cells: dict[str, float] = {}
        for what, values in taken_ms.items():
            shares = [1 - base / value for base, value in zip(times["none"][what], values, strict=True)]
            cells |= {f"{what} ms": min(values), f"{what} median ms": statistics.median(values)}
            cells |= {f"{what} share": statistics.median(shares), f"{what} MiB": memory(row, what, arguments)}
        found[row] = cells
        print(
            f"{row:24}{cells['inference ms']:>14.0f}{cells['inference share']:>8.2f}{cells['step ms']:>10.0f}"
            f"{cells['step share']:>8.2f}{cells['inference MiB']:>10.0f}{cells['step MiB']:>10.0f}",
            flush=True,
        )
    machine = f"{arguments.device}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    size = f"{arguments.height}×{arguments.width}, {arguments.backbone}"
    path = HERE / "results" / f"roi-conv-{arguments.device}.json"
    path.write_text(json.dumps({"machine": machine, "input": size, "rows": found}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
