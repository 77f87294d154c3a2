"""Random numbers that follow from keys."""

from __future__ import annotations

import torch

from boxwright.nn.uniforms import uniforms


def test_the_same_key_gives_the_same_numbers_in_any_batch() -> None:
    keys = torch.tensor([5, 2**62 + 3, 0, 5])
    found = uniforms(keys, 100)
    assert torch.equal(found[0], found[3])
    assert torch.equal(found[1:2], uniforms(keys[1:2], 100))
    assert torch.equal(found[:, :7], uniforms(keys, 7))


def test_numbers_are_uniform_and_independent() -> None:
    drawn = uniforms(torch.arange(2000) + 2**40, 50)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = torch.histc(drawn, 20, 0, 1)
    # 5000 expected a bin, with a deviation of 69.
    assert (counts - 5000).abs().max() < 5 * 69
    for others in (drawn.roll(1, 0), drawn.roll(1, 1), uniforms(torch.arange(2000) + 2**40, 50, stream=1)):
        pairs = torch.stack([drawn.flatten(), others.flatten()])
        # The correlation of 100,000 independent pairs has a deviation of 0.0032.
        assert abs(float(torch.corrcoef(pairs)[0, 1])) < 0.016


def test_keys_that_differ_in_their_upper_half_alone_differ() -> None:
    drawn = uniforms(torch.tensor([1, 1 + 2**33, 1 + 2**34]), 8)
    assert len({tuple(row) for row in drawn.tolist()}) == 3
