"""The walk over autograd's graph gives PyTorch's gradients: on the CPU, where there is an engine to compare with."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from tests.cuda.backward import backward
from tests.cuda.families import ALL, learner_of


@pytest.mark.slow
@pytest.mark.parametrize("family", ["srn", *(pytest.param(one, marks=pytest.mark.slow) for one in ALL if one != "srn")])
def test_gradients_are_those_of_the_engine(family: str) -> None:
    found = []
    for walked in (False, True):
        learner, batch, _ = learner_of(family)
        with mock.patch("torch.autograd.backward", backward if walked else torch.autograd.backward):
            learner.step(batch)
        found.append({name: one.grad for name, one in learner.state.detector.network.named_parameters()})
    engine, ours = found
    assert len(engine) > 30
    for name, gradient in engine.items():
        if gradient is None:
            assert ours[name] is None
            continue
        torch.testing.assert_close(ours[name], gradient, rtol=1e-3, atol=1e-5 * float(gradient.abs().max()) + 1e-7)
