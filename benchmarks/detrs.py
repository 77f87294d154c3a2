"""RF-DETR and D-FINE beside the code of others, with equal weights, in interleaved rounds: time, and memory of a step.

    OMP_NUM_THREADS=1 python benchmarks/detrs.py [--pairs rf_detr_nano d_fine_n …] [--rounds 9] [--batch 2]
        [--device cpu] [--json FILE] [--table]

RF-DETR's counterpart is its authors' package `rfdetr`, D-FINE's is transformers; both have to be installed beside.
Weights are random and the same on both sides, as are images and objects. A detection is one image through network and
postprocessing; a step is forward, losses, backward, clipping and AdamW of a batch. Other programs of the machine slow
both sides of a round alike, so that the ratios count: of the least times, and the median over rounds. Memory is the
peak of what tensors take. Rows are written as soon as they are there; `--table` prints them. Losses of D-FINE are not
comparable: transformers leaves out the first boxes, the union of matches, and the second layer's outputs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import boxwright as bw
from boxwright.base.distributed import ALONE
from boxwright.cli.benchmarking.facts import facts
from boxwright.data.batch import Batch
from boxwright.nn.ops.boxes import to_corners
from boxwright.nn.preprocessing import Preprocessor
from boxwright.pipeline.training import build_training
from boxwright.runtime.measure import measure
from boxwright.training.state import new_state, placed
from boxwright.training.step import Learner
from boxwright.types import Targets
from boxwright.types.masks import InstanceMasks

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]
from race import processor  # noqa: E402  # a script beside this one

RESULTS = HERE / "results"
OBJECTS = 8
READER = "train_input_reader={ load_instance_masks: true external_input_reader { } }"
Run = Callable[[], Any]


@dataclass(frozen=True)
class Side:
    """One of two implementations.

    Attributes:
        detect: Detects in one image.
        step: Trains on a batch, and returns the loss before it.
    """

    detect: Run
    step: Callable[[], float]


@dataclass(frozen=True)
class Case:
    """What both sides are given.

    Attributes:
        images: uint8 [B, H, W, 3].
        boxes: [B, G, 4], center x, center y, width, height in 0..1.
        labels: int64 [B, G].
    """

    images: Tensor
    boxes: Tensor
    labels: Tensor

    def masks(self) -> Tensor:
        """Return uint8 [B, G, H, W]: each object fills its box."""
        side = self.images.shape[1]
        low, high = (part[..., None] * side for part in to_corners(self.boxes).chunk(2, -1))
        cells = torch.arange(side, device=self.boxes.device) + 0.5
        x, y = ((cells > low[..., i, :]) & (cells < high[..., i, :]) for i in range(2))
        return (y[..., None] & x[..., None, :]).to(torch.uint8)


def made_up(batch: int, side: int, classes: int, device: torch.device) -> Case:
    """Return images of noise with a few objects each, on a device."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (batch, side, side, 3), dtype=torch.uint8, generator=generator)
    sides = 0.05 + 0.35 * torch.rand(batch, OBJECTS, 2, generator=generator)
    centers = sides / 2 + (1 - sides) * torch.rand(batch, OBJECTS, 2, generator=generator)
    labels = torch.randint(1, classes, (batch, OBJECTS), generator=generator)
    return Case(images.to(device), torch.cat([centers, sides], -1).to(device), labels.to(device))


def ours(preset: str, case: Case, weights: Callable[[bw.Detector], None]) -> Side:
    """Return our side: the step of a run, and detection as `predict` computes it from an input."""
    (batch, side), device = case.images.shape[:2], case.images.device
    family, has_masks = ("rf_detr" if preset.startswith("rf_detr") else "d_fine"), "_seg_" in preset
    changes = [READER, f"train_config.batch_size={batch}", "train_config.use_bfloat16=false"]
    if family == "d_fine":
        changes.append("model.d_fine.denoising.num_queries=0")
    config = bw.load_config(f"preset:{preset}", changes)
    detector = bw.build_detector(config)
    weights(detector)
    placed(detector, device)
    ones = torch.ones(batch, OBJECTS, device=device)
    masks = InstanceMasks.stack(list(case.masks().cpu().numpy()), OBJECTS, (side, side)) if has_masks else None
    targets = Targets(to_corners(case.boxes) * side, case.labels, ones, ones > 0, masks=masks).to(device)
    sizes = torch.tensor([[side, side]] * batch, device=device)
    inputs = Batch(case.images.permute(0, 3, 1, 2), sizes, targets, ("",) * batch)
    plan = build_training(config, workers=0)
    # The other side keeps no average either.
    plan = replace(plan, optimizer=replace(plan.optimizer, average_decay=None))
    learner = Learner(new_state(detector, plan), plan, ALONE)
    evaluated = bw.build_detector(config)
    weights(evaluated)
    evaluated.to(device).eval().optimize()

    @torch.inference_mode()
    def detect() -> Any:
        pixels = evaluated.preprocessor.normalize(inputs.images[:1], sizes[:1])
        outputs = evaluated.network(pixels, sizes[:1])
        post = evaluated.postprocessor
        return post.select(outputs, post.decode(outputs), sizes[:1])

    def step() -> float:
        detector.train()
        return float(learner.step(inputs).losses["Loss/total_loss"])

    return Side(detect, step)


