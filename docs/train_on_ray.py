"""Train on a Ray cluster.

    python train_on_ray.py pipeline.config MODEL_DIR PROCESSES [--gpus]

The configuration's data and MODEL_DIR have to be at the same place on all machines, or at an address, as
s3://bucket/run. Run again to resume. Needs: pip install 'ray[train]'.
"""

import sys
from pathlib import Path

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train_in_process(settings: dict[str, str]) -> None:
    """Train as one of the run's processes, which Ray has connected."""
    import boxwright as bw

    bw.train(settings["config"], settings["model_dir"])


def main(config: str, model_dir: str, processes: str, *options: str) -> None:
    """Run a training; Ray starts lost processes again, which resume from the last checkpoint."""
    place = model_dir if "://" in model_dir else str(Path(model_dir).resolve())
    trainer = TorchTrainer(
        train_in_process,
        train_loop_config={"config": str(Path(config).resolve()), "model_dir": place},
        scaling_config=ScalingConfig(num_workers=int(processes), use_gpu="--gpus" in options),
        # Plain values travel by gloo also where tensors travel by NCCL.
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if "--gpus" in options else "gloo"),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    )
    trainer.fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
