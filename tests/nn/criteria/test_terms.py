"""Loss terms: totals, counts and divisors."""

from __future__ import annotations

import torch

from boxwright.nn.criteria.criterion import LossTerm


def test_a_term_is_divided_by_what_its_counts_give() -> None:
    counts = torch.tensor([9.0, 16.0])
    term = LossTerm(torch.tensor(35.0), counts, lambda both: both.sqrt().sum())
    assert float(term.value) == 5.0
    assert float(LossTerm(torch.tensor(3.0), torch.tensor(0.0)).value) == 3.0
    assert float(LossTerm(torch.tensor(3.0)).value) == 3.0


def test_terms_with_a_divisor_of_their_own_share_no_count() -> None:
    count = torch.tensor(4.0)
    plain = LossTerm(torch.tensor(8.0), count)
    assert LossTerm.share_count({"a": plain, "b": LossTerm(torch.tensor(1.0), count)})
    assert not LossTerm.share_count({"a": plain, "b": LossTerm(torch.tensor(1.0), count, torch.sqrt)})
    assert not LossTerm.share_count({"a": LossTerm(torch.tensor(1.0), count, torch.sqrt)})


def test_a_compiled_step_returns_terms() -> None:
    """As `--cuda_graphs` does, where a function among a term's fields was an error."""
    torch._dynamo.reset()
    run = torch.compile(lambda x: {"a": LossTerm(x.sum(), x.new_ones(()) * 2)}, fullgraph=True, backend="eager")
    assert float(run(torch.ones(6))["a"].value) == 3.0
