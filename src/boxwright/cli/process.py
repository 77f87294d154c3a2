"""What a command sets for its whole process: how GPUs round and choose algorithms, and what becomes of freed memory.

`main` says how threads wait before anything else. The library sets none of this: in Python, the process is the caller's
(docs/python.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxwright.runtime.allocator import keep_freed_memory

if TYPE_CHECKING:
    from boxwright.pipeline.messages import TrainEvalPipelineConfig
    from boxwright.training.settings import RunSettings


def prepare_inference(*, tf32: bool = False) -> None:
    """Set up this process for detecting with PyTorch, which is imported."""
    from boxwright.base.device import set_tf32

    set_tf32(allowed=tf32)
    keep_freed_memory()


def prepare_training(config: TrainEvalPipelineConfig, settings: RunSettings) -> None:
    """Set up this process for a training with PyTorch, which is imported."""
    import torch

    from boxwright.base.device import set_tf32
    from boxwright.pipeline.input_sizes import has_one_input_size

    set_tf32(allowed=settings.tf32)
    # Of inputs of one size, cuDNN's trials of its algorithms are over after a step; each new size would have its own.
    torch.backends.cudnn.benchmark = has_one_input_size(config)
    if settings.device == "cpu" or not torch.cuda.is_available():
        keep_freed_memory()
