"""The check of what data hold and what of it is used."""

from __future__ import annotations

from collections.abc import Iterable

from boxwright.base.read_settings import MOST_LOST
from boxwright.data.account import take_account
from boxwright.data.dataset import Dataset
from boxwright.training.preflight.finding import Finding, Verdict
from boxwright.training.preflight.records import Progress


def check_account(dataset: Dataset, what: str, progress: Progress) -> Iterable[Finding]:
    """Yield the account of data."""
    account = take_account(dataset, lambda items: progress(f"{what} labels", items))
    lost = account.lost()
    verdict: Verdict = "fatal" if lost > MOST_LOST or not account.samples else "warning" if lost else "fine"
    remedy = "correct or remove them; boxwright doctor --fix writes what can be used" if lost else ""
    assumed = list(account.assumed.lines())
    counts = account.lines()[: -len(assumed) or None]
    yield Finding("account", verdict, f"{what}: " + "\n".join(counts), remedy)
    for line in assumed:
        yield Finding("assumed", "note", f"{what}: {line}", "boxwright inspect draws pictures with their boxes")
