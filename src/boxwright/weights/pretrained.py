"""Pretrained weights of backbones that timm downloads: from the Hugging Face Hub, once, into the cache of `HF_HOME`.

Only new training runs call this; restoring, resuming, prediction, evaluation and export already have weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor, nn

from boxwright.base.errors import CheckpointError, first_line
from boxwright.base.quiet import quiet
from boxwright.nn.backbones.timm_backbone import TimmBackbone

Weights = Mapping[str, Tensor]


def load_pretrained(network: nn.Module, from_leader: Callable[[Callable[[], Weights]], Weights]) -> str:
    """Load timm's weights into the backbones of a network.

    Args:
        network: Has at least one `TimmBackbone`.
        from_leader: Lets one of several processes download, and broadcasts the result.

    Returns:
        A line that describes what was loaded.

    Raises:
        CheckpointError: If there are none, or they can neither be found in the cache nor downloaded.
    """
    backbones = [module for module in network.modules() if isinstance(module, TimmBackbone)]
    for backbone in backbones:
        name = backbone.name
        backbone.body.load_state_dict(from_leader(partial(_fetch, name)))
    return f"weights of {', '.join(f'timm/{backbone.name}' for backbone in backbones)} from Hugging Face's hub"


def _fetch(name: str) -> Weights:
    import timm

    try:
        # With features_only, as the backbone is made: the names are then its own. It warns of the classifier's tensors.
        with quiet():
            return timm.create_model(name, pretrained=True, features_only=True).state_dict()
    except Exception as error:  # three libraries are involved, each with its own exceptions
        cache = os.environ.get("HF_HOME", "~/.cache/huggingface")
        raise CheckpointError(
            f"feature_extractor.pretrained: the weights of timm/{name} could not be fetched ({type(error).__name__}: "
            f"{first_line(error)}); connect to huggingface.co once, or copy the cache of a machine that has them to "
            f"{cache} (or where HF_HOME says), or remove pretrained"
        ) from error
