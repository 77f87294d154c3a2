"""Distillation from a frozen network of timm's (RT-DETRv4: Liao et al., 2025).

In training the coarsest map, after its attention, is projected to the teacher's width and turned towards the teacher's
last map of the same images. The loss's weight follows the share of gradients that reaches the attention. The teacher
is no part of the network's state, and nothing here is used in detection.

Dimensions: B batch, D width of the student's map, C of the teacher's, h w grid.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.base.distributed import gathered
from boxwright.base.errors import CheckpointError, ConfigError, first_line, shortened
from boxwright.nn.backbones.timm_backbone import check_timm_name
from boxwright.nn.criteria.criterion import LossTerm

# A share below this counts as none, and a weight changes at most tenfold at a time, as in the authors' code.
_NO_SHARE, _MOST_CHANGE = 1e-6, 10.0


@dataclass(frozen=True)
class Imitation:
    """The two maps that distillation compares.

    Attributes:
        student: float [B, C, h, w].
        teacher: float [B, C, h', w'], without a graph.
        weight: The weight of the loss, a scalar without a graph.
    """

    student: Tensor
    teacher: Tensor
    weight: Tensor


def compute_distillation(imitation: Imitation) -> LossTerm:
    """Return 1 - the cosine between both maps, averaged over positions and images, times its weight.

    Where the grids differ, the teacher's map is resized to the student's.
    """
    student, teacher = imitation.student.float(), imitation.teacher.float()
    if teacher.shape[-2:] != student.shape[-2:]:
        teacher = F.interpolate(teacher, student.shape[-2:], mode="bilinear", align_corners=False)
    distances = 1 - F.cosine_similarity(student, teacher, dim=1)
    # Filled on the device: `torch.tensor` would copy from the CPU, and wait for a GPU.
    images = torch.full((), float(len(student)), device=student.device)
    return LossTerm(imitation.weight * distances.mean((1, 2)).sum(), images)


class Teacher:
    """The last map of a timm network that does not learn.

    Attributes:
        width: C.
    """

    def __init__(self, name: str, weights: str = "", pooling: int = 2) -> None:
        """Look up the network, of which no weights are made or read yet.

        Args:
            name: timm's name, such as "vit_base_patch16_dinov3.lvd1689m".
            weights: A file of its weights; empty to fetch them from Hugging Face's hub.
            pooling: Pixels per side that are averaged into one that the teacher sees.

        Raises:
            ConfigError: For an unknown name, or one without maps.
        """
        import timm

        check_timm_name(name, "distillation.teacher")
        with torch.device("meta"):
            outline: Any = timm.create_model(name, num_classes=0)
        if not hasattr(outline, "forward_intermediates"):
            raise ConfigError(f"distillation.teacher timm/{name}: it returns no feature maps")
        self.name, self.weights, self.pooling = name, weights, pooling
        self.width = int(outline.num_features)
        # Vision transformers take inputs of one size unless they are told otherwise.
        self._options: dict[str, Any] = {"dynamic_img_size": True} if hasattr(outline, "dynamic_img_size") else {}
        self._patch = max(getattr(getattr(outline, "patch_embed", None), "patch_size", (1, 1)))
        self._body: Any = None

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Return the map [B, C, h, w] of images float [B, 3, H, W] in 0..1; the first call reads the weights.

        Raises:
            ConfigError: If the sides are no multiples of the teacher's patches, or timm has no weights and no file is
                named.
            CheckpointError: If the weights cannot be read or fetched.
        """
        if self._body is None:
            self._body = self._open().to(images.device)
        pixels = F.avg_pool2d(images, self.pooling) if self.pooling > 1 else images
        if pixels.shape[-2] % self._patch or pixels.shape[-1] % self._patch:
            raise ConfigError(
                f"distillation.teacher timm/{self.name}: expected sides that are multiples of {self._patch}, found "
                f"{pixels.shape[-2]}×{pixels.shape[-1]} after a pooling of {self.pooling}; change image_resizer or "
                "pooling"
            )
        mean, deviation = (
            torch.tensor(self._body.pretrained_cfg[key], device=pixels.device).view(-1, 1, 1) for key in ("mean", "std")
        )
        features: list[Tensor] = self._body.forward_intermediates(
            (pixels - mean) / deviation, indices=1, norm=True, output_fmt="NCHW", intermediates_only=True
        )
        return features[-1]

    def _open(self) -> nn.Module:
        """Return the network with its weights."""
        import timm

        if not self.weights and not timm.models.is_model_pretrained(self.name):
            raise ConfigError(
                f"distillation.teacher timm/{self.name}: timm has no weights of it; name a file by teacher_checkpoint"
            )
        file = {"file": self.weights} if self.weights else None
        try:
            # What the step draws afterwards must not depend on whether the teacher was opened in it.
            with torch.random.fork_rng(devices=[]):
                body: nn.Module = timm.create_model(
                    self.name, pretrained=True, pretrained_cfg_overlay=file, num_classes=0, **self._options
                )
        except Exception as error:  # three libraries are involved, each with its own exceptions
            where = shortened(self.weights, 200) if self.weights else "Hugging Face's hub"
            raise CheckpointError(
                f"distillation.teacher: the weights of timm/{self.name} could not be read from {where} "
                f"({type(error).__name__}: {first_line(error)}); connect to huggingface.co once, or name a file of "
                "them by teacher_checkpoint"
            ) from error
        return body.eval().requires_grad_(False)


