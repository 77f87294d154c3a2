"""Weights that others have published, by name: where they are, what they are, and under which terms.

The table is `assets/published_weights.toml`; a further one, of a team's own files, is the file that the variable
BOXWRIGHT_WEIGHTS_TABLE names. Nothing here is fetched.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from boxwright.base.errors import CheckpointError, ConfigError, first_line
from boxwright.base.files import read_file, shown
from boxwright.base.nearest import did_you_mean
from boxwright.config.preset import preset_names
from boxwright.pipeline import messages as m
from boxwright.pipeline.load import load_config
from boxwright.types.categories import Categories, Category, coco_classes, coco_classes_by_id
from boxwright.types.class_names import objects365_classes, snapshot_serengeti_classes

_TABLE = "published_weights.toml"
_OWN_TABLE = "BOXWRIGHT_WEIGHTS_TABLE"
_WHOLE_DIGEST = 64


@dataclass(frozen=True, kw_only=True)
class PublishedWeights:
    """A published file of weights.

    Attributes:
        name: What users type, such as d_fine_s_coco.
        file: The file's name in the cache, which is also its name for carrying it there by hand.
        address: https://…, or hf://USER/NAME[@REVISION]/FILE on Hugging Face's hub; empty where the page alone leads
            to it.
        page: Where it is described.
        publisher: Who published it.
        holds: A whole detector, or a classifier as a backbone.
        presets: Those whose network it fits; a detector is opened with the first.
        overrides: Changes of that preset for this file.
        own_configuration: Whether it is an archive that is opened with the configuration inside, as there is no preset.
        classes: coco80, coco90 and coco91 (by COCO's ids, without and with a row of background), objects365 (by its
            ids, with an unused row 0), and others.
        data: What it was trained on.
        license: Of the weights, as their publisher states it; "not stated" otherwise.
        code_license: Of the code that the weights come with.
        terms: What to know of the terms of the data; empty if there is nothing to say.
        refused: Why it is not supported, as the end of a sentence about it; empty where nothing forbids it.
        size: The file's size in bytes; None if it is not known exactly.
        sha256: Its digest; only the first eight digits where its name states no more; empty if none is stated.
        digest_by: Who states the digest: its publisher, or third parties.
        ap: The average precision that its authors state, in percent, on COCO's val2017 unless `ap_note` says otherwise.
        ap_note: Of what that is.
        input_size: The size of inputs that it is meant for.
        shown: How opening such a file was checked.
    """

    name: str
    file: str
    page: str
    publisher: str
    classes: str
    data: tuple[str, ...]
    license: str
    code_license: str
    shown: Literal["real weights", "recordings", "not shown"]
    address: str = ""
    holds: Literal["detector", "backbone"] = "detector"
    presets: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    own_configuration: bool = False
    terms: str = ""
    refused: str = ""
    size: int | None = None
    sha256: str = ""
    digest_by: Literal["publisher", "third parties", ""] = ""
    ap: float | None = None
    ap_note: str = ""
    input_size: str = ""

    @property
    def opens(self) -> bool:
        """Whether it can be opened as a detector."""
        return self.holds == "detector" and bool(self.presets or self.own_configuration)

    @property
    def coco_box_ap(self) -> float | None:
        """The average precision of its boxes on COCO's val2017 that its authors state; None if they state none."""
        return self.ap if not self.ap_note or self.ap_note.startswith("of boxes") else None

    @property
    def whole_digest(self) -> str:
        """The SHA-256 of the file; empty if only a part of it, or nothing, is stated."""
        return self.sha256 if len(self.sha256) == _WHOLE_DIGEST else ""

    @property
    def categories(self) -> Categories | None:
        """The classes' names; None if they are not known."""
        match self.classes:
            case "coco80":
                return coco_classes()
            case "coco90" | "coco91":
                return coco_classes_by_id()
            case "objects365":
                return objects365_classes()
            case "serengeti48":
                return snapshot_serengeti_classes()
            case "wider_face":
                return Categories((Category(0, 1, "face"),))
        return None

    def check_supported(self) -> None:
        """Raise a CheckpointError where something forbids its use here."""
        if self.refused:
            raise CheckpointError(f"{self.name} {self.refused}")

    def require_detector(self) -> None:
        """Raise a CheckpointError if it is no detector, or one that is not supported or not opened."""
        self.check_supported()
        if not self.opens:
            what = "a backbone's weights, to start a training from" if self.holds == "backbone" else "not opened yet"
            raise CheckpointError(f"{self.name}: {what}; `boxwright weights list` marks the names that can be opened")

    def configuration(self) -> m.TrainEvalPipelineConfig:
        """Return the configuration of the detector that it is.

        Raises:
            CheckpointError: If it is no detector, is of a kind that is not built, or has its configuration inside.
        """
        self.require_detector()
        if not self.presets:
            raise CheckpointError(
                f"{self.name}: no preset has its network, which the configuration in its archive describes: "
                "it detects, and is not fine-tuned by name"
            )
        return load_config(f"preset:{self.presets[0]}", self.overrides)

    def origin(self, sha256: str) -> m.WeightsOrigin:
        """Return it as an entry of a model's pedigree, with the digest of the file that was read."""
        return m.WeightsOrigin(
            name=self.name,
            file=self.file,
            sha256=sha256,
            publisher=self.publisher,
            page=self.page,
            license=self.license,
            data=list(self.data),
        )


