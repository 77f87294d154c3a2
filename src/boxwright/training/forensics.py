"""Dumps of steps whose loss or gradient was not finite, and their replay.

A dump has the images with their boxes, the terms of the loss, the first module that is to blame, and all that is
needed to repeat the step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.base.errors import CheckpointError
from boxwright.base.files import make_folder, unfinished, unique_stem, write_whole
from boxwright.config.load import dump_message
from boxwright.data.batch import Batch
from boxwright.data.image_io import encode_png
from boxwright.evaluation.metrics.metric import without_nan
from boxwright.nn.batch_norm import SyncBatchNorm2d
from boxwright.nn.criteria.criterion import TOTAL
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.training import TrainingPlan, build_training
from boxwright.training.background_writer import Content
from boxwright.training.log import draw_inputs
from boxwright.training.losses import LossModule
from boxwright.training.state import TrainingState, seed_step
from boxwright.training.step import NotFiniteError
from boxwright.types import Categories, Targets
from boxwright.types.context_features import ContextFeatures
from boxwright.types.masks import InstanceMasks
from boxwright.weights.store import read_checkpoint, read_config, write_checkpoint

# Per process. The dump itself holds all images; the drawings are for a person to look through.
_MOST_IMAGES = 64
# Each dump is as large as a checkpoint, and a diverged run that skips such steps would fill the disk.
_MOST_FOLDERS = 10
_NAMED = 20
Replay = dict[str, Any]


def dump_step(
    run_folder: Path,
    state: TrainingState,
    content: Content,
    batches: list[Batch],
    config: m.TrainEvalPipelineConfig,
    error: NotFiniteError,
) -> str:
    """Write a step that was not finite to a folder of the run's, at most ten in a run; return what and where.

    Args:
        batches: What each process was to learn from.

    Returns:
        A sentence; also where it could not be written.
    """
    images = ", ".join(name for batch in batches for name in batch.ids[:_NAMED])
    folder = run_folder / f"not-finite-{state.step + 1}"
    if len(list(run_folder.glob("not-finite-*"))) >= _MOST_FOLDERS and not folder.exists():
        return f"{error}; images {images}; not dumped: there are {_MOST_FOLDERS} such folders already"
    try:
        first = _write_dump(folder, state, content, batches, config, error)["first"]
    except (CheckpointError, OSError) as problem:
        return f"{error}; images {images}; it could not be dumped: {problem}"
    return f"{error}; images {images}; first: {first}; all of it: {folder}; again: boxwright replay {folder}"


def _write_dump(
    folder: Path,
    state: TrainingState,
    content: Content,
    batches: list[Batch],
    config: m.TrainEvalPipelineConfig,
    error: NotFiniteError,
) -> Replay:
    """Write a step that was not finite to a folder.

    Args:
        batches: What each process was to learn from.

    Returns:
        What `replay_step` returns, which is also written to `report.json`.
    """
    with unfinished(folder, "a step that was not finite"):
        write_checkpoint(
            {"step": state.step, **content, "batches": [_plain(batch) for batch in batches]}, folder / "step.pt"
        )
        pictures, taken = make_folder(folder / "images"), set[str]()
        for rank, batch in enumerate(batches):
            for row, picture in enumerate(draw_inputs(batch, state.detector.categories, _MOST_IMAGES)):
                write_whole(
                    pictures / f"{unique_stem(f'{rank}-{row}-{batch.ids[row]}', taken)}.png", encode_png(picture)
                )
        train, replay = config.train_config, replay_step(folder)
        report = {
            "step": state.step + 1,
            "problem": str(error),
            "losses": without_nan(error.losses),
            "gradient_norm": without_nan({"norm": error.gradient_norm})["norm"],
            "images": [
                {"id": name, "epoch": key[0], "index": key[1], "process": rank}
                for rank, batch in enumerate(batches)
                for name, key in zip(batch.ids, batch.keys, strict=True)
            ],
            "augmentation": [dump_message(step).strip() for step in (train.data_augmentation_options if train else [])],
            "replay": f"boxwright replay {folder}",
            "found": replay,
        }
        write_whole(folder / "report.json", json.dumps(report, indent=2) + "\n")
        return replay


def replay_step(folder: str | Path) -> Replay:
    """Repeat a step on the CPU, checking every module.

    Args:
        folder: What `dump_step` wrote.

    Returns:
        `first`: the first value that was not finite, in words, or that everything was finite;
        `losses`: the terms of each process's part, which divides by its own matches.

    Raises:
        CheckpointError: Where the folder holds no such step.
    """
    path = Path(folder) / "step.pt"
    content = read_checkpoint(path)
    if "batches" not in content:
        raise CheckpointError(f"{path}: a run's checkpoint, without the batches of a step whose loss was not finite")
    config = read_config(content, path)
    categories = Categories.from_list(content["categories"]) if content["categories"] else None
    detector = build_detector(config, categories)
    detector.network.load_state_dict(content["network"])
    # One process replays the parts of all: there is nobody to share statistics with, and waiting would never end.
    for module in detector.modules():
        if isinstance(module, SyncBatchNorm2d):
            module.alone = True
    detector.train()
    plan = build_training(config)
    culprits: list[str] = []
    losses = []
    for rank, plain in enumerate(content["batches"]):
        seed_step(content["seed"], content["step"], rank)
        nonfinite, terms = _watch(detector, plan, _batch(plain))
        culprits += [f"process {rank}: {culprit}" if len(content["batches"]) > 1 else culprit for culprit in nonfinite]
        losses.append(without_nan(terms))
    return {"first": culprits[0] if culprits else "everything was finite this time", "all": culprits, "losses": losses}


def _watch(detector: Detector, plan: TrainingPlan, batch: Batch) -> tuple[list[str], dict[str, float]]:
    """Run a step's forward and backward; return what is not finite, in the order in which it arose, and the losses."""
    network = detector.network
    nonfinite = [f"weight {name}" for name, p in network.named_parameters() if not p.isfinite().all()]
    module = LossModule(detector, plan)
    with _watching(network, nonfinite):
        losses = module(batch.images, batch.true_sizes, batch.targets).losses()
        losses[TOTAL] = torch.stack(list(losses.values())).sum()
        nonfinite += [f"loss {name}" for name, value in losses.items() if not value.isfinite()]
        torch.autograd.backward(losses[TOTAL])
    return nonfinite, {name: float(value.detach()) for name, value in losses.items()}


