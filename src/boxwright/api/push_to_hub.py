"""`boxwright.push_to_hub`: a model on Hugging Face's hub, with a card that says what it is and what it measured.

The hub reads a published model's page from a header of the card; people read the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from boxwright.base.errors import CheckpointError, ExportError, OutputError, first_line, shortened
from boxwright.base.files import read_file, shown
from boxwright.base.text import counted
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.runtime.formats import is_export
from boxwright.training.log import read_lines
from boxwright.types import Categories
from boxwright.weights.export_weights import pack_weights_folder
from boxwright.weights.hub import LOGIN, HubAddress, hub_address
from boxwright.weights.open_model import run_folder
from boxwright.weights.pedigree import describe_origin
from boxwright.weights.restore import restore_detector

_SHOWN = 100
# The hub's name of a metric, by the beginning of ours; others keep their own.
_MEAN_PRECISION = "DetectionBoxes_Precision/mAP"


@dataclass(frozen=True)
class CardContent:
    """What a card says of a model.

    Attributes:
        repository: USER/NAME.
        parameters: How many numbers are learned.
        license: The license's identifier on the hub; None to say nothing of it.
    """

    repository: str
    config: TrainEvalPipelineConfig
    categories: Categories | None
    step: int
    parameters: int
    license: str | None = None


def model_card(facts: CardContent, metrics: Mapping[str, float]) -> str:
    """Return the text of a model's card, with the metadata that the hub shows and searches."""
    # Average precision of classes and sizes without objects is -1.
    finite = {
        name: float(value)
        for name, value in metrics.items()
        if math.isfinite(value) and value != -1 and not name.startswith("Loss/")
    }
    name = facts.repository.partition("/")[2]
    return f"""---
{_metadata(facts, name, finite)}
---

# {name}

A detector of objects, trained with Boxwright {version("boxwright")} for {facts.step} steps.

```python
import boxwright as bw

model = bw.load("hf://{facts.repository}")
result = model("photo.jpg")
```

| | |
|---|---|
| detector | {_plain(_family(facts.config))} |
| parameters | {facts.parameters:,} |
| {_classes(facts.categories)} |

`pipeline.config` has the whole configuration, without the data's paths.
{_origins(facts.config)}
## Metrics

{_table(finite)}
"""


def _metadata(facts: CardContent, name: str, metrics: Mapping[str, float]) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="object-detection",
            dataset_type="own",
            dataset_name="the run's evaluation data",
            metric_type="mean_average_precision" if metric == _MEAN_PRECISION else metric,
            metric_name=metric,
            metric_value=value,
        )
        for metric, value in metrics.items()
    ]
    family = facts.config.model.which("model") if facts.config.model else None
    data = ModelCardData(
        library_name="boxwright",
        license=facts.license,
        pipeline_tag="object-detection",
        tags=["object-detection", "boxwright", *([family] if family else [])],
        model_name=name if results else None,
        eval_results=results or None,
    )
    return data.to_yaml().strip()


def _family(config: TrainEvalPipelineConfig) -> str:
    """Return the detector's kind, and its feature extractor's where it has a name."""
    model = config.model
    family = model.which("model") if model else None
    if model is None or family is None:
        return "own"
    extractor = getattr(getattr(model, family), "feature_extractor", None)
    kind = getattr(extractor, "type", "")
    return f"{family}, {kind}" if kind else family


def _classes(categories: Categories | None) -> str:
    if categories is None:
        return "classes | not named"
    names = [_plain(category.title) for category in categories]
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{counted(len(names), 'class', 'classes')} | {', '.join(names[:_SHOWN])}{rest}"


def _table(metrics: Mapping[str, float]) -> str:
    if not metrics:
        return "The run was not evaluated at this step."
    rows = [f"| {_plain(name)} | {value:.4f} |" for name, value in metrics.items()]
    return "\n".join(["On the run's own evaluation data:", "", "| metric | value |", "|---|---|", *rows])


def _origins(config: TrainEvalPipelineConfig) -> str:
    """Return the paragraph about the published weights that a model's own descend from; empty if there are none."""
    rows = [f"- {_plain(describe_origin(origin))}" for origin in config.pedigree]
    return "\n".join(["", "Its weights descend from:", "", *rows, ""]) if rows else ""


def _plain(text: str) -> str:
    """Return a text for a cell of a table, in which nothing of it is markup."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", " ".join(text.split()))


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
    if is_export(path):
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

    return sum(parameter.numel() for parameter in network.parameters()) if isinstance(network, nn.Module) else 0


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
