"""The safe content of a .pt2: plain tensors, and a graph that only computes.

`torch.export.load` unpickles files that the archive's tables name, loads compiled libraries in the archive, evaluates
expressions, and calls any function of `torch` that a node names. So the archive may only contain what
`boxwright export` writes, and PyTorch reads a new archive of the checked members.
"""

from __future__ import annotations

import json
import re
from typing import Any

from boxwright.base.errors import ExportError
from boxwright.runtime.pt2_members import Members
from boxwright.weights.pt2_graph import checked_graph, plain_nodes

_GRAPH = "models/model.json"
_SAMPLE_INPUTS = "data/sample_inputs/model.pt"
_FQN = re.compile(r"[A-Za-z0-9_.]+")
_TABLES = {
    "data/weights/model_weights_config.json": ("data/weights", re.compile(r"weight_[0-9]{1,6}")),
    "data/constants/model_constants_config.json": ("data/constants", re.compile(r"tensor_[0-9]{1,6}")),
}


def plain_members(members: Members) -> Members:
    """Return the members of a PyTorch program without pickled data and its author's file names."""
    graph = json.dumps(plain_nodes(json.loads(members[_GRAPH]))).encode()
    return {**members, _GRAPH: graph, _SAMPLE_INPUTS: b""}


def checked_members(members: Members, name: str) -> Members:
    """Return an archive's members that PyTorch may read, with all JSON rewritten from what was checked.

    Raises:
        ExportError: If a member is pickled or malformed, or names a function that is not an operator.
    """
    if members.get(_SAMPLE_INPUTS):
        raise ExportError(f"{name}: its sample inputs are pickled, which can run code; it is not opened")
    checked = dict(members)
    for table, (folder, pattern) in _TABLES.items():
        content = _json(members, table, name)
        _check_table(content, folder, pattern, members, f"{name}: {table}")
        checked[table] = json.dumps(content).encode()
    checked[_GRAPH] = json.dumps(checked_graph(_json(members, _GRAPH, name), name)).encode()
    # The loader expects the member, and takes an empty one for no inputs.
    return {**checked, _SAMPLE_INPUTS: b""}


def _json(members: Members, member: str, name: str) -> Any:
    try:
        return json.loads(members[member])
    except KeyError:
        raise ExportError(f"{name}: it contains no {member}") from None
    except (ValueError, RecursionError):
        raise ExportError(f"{name}: its {member} is not JSON") from None


def _check_table(content: Any, folder: str, pattern: re.Pattern[str], members: Members, where: str) -> None:
    entries = content.get("config") if isinstance(content, dict) else None
    if not isinstance(entries, dict) or set(content) != {"config"}:
        raise ExportError(f"{where} is damaged")
    for tensor, about in entries.items():
        here = f"{where}: {tensor[:80]!r}"
        if not _FQN.fullmatch(tensor):
            raise ExportError(f"{here} is not the name of a tensor; it is not opened")
        if not isinstance(about, dict):
            raise ExportError(f"{here} is damaged")
        if about.get("use_pickle") is not False:
            raise ExportError(f"{here} is pickled, which can run code; it is not opened")
        path = about.get("path_name")
        if not isinstance(path, str) or not pattern.fullmatch(path):
            raise ExportError(f"{here} is {str(path)[:80]!r}, which is not a plain tensor; it is not opened")
        size = len(members.get(f"{folder}/{path}", b""))
        if f"{folder}/{path}" not in members or (_elements(about, here) and not size):
            raise ExportError(f"{here}: {path} is not in the file, or empty")


def _elements(about: dict[str, Any], here: str) -> int:
    """Return the number of elements by a tensor's sizes."""
    try:
        count = 1
        for side in about["tensor_meta"]["sizes"]:
            count *= side["as_int"]
        # JSON may have floats or true as sides.
        if type(count) is not int or not 0 <= count < 2**63:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise ExportError(f"{here} has damaged sizes") from None
    return count