@cache
def published_weights() -> tuple[PublishedWeights, ...]:
    """Return the table, a team's own before what comes with Boxwright.

    Raises:
        ConfigError: If a team's own table cannot be read.
    """
    shipped = tuple(_entries(tomllib.loads(files("boxwright.assets").joinpath(_TABLE).read_text("utf-8"))))
    path = own_table()
    if path is None:
        return shipped
    try:
        own = tuple(_entries(tomllib.loads(read_file(path, ConfigError).decode())))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{_OWN_TABLE}: {shown(path)}: not a table of weights: {first_line(error)}") from None
    return own + shipped


def own_table() -> Path | None:
    """Return the file of a team's own table; None without one."""
    path = os.environ.get(_OWN_TABLE)
    return Path(path) if path else None


def _entries(table: dict[str, Any]) -> Iterator[PublishedWeights]:
    """Yield the weights of a table's groups, each with what its group shares."""
    for group in table.values():
        shared = {key: value for key, value in group.items() if key != "weights"}
        for name, own in group["weights"].items():
            fields = {**shared, **own}
            lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
            address = fields.get("address", "").replace("{file}", fields["file"])
            yield PublishedWeights(name=name, **{**fields, **lists, "address": address})


def find_published(name: str) -> PublishedWeights | None:
    """Return the weights of a name; None if there are none."""
    return next((weights for weights in published_weights() if weights.name == name), None)


def published_for(preset: str) -> tuple[PublishedWeights, ...]:
    """Return the weights that fit a preset: whole detectors first, and those first that name this preset first."""
    fitting = [weights for weights in published_weights() if preset in weights.presets]
    return tuple(sorted(fitting, key=lambda weights: (weights.holds != "detector", weights.presets[0] != preset)))


def explain_unknown(source: str | Path, missing: str) -> str:
    """Return an error about what is neither a path nor published weights: a preset's weights, or the nearest name.

    Args:
        missing: What there is none of, such as "no such checkpoint".
    """
    name = str(source)
    if name not in preset_names():
        return f"{shown(source)}: {missing}{did_you_mean(name, [weights.name for weights in published_weights()])}"
    detectors = [weights.name for weights in published_for(name) if weights.holds == "detector" and weights.opens]
    if not detectors:
        remedy = f"none are published for it; train one: boxwright train DATA --model {name}"
    else:
        first, *others = detectors
        more = f" (or {', '.join(others)})" if others else ""
        remedy = f'its published weights are {first}{more}: bw.load("{first}"), or --model {first}'
    return f"{name} is a preset, a network without weights; {remedy}"
