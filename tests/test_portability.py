"""What only POSIX systems have is used where it was asked for, so that Windows can train and predict.

Which names those are is read from the stubs of Python's standard library that come with mypy.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import mypy
import pytest

import boxwright
from boxwright.base import files
from boxwright.base.errors import ConfigError, OutputError
from boxwright.cli.serving import require_posix
from boxwright.data.loader import samples_in_order
from boxwright.data.shapes import ShapesDataset
from boxwright.data.worker_errors import dead_worker_error
from boxwright.runtime.measure import load

PACKAGE = Path(boxwright.__file__).parent
STUBS = Path(mypy.__file__).parent / "typeshed" / "stdlib"
MODULES = ("os", "signal", "socket", "time", "select", "mmap")
# A server refuses other systems before these run, and the cache of decoded pictures does when it is planned.
REFUSED_BEFORE = {"inference/serving/decoders.py", "inference/serving/decoder_child.py", "data/pixel_cache.py"}


def holds(test: ast.expr, system: str) -> bool:
    """Return what a stub's condition says of a system; of releases of Python, that they are new."""
    if isinstance(test, ast.BoolOp):
        return (all if isinstance(test.op, ast.And) else any)(holds(part, system) for part in test.values)
    if isinstance(test, ast.UnaryOp):
        return not holds(test.operand, system)
    if isinstance(test, ast.Compare) and ast.unparse(test.left) == "sys.platform":
        (named,) = test.comparators
        equal = system == ast.literal_eval(named)
        return equal if isinstance(test.ops[0], ast.Eq) else not equal
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], ast.GtE)
    return True


def declared(body: list[ast.stmt], system: str) -> Iterator[str]:
    """Yield the names that a stub declares for a system."""
    for node in body:
        if isinstance(node, ast.If):
            yield from declared(node.body if holds(node.test, system) else node.orelse, system)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.asname == alias.name)


@functools.cache
def stub(module: str, system: str) -> frozenset[str]:
    paths = [STUBS / f"{module}.pyi", STUBS / module / "__init__.pyi"]
    return frozenset(declared(ast.parse(next(p for p in paths if p.is_file()).read_text()).body, system))


@functools.cache
def posix_alone() -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
    """Return the names that Windows lacks, with their modules, and the modules that it lacks."""
    names = {(module, name) for module in MODULES for name in stub(module, "linux") - stub(module, "win32")}
    modules = [path.stem for path in STUBS.glob("*.pyi")]
    lacking = [module for module in modules if public(module, "linux") and not public(module, "win32")]
    return frozenset(names), frozenset(lacking)


def public(module: str, system: str) -> list[str]:
    return [name for name in stub(module, system) if not name.startswith("_")]


def unasked(source: str) -> set[str]:
    """Return what a source uses of a POSIX system without having asked for it in the same function, or tried."""
    names, modules = posix_alone()
    found: set[str] = set()
    mentioned = {*re.findall(r"\b(\w+)\.(\w+)", source)}, {*re.findall(r"\bimport (\w+)", source)}
    if names.isdisjoint(mentioned[0]) and modules.isdisjoint(mentioned[1]):  # most files, which need not be parsed
        return found

    def visit(node: ast.AST, asked: str, *, tried: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
            asked = " ".join(ast.unparse(one) for one in calls if ast.unparse(one.func) in ("hasattr", "getattr"))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used = (node.value.id, node.attr)
            if used in names and not tried and f"({used[0]}, '{used[1]}'" not in asked:
                found.add(".".join(used))
        if isinstance(node, ast.Import) and not tried:
            found.update(alias.name for alias in node.names if alias.name in modules)
        for child in ast.iter_child_nodes(node):
            handled = isinstance(node, ast.Try) and child in node.body
            caught = " ".join(ast.unparse(h.type) for h in node.handlers if h.type) if handled else ""  # type: ignore[attr-defined]
            visit(child, asked, tried=tried or "ImportError" in caught or "AttributeError" in caught)

    visit(ast.parse(source), "", tried=False)
    return found


def test_the_stubs_are_read() -> None:
    """By hand, from Python's documentation of availability."""
    names, modules = posix_alone()
    assert {("signal", "SIGCHLD"), ("signal", "SIGKILL"), ("os", "fork"), ("os", "pread"), ("os", "getuid")} <= names
    assert not {("signal", "SIGINT"), ("signal", "SIGTERM"), ("os", "getppid"), ("os", "ftruncate")} & names
    assert {"fcntl", "resource", "termios", "pwd", "grp"} <= modules
    assert not {"os", "socket", "signal", "subprocess", "json", "shutil"} & modules


def test_unasked_uses_are_found() -> None:
    assert unasked("import os\ndef f():\n    return os.fork()") == {"os.fork"}
    assert unasked("import os\ndef f():\n    return os.fork() if hasattr(os, 'fork') else 0") == set()
    assert unasked("import fcntl") == {"fcntl"}
    assert unasked("try:\n    import fcntl\nexcept ImportError:\n    fcntl = None") == set()


SOURCES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def test_what_only_posix_has_was_asked_for() -> None:
    assert len(SOURCES) > 500
    uses = {name: unasked((PACKAGE / name).read_text(encoding="utf-8")) for name in SOURCES}
    assert {name: found for name, found in uses.items() if found and name not in REFUSED_BEFORE} == {}
    assert all(uses[name] for name in REFUSED_BEFORE)


def test_data_are_read_without_a_signal_of_ended_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGCHLD")
    dataset = ShapesDataset(2, seed=0, size=(32, 32))
    assert [sample.id for sample in samples_in_order(dataset, [1, 0])] == [dataset[1].id, dataset[0].id]


def test_a_dead_worker_is_explained_without_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SIGKILL", "SIGBUS"):
        monkeypatch.delattr(signal, name)
    assert "died: cut off" in str(dead_worker_error([], EOFError("cut off")))


def test_a_user_without_a_home_names_a_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.delenv("BOXWRIGHT_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delattr(os, "getuid")
    with pytest.raises(OutputError, match="BOXWRIGHT_CACHE"):
        files.cache_folder()


def test_an_unknown_load_is_not_high(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "getloadavg")
    assert load() == (0.0, False)


def test_a_server_refuses_a_system_on_which_it_cannot_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    require_posix()
    monkeypatch.delattr(os, "preadv")
    with pytest.raises(ConfigError, match="Linux"):
        require_posix()