@dataclass(frozen=True)
class WeightSchedule:
    """How the weight of distillation follows the attention's share of the gradients.

    Attributes:
        start: The weight until it adapts first.
        default: The weight where the attention has no gradients, and from step `default_from` on.
        target: The share that is aimed at, in 0..1.
        tolerance: How far the share may be from that without a change.
        every: Steps from one adaptation to the next.
        default_from: 0 for never.
        measures_alone: Whether one process measures the share, too; the authors' code finds 0 there.
    """

    start: float = 5.0
    default: float = 20.0
    target: float = 0.11
    tolerance: float = 0.01
    every: int = 1000
    default_from: int = 0
    measures_alone: bool = True

    def adapt(self, weight: Tensor, share: Tensor, step: int) -> Tensor:
        """Return the weight from a step on, given the one before and the mean share since it changed; scalars."""
        default = torch.full_like(weight, self.default)
        if 0 < self.default_from <= step or not self._is_measured():
            return default
        low, high = self.target - self.tolerance, self.target + self.tolerance
        # The far edge of the band is aimed at, so that the share comes to lie within.
        aim = torch.where(share < low, high, low)
        change = (aim * (1 - share) / (share * (1 - aim))).clamp(1 / _MOST_CHANGE, _MOST_CHANGE)
        within = (share >= low) & (share <= high)
        return torch.where(share < _NO_SHARE, default, torch.where(within, weight, weight * change))

    def _is_measured(self) -> bool:
        together = torch.distributed.is_available() and torch.distributed.is_initialized()
        return self.measures_alone or (together and torch.distributed.get_world_size() > 1)


class Distiller(nn.Module):
    """The student's projection, and the loss's weight with what it follows from.

    Attributes:
        weight: The weight, a scalar.
        shares: The sum of the shares since the weight changed, and their number, [2].
    """

    weight: Tensor
    shares: Tensor

    def __init__(self, depth: int, teacher: Teacher, schedule: WeightSchedule) -> None:
        """Build the projection of a map of so many channels to the teacher's width."""
        super().__init__()
        self.projector = nn.Linear(depth, teacher.width)
        self.teacher, self.schedule = teacher, schedule
        self.register_buffer("weight", torch.tensor(schedule.start))
        self.register_buffer("shares", torch.zeros(2))

    def forward(self, features: Tensor, images: Tensor) -> Imitation:
        """Return what is compared, of the student's map [B, D, h, w] and images [B, 3, H, W] in 0..1."""
        projected = self.projector(features.movedim(1, -1)).movedim(-1, 1)
        # A copy, as the weight changes in place before the next step, and a graph may be kept for longer.
        return Imitation(projected, self.teacher(images), self.weight.clone())

    @torch.no_grad()
    def begin_step(self, step: int) -> None:
        """Adapt the weight where that is due."""
        if step and step % self.schedule.every == 0:
            total, count = self.shares.unbind()
            adapted = self.schedule.adapt(self.weight, total / count.clamp(min=1), step)
            # A step that is tried again has adapted the weight before.
            self.weight.copy_(torch.where(count > 0, adapted, self.weight))
            self.shares.zero_()

    @torch.no_grad()
    def observe(self, attention: Iterable[Tensor], network: Iterable[Tensor]) -> None:
        """Take in the share of the gradients' L1 norm that the attention's weights have among the network's."""
        part, whole = (
            gathered(torch.nn.utils.get_total_norm([p.grad for p in weights if p.grad is not None], 1.0))
            for weights in (attention, network)
        )
        # Gradients of 0, or that overflowed in float16, have no share.
        counts = whole.isfinite() & (whole > 0)
        share = torch.where(counts, part / whole, torch.zeros_like(whole))
        self.shares += torch.stack([share, counts.to(share)]).to(self.shares)
