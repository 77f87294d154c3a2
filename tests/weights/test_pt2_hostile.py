"""A .pt2 that would run code: each way that PyTorch has is planted, sealed anew, and refused before PyTorch sees it."""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.base.errors import ExportError
from boxwright.runtime.export_file import ABOUT, packed_members, sealed_parts, unpacked_members
from boxwright.runtime.metadata import UNSEALED, seal
from boxwright.runtime.sessions import open_session, read_metadata
from boxwright.weights.exports import open_export
from boxwright.weights.pt2_archive import checked_members
from tests import forked
from tests.exporters.tiny_exports import PICTURE, tiny_export

Members = dict[str, bytes]
GRAPH, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
CONSTANTS, SAMPLES = "data/constants/model_constants_config.json", "data/sample_inputs/model.pt"


class Planted:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


def planted(mark: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save(Planted(mark), buffer)
    return buffer.getvalue()


def members() -> Members:
    return unpacked_members(tiny_export(".pt2").read_bytes(), "it")


def changed(member: str, change: Callable[[Any], None]) -> Members:
    found = members()
    content = json.loads(found[member])
    change(content)
    return {**found, member: json.dumps(content).encode()}


def write(path: Path, found: Members) -> Path:
    """Write members as somebody does who knows how checksums are made."""
    checksum = read_metadata(tiny_export(".pt2")).checksum.encode()
    found = {**found, ABOUT: found[ABOUT].replace(checksum, UNSEALED.encode())}
    path.write_bytes(packed_members({**found, ABOUT: seal(sealed_parts(found))[-1]}))
    return path


def first(content: Any) -> Any:
    return next(iter(content["config"].values()))


def node(content: Any) -> Any:
    return content["graph_module"]["graph"]["nodes"][0]


def as_custom(content: Any) -> None:
    content["config"]["evil"] = {
        "path_name": "custom_obj_0",
        "is_param": False,
        "use_pickle": True,
        "tensor_meta": None,
    }


def pickled_weight(mark: Path) -> Members:
    found = changed(WEIGHTS, lambda content: first(content).update(use_pickle=True))
    return {**found, "data/weights/weight_0": planted(mark)}


def pickled_weight_that_says_it_is_none(mark: Path) -> Members:
    found = changed(WEIGHTS, lambda content: first(content).update(use_pickle=1))
    return {**found, "data/weights/weight_0": planted(mark)}


def pickled_constant(mark: Path) -> Members:
    entry = {"path_name": "tensor_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    found = changed(CONSTANTS, lambda content: content["config"].update(evil=entry))
    return {**found, "data/constants/tensor_0": planted(mark)}


def opaque_constant(mark: Path) -> Members:
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False, "tensor_meta": None}
    found = changed(CONSTANTS, lambda content: content["config"].update(evil=entry))
    return {**found, "data/constants/opaque_obj_0": pickle.dumps(Planted(mark))}


def custom_object(mark: Path) -> Members:
    return {**changed(CONSTANTS, as_custom), "data/constants/custom_obj_0": planted(mark)}


def sample_inputs(mark: Path) -> Members:
    return {**members(), SAMPLES: planted(mark)}


def legacy_weights(mark: Path) -> Members:
    return {**members(), "data/weights/model.pt": planted(mark)}


def legacy_constants(mark: Path) -> Members:
    return {**members(), "data/constants/model.pt": planted(mark)}


def compiled_library(mark: Path) -> Members:
    return {**members(), "data/aotinductor/model/model.so": planted(mark)}


def second_program(mark: Path) -> Members:
    return {**members(), "models/other.json": members()[GRAPH], "data/sample_inputs/other.pt": planted(mark)}


def text_argument(mark: Path) -> dict[str, Any]:
    return {"name": "command", "arg": {"as_string": f"touch {mark}"}, "kind": 1}


def function_of_torch(mark: Path) -> Members:
    return changed(GRAPH, lambda content: node(content).update(target="torch.os.system", inputs=[text_argument(mark)]))


def file_operator(mark: Path) -> Members:
    """`aten.from_file` makes the file that it maps, where it is told to share it."""
    told = {"name": "filename", "arg": {"as_string": str(mark)}, "kind": 1}
    return changed(
        GRAPH, lambda content: node(content).update(target="torch.ops.aten.from_file.default", inputs=[told])
    )


def unchecked_operator(mark: Path) -> Members:
    return changed(GRAPH, lambda content: node(content).update(target="torch.ops.aten._unsafe_index.Tensor"))


def trusting_operator(mark: Path) -> Members:
    target = "torch.ops.aten._sparse_coo_tensor_unsafe.default"
    return changed(GRAPH, lambda content: node(content).update(target=target))


def mutating_operator(mark: Path) -> Members:
    return changed(GRAPH, lambda content: node(content).update(target="torch.ops.aten.add_.Tensor"))


def higher_order(mark: Path) -> Members:
    return changed(GRAPH, lambda content: node(content).update(target="torch.ops.higher_order.cond"))


def function_as_argument(mark: Path) -> Members:
    told = {"name": "f", "arg": {"as_operator": "torch.os.system"}, "kind": 1}
    return changed(GRAPH, lambda content: node(content)["inputs"].append(told))


def guards(mark: Path) -> Members:
    code = f"__import__('os').system('touch {mark}') == 0"
    return changed(GRAPH, lambda content: content.update(guards_code=[code]))


def expression(text: str) -> Callable[[Path], Members]:
    def made(mark: Path) -> Members:
        value = {"as_expr": {"expr_str": text.replace("MARK", str(mark)), "hint": None}}
        return changed(GRAPH, lambda content: content["graph_module"]["graph"]["sym_int_values"].update(evil=value))

    return made


def symbol_of_code(mark: Path) -> Members:
    name = f"__import__('os').system('touch {mark}')"
    return changed(GRAPH, lambda content: content["range_constraints"].update({name: {"min_val": 0, "max_val": 1}}))


def many_symbols(mark: Path) -> Members:
    return changed(
        GRAPH, lambda content: content["range_constraints"].update(u99999999999={"min_val": 0, "max_val": 1})
    )


def imported_module(mark: Path) -> Members:
    context = json.dumps([{"__enum__": True, "fqn": "antigravity:x", "name": "y"}])
    tree = json.dumps([1, {"type": "builtins.dict", "context": context, "children_spec": []}])

    def change(content: Any) -> None:
        for call in content["graph_module"]["module_call_graph"]:
            if call["signature"]:
                call["signature"]["out_spec"] = tree

    return changed(GRAPH, change)


def renamed(old: str, new: str) -> Callable[[Path], Members]:
    """Return what gives something in the graph another name, wherever it stands."""

    def made(mark: Path) -> Members:
        text = members()[GRAPH].decode()
        assert f'"{old}"' in text
        named = json.dumps(new.replace("MARK", str(mark)))
        return {**members(), GRAPH: text.replace(f'"{old}"', named).encode()}

    return made


def output_of_code(mark: Path) -> Members:
    found = members()
    name = "detection_boxes'];import antigravity;['"
    return {**found, GRAPH: found[GRAPH].replace(b"detection_boxes", name.encode())}


def weight_of_code(mark: Path) -> Members:
    name = f'weight" if __import__("os").system("touch {mark}") else "'

    def change(content: Any) -> None:
        content["config"] = {name if key == "weight" else key: value for key, value in content["config"].items()}

    found = changed(WEIGHTS, change)
    return {**found, GRAPH: renamed("weight", name)(mark)[GRAPH]}


def tensor_that_is_not_there(mark: Path) -> Members:
    return changed(WEIGHTS, lambda content: first(content).update(path_name="weight_77"))


def empty_tensor_of_a_terabyte(mark: Path) -> Members:
    def change(content: Any) -> None:
        first(content)["tensor_meta"]["sizes"] = [{"as_int": 2**40}]

    return {**changed(WEIGHTS, change), "data/weights/weight_0": b""}


WAYS: dict[str, tuple[Callable[[Path], Members], str]] = {
    "a weight": (pickled_weight, "is pickled, which can run code"),
    "a weight, flagged by a number": (pickled_weight_that_says_it_is_none, "is pickled, which can run code"),
    "a constant": (pickled_constant, "is pickled, which can run code"),
    "an opaque constant": (opaque_constant, "`boxwright export` does not write and may be code"),
    "a custom object": (custom_object, "`boxwright export` does not write and may be code"),
    "sample inputs": (sample_inputs, "sample inputs are pickled"),
    "old weights": (legacy_weights, "`boxwright export` does not write and may be code"),
    "old constants": (legacy_constants, "`boxwright export` does not write and may be code"),
    "a library": (compiled_library, "`boxwright export` does not write and may be code"),
    "a second program": (second_program, "`boxwright export` does not write and may be code"),
    "a function of torch": (function_of_torch, "'torch.os.system' in its graph is not an operator"),
    "an operator on files": (file_operator, "is not an operator of detectors"),
    "an operator that proves nothing": (unchecked_operator, "is not an operator of detectors"),
    "an operator that changes its input": (mutating_operator, "is not an operator of detectors"),
    "an operator of operators": (higher_order, "is not an operator"),
    "a function as an argument": (function_as_argument, "has a as_operator"),
    "guards": (guards, "code for guards"),
    "a size that is code": (expression("__import__('os').system('touch MARK')"), "not arithmetic"),
    "a size of attributes": (expression("Integer(1).__class__"), "not arithmetic"),
    "a size that is endless": (expression("Pow(Integer(9), Pow(Integer(9), Integer(99)))"), "not arithmetic"),
    "a huge number": (expression("Integer(" + "9" * 3000 + ")"), "not arithmetic"),
    "a size that two parsers read": (
        expression("Symbol('\\\n' 'or' \"0\" # ', __import__('os').system('touch MARK') == 5\n)"),
        "not arithmetic",
    ),
    "a size that takes all day": (
        expression("Max(" + ", ".join(f"Symbol('s{number}')" for number in range(300)) + ")"),
        "not arithmetic",
    ),
    "an operator that trusts indices": (trusting_operator, "is not an operator of detectors"),
    "a symbol by keyword": (expression("Symbol('s0', cls=print)"), "not arithmetic"),
    "a symbol's name": (symbol_of_code, "is not a symbol"),
    "many symbols": (many_symbols, "is not a symbol"),
    "a module that is imported": (imported_module, "which Boxwright never writes"),
    "the name of an input": (renamed("images", "images=__import__('os').system('touch MARK')"), "is not a name"),
    "the name of a node": (renamed("mean", "mean=__import__('os').system('touch MARK');x"), "is not a name"),
    "the name of a weight": (weight_of_code, "is not the name of a tensor"),
    "the name of an output": (output_of_code, "which Boxwright never writes"),
    "a tensor that is not there": (tensor_that_is_not_there, "is not in the file"),
    "an empty tensor of a terabyte": (empty_tensor_of_a_terabyte, "is not in the file, or empty"),
}


def test_all_ways_are_here() -> None:
    assert len(WAYS) == 34


@pytest.mark.parametrize("way", WAYS)
def test_nothing_in_a_file_is_run(way: str, tmp_path: Path) -> None:
    make, reason = WAYS[way]
    mark = tmp_path / "ran"
    path = write(tmp_path / "a.pt2", make(mark))
    for opened in (open_export, bw.load):
        with pytest.raises(ExportError, match=reason) as problem:
            opened(path)
        assert "\n" not in str(problem.value)
        with pytest.raises(ExportError, match=reason):
            opened(path, allow_edited=True)
    assert not mark.exists()
    assert "antigravity" not in sys.modules


@pytest.mark.slow  # it checks the plants, and none of our code
def test_what_is_planted_would_run(tmp_path: Path) -> None:
    """The plants of pickles are real: PyTorch alone runs them. Each in a process of its own."""
    script = "import sys, torch; torch.export.load(sys.argv[1])"
    for name, make in (("weight", pickled_weight), ("samples", sample_inputs)):
        mark = tmp_path / f"ran-{name}"
        path = write(tmp_path / f"{name}.pt2", make(mark))
        forked.run([sys.executable, "-c", script, str(path)])
        assert mark.exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["predict", "evaluate", "benchmark", "serve", "inspect"])
