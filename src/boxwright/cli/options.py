"""Command options generated from settings, which define name, default and help in one place; checks of a command's input.

The checks are made before anything heavy is imported.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from boxwright.base.errors import DataError
from boxwright.cli.words import OTHER_NAMES

# Help spells options with underscores, as TensorFlow's scripts do; hyphens are accepted everywhere.
CONTEXT = {"help_option_names": ["-h", "--help"], "token_normalize_func": lambda token: token.replace("-", "_")}


def source_path(text: str) -> Path:
    """Return a path: of the files of the shipped detector or of published weights for a name, or for hf://USER/NAME."""
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
    """Raise a DataError if nothing matches a path or glob; `name@10` is left to the reader."""
    import glob

    if "@" not in source and not os.path.isfile(source) and not os.path.isdir(source) and not glob.glob(source):
        raise DataError(f"no file matches {source!r}")


def model_option(help: str) -> Any:
    """Return the option that names a model, by any of its three spellings."""
    return typer.Option("--model_dir", "--checkpoint", "--model", parser=source_path, metavar="PATH", help=help)


CheckpointOption = Annotated[
    Path,
    model_option(
        "A run's folder or checkpoint; an exported .onnx or .xml; TensorFlow's checkpoint, SavedModel, frozen graph "
        "or zoo archive; a name of boxwright weights list; hf://USER/NAME on Hugging Face's hub; or "
        "demo, the blood cell detector in the package.",
    ),
]


class PlainCommand(TyperCommand):
    """A command whose help groups options by panel and never cuts their names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; for an unknown option, suggest its name here, or a similar one."""
        for word in self._unknown(args):
            if hint := _hint(word, OTHER_NAMES.get(self.name or "", {}), self._options()):
                ctx.fail(f"no option --{word}; {hint}")
        return super().parse_args(ctx, args)

    def _options(self) -> dict[str, Any]:
        """Return the options by name, without dashes."""
        return {flag.lstrip("-"): option for option in self.params for flag in (*option.opts, *option.secondary_opts)}

    def _unknown(self, args: list[str]) -> Iterator[str]:
        """Yield unknown options, with underscores; a word after an option may be its value."""
        options, words = {**self._options(), "help": None}, iter(args)
        for word in itertools.takewhile(lambda word: word != "--", words):
            if not word.startswith("--"):
                continue
            name, _, value = word.replace("-", "_").removeprefix("__").partition("=")
            if name not in options:
                yield name
            elif not value and not getattr(options[name], "is_flag", True):
                next(words, None)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, grouped by panel."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                panels.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append(record)
        for title, rows in panels.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def _hint(name: str, other: dict[str, str], options: Iterable[str]) -> str:
    """Return what to write instead of an unknown option; empty if nothing is similar."""
    if name in other:
        return f"here it is {other[name]}"
    for close in difflib.get_close_matches(name, [*options, *other], n=1):
        return f"did you mean {close}? Here it is {other[close]}" if close in other else f"did you mean --{close}?"
    return ""


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of its settings, which are its dataclass parameters.

    A field without help gets no option.
    """
    own = inspect.signature(command, eval_str=True).parameters
    kinds: dict[str, Any] = {n: p.annotation for n, p in own.items() if dataclasses.is_dataclass(p.annotation)}
    shown = {
        name: [spec for spec in dataclasses.fields(kind) if "help" in spec.metadata] for name, kind in kinds.items()
    }

    def run(**values: Any) -> None:
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
    explicit = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, p in own.items() if name not in shown]
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
    return Annotated[kind, typer.Option(*flags, help=meta["help"], rich_help_panel=meta["panel"], **bounds)]


def _as_field(value: Any, spec: dataclasses.Field[Any]) -> Any:
    """Return an option's value as the field's type: repeatable options as a tuple."""
    return tuple(value or ()) if isinstance(spec.default, tuple) else value
