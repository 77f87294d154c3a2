"""Options of a command, generated from the settings that it fills in: one place for name, default and help."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

__all__ = ["CONTEXT", "with_settings"]

T = TypeVar("T")
# Help spells options with underscores, as TensorFlow's scripts do; hyphens are accepted everywhere.
CONTEXT = {"help_option_names": ["-h", "--help"], "token_normalize_func": lambda token: token.replace("-", "_")}


def with_settings(settings: type[T]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command an option for each field of a settings dataclass.

    The command takes the settings themselves as its parameter `settings`. A field whose metadata has no "help" gets no
    option.

    Args:
        settings: A dataclass whose fields are declared by `setting`.

    Returns:
        The decorator.
    """
    hints = get_type_hints(settings)
    shown = [spec for spec in dataclasses.fields(settings) if "help" in spec.metadata]  # type: ignore[arg-type]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters

        def run(**values: Any) -> None:
            given = {spec.name: _as_field(values.pop(spec.name), spec) for spec in shown}
            command(settings=settings(**given), **values)

        generated = [
            inspect.Parameter(
                spec.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=list(spec.default) or None if isinstance(spec.default, tuple) else spec.default,
                annotation=_option(spec, hints[spec.name]),
            )
            for spec in shown
        ]
        explicit = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, p in own.items() if name != "settings"]
        needed = [p for p in explicit if p.default is inspect.Parameter.empty]
        others = [p for p in explicit if p.default is not inspect.Parameter.empty]
        run.__signature__ = inspect.Signature([*needed, *generated, *others])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in (*explicit, *generated)}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def _option(spec: dataclasses.Field[Any], hint: Any) -> Any:
    """Return the annotation by which Typer makes a field's option."""
    name, meta = spec.name, spec.metadata
    kind = list[str] | None if isinstance(spec.default, tuple) else hint
    flag = f"--{name}/--no_{name}" if spec.default is True else f"--{name}"
    bounds = {"min": meta["least"]} if "least" in meta else {}
    return Annotated[kind, typer.Option(flag, help=meta["help"], rich_help_panel=meta.get("panel"), **bounds)]


def _as_field(value: Any, spec: dataclasses.Field[Any]) -> Any:
    """Return an option's value as its field has it: what may be repeated is a tuple."""
    return tuple(value or ()) if isinstance(spec.default, tuple) else value
