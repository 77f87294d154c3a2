"""Every option and argument that takes a path: collected from the commands, so that a new one is tried as well."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from typer.models import OptionInfo

from boxwright.base import remote
from boxwright.base.errors import BoxwrightError
from boxwright.cli.commands import COMMANDS, load_command
from boxwright.cli.options import option_flag, source_path, with_settings

# Paths that are texts, as they may be patterns, names or addresses, too: they are refused before anything is done.
REFUSED = dict.fromkeys([("predict", "sources"), ("export", "source"), ("benchmark", "models")])
# Data may be shards at an address.
DATA = dict.fromkeys([("init", "data"), ("train", "data"), ("convert", "source"), ("inspect", "data")])
# What may be written at an address: of an object store, not of a web server.
WRITTEN = dict.fromkeys(
    [
        ("train", "model_dir"),
        ("predict", "out"),
        ("evaluate", "out"),
        ("export", "target"),
        ("convert", "target"),
    ]
)
# Files that are only read: opening them says that there is none. An empty text is the default of most.
READ = dict.fromkeys(
    [
        ("init", "weights"),
        ("train", "weights"),
        ("predict", "thresholds"),
        ("predict", "context"),
        ("benchmark", "compare"),
        ("serve", "thresholds"),
        ("doctor", "checkpoint"),
        ("context build", "records"),
    ]
)
# Texts of other kinds; `path` is that of a field of the configuration.
NO_PATHS = {
    "allow_host",
    "batch",
    "best_metric",
    "changes",
    "classes",
    "column",
    "config_override",
    "device",
    "engine",
    "event_tags",
    "format",
    "host",
    "hparams_overrides",
    "image_prefix",
    "image_size",
    "image_set",
    "imgsz",
    "labels_are",
    "merge",
    "model",
    "multi_scale",
    "name",
    "output_type",
    "path",
    "picture_format",
    "precision",
    "require_license",
    "runtime",
    "sequence_key",
    "set_",
    "shards",
    "side_input_names",
    "side_input_shapes",
    "side_input_types",
    "time_horizon",
    "tpu_name",
    "track",
    "words",
}


# Models that are texts.
MODELS = dict.fromkeys([("export", "source"), ("benchmark", "models")])


def _functions() -> Iterator[tuple[list[str], Any]]:
    """Yield the words of each command, and the function from whose signature its options come."""
    for name, (path, _) in COMMANDS.items():
        module, _, attribute = path.rpartition(".")
        command = getattr(import_module(f"boxwright.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            for entry in command.registered_commands:
                assert entry.callback is not None
                yield [name, entry.name or entry.callback.__name__], entry.callback
        else:
            yield [name], with_settings(command)


def _parameters() -> Iterator[tuple[list[str], str, Any]]:
    """Yield the words of a command, the name of one of its parameters that take text, and the signature."""
    for words, function in _functions():
        signature = inspect.signature(function)
        for name, parameter in signature.parameters.items():
            kinds = {kind for kind in (Path, str) if kind in _kinds(parameter)}
            if kinds:
                yield words, name, signature


def _kinds(parameter: inspect.Parameter) -> set[Any]:
    kind = get_args(parameter.annotation)[0]
    return {kind, *get_args(kind), *(part for arg in get_args(kind) for part in get_args(arg))}


def _is_model(words: list[str], name: str, signature: inspect.Signature) -> bool:
    """Whether a parameter names a model, which is read at addresses of an object store."""
    info = get_args(signature.parameters[name].annotation)[1]
    return info.parser is source_path or (" ".join(words), name) in MODELS


def _is_path(words: list[str], name: str, signature: inspect.Signature) -> bool:
    return Path in _kinds(signature.parameters[name]) or (" ".join(words), name) in {
        **REFUSED,
        **DATA,
        **WRITTEN,
        **READ,
    }


PATHS = [case for case in _parameters() if _is_path(*case)]


def _arguments(words: list[str], tried: str, value: str, signature: inspect.Signature) -> list[str]:
    """Return a command's arguments with a value for one parameter, and some path for each that is needed."""
    options, positional = [], []
    for name, parameter in signature.parameters.items():
        info = get_args(parameter.annotation)[1]
        needed = parameter.default is inspect.Parameter.empty or (words == ["export"] and name == "source")
        if name != tried and not needed:
            continue
        given = value if name == tried else "x"
        if isinstance(info, OptionInfo):
            options += [option_flag(info, name), given]
        else:
            positional.append(given)
    return [*words[1:], *options, "--", *positional]


def _refusal(words: list[str], name: str, value: str, signature: inspect.Signature) -> str:
    with pytest.raises(BoxwrightError) as refused:
        load_command(words[0]).main(_arguments(words, name, value, signature), "boxwright", standalone_mode=False)
    return str(refused.value)


def test_the_options_that_take_paths_are_known() -> None:
    """One that is neither a `Path`, nor in the tables above, nor a text of another kind is a new one: sort it in."""
    assert len(PATHS) == 77
    others = {name for words, name, signature in _parameters() if not _is_path(words, name, signature)}
    assert others == NO_PATHS


@pytest.mark.parametrize(("words", "name", "signature"), PATHS, ids=lambda case: case if type(case) is str else None)
def test_an_address_is_refused(
    words: list[str], name: str, signature: inspect.Signature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every command, at once, and nothing is written: `Path` would make a folder named s3: of it."""
    monkeypatch.chdir(tmp_path)
    # Records are read at addresses, too: of a server that is not there, which is asked once.
    monkeypatch.setattr(remote, "DELAYS", ())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for variable in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable, raising=False)
    elsewhere = _is_model(words, name, signature) or (" ".join(words), name) in WRITTEN
    address = "https://host/folder" if elsewhere else "s3://bucket/folder"
    message = _refusal(words, name, address, signature)
    if (" ".join(words), name) in DATA:
        assert message == (
            f"{address}: Unable to locate credentials; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    elif (" ".join(words), name) not in READ:
        assert f"expected a path, found the address {address}" in message or "cannot be read frame" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "name", "signature"), [case for case in PATHS if (" ".join(case[0]), case[1]) in WRITTEN]
)
def test_a_bucket_is_no_place_to_write_to(words: list[str], name: str, signature: inspect.Signature) -> None:
    assert "s3://bucket is a whole bucket; name a place in it" in _refusal(words, name, "s3://bucket/", signature)


@pytest.mark.parametrize(("words", "name", "signature"), PATHS, ids=lambda case: case if type(case) is str else None)
def test_an_empty_text_is_not_the_current_folder(
    words: list[str], name: str, signature: inspect.Signature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = _refusal(words, name, "", signature)
    if (" ".join(words), name) not in READ:
        assert "expected a path, found an empty text" in message
    assert not list(tmp_path.iterdir())