@contextmanager
def _watching(network: nn.Module, nonfinite: list[str]) -> Iterator[None]:
    """Collect modules whose output, and parameters whose gradient, is not finite."""
    # A container returns what one of its leaves computed, so only leaves can be to blame first.
    leaves = [(name, module) for name, module in network.named_modules() if not list(module.children())]
    handles: list[Any] = [module.register_forward_hook(_output_hook(name, nonfinite)) for name, module in leaves]
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            hook = _gradient_hook(name, nonfinite)
            handles.append(parameter.register_post_accumulate_grad_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _output_hook(name: str, nonfinite: list[str]) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not output.isfinite().all():
            nonfinite.append(f"output of module {name} ({type(module).__name__})")

    return hook


def _gradient_hook(name: str, nonfinite: list[str]) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            nonfinite.append(f"gradient of {name}")

    return hook


_PARTS_OF_TARGETS: dict[str, Any] = {"masks": InstanceMasks, "context": ContextFeatures}


# Checkpoints are read with weights_only, which refuses dataclasses; tensors, lists and dictionaries pass.
def _plain(batch: Batch) -> dict[str, Any]:
    batch = batch.to("cpu")
    targets = {f.name: getattr(batch.targets, f.name) for f in fields(batch.targets)}
    for name in _PARTS_OF_TARGETS:
        if (part := targets[name]) is not None:
            targets[name] = {f.name: getattr(part, f.name) for f in fields(part)}
    return {
        "images": batch.images,
        "true_sizes": batch.true_sizes,
        "targets": {name: value for name, value in targets.items() if value is not None},
        "ids": list(batch.ids),
        "keys": [list(key) for key in batch.keys],
    }


def _batch(plain: dict[str, Any]) -> Batch:
    targets = dict(plain["targets"])
    for name, kind in _PARTS_OF_TARGETS.items():
        if name in targets:
            targets[name] = kind(**targets[name])
    return Batch(
        images=plain["images"],
        true_sizes=plain["true_sizes"],
        targets=Targets(**targets),
        ids=tuple(plain["ids"]),
        keys=tuple((epoch, index) for epoch, index in plain["keys"]),
    )
