"""The loss of heatmaps against its formula, written out and differentiated by PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from boxwright.nn.criteria import classification_losses
from boxwright.nn.criteria.classification_losses import penalty_reduced_focal_loss

CLIP = 1e-4


def written_out(logits: Tensor, targets: Tensor, weights: Tensor, alpha: float, beta: float) -> Tensor:
    """Return CornerNet's equation 1 with probabilities clipped as in TF."""
    p = torch.sigmoid(logits).clamp(CLIP, 1 - CLIP)
    positive = (1 - p) ** alpha * p.log()
    negative = (1 - targets) ** beta * p**alpha * (1 - p).log()
    return (-torch.where(targets == 1, positive, negative) * weights).sum(-1)


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 4.0), (1.5, 3.0), (0.0, 0.0)])
@pytest.mark.parametrize("columns", [1, 7])
@pytest.mark.parametrize("in_cache", [1 << 17, 40])
def test_values_and_gradients(
    alpha: float, beta: float, columns: int, in_cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where logits are clipped, targets are 1 or nearly so, and rows are computed in several parts."""
    monkeypatch.setattr(classification_losses, "_IN_CACHE", in_cache)
    generator = torch.Generator().manual_seed(0)
    logits = (12 * torch.randn(2, 30, 7, generator=generator, dtype=torch.float64)).requires_grad_()
    targets = torch.rand(2, 30, 7, generator=generator, dtype=torch.float64)
    targets[:, ::3] = 1.0
    targets[:, 1::5] = 0.0
    weights = torch.rand(2, 30, columns, generator=generator, dtype=torch.float64)
    upstream = torch.rand(2, 30, generator=generator, dtype=torch.float64)
    wanted = written_out(logits, targets, weights, alpha, beta)
    found = penalty_reduced_focal_loss(logits, targets, weights, alpha=alpha, beta=beta, clip=CLIP)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    (slope,), (expected,) = (torch.autograd.grad(loss, logits, upstream) for loss in (found, wanted))
    torch.testing.assert_close(slope, expected, rtol=1e-7, atol=1e-12)
    assert (slope == 0).any(), "some logits are clipped"
    with torch.no_grad():
        again = penalty_reduced_focal_loss(logits, targets, weights, alpha=alpha, beta=beta, clip=CLIP)
    torch.testing.assert_close(again, wanted, rtol=1e-9, atol=1e-12)
