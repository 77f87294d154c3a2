"""The folder of recordings to check against: the one that BOXWRIGHT_GOLDEN names, or the one shipped."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import GOLDEN

FOLDER = Path(os.environ.get("BOXWRIGHT_GOLDEN") or GOLDEN)
UNSUPPORTED: list[str] = []
MATCHED: list[str] = []


def unsupported(name: str, why: object) -> NoReturn:
    """Report a recording of something that Boxwright does not have: counted and listed, not passed over."""
    if FOLDER == GOLDEN:
        pytest.fail(f"{name} is shipped, so it must be supported: {why}")
    UNSUPPORTED.append(f"{name}: {str(why).splitlines()[0]}")
    pytest.skip(f"unsupported: {name}: {why}")


@dataclass(frozen=True)
class Case:
    """One recorded component.

    Attributes:
        description: Its entry of components.json.
        arrays: All arrays of the folder.
    """

    description: dict[str, Any]
    arrays: Any

    def __getattr__(self, name: str) -> Any:
        return self.description[name]

    def array(self, name: str) -> NDArray[Any]:
        return np.asarray(self.arrays[f"{self.description['id']}/{name}"])

    def has(self, name: str) -> bool:
        return f"{self.description['id']}/{name}" in self.arrays.files


def components() -> list[Case]:
    path = FOLDER / "components.json"
    if not path.is_file():
        return []
    arrays = np.load(FOLDER / "components.npz")
    return [Case(description, arrays) for description in json.loads(path.read_text())]


def unclaimed() -> list[str]:
    """Name what the folder holds that no test here looks at."""
    claimed = {"components", "models", "checkpoint", "metrics", "records", "networks", "refinedet", "weights"}
    claimed |= {"README", "__init__", "__pycache__", "pipeline_schema", "tensorflow_ops"}
    return sorted({path.name for path in FOLDER.iterdir() if path.name.split(".")[0] not in claimed})


def model_names() -> list[str]:
    return sorted(path.stem for path in (FOLDER / "models").glob("*.json"))
