"""What PyTorch may be given of a .pt2: plain tensors, and a graph that only computes.

`torch.export.load` unpickles what tables in the archive tell it to, loads compiled libraries that lie in it, evaluates
expressions, and calls whatever function of `torch` a node names. So the archive's members are held to what
`boxwright export` writes, and PyTorch reads a new archive, of what was checked.
"""

from __future__ import annotations

import json
import re
from typing import Any

from boxwright.base.errors import ExportError
from boxwright.loading.pt2_graph import checked_graph, plain_nodes
from boxwright.runtime.pt2_members import Members

_GRAPH = "models/model.json"
_SAMPLE_INPUTS = "data/sample_inputs/model.pt"
_FQN = re.compile(r"[A-Za-z0-9_.]+")
_TABLES = {
    "data/weights/model_weights_config.json": ("data/weights", re.compile(r"weight_[0-9]{1,6}")),
    "data/constants/model_constants_config.json": ("data/constants", re.compile(r"tensor_[0-9]{1,6}")),
}


def plain_members(members: Members) -> Members:
    """Return the members of a program of PyTorch's, without what is pickled and what tells of its author's files."""
    graph = json.dumps(plain_nodes(json.loads(members[_GRAPH]))).encode()
    return {**members, _GRAPH: graph, _SAMPLE_INPUTS: b""}


def checked_members(members: Members, name: str) -> Members:
    """Return what PyTorch may be given of an archive.

    Args:
        members: As `unpacked_members` returned them.

    Returns:
        The members, with each JSON written anew from what was checked.

    Raises:
        ExportError: Where something in them is pickled, names a function that is no operator, or is malformed.
    """
    if members.get(_SAMPLE_INPUTS):
        raise ExportError(f"{name}: its sample inputs are pickled, which can run code; it is not opened")
    checked = dict(members)
    for table, (folder, pattern) in _TABLES.items():
        content = _json(members, table, name)
        _check_table(content, folder, pattern, members, f"{name}: {table}")
        checked[table] = json.dumps(content).encode()
    checked[_GRAPH] = json.dumps(checked_graph(_json(members, _GRAPH, name), name)).encode()
    return {**checked, _SAMPLE_INPUTS: b""}


def _json(members: Members, member: str, name: str) -> Any:
    try:
        return json.loads(members[member])
    except KeyError:
        raise ExportError(f"{name}: it holds no {member}") from None
    except (ValueError, RecursionError):
        raise ExportError(f"{name}: {member} in it is no JSON") from None


def _check_table(content: Any, folder: str, pattern: re.Pattern[str], members: Members, where: str) -> None:
    entries = content.get("config") if isinstance(content, dict) else None
    if not isinstance(entries, dict) or set(content) != {"config"}:
        raise ExportError(f"{where} is damaged")
    for tensor, about in entries.items():
        here = f"{where}: {tensor[:80]!r}"
        if not _FQN.fullmatch(tensor):
            raise ExportError(f"{here} is no name of a tensor; it is not opened")
        if not isinstance(about, dict):
            raise ExportError(f"{here} is damaged")
        if about.get("use_pickle") is not False:
            raise ExportError(f"{here} is pickled, which can run code; it is not opened")
        path = about.get("path_name")
        if not isinstance(path, str) or not pattern.fullmatch(path):
            raise ExportError(f"{here} is {str(path)[:80]!r}, which is no plain tensor; it is not opened")
        size = len(members.get(f"{folder}/{path}", b""))
        if f"{folder}/{path}" not in members or (_elements(about, here) and not size):
            raise ExportError(f"{here}: {path} is not in the file, or empty")


def _elements(about: dict[str, Any], here: str) -> int:
    """Return how many numbers a tensor has by its sizes."""
    try:
        count = 1
        for side in about["tensor_meta"]["sizes"]:
            count *= side["as_int"]
        if type(count) is not int or not 0 <= count < 2**63:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise ExportError(f"{here} has damaged sizes") from None
    return count
