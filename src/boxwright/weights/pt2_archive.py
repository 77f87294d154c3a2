"""The safe content of a .pt2: plain tensors, and a graph that only computes; and sessions that run it.

`torch.export.load` unpickles files that the archive's tables name, loads compiled libraries in the archive, evaluates
expressions, and calls any function of `torch` that a node names. So the archive may only contain what `boxwright
export` writes, and PyTorch reads a new archive of the checked members.

The graph may only have operators that compute and expressions of plain arithmetic. It is checked before PyTorch reads
it: PyTorch's deserializer resolves a node's `target` as attributes of `torch` (so that `torch.os.system` would be a
node), evaluates symbolic sizes as Python, compiles `guards_code`, and imports modules that a tree of outputs names.

Dimensions: B batch, H W image.
"""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from boxwright.base.errors import ExportError, translated
from boxwright.base.quiet import quiet
from boxwright.runtime.export_file import ABOUT, ExportFile, Members, packed_members, unpacked_members
from boxwright.runtime.metadata import Metadata

_ATEN = re.compile(r"torch\.ops\.aten\.([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)")
# Operators that check their arguments and have no side effects: those of our exports, and others common in networks.
# All others are refused: some of ATen's two thousand trust indices, change the process, or open files.
_OPERATORS = """
__and__ __or__ _adaptive_avg_pool2d _assert_async _assert_scalar _assert_tensor_metadata _log_softmax
_native_batch_norm_legit_no_training _softmax _to_copy _unsafe_view _upsample_bicubic2d_aa abs adaptive_avg_pool2d add
addcmul addmm alias
all amax amin any arange argmax argmin argsort avg_pool2d batch_norm bitwise_and bitwise_not bitwise_or bitwise_xor
bmm cat ceil channel_shuffle chunk clamp clamp_max clamp_min clone constant_pad_nd conv2d conv_transpose2d
convolution copy cos cumsum detach div einsum elu eq erf exp expand expand_as fill flatten flip floor floor_divide
fmod full full_like gather ge gelu glu grid_sampler grid_sampler_2d group_norm gt hardsigmoid hardswish hardtanh
index index_put index_select isfinite isinf isnan layer_norm le leaky_relu lerp lift_fresh_copy linear linspace log
log2 log_softmax logical_and logical_not logical_or logical_xor lt masked_fill matmul max max_pool2d
max_pool2d_with_indices maximum mean min minimum mish mm movedim mul nan_to_num narrow native_group_norm
native_layer_norm ne neg new_full new_ones new_zeros ones ones_like pad permute pixel_shuffle pow prod
reciprocal reflection_pad2d relu remainder repeat repeat_interleave replication_pad2d reshape roll round rsqrt rsub
scalar_tensor scaled_dot_product_attention scatter scatter_add scatter_reduce select select_scatter sigmoid sign
silu sin slice slice_scatter softmax softplus sort split split_with_sizes sqrt square squeeze stack std sub sum
sym_constrain_range sym_constrain_range_for_size sym_numel sym_size t tanh tile topk transpose tril triu trunc
unbind unfold unsqueeze upsample_bilinear2d upsample_nearest2d var_mean view where zeros zeros_like
"""
_SIZES = ("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "getitem", "eq", "ne", "lt", "le", "gt", "ge")
# Joins the two steps of a detector whose export ends with raw outputs.
_OWN = "torch.ops.boxwright.suppress_pairs.default"
_PYTHON = {
    _OWN,
    *(f"_operator.{name}" for name in _SIZES),
    *(f"torch.sym_{name}" for name in ("int", "float", "max", "min", "not", "sum", "ite")),
}
# Text arguments that choose how an operator computes.
_CHOICES = {"mode", "padding", "padding_mode", "rounding_mode", "reduce", "approximate", "indexing", "equation"}
# Keys that would be resolved to functions, graphs or objects.
_REFUSED_KEYS = {"as_graph", "as_operator", "as_custom_obj", "custom_obj", "token", "as_opaque", "as_opaque_value"}
_FUNCTIONS = {
    *("Add", "Mul", "Mod", "PythonMod", "FloorDiv", "CeilDiv", "CleanDiv", "Integer", "Symbol", "Eq", "Ne", "Lt", "Le"),
    *("Gt", "Ge", "CeilToInt", "FloorToInt", "TruncToInt", "IntTrueDiv", "FloatTrueDiv", "ToFloat"),
}
_ASSUMPTIONS = {"positive", "integer", "nonnegative"}
_SYMBOL = re.compile(r"[a-z]{1,4}[0-9]{1,4}")
_TREE_TYPES = {None, "builtins.tuple", "builtins.list", "builtins.dict"}
# PyTorch generates and runs Python code with the names of nodes, inputs and weights.
_NAME = re.compile(r"[A-Za-z0-9_.]*")
_FREE_TEXT = {"as_string", "torch_version"}
_EXPRESSION = re.compile(r"[A-Za-z0-9_(),='. -]{1,1000}")
_LARGEST_NUMBER = 2**63


def plain_nodes(graph: Any) -> Any:
    """Return a graph without its nodes' metadata, which contains names of their author's files."""
    module = graph["graph_module"]
    nodes = [{**node, "metadata": {}} for node in module["graph"]["nodes"]]
    return {**graph, "graph_module": {**module, "graph": {**module["graph"], "nodes": nodes}}}


def checked_graph(given: Any, name: str) -> Any:
    """Return a graph, as by `plain_nodes`, that is safe for PyTorch to read and run: it can only compute."""
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
        return _rewritten("", graph, name)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError) as error:
        raise ExportError(f"{name}: its graph is damaged: {type(error).__name__} {str(error)[:100]}") from None


