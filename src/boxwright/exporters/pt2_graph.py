"""The graph of a .pt2, held to operators that compute and to expressions of plain arithmetic.

Read before PyTorch reads it: its deserializer takes a node's `target` as a path of attributes from `torch` (so that
`torch.os.system` would be a node), evaluates symbolic sizes as Python, compiles `guards_code`, and imports modules
that a tree of outputs names.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

import torch

from boxwright.errors import ExportError

__all__ = ["checked_graph", "plain_nodes"]

_ATEN = re.compile(r"torch\.ops\.aten\.([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)")
_SIZES = ("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "getitem", "eq", "ne", "lt", "le", "gt", "ge")
# Between the two steps of a detector whose export ends with raw outputs.
_OWN = "torch.ops.boxwright.suppress_pairs.default"
_PYTHON = {
    *(f"_operator.{name}" for name in _SIZES),
    *(f"torch.sym_{name}" for name in ("int", "float", "max", "min", "not", "sum", "ite")),
}
# Arguments of text that choose how an operator computes; another's could name a file (aten.from_file).
_CHOICES = {"mode", "padding_mode", "rounding_mode", "reduce", "approximate", "indexing", "equation"}
# What would be resolved to functions, graphs or objects.
_REFUSED_KEYS = {"as_graph", "as_operator", "as_custom_obj", "custom_obj", "token", "as_opaque", "as_opaque_value"}
_FUNCTIONS = {
    *("Add", "Mul", "Max", "Min", "Mod", "PythonMod", "FloorDiv", "CeilDiv", "CleanDiv", "ModularIndexing"),
    *("Integer", "Float", "Rational", "Symbol", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not"),
    *("Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan", "Where"),
    *("CeilToInt", "FloorToInt", "TruncToInt", "TruncToFloat", "RoundToInt", "IntTrueDiv", "FloatTrueDiv", "ToFloat"),
}
_ASSUMPTIONS = {"positive", "integer", "nonnegative"}
_SYMBOL = re.compile(r"[a-z]{1,4}[0-9]{1,4}")
_TREE_TYPES = {None, "builtins.tuple", "builtins.list", "builtins.dict"}
# Names of nodes, inputs and weights become Python that PyTorch writes and runs.
_NAME = re.compile(r"[A-Za-z0-9_.]*")
_NO_NAMES = {"expr_str", "in_spec", "out_spec", "as_string", "torch_version"}
_LONGEST_EXPRESSION, _LARGEST_NUMBER = 10_000, 2**63


def plain_nodes(graph: Any) -> Any:
    """Return a graph without what its nodes tell of where they came from: paths and names in their author's files."""
    module = graph["graph_module"]
    nodes = [{**node, "metadata": {}} for node in module["graph"]["nodes"]]
    return {**graph, "graph_module": {**module, "graph": {**module["graph"], "nodes": nodes}}}


def checked_graph(given: Any, name: str) -> Any:
    """Return a graph that PyTorch may read and run: it can do nothing but compute.

    Args:
        given: What models/model.json holds.
        name: The file's, for messages.

    Returns:
        The graph, as `plain_nodes`.

    Raises:
        ExportError: With what is refused.
    """
    try:
        graph = plain_nodes(given)
        if graph["guards_code"]:
            raise ExportError(f"{name}: its graph has code for guards, which would be run; it is not opened")
        module = graph["graph_module"]
        if module.get("treespec_namedtuple_fields"):
            raise ExportError(f"{name}: its outputs are named tuples, which Boxwright never writes; it is not opened")
        _check_ranges(graph["range_constraints"], name)
        for node in module["graph"]["nodes"]:
            _check_target(node["target"], name)
        for key, value in _entries(graph):
            _check_entry(key, value, name)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError) as error:
        raise ExportError(f"{name}: its graph is damaged: {type(error).__name__} {str(error)[:100]}") from None
    return graph


