"""`boxwright.push_to_hub`: a model on Hugging Face's hub, with a card that says what it is and what it measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from boxwright.api.model_card import CardContent, model_card
from boxwright.base.errors import CheckpointError, ExportError, OutputError, first_line, shortened
from boxwright.base.files import read_file, shown
from boxwright.runtime.formats import EXPORTS
from boxwright.training.log import read_lines
from boxwright.weights.configuration import run_folder
from boxwright.weights.hub import LOGIN, HubAddress, hub_address
from boxwright.weights.restore import restore_detector
from boxwright.weights.weights_folder import pack_weights_folder

_CARD, _MESSAGE = "README.md", "Add a model of Boxwright"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
# What stands beside the metrics in a line of the log.
_NO_METRICS = ("step", "evaluation", "learning_rate")


def push_to_hub(
    source: str | Path,
    repository: str,
    *,
    metrics: Mapping[str, float] | None = None,
    license: str | None = None,
    card: str | Path | None = None,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
) -> str:
    """Publish a model on Hugging Face's hub, in one commit; `boxwright.load("hf://USER/NAME")` opens it.

    The repository gets `model.safetensors`, `pipeline.config` without data and paths, `label_map.pbtxt` and a model
    card; it is created if it does not exist.

    Args:
        source: A run's folder (its newest checkpoint), or a checkpoint, as for `boxwright.load`.
        repository: USER/NAME.
        metrics: Metrics by name, for the card; by default those of the run's evaluation at the checkpoint's step.
        license: The license's identifier on the hub, such as "apache-2.0"; None to say nothing of it.
        card: A file to use as `README.md` in place of the card that is written.
        private: Whether a new repository is private; by default as the account's settings say.
        revision: The branch to commit to, created if it does not exist; by default the main one.
        token: The account's token; by default that of `hf auth login` or HF_TOKEN.

    Returns:
        The address of the commit.

    Raises:
        CheckpointError: If there is no such model, or it is an exported file, which has no weights to publish.
        OutputError: If the hub refuses it or cannot be reached; nothing is committed then.
    """
    if not _REPOSITORY.fullmatch(repository):
        raise OutputError(f"{shortened(repository, 200)!r}: expected USER/NAME, the repository to publish in")
    if hub_address(source) is not None:
        raise CheckpointError(f"{source} is on the hub already; pass a run's folder or a checkpoint")
    path = Path(source)
    if path.suffix in EXPORTS:
        raise ExportError(f"{shown(path)} is exported; pass the run, or its checkpoint, whose weights are published")
    detector, config, step = restore_detector(path)
    files = pack_weights_folder(detector, config, step)
    if card is not None:
        files[_CARD] = read_file(card, OutputError)
    else:
        measured = _measured(run_folder(path), step) if metrics is None else metrics
        facts = CardContent(
            repository, config, detector.categories, step, parameters=_count(detector.network), license=license
        )
        files[_CARD] = model_card(facts, measured).encode()
    return _commit(files, HubAddress(repository, revision), private=private, token=token)


def _measured(folder: Path, step: int) -> dict[str, float]:
    """Return the metrics of a run's first evaluation reader at a step; empty if it was not evaluated then."""
    rows = [row for row in read_lines(folder) if "evaluation" in row]
    of_step = [row for row in rows if row["evaluation"] == rows[0]["evaluation"] and row["step"] == step]
    values = of_step[-1] if of_step else {}
    return {name: value for name, value in values.items() if name not in _NO_METRICS and isinstance(value, float)}


def _count(network: object) -> int:
    from torch import nn

    return sum(one.numel() for one in network.parameters()) if isinstance(network, nn.Module) else 0


def _commit(files: Mapping[str, bytes], address: HubAddress, *, private: bool | None, token: str | None) -> str:
    """Commit files to a repository, created if missing, and return the commit's address."""
    from huggingface_hub import CommitOperationAdd, HfApi, errors

    api, repository, branch = HfApi(token=token), address.repository, address.revision
    operations = [CommitOperationAdd(name, content) for name, content in files.items()]
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        if branch is not None:
            api.create_branch(repository, branch=branch, exist_ok=True)
        done = api.create_commit(repository, operations, commit_message=_MESSAGE, revision=branch)
    except errors.LocalTokenNotFoundError:
        raise OutputError(f"{address}: publishing needs an account: {LOGIN}") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        hint = f"; {LOGIN}, with a token that may write there" if status in (401, 403) else ""
        raise OutputError(f"{address}: the hub refuses it: {first_line(error)}{hint}") from None
    except Exception as error:  # of the library that the hub's reaches the network with
        raise OutputError(f"{address}: not published: {type(error).__name__}: {first_line(error)}") from error
    return str(done.commit_url)