def _rewritten(key: str, value: Any, name: str) -> Any:
    """Return nested JSON whose texts are checked, and rewritten from the parsed form if they are parsed again.

    Two parsers may read a text differently: SymPy drops newlines before it evaluates what Python's parser saw.
    """
    if key in _REFUSED_KEYS and value is not None:
        raise ExportError(f"{name}: its graph has a {key}, which Boxwright never writes; it is not opened")
    if isinstance(value, dict):
        return {_named(inner_key, name): _rewritten(inner_key, inner, name) for inner_key, inner in value.items()}
    if isinstance(value, list):
        return [_rewritten(key, item, name) for item in value]
    if key == "expr_str":
        return _arithmetic(value, name)
    if key in ("in_spec", "out_spec") and value is not None:
        tree = json.loads(value)
        _check_tree(tree, name)
        return json.dumps(tree)
    if key in ("as_float", "as_floats") and value == "-Infinity":  # JSON has no number for it
        return value
    return _named(value, name) if isinstance(value, str) and key not in _FREE_TEXT else value


def _named(text: str, name: str) -> str:
    if not _NAME.fullmatch(text):
        raise ExportError(f"{name}: its graph has {text[:80]!r}, which is not a name; it is not opened")
    return text


def _check_target(target: Any, name: str) -> None:
    if target in _PYTHON:
        return
    match = _ATEN.fullmatch(target)
    known = match is not None and match[1] in _OPERATORS.split()
    operator = getattr(getattr(torch.ops.aten, match[1], None), match[2], None) if match and known else None
    if not isinstance(operator, torch._ops.OpOverload):
        raise ExportError(f"{name}: {target[:80]!r} in its graph is not an operator of detectors; it is not opened")
    schema = operator._schema
    texts = {argument.name for argument in schema.arguments if "str" in str(argument.type)}
    if schema.is_mutable or texts - _CHOICES:
        raise ExportError(f"{name}: {target[:80]!r} in its graph does more than compute; it is not opened")


def _check_ranges(ranges: Any, name: str) -> None:
    for symbol, limits in ranges.items():
        plain = all(value is None or type(value) is int for value in limits.values())
        if not _SYMBOL.fullmatch(symbol) or set(limits) - {"min_val", "max_val"} or not plain:
            raise ExportError(
                f"{name}: its graph has the size {symbol[:80]!r}, which is not a symbol; it is not opened"
            )


def _arithmetic(text: Any, name: str) -> str:
    """Return an expression, rewritten; raise an ExportError unless it consists of functions of numbers and symbols."""
    problem = ExportError(f"{name}: its graph has the size {str(text)[:80]!r}, which is not arithmetic; it is not read")
    if not isinstance(text, str) or not _EXPRESSION.fullmatch(text):
        raise problem
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise problem from None
    waiting: list[ast.expr] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and abs(node.value) < _LARGEST_NUMBER:
            continue
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            waiting.append(node.operand)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            if node.func.id == "Symbol":
                if not _is_symbol(node):
                    raise problem
            elif node.keywords:
                raise problem
            else:
                waiting.extend(node.args)
        else:
            raise problem
    return ast.unparse(tree)


def _is_symbol(call: ast.Call) -> bool:
    """Whether a call is `Symbol('s0', positive=True, …)`."""
    constants = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    names = [value for value in constants if isinstance(value, str)]
    plain = all(
        word.arg in _ASSUMPTIONS and isinstance(word.value, ast.Constant) and type(word.value.value) is bool
        for word in call.keywords
    )
    return plain and len(names) == len(call.args) == 1 and _SYMBOL.fullmatch(names[0]) is not None


def _check_tree(tree: Any, name: str) -> None:
    """Raise an ExportError if a tree of inputs or outputs is not made of tuples, lists and dictionaries with names."""
    version, root = tree
    waiting = [root]
    if version != 1:
        raise ValueError(f"version {version}")
    while waiting:
        node = waiting.pop()
        context = json.loads(node["context"]) if node["context"] is not None else None
        names = context if isinstance(context, list) else [] if context is None else [None]
        if node["type"] not in _TREE_TYPES or not all(isinstance(key, str) and _NAME.fullmatch(key) for key in names):
            raise ExportError(f"{name}: its outputs are {str(node)[:80]!r}, which Boxwright never writes")
        waiting.extend(node["children_spec"])


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


class Pt2Session:
    """A .pt2 file in PyTorch."""

    def __init__(self, file: ExportFile) -> None:
        """Open a file; an ExportError if it is damaged, or not Boxwright's."""
        members = unpacked_members(file.data, file.name)
        self.metadata = Metadata.from_json(members.get(ABOUT, b"").decode("utf-8", "replace"), file.name)
        checked = packed_members(checked_members(members, file.name))
        with translated(ExportError, f"{file.name} cannot be opened by PyTorch"):
            with quiet():
                program = torch.export.load(io.BytesIO(checked))
                self._module = program.module()
            # The keys of the dictionary that the program returns.
            self.output_names: tuple[str, ...] = tuple(program.call_spec.out_spec.context)
        self._name = file.name
        self._dtype = np.float32 if self.metadata.input.get("type") == "float_image_tensor" else np.uint8

    def run(self, images: NDArray[Any], names: Sequence[str] = ()) -> dict[str, NDArray[np.float32]]:
        """Return the named outputs, by default all, for pictures uint8 [B, H, W, 3]."""
        with translated(ExportError, f"{self._name} cannot be run by PyTorch"), torch.inference_mode():
            outputs = self._module(torch.from_numpy(np.ascontiguousarray(images, self._dtype)))
        return {name: outputs[name].numpy() for name in names or self.output_names}
