"""Network and losses as one graph, which a GPU replays without being told each operation anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.device import first_line
from boxwright.errors import TrainingError
from boxwright.training.losses import Forward, LossModule
from boxwright.types import Targets

__all__ = ["GraphedLosses", "check_capture", "in_bucket"]

# Of inputs of one size only the number of objects differs: a graph for few, one for many, and for a crowd one of each
# power of two. torch.compile gives up after 8 shapes by itself.
_FEW_OBJECTS, _MANY_OBJECTS = 32, 128
_MOST_SHAPES = 16


def in_bucket(targets: Targets) -> Targets:
    """Pad the objects of each image to 32, to 128, or to a power of two above: a graph is of one shape."""
    count = targets.boxes.shape[1]
    if count <= _FEW_OBJECTS:
        return targets.padded_to(_FEW_OBJECTS)
    return targets.padded_to(max(_MANY_OBJECTS, 1 << (count - 1).bit_length()))


class GraphedLosses(nn.Module):
    """A loss module in one graph for each shape of its inputs."""

    def __init__(self, losses: LossModule, backend: str | Callable[..., Any] | None = None) -> None:
        """Compile at the first call.

        Args:
            losses: What is compiled; of a detector of one stage, whose shapes do not depend on what it finds.
            backend: What torch.compile compiles with; by itself, its own, with CUDA graphs.
        """
        super().__init__()
        # Else what cannot be captured runs without a graph, as slow as before, and nobody hears of it.
        options = {"triton.cudagraphs": True, "triton.cudagraph_or_error": True}
        how: dict[str, Any] = {"options": options} if backend is None else {"backend": backend}
        if backend is None:  # what is skipped at a replay reads the process's own setting
            torch._inductor.config.triton.cudagraph_or_error = True
        self._run: Callable[..., Forward] = torch.compile(losses, fullgraph=True, dynamic=False, **how)

    def forward(self, images: Tensor, true_sizes: Tensor, targets: Targets) -> Forward:
        """Return the losses of a batch; they and the gradients are gone when the next call begins."""
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # torch's
        try:
            with torch._dynamo.config.patch(recompile_limit=_MOST_SHAPES):
                return self._run(images, true_sizes, in_bucket(targets))
        except torch._dynamo.exc.FailOnRecompileLimitHit:
            raise TrainingError(
                f"--cuda_graphs: batches have more than {_MOST_SHAPES} shapes, each of which needs a graph of its own"
            ) from None
        except torch._dynamo.exc.Unsupported as error:
            raise TrainingError(
                f"--cuda_graphs: this detector and its losses are not one graph: {first_line(error)}"
            ) from None
        except RuntimeError as error:
            check_capture(error)
            raise


def check_capture(error: RuntimeError) -> None:
    """Raise TrainingError where an error says why PyTorch's compiler captured nothing."""
    reason = next((line for line in str(error).splitlines() if "skipping cudagraph" in line), None)
    if reason is not None:
        raise TrainingError(f"--cuda_graphs: nothing was captured: {reason}") from None
