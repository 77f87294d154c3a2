"""Normalization as TF trains it: of batches, those of all processes too, or with stored statistics; and of groups.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.nn.modules import _functions as functions

from boxwright.base.device import in_float64
from boxwright.base.errors import ConfigError


@dataclass(frozen=True)
class BatchNormSettings:
    """The settings of batch normalization.

    Attributes:
        sync: Whether the statistics are those of all processes' batches together.
    """

    decay: float = 0.999
    epsilon: float = 0.001
    center: bool = True
    scale: bool = True
    sync: bool = False


class BatchNorm2d(nn.BatchNorm2d):
    """Batch normalization that also trains on a single value per channel, as TF's does.

    A batch of one image has one value per channel in SSD's last map: its deviation is 0, and the output is the bias.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the same shape."""
        if self.momentum is None:  # a cumulative average, which needs the count of batches
            return super().forward(input)
        if not self.training or input.shape[0] * input.shape[2] * input.shape[3] > 1:
            # PyTorch's own `forward` counts batches: one launch per layer for a number that nothing reads.
            return F.batch_norm(
                input,
                self.running_mean,
                self.running_var,
                self.weight,
                self.bias,
                self.training,
                self.momentum,
                self.eps,
            )
        flattened = input.detach().flatten().float()
        self.move_averages(flattened, torch.zeros_like(flattened))
        # Zeros that keep input and gain in the graph, and are not finite where the input is not.
        flat = (input - input) * self.weight[:, None, None] + self.bias[:, None, None]
        return flat.to(input.dtype)

    @torch.no_grad()
    def move_averages(self, mean: Tensor, variance: Tensor) -> None:
        """Update the stored statistics with a batch's, float32 [C] each."""
        if self.running_mean is not None and self.running_var is not None and self.momentum is not None:
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance, self.momentum)


def gain_and_shift(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Return the factor and the summand of normalization with stored statistics, float64 [C] each."""
    if norm.running_mean is None or norm.running_var is None:
        raise TypeError("normalization without stored statistics has no fixed factor")
    gain = torch.rsqrt(in_float64(norm.running_var) + norm.eps)
    shift = -in_float64(norm.running_mean) * gain
    if norm.affine:
        gain, shift = gain * in_float64(norm.weight), shift * in_float64(norm.weight) + in_float64(norm.bias)
    return gain, shift


class _Total(torch.autograd.Function):
    """The sum of a tensor over all processes, differentiable on each."""

    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        del context
        total = value.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        del context
        total = gradient.clone()
        distributed.all_reduce(total)
        return total


class SyncBatchNorm2d(BatchNorm2d):
    """Batch normalization over the batches of all processes of a run (TF's `sync_batch_norm`).

    PyTorch's version is used on GPUs, the only devices that it supports. On CPUs mean and variance are summed in
    sequence, so that two processes agree with one that has both batches.

    Attributes:
        alone: Whether to normalize over this process's batch only, as when other processes do not take the same step.
    """

    alone: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Return the same shape."""
        together = distributed.is_initialized() and distributed.get_world_size() > 1 and not self.alone
        if not (self.training and together):
            return super().forward(input)
        if input.is_cuda:  # gathers mean, variance and count at once; the sums below take two exchanges
            return self._by_pytorch(input)
        values = input.float()
        count = values.new_full((1,), input.shape[0] * input.shape[2] * input.shape[3])
        sums: Tensor = _Total.apply(torch.cat([values.sum((0, 2, 3)), count]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centered = values - mean[:, None, None]
        squares: Tensor = _Total.apply(centered.square().sum((0, 2, 3)))
        variance = squares / count
        # Stored is the unbiased variance, as by PyTorch's own layer and by TF's fused kernel.
        self.move_averages(mean, variance * count / (count - 1).clamp(min=1))
        gain = self.weight * torch.rsqrt(variance + self.eps)
        return (centered * gain[:, None, None] + self.bias[:, None, None]).to(input.dtype)

    def _by_pytorch(self, input: Tensor) -> Tensor:
        group = distributed.group.WORLD
        normalized: Tensor = functions.SyncBatchNorm.apply(
            input.contiguous(memory_format=torch.channels_last),
            self.weight,
            self.bias,
            self.running_mean,
            self.running_var,
            self.eps,
            self.momentum,
            group,
            distributed.get_world_size(),
        )
        return normalized


def synchronize(network: nn.Module) -> None:
    """Let batch normalization within a network use the batches of all processes; its tensors stay the same."""
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if type(child) is BatchNorm2d:
                norm = SyncBatchNorm2d(child.num_features, eps=child.eps, momentum=child.momentum)
                norm.load_state_dict(child.state_dict())
                setattr(parent, name, norm)


@dataclass(frozen=True)
class GroupNormSettings:
    """The settings of group normalization (Wu and He, 2018), which TF-Slim fixes: gain and bias are learned.

    Attributes:
        refusal: Returns the error for channels that do not divide into groups, from its text.
    """

    groups: int = 32
    epsilon: float = 1e-6
    refusal: Callable[[str], Exception] = ConfigError


class GroupNorm2d(nn.GroupNorm):
    """Group normalization that also takes a single value per group, whose output is the bias, as TF's does."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the same shape."""
        # PyTorch's own `forward` refuses SSD's last map of a batch of one.
        return torch.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


NormSettings = BatchNormSettings | GroupNormSettings


def make_norm(channels: int, settings: NormSettings | None) -> nn.Module:
    """Return a normalization; an identity for None.

    Raises:
        ConfigError: If the channels do not divide into groups, as in TF-Slim.
    """
    if settings is None:
        return nn.Identity()
    if isinstance(settings, GroupNormSettings):
        if channels % settings.groups:
            raise settings.refusal(f"a layer's {channels} channels do not divide into {settings.groups} groups")
        return GroupNorm2d(settings.groups, channels, eps=settings.epsilon)
    kind = SyncBatchNorm2d if settings.sync else BatchNorm2d
    # PyTorch's momentum is the weight of the new batch, TF's decay that of the old average.
    norm = kind(channels, eps=settings.epsilon, momentum=1 - settings.decay)
    # What TF leaves out stays 1 or 0 here, so that a layer has the same tensors with any settings.
    norm.weight.requires_grad_(settings.scale)
    norm.bias.requires_grad_(settings.center)
    return norm
