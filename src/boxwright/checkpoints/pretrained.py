"""Weights of backbones that timm fetches: from Hugging Face's hub, once, into the cache that `HF_HOME` names.

Nothing but a run that starts afresh calls this: what restores, resumes, predicts, evaluates or exports has its weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from torch import Tensor, nn

from boxwright.base.errors import CheckpointError, first_line
from boxwright.models.backbones.timm_backbone import TimmBackbone

Weights = Mapping[str, Tensor]


def load_pretrained(network: nn.Module, from_leader: Callable[[Callable[[], Weights]], Weights]) -> str:
    """Give the backbones of a network timm's weights.

    Args:
        network: Has at least one `TimmBackbone`.
        from_leader: Lets one of several processes fetch, and tells the others.

    Returns:
        A line that says what was loaded.

    Raises:
        CheckpointError: Where there are none, or they are neither in the cache nor to be fetched.
    """
    backbones = [module for module in network.modules() if isinstance(module, TimmBackbone)]
    for backbone in backbones:
        name = backbone.name
        backbone.body.load_state_dict(from_leader(lambda name=name: _fetch(name)))  # type: ignore[misc]
    return f"weights of {', '.join(f'timm/{backbone.name}' for backbone in backbones)} from Hugging Face's hub"


def _fetch(name: str) -> Weights:
    import timm

    try:
        return timm.create_model(name, pretrained=True, features_only=True).state_dict()
    except Exception as error:  # three libraries fetch, each with errors of its own
        cache = os.environ.get("HF_HOME", "~/.cache/huggingface")
        raise CheckpointError(
            f"feature_extractor.pretrained: the weights of timm/{name} could not be fetched ({type(error).__name__}: "
            f"{first_line(error)}); connect to huggingface.co once, or copy the cache of a machine that has them to "
            f"{cache} (or where HF_HOME says), or remove pretrained"
        ) from error