def test_no_command_runs_what_is_planted(command: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    path = write(tmp_path / "a.pt2", pickled_weight(mark))
    words = {
        "predict": ["predict", "--model_dir", str(path), "--out", str(tmp_path / "out"), str(tmp_path)],
        "evaluate": ["evaluate", "--model_dir", str(path)],
        "benchmark": ["benchmark", str(path)],
        "serve": ["serve", str(path), "--port", "0"],
        "inspect": ["inspect", str(path)],
    }[command]
    from PIL import Image

    Image.fromarray(PICTURE[0]).save(tmp_path / "a.png")
    done = forked.run([sys.executable, "-m", "boxwright", *words], timeout=600)
    assert not mark.exists()
    assert "Traceback" not in done.stderr
    if command != "inspect":  # which only reads what the file says of itself
        assert done.returncode == 1, done.stdout
        assert "is pickled, which can run code" in done.stderr


def test_pytorch_reads_what_was_checked_and_nothing_else(tmp_path: Path) -> None:
    """An archive that two readers see differently: a second member of a name, which the last one wins for some."""
    path = tmp_path / "a.pt2"
    path.write_bytes(tiny_export(".pt2").read_bytes())
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(f"detector/{WEIGHTS}", b"{}")
    with pytest.raises(ExportError, match="two members with the same name"):
        open_export(path, allow_edited=True)


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("detector/data/weights/weight_0", bytes(200_000_000))
    assert path.stat().st_size < 10**6
    with pytest.raises(ExportError, match="are compressed, which PyTorch never does"):
        open_export(path)


def test_files_hold_no_pickle_and_nothing_of_their_author() -> None:
    found = members()
    assert found[SAMPLES] == b""
    assert all(entry["use_pickle"] is False for entry in json.loads(found[WEIGHTS])["config"].values())
    assert str(Path(__file__).parent).encode() not in b"".join(found.values())
    assert b"stack_trace" not in found[GRAPH]


def test_pytorch_alone_opens_our_files() -> None:
    module = torch.export.load(tiny_export(".pt2")).module()
    found = module(torch.from_numpy(PICTURE))
    np.testing.assert_allclose(found["detection_scores"].detach(), 0.2, atol=1e-6)  # 51 / 255


def test_what_is_checked_is_what_was_written() -> None:
    found = members()
    assert {name: json.loads(part) if name.endswith(".json") else part for name, part in found.items()} == {
        name: json.loads(part) if name.endswith(".json") else part
        for name, part in checked_members(found, "it").items()
    }


def test_it_returns_what_the_same_program_returns_as_onnx() -> None:
    session, other = open_export(tiny_export(".pt2")).session, open_session(tiny_export(".onnx"))
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 6, 3), np.uint8)
    wanted = other.run(images)
    found = session.run(images)
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-5, atol=1e-5)
    name = session.output_names[-1]
    (only,) = session.run(images, [name]).items()
    assert only[0] == name
    assert np.array_equal(only[1], found[name])
