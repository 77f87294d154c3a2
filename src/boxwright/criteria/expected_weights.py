"""Expected loss weights: what sampling of negatives would give on average, without its noise.

TensorFlow's configuration describes these methods, but its public code lacks their functions; what
follows is built from the fields' descriptions. Both give the negatives of an image a common weight β,
so that they count as `negative_ratio` per positive, but as `min_negatives` at least:
β = min(1, max(negative_ratio × positives, min_negatives) / negatives).

Dimensions: B batch, A anchors, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Balance:
    """How many negatives are wanted.

    Attributes:
        min_negatives: Effective negatives of an image, at least.
        negative_ratio: Effective negatives per positive.
    """

    min_negatives: float = 0.0
    negative_ratio: float = 3.0

    def beta(self, positive: Tensor) -> Tensor:
        """Compute the weight of negatives.

        Args:
            positive: float [B, A]; the probability that each anchor is positive.

        Returns:
            float [B, 1].
        """
        positives = positive.sum(1, keepdim=True)
        negatives = (positive.shape[1] - positives).clamp(min=1.0)
        return ((self.negative_ratio * positives).clamp(min=self.min_negatives) / negatives).clamp(max=1.0)


@dataclass(frozen=True)
class ExpectedSampling:
    """Weigh each anchor by how likely it is foreground, as its targets say (EXPECTED_SAMPLING).

    Attributes:
        balance: How many negatives are wanted.
    """

    balance: Balance

    def __call__(self, foreground: Tensor, match: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the weights.

        Args:
            foreground: float [B, A] in 0..1; the sum of an anchor's foreground targets.
            match: int64 [B, A]; not needed.

        Returns:
            The weights, float [B, A] each, of an anchor's loss against its targets, and of its loss
            against those of an unmatched anchor.
        """
        likely = foreground.clamp(0.0, 1.0)
        return likely, (1 - likely) * self.balance.beta(likely)


@dataclass(frozen=True)
class ReweightUnmatched:
    """Leave matched anchors as they are, and weigh unmatched ones (REWEIGHTING_UNMATCHED_ANCHORS).

    Attributes:
        balance: How many negatives are wanted.
    """

    balance: Balance

    def __call__(self, foreground: Tensor, match: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the weights.

        Args:
            foreground: float [B, A]; not needed.
            match: int64 [B, A], from a matcher.

        Returns:
            The weights, float [B, A] each, of an anchor's loss against its targets, and of its loss
            against those of an unmatched anchor.
        """
        matched = (match >= 0).to(foreground.dtype)
        return matched, (1 - matched) * self.balance.beta(matched)


ExpectedWeights = ExpectedSampling | ReweightUnmatched
