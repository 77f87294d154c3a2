"""Any network of the timm library as a backbone.

Dimensions: B batch, H W image.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from boxwright.base.errors import ConfigError, pass_shortage
from boxwright.nn.network import Backbone
from boxwright.nn.regularization import Regularizer

_PLAIN = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?")
_PLAIN_PART = re.compile(r"[^A-Za-z0-9_].*", re.DOTALL)


def check_timm_name(name: str, field: str) -> None:
    """Raise a ConfigError for a name that timm has no network of; `field` is where it is written."""
    import timm  # its import takes a second, and only these backbones need it

    # Only timm's own names: it would treat others as hub addresses to fetch settings and weights from.
    if not _PLAIN.fullmatch(name) or not timm.is_model(name):
        near = ", ".join(timm.list_models(f"*{_PLAIN_PART.sub('', name)[:8]}*")[:6]) or "see timm.list_models()"
        raise ConfigError(f"{field} timm/{name[:80]}: timm has no such network; similar: {near}")


class TimmBackbone(Backbone):
    """The feature pyramid of a timm network.

    Attributes:
        mean: Of red, green and blue in 0..1, to subtract from inputs.
        deviation: Of red, green and blue in 0..1, to divide inputs by.
    """

    def __init__(self, name: str, *, strides: Sequence[int]) -> None:
        """Make the network with random weights; `weights.pretrained` fetches timm's.

        Args:
            name: timm's name, such as "resnet18.a1_in1k".
            strides: The strides of the maps to return, finest first.

        Raises:
            ConfigError: For an unknown name, or one without maps of these strides.
        """
        import timm

        super().__init__()
        self.name = name
        check_timm_name(name, "feature_extractor.type")
        try:
            self.body = timm.create_model(name, pretrained=False, features_only=True)
        except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
            pass_shortage(error, f"timm/{name}")
            raise ConfigError(f"feature_extractor.type timm/{name}: it has no feature maps: {error}") from None
        info: Any = self.body.feature_info
        reductions = list(info.reduction())
        missing = [stride for stride in strides if stride not in reductions]
        if missing:
            raise ConfigError(f"timm/{name} has maps of strides {reductions}, none of {missing}")
        # Where several maps have one stride, the last is taken, which the most layers have contributed to.
        self.levels = tuple(len(reductions) - 1 - reductions[::-1].index(stride) for stride in strides)
        self.channels = tuple(info.channels()[level] for level in self.levels)
        # Transformers of windows, such as Swin, keep channels last.
        self.channels_last = getattr(getattr(self.body, "output_fmt", None), "value", "NCHW") == "NHWC"
        data: dict[str, Any] = getattr(self.body, "pretrained_cfg", None) or {}
        # ImageNet's, where timm does not say with what a network was trained.
        self.mean = tuple(data.get("mean", (0.485, 0.456, 0.406)))
        self.deviation = tuple(data.get("std", (0.229, 0.224, 0.225)))

    def penalize(self, regularizer: Regularizer) -> None:
        """Attach a regularizer to the kernels of its convolutions, which keep timm's initializers and normalization."""
        for module in self.body.modules():
            if isinstance(module, nn.Conv2d):
                setattr(module, "regularizer", regularizer)  # noqa: B010  # timm's type declares no such attribute

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return one map per stride, finest first."""
        maps = self.body(inputs)
        if self.channels_last:
            maps = [features.permute(0, 3, 1, 2) for features in maps]
        return [maps[level] for level in self.levels]
