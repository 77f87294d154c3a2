"""The page of a published model: what the hub reads of it, and what people do."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.types import Categories

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
    names = [_plain(one.title) for one in categories]
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} classes | {', '.join(names[:_SHOWN])}{rest}"


def _table(metrics: Mapping[str, float]) -> str:
    if not metrics:
        return "The run was not evaluated at this step."
    rows = [f"| {_plain(name)} | {value:.4f} |" for name, value in metrics.items()]
    return "\n".join(["On the run's own evaluation data:", "", "| metric | value |", "|---|---|", *rows])


def _plain(text: str) -> str:
    """Return a text for a cell of a table, in which nothing of it is markup."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", " ".join(text.split()))
