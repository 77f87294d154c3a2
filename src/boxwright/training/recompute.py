"""Less memory for more time: a backbone's maps are recomputed in the backward pass (gradient checkpointing)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute_blocks(backbone: nn.Module) -> int:
    """Let each block of a backbone in training keep its input alone; return how many blocks there are.

    Losses, gradients and statistics are the same to the last bit: the second computation does not update statistics.

    Args:
        backbone: Its blocks' `forward` is replaced.
    """
    blocks = _blocks(backbone)
    for block in blocks:
        block.forward = partial(_forward, block, block.forward)
    return len(blocks)


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Return the smallest modules that hold several convolutions; where there is but one in another, that other."""
    within = [block for child in module.children() for block in _blocks(child)]
    if len(within) > 1 or isinstance(module, nn.ModuleList) or _convolutions(module) < 2:
        return within
    return [module]


def _convolutions(module: nn.Module) -> int:
    return sum(isinstance(one, nn.Conv2d) for one in module.modules())


def _forward(block: nn.Module, plain: Any, *given: Any) -> Any:
    if not block.training:
        return plain(*given)
    # The reentrant form computes no gradients where no input needs one, as in the block that gets the image.
    return checkpoint(plain, *given, use_reentrant=False, context_fn=partial(_contexts, block))


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the first computation and of the second."""
    return nullcontext(), _statistics_unchanged(block)


@contextmanager
def _statistics_unchanged(block: nn.Module) -> Iterator[None]:
    """Let normalization update copies of its statistics."""
    kept = [(part, dict(part._buffers)) for part in block.modules() if isinstance(part, nn.BatchNorm2d)]
    for part, buffers in kept:
        part._buffers.update({name: None if value is None else value.clone() for name, value in buffers.items()})
    try:
        yield
    finally:
        for part, buffers in kept:
            part._buffers.update(buffers)