def theirs(
    network: torch.nn.Module,
    pixels: Tensor,
    compute_loss: Callable[[torch.nn.Module, Tensor], Tensor],
    detect: Callable[[torch.nn.Module, Tensor], Any],
    optimizer: torch.optim.Optimizer,
) -> Side:
    """Return the other side: a plain loop around another project's network."""

    @torch.inference_mode()
    def run() -> Any:
        return detect(network.eval(), pixels[:1])

    def step() -> float:
        optimizer.zero_grad()
        loss = compute_loss(network.train(), pixels)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.1)
        optimizer.step()
        return float(loss.detach())

    return Side(run, step)


def rf_detr(size: str, batch: int, device: torch.device) -> tuple[Side, Side]:
    """Return RF-DETR of a size, ours and its authors'."""
    from rfdetr import config as configurations
    from rfdetr._namespace import _namespace_from_configs
    from rfdetr.models.lwdetr import build_criterion_and_postprocessors, build_model
    from rfdetr.training.param_groups import get_param_dict

    name = "".join(part.title() for part in size.split("_"))
    given = getattr(configurations, f"RFDETR{name}Config")(pretrain_weights=None, device=device.type)
    settings = configurations.SegmentationTrainConfig if given.segmentation_head else configurations.TrainConfig
    options = _namespace_from_configs(given, settings(dataset_dir=".", output_dir="."))
    network = build_model(options).to(device)
    criterion, postprocess = build_criterion_and_postprocessors(options)
    case = made_up(batch, given.resolution, 90, device)

    def restore(detector: bw.Detector) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "theirs.pth"
            torch.save({"model": network.state_dict()}, path)
            bw.load_weights(detector, path, scope="full")

    ours_ = ours(f"rf_detr_{size}_coco", case, restore)
    # The authors' rows are COCO's ids, one more than our labels.
    targets = [{"boxes": b, "labels": n + 1} for b, n in zip(case.boxes, case.labels, strict=True)]
    if size.startswith("seg_"):
        for target, masks in zip(targets, case.masks().bool(), strict=True):
            target["masks"] = masks

    def compute_loss(model: torch.nn.Module, pixels: Tensor) -> Tensor:
        terms = criterion(model(pixels, targets), targets)
        weighted = [terms[name] * weight for name, weight in criterion.weight_dict.items() if name in terms]
        return torch.stack(weighted).sum()

    side = torch.tensor([[given.resolution] * 2], device=device)
    optimizer = torch.optim.AdamW(get_param_dict(options, network), lr=1e-4, weight_decay=1e-4)
    return ours_, theirs(
        network, normalized(case), compute_loss, lambda model, pixels: postprocess(model(pixels), side), optimizer
    )


def normalized(case: Case) -> Tensor:
    """Return the inputs of a case as both sides' networks take them."""
    from boxwright.nn.preprocessing import IMAGENET, FixedShapeResizer

    side = case.images.shape[1]
    inputs: Tensor = Preprocessor(FixedShapeResizer(side, side), IMAGENET)(case.images)[0]
    return inputs.contiguous()


