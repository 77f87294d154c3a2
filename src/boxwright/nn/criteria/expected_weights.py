"""Expected loss weights: the average effect of sampling negatives, without its noise.

TensorFlow's configuration describes these methods, but its public code lacks them; they are implemented from the
fields' descriptions. Both weight the negatives of an image by a common β, so that they count as `negative_ratio` per
positive, but at least as `min_negatives`: β = min(1, max(negative_ratio × positives, min_negatives) / negatives).

Dimensions: B batch, A anchors, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Balance:
    """The effective number of negatives.

    Attributes:
        min_negatives: The minimum of effective negatives per image.
        negative_ratio: Effective negatives per positive.
    """

    min_negatives: float = 0.0
    negative_ratio: float = 3.0

    def beta(self, positive: Tensor) -> Tensor:
        """Return the weight of negatives, float [B, 1], from each anchor's probability to be positive, float [B, A]."""
        positives = positive.sum(1, keepdim=True)
        # At least 1: an image in which all anchors match has no negatives to divide by.
        negatives = (positive.shape[1] - positives).clamp(min=1.0)
        return ((self.negative_ratio * positives).clamp(min=self.min_negatives) / negatives).clamp(max=1.0)


@dataclass(frozen=True)
class ExpectedSampling:
    """Weight each anchor by the foreground probability in its targets (EXPECTED_SAMPLING)."""

    balance: Balance

    def __call__(self, foreground: Tensor, match: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights, float [B, A], of each anchor's loss against its targets and against unmatched targets.

        Args:
            foreground: float [B, A] in 0..1; the sum of an anchor's foreground targets.
        """
        likely = foreground.clamp(0.0, 1.0)
        return likely, (1 - likely) * self.balance.beta(likely)


@dataclass(frozen=True)
class ReweightUnmatched:
    """Weight unmatched anchors only (REWEIGHTING_UNMATCHED_ANCHORS)."""

    balance: Balance

    def __call__(self, foreground: Tensor, match: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights as `ExpectedSampling` does, from `match` int64 [B, A]; `foreground` is unused."""
        matched = (match >= 0).to(foreground.dtype)
        return matched, (1 - matched) * self.balance.beta(matched)


ExpectedWeights = ExpectedSampling | ReweightUnmatched
