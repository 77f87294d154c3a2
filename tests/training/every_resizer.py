"""Run by torchrun in two processes: trains with each resizer, on images of two sizes; prints what came of it as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import boxwright as bw
from boxwright.base.distributed import ALONE, join_processes
from boxwright.data.batch import collate, to_input
from boxwright.data.shapes import ShapesDataset
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.training import build_training
from boxwright.training.state import new_state
from boxwright.training.step import Learner

RESIZERS = {
    "fixed_shape": "fixed_shape_resizer { height: 64 width: 64 }",
    "keep_aspect_ratio": "keep_aspect_ratio_resizer { min_dimension: 64 max_dimension: 128 }",
    "keep_aspect_ratio, padded": "keep_aspect_ratio_resizer { min_dimension: 64 max_dimension: 96 "
    "pad_to_max_dimension: true }",
    "identity": "identity_resizer { }",
    "conditional_shape": "conditional_shape_resizer { condition: GREATER size_threshold: 80 }",
    "pad_to_multiple": "pad_to_multiple_resizer { multiple: 64 }",
}
_FIXED = "fixed_shape_resizer { height: 64 width: 64 }"


def one_step(config: m.TrainEvalPipelineConfig, shares: int, share: int, processes: object) -> dict[str, float]:
    """Take a step with a share of four images of one size; return losses and the norm of each gradient."""
    torch.manual_seed(0)
    dataset = ShapesDataset(4, seed=0, size=(64, 96))
    detector = build_detector(config, dataset.categories).train()
    plan = build_training(config, workers=0)
    learner = Learner(new_state(detector, plan), plan, processes)  # type: ignore[arg-type]
    mine = range(share * 4 // shares, (share + 1) * 4 // shares)
    found = learner.step(collate([to_input(dataset[n], detector.preprocessor.resizer) for n in mine]))
    assert shares == 1 or "anchors" not in {name.split(".")[-1] for name in _broadcast(learner)}
    norms = {n: float(p.grad.norm()) for n, p in detector.network.named_parameters() if p.grad is not None}
    learner.unwrap()
    return {**found.losses, "norm": found.gradient_norm, **norms}


def _broadcast(learner: Learner) -> set[str]:
    """Return the names of the buffers that DistributedDataParallel broadcasts."""
    module = learner.module
    assert isinstance(module, torch.nn.parallel.DistributedDataParallel)
    sent = {id(buffer) for buffer in module.modules_buffers if module.will_sync_module_buffers()}
    return {name for name, buffer in learner.losses.named_buffers() if id(buffer) in sent}


def main(config_path: str, folder: str) -> None:
    torch.set_num_threads(1)
    text = Path(config_path).read_text()
    assert text.count(_FIXED) == 1
    found = {}
    with join_processes() as processes:
        for name, resizer in RESIZERS.items():
            path = Path(folder) / f"{name}-{processes.rank}.config"
            path.write_text(text.replace(_FIXED, resizer))
            config = bw.load_config(path, ["train_config.num_steps=2", "model.ssd.freeze_batchnorm=true"])
            settings = bw.RunSettings(workers=0, evaluate=False, log_every_n=1)
            assert settings.preflight
            steps = bw.train(config, Path(folder) / name, settings).step
            together = one_step(config, processes.count, processes.rank, processes)
            found[name] = {"steps": steps, "together": together, "alone": one_step(config, 1, 0, ALONE)}
        if processes.leads:
            print(json.dumps(found))  # noqa: T201  # for the test that started this


if __name__ == "__main__":
    main(*sys.argv[1:])
