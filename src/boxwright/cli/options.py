"""Command options generated from settings, which define name, default and help in one place; checks of a command's input.

The checks are made before anything heavy is imported.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from boxwright.base.errors import DataError
from boxwright.base.paths import refuse_source, require_path
from boxwright.cli.console import print_json_only, print_problems_only


def source_path(text: str) -> Path:
    """Return a path: for a name or an address, of the files in the package or in a cache, fetched if need be."""
    from boxwright.base.outputs import is_output_address

    if not text.startswith("hf://") and not is_output_address(text):
        require_path(text)
    # The demo's own folder has the name of the shipped detector.
    if os.path.exists(text) and text != "demo":
        return Path(text)
    from boxwright.weights.find_weights import local_path

    return local_path(text)


def require_checkpoint(path: Path) -> None:
    """Raise a CheckpointError if no file, folder or checkpoint prefix of that name exists.

    If the folder has other checkpoints, the reader lists them later.
    """
    exists = os.path.isfile(f"{path}.index") or os.path.isfile(path) or os.path.isdir(path)
    if not exists and not (os.path.isdir(path.parent) and any(path.parent.glob("*ckpt-*"))):
        from boxwright.weights.find_weights import unknown

        raise unknown(path)


def require_data(source: str) -> None:
    """Raise a DataError if nothing matches a path or glob; `name@10` and addresses are left to the reader."""
    import glob

    from boxwright.base.remote import is_remote

    if is_remote(source):
        return
    require_path(source, error=DataError)
    if "@" not in source and not os.path.isfile(source) and not os.path.isdir(source) and not glob.glob(source):
        raise DataError(f"no file matches {source!r}")


def model_option(help: str) -> Any:
    """Return the option that names a model, by any of its three spellings."""
    return typer.Option("--model_dir", "--checkpoint", "--model", parser=source_path, metavar="PATH", help=help)


CheckpointOption = Annotated[
    Path,
    model_option(
        "A run's folder or checkpoint; an exported .onnx or .xml; TensorFlow's checkpoint, SavedModel, frozen graph "
        "or zoo archive; any of these at an s3:// or gs:// address; a name of boxwright weights list; hf://USER/NAME on "
        "Hugging Face's hub; or demo, the blood cell detector in the package.",
    ),
]


JsonOption = Annotated[
    bool,
    typer.Option(
        "--json", callback=print_json_only, help="Print the result as JSON; everything else goes to standard error."
    ),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", callback=print_problems_only, help="Print only warnings and errors.")
]


def with_quiet(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the option `--quiet`, which takes effect when it is read."""

    def run(*, quiet: bool = False, **values: Any) -> None:
        del quiet
        command(**values)

    explicit = list(inspect.signature(command, eval_str=True).parameters.values())
    quiet = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=QuietOption)
    parameters = [*(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in explicit), quiet]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of its settings, which are its dataclass parameters.

    A field without help gets no option. An option or argument of a path refuses addresses and empty texts, and what is
    written may not be a file that another one names.
    """
    own = inspect.signature(command, eval_str=True).parameters
    kinds: dict[str, Any] = {n: p.annotation for n, p in own.items() if dataclasses.is_dataclass(p.annotation)}
    shown = {
        name: [spec for spec in dataclasses.fields(kind) if "help" in spec.metadata] for name, kind in kinds.items()
    }

    def run(**values: Any) -> None:
        _refuse_sources(values)
        filled = {
            name: kinds[name](**{spec.name: _as_field(values.pop(spec.name), spec) for spec in specs})
            for name, specs in shown.items()
        }
        command(**filled, **values)

    generated = [
        inspect.Parameter(
            spec.name,
            inspect.Parameter.KEYWORD_ONLY,
            # Typer's repeatable options take lists; None shows no default in the help.
            default=list(spec.default) or None if isinstance(spec.default, tuple) else spec.default,
            annotation=_option(spec, get_type_hints(kinds[name])[spec.name]),
        )
        for name, specs in shown.items()
        for spec in specs
    ]
    explicit = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=_checked_path(name, p.annotation))
        for name, p in own.items()
        if name not in shown
    ]
    needed = [p for p in explicit if p.default is inspect.Parameter.empty]
    others = [p for p in explicit if p.default is not inspect.Parameter.empty]
    # Typer creates the command from these attributes.
    run.__signature__ = inspect.Signature([*needed, *generated, *others])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (*explicit, *generated)}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _option(spec: dataclasses.Field[Any], hint: Any) -> Any:
    """Return the annotation from which Typer creates a field's option."""
    name, meta = spec.name, spec.metadata
    kind = list[str] | None if isinstance(spec.default, tuple) else hint
    # A switch that is on by default needs a name that turns it off.
    flags = meta["flags"] or (f"--{name}/--no_{name}" if spec.default is True else f"--{name}",)
    bounds = {"min": meta["least"], "max": meta["most"]}
    return _checked_path(
        name, Annotated[kind, typer.Option(*flags, help=meta["help"], rich_help_panel=meta["panel"], **bounds)]
    )


def _checked_path(name: str, annotation: Any) -> Any:
    """Return the annotation of an option or argument, with a parser that checks it where it is a path."""
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, given, *rest = get_args(annotation)
    plain = {kind, *get_args(kind), *itertools.chain.from_iterable(map(get_args, get_args(kind)))}
    if Path not in plain or given.parser is not None:
        return annotation
    checked = copy.copy(given)
    is_option = isinstance(given, typer.models.OptionInfo)
    what = option_flag(given, name) if is_option else name
    checked.parser = lambda text: require_path(text, what)
    if is_option and checked.metavar is None:
        checked.metavar = "PATH"
    return Annotated[kind, checked, *rest]


def option_flag(given: typer.models.OptionInfo, name: str) -> str:
    """Return an option's flag for messages: the first that was given, else its parameter's name."""
    # In an annotation, Typer takes the first flag for the default.
    flags = [given.default, *(given.param_decls or ())]
    return next((flag for flag in flags if isinstance(flag, str) and flag.startswith("--")), f"--{name}")


# What commands write; all other options and arguments name what they read.
OUTPUTS = ("out", "target", "sheet", "json_path", "triton", "report", "fix", "output_directory")


def _refuse_sources(values: dict[str, Any]) -> None:
    """Raise an OutputError if a file that a command is to write is one of those that it is to read."""
    read = [
        os.fspath(item)
        for name, value in values.items()
        if name not in OUTPUTS
        for item in (value if isinstance(value, list | tuple) else [value])
        if isinstance(item, str | Path) and os.path.isfile(item)
    ]
    for name in OUTPUTS:
        if isinstance(values.get(name), str | Path):
            refuse_source(values[name], read)


def _as_field(value: Any, spec: dataclasses.Field[Any]) -> Any:
    """Return an option's value as the field's type: repeatable options as a tuple."""
    return tuple(value or ()) if isinstance(spec.default, tuple) else value