def d_fine(size: str, batch: int, device: torch.device) -> tuple[Side, Side]:
    """Return D-FINE of a size, ours and transformers', without denoising queries, which each side draws for itself."""
    import transformers

    from boxwright.weights.export_weights import write_transformers

    preset = f"d_fine_{size}_coco"
    config = bw.load_config(f"preset:{preset}", ["model.d_fine.denoising.num_queries=0"])
    torch.manual_seed(0)
    first = bw.build_detector(config)
    with tempfile.TemporaryDirectory() as folder:
        write_transformers(first, config, Path(folder))
        network = transformers.DFineForObjectDetection.from_pretrained(folder).to(device)
    state = first.network.state_dict()
    case = made_up(batch, 640, 80, device)
    ours_ = ours(preset, case, lambda detector: detector.network.load_state_dict(state) and None)
    labels = [{"boxes": b, "class_labels": n} for b, n in zip(case.boxes, case.labels, strict=True)]
    processor_ = transformers.RTDetrImageProcessor()
    sizes = torch.tensor([[640, 640]], device=device)
    return ours_, theirs(
        network,
        case.images.permute(0, 3, 1, 2).float() / 255,
        lambda model, pixels: model(pixel_values=pixels, labels=labels).loss,
        lambda model, pixels: processor_.post_process_object_detection(
            model(pixel_values=pixels), threshold=0.0, target_sizes=sizes
        ),
        torch.optim.AdamW(network.parameters(), lr=1e-4, weight_decay=1e-4),
    )


PAIRS: dict[str, Callable[[int, torch.device], tuple[Side, Side]]] = {
    **{f"rf_detr_{size}": partial(rf_detr, size) for size in ("nano", "small", "seg_nano")},
    **{f"d_fine_{size}": partial(d_fine, size) for size in ("n", "s")},
}
OTHERS = {"rf_detr": "rfdetr", "d_fine": "transformers"}


def until_done(run: Run, device: torch.device) -> Run:
    """Return a function that also waits for what it told a GPU to do."""
    if device.type != "cuda":
        return run

    def wait() -> None:
        run()
        torch.cuda.synchronize(device)

    return wait


def measure_pair(name: str, batch: int, rounds: int, device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield a row for the detection and the step of a pair."""
    own, other = PAIRS[name](batch, device)
    losses = [own.step(), other.step()]
    package = next(package for family, package in OTHERS.items() if name.startswith(family))
    about = {"pair": name, "other": f"{package} {version(package)}", "losses": losses, "torch": torch.__version__}
    if device.type == "cuda":
        about["gpu"] = torch.cuda.get_device_name(device)
    about |= {"date": date.today().isoformat(), **{k: v for k, v in processor().items() if k != "flags"}}
    for kind, count in (("detect", 1), ("step", batch)):
        # The other side comes first, so that ratios are ours over theirs.
        runs = {label: until_done(getattr(side, kind), device) for label, side in (("theirs", other), ("ours", own))}
        timings = measure(runs, count, rounds)
        peaks = [facts(torch.nn.Module(), run, lambda: None).peak_mib for run in runs.values()]
        yield {
            **about,
            "kind": kind,
            "batch": count,
            "rounds": rounds,
            "threads": torch.get_num_threads(),
            **{f"{one.name} ms": {"least": one.least_ms, "median": one.median_ms} for one in timings},
            "ratio": {"of the least": timings[1].least_ms / timings[0].least_ms, "median": timings[1].ratio},
            "peak MiB": {"theirs": peaks[0], "ours": peaks[1]},
        }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield "| | | ours, ms | theirs, ms | ratio of the least | median ratio | memory, MiB | theirs |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for row in rows:
        times = [f"{row[f'{side} ms']['least']:.0f}" for side in ("ours", "theirs")]
        ratios = [f"{row['ratio'][kind]:.2f}" for kind in ("of the least", "median")]
        peaks = [f"{row['peak MiB'][side]:.0f}" for side in ("ours", "theirs")]
        what = "detection" if row["kind"] == "detect" else f"step of {row['batch']}"
        yield f"| `{row['pair']}` beside {row['other']} | {what} | {' | '.join([*times, *ratios, *peaks])} |"


def main() -> None:
    """Measure pairs, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS), choices=list(PAIRS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="default: results/detrs-DEVICE.json")
    parser.add_argument("--table", action="store_true", help="print the rows that are there")
    given = parser.parse_args()
    device = torch.device(given.device)
    path: Path = given.json or RESULTS / f"detrs-{device.type}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []
    if given.table:
        print("\n".join(table(rows)))
        return
    torch.set_num_threads(1)
    for name in given.pairs:
        rows = [row for row in rows if row["pair"] != name]
        for row in measure_pair(name, given.batch, given.rounds, device):
            rows.append(row)
            path.write_text(json.dumps(rows, indent=1) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
