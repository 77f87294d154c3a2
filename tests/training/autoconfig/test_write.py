"""A preset's schedule, for a run of another length."""

from __future__ import annotations

from boxwright.config.load import dump_message, parse_message
from boxwright.pipeline import messages as m
from boxwright.training.autoconfig.write import fitted_optimizer


def stretched(rate: str, before: int, after: int) -> str:
    optimizer = parse_message(f"adam_optimizer {{ learning_rate {{ {rate} }} }}", m.Optimizer)
    text = dump_message(optimizer)
    found = " ".join(dump_message(fitted_optimizer(optimizer, before, after)).split())
    assert dump_message(optimizer) == text  # the one that is given stays
    return found


def test_every_count_of_steps_follows_the_length() -> None:
    """A tenth of the steps: of each field a tenth, at least 1; rates and factors stay."""
    cosine = "cosine_decay_learning_rate { learning_rate_base: 0.5 total_steps: 5000 warmup_steps: 300 }"
    assert "total_steps: 500 warmup_steps: 30" in stretched(cosine, 5000, 500)
    held = "cosine_decay_learning_rate { total_steps: 5000 warmup_steps: 0 hold_base_rate_steps: 40 }"
    assert "total_steps: 500 warmup_steps: 0 hold_base_rate_steps: 4" in stretched(held, 5000, 500)
    decay = "exponential_decay_learning_rate { initial_learning_rate: 0.5 decay_steps: 700 burnin_steps: 200 }"
    assert "initial_learning_rate: 0.5 decay_steps: 70" in stretched(decay, 5000, 500)
    assert "burnin_steps: 20" in stretched(decay, 5000, 500)
    steps = "manual_step_learning_rate { schedule { step: 1000 learning_rate: 0.5 } schedule { step: 3 } }"
    found = stretched(steps, 5000, 500)
    assert "step: 100 learning_rate: 0.5" in found
    assert "step: 1 }" in found