def _entries(graph: Any) -> Iterator[tuple[str, Any]]:
    """Yield each key and value of nested JSON; of a list each item, with the list's key; and each key as a value."""
    waiting: list[tuple[str, Any]] = [("", graph)]
    while waiting:
        key, one = waiting.pop()
        if isinstance(one, dict):
            yield from (("", name) for name in one)
            waiting.extend(one.items())
        elif isinstance(one, list):
            waiting.extend((key, item) for item in one)
        yield key, one


def _check_entry(key: str, value: Any, name: str) -> None:
    if key in _REFUSED_KEYS and value is not None:
        raise ExportError(f"{name}: its graph has a {key}, which Boxwright never writes; it is not opened")
    if isinstance(value, str) and key not in _NO_NAMES and not _NAME.fullmatch(value):
        raise ExportError(f"{name}: its graph has {value[:80]!r}, which is no name; it is not opened")
    if key == "expr_str":
        _check_expression(value, name)
    elif key in ("in_spec", "out_spec") and value is not None:
        _check_tree(json.loads(value), name)


def _check_target(target: Any, name: str) -> None:
    if target in _PYTHON or target == _OWN:
        return
    found = _ATEN.fullmatch(target)
    operator = None if found is None else getattr(getattr(torch.ops.aten, found[1], None), found[2], None)
    if not isinstance(operator, torch._ops.OpOverload):
        raise ExportError(f"{name}: {target[:80]!r} in its graph is no operator; it is not opened")
    schema = operator._schema
    texts = {one.name for one in schema.arguments if "str" in str(one.type)}
    unchecked = found is not None and found[1].startswith("_unsafe") and found[1] != "_unsafe_view"
    if schema.is_mutable or texts - _CHOICES or unchecked:
        raise ExportError(f"{name}: {target[:80]!r} in its graph does more than compute; it is not opened")


def _check_ranges(ranges: Any, name: str) -> None:
    for symbol, limits in ranges.items():
        plain = all(value is None or type(value) is int for value in limits.values())
        if not _SYMBOL.fullmatch(symbol) or set(limits) - {"min_val", "max_val"} or not plain:
            raise ExportError(f"{name}: its graph has the size {symbol[:80]!r}, which is no symbol; it is not opened")


def _check_expression(text: Any, name: str) -> None:
    """Raise for an expression that is anything but functions of numbers and symbols."""
    problem = ExportError(f"{name}: its graph has the size {str(text)[:80]!r}, which is no arithmetic; it is not read")
    if not isinstance(text, str) or len(text) > _LONGEST_EXPRESSION:
        raise problem
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise problem from None
    waiting: list[ast.expr] = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, ast.Constant) and isinstance(one.value, int | float) and abs(one.value) < _LARGEST_NUMBER:
            continue
        if isinstance(one, ast.UnaryOp) and isinstance(one.op, ast.USub):
            waiting.append(one.operand)
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id in _FUNCTIONS:
            if one.func.id == "Symbol":
                if not _is_symbol(one):
                    raise problem
            elif one.keywords:
                raise problem
            else:
                waiting.extend(one.args)
        else:
            raise problem


def _is_symbol(call: ast.Call) -> bool:
    """Tell whether a call is `Symbol('s0', positive=True, …)`."""
    names = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    plain = all(
        word.arg in _ASSUMPTIONS and isinstance(word.value, ast.Constant) and type(word.value.value) is bool
        for word in call.keywords
    )
    return plain and len(names) == len(call.args) == 1 and _SYMBOL.fullmatch(names[0]) is not None


def _check_tree(tree: Any, name: str) -> None:
    """Raise for a tree of inputs or outputs that holds more than tuples, lists and dictionaries by name."""
    version, root = tree
    waiting = [root]
    if version != 1:
        raise ValueError(f"version {version}")
    while waiting:
        one = waiting.pop()
        context = json.loads(one["context"]) if one["context"] is not None else None
        names = context if isinstance(context, list) else [] if context is None else [None]
        if one["type"] not in _TREE_TYPES or not all(isinstance(key, str) and _NAME.fullmatch(key) for key in names):
            raise ExportError(f"{name}: its outputs are {str(one)[:80]!r}, which Boxwright never writes")
        waiting.extend(one["children_spec"])
