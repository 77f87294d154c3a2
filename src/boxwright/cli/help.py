"""How commands explain themselves: help as wide as the terminal, and usage errors that name the nearest word."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from boxwright.base.nearest import did_you_mean, nearest_name
from boxwright.base.text import to_number
from boxwright.cli.words import OTHER_NAMES

# Help spells options with underscores, as TensorFlow's scripts do; hyphens are accepted everywhere.
CONTEXT: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda token: token.replace("-", "_"),
    # Wider than any terminal: the library would stop at 80 columns.
    "max_content_width": 10_000,
}
# Typer brings a copy of Click since 0.26: its errors are not those of the package `click`.
USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
# Typer's words for kinds of values, of which the older are in capitals.
_KIND = re.compile(r"<(?:list\[)?(str|path|int|float)(?: range)?\]?>|\b(TEXT|PATH|INTEGER|FLOAT)(?: RANGE)?\b", re.I)
# Typer's sentences about values and arguments, in our words.
_PLAIN = (
    (re.compile(r"Input should be a valid (\w+).*"), r"expected a valid \1"),
    (re.compile(r"Input should be greater than or equal to "), "expected at least "),
    (re.compile(r"Input should be less than or equal to "), "expected at most "),
    (re.compile(r"Value error, "), ""),
    (re.compile(r"Got unexpected extra argument(?:\(s\)|s)? \((.*)\)"), r"too many arguments: \1"),
)
_KINDS = {"str": "TEXT", "path": "PATH", "int": "INTEGER", "float": "NUMBER"}


class PlainCommand(TyperCommand):
    """A command whose help groups options by panel and never cuts their names; its epilog has examples, a line each."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; for an unknown option, suggest its name here, or a similar one."""
        # While a shell completes a word, the line may be anything.
        for word in () if ctx.resilient_parsing else self._unknown(args):
            hint = _hint(word, OTHER_NAMES.get(self.name or "", {}), self._options())
            ctx.fail(f"no option --{word}; {hint or f'{ctx.command_path} --help lists the options'}")
        texts, *_ = self.make_parser(ctx).parse_args(args=list(args))
        rest = super().parse_args(ctx, args)
        for name, text in texts.items():
            self._refuse_other_digits(ctx, name, text)
        return rest

    def _refuse_other_digits(self, ctx: Any, name: str, text: Any) -> None:
        """Fail if a number is spelled with digits other than ASCII's, or with underscores, which Python's parsers read."""
        texts, values = (item if isinstance(item, list | tuple) else [item] for item in (text, ctx.params.get(name)))
        for spelled, value in zip(texts, values, strict=False):
            if isinstance(spelled, str) and isinstance(value, int | float) and not isinstance(value, bool):
                try:
                    to_number(spelled)
                except ValueError as error:
                    option = next(param for param in self.params if param.name == name)
                    ctx.fail(f"{option.opts[0]}: {error}")

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

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the command's name in its usage line: optional arguments are in brackets."""
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        return [
            "[OPTIONS]",
            *(_argument(argument) if argument.required else f"[{_argument(argument)}]" for argument in arguments),
        ]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, the arguments, and the options, grouped by panel."""
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            if param.param_type_name == "argument":
                panels["Arguments"].append((_argument(param), record[1]))
            else:
                panel = getattr(param, "rich_help_panel", None) or "Options"
                panels.setdefault(panel, []).append((_KIND.sub(_kind, record[0]), record[1]))
        for title, rows in panels.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write nothing: examples stand above the options, where a long help begins."""


class PlainGroup(TyperGroup):
    """A group of commands whose help is printed when no command is named, with each command's whole sentence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; none are a request for help."""
        return super().parse_args(ctx, args or ["--help"])

    def accepted_names(self, ctx: Any) -> list[str]:
        """Return the names of commands, and what else names one."""
        return self.list_commands(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command and its arguments; fail with the nearest name if it is unknown."""
        name, known = args[0], self.accepted_names(ctx)
        # With underscores, so that exporter-main-v2 is known, too.
        normal = ctx.token_normalize_func(name) if ctx.token_normalize_func else name
        if not name.startswith("-") and not {name, normal} & {*known}:
            ctx.fail(f"no command {name!r}{did_you_mean(name, known, f'{ctx.command_path} --help lists them')}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write names and the first sentences of the commands' help."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        helps = {name: command.help or "" for name, command in commands.items() if command is not None}
        with formatter.section("Commands"):
            formatter.write_dl([(name, text.split("\n\n")[0]) for name, text in helps.items()])


def exit_with_usage_error(error: Any) -> NoReturn:
    """Print a usage error as one line, like all errors, and exit with its status, 2."""
    from boxwright.cli.console import errors

    text = " ".join(error.format_message().split()).rstrip(".")
    for pattern, plain in _PLAIN:
        text = pattern.sub(plain, text)
    command = "" if error.ctx is None else f"; {error.ctx.command_path} --help explains it"
    remedy = "" if "?" in text or ";" in text else command
    errors.print(f"error: {text[:1].lower()}{text[1:]}{remedy}", style="red")
    raise SystemExit(error.exit_code)


def _argument(param: Any) -> str:
    """Return an argument's name in help: DATA, or SOURCES... if there may be several."""
    name = str(param.metavar or param.name.rstrip("_").upper())
    return f"{name}..." if param.nargs != 1 and not name.endswith("...") else name


def _kind(match: re.Match[str]) -> str:
    name = (match[1] or match[2]).lower()
    return _KINDS.get(name, "NUMBER" if name == "float" else name.upper())


def _hint(name: str, other: dict[str, str], options: Iterable[str]) -> str:
    """Return what to write instead of an unknown option; empty if nothing is similar."""
    if name in other:
        return f"here it is {other[name]}"
    near = nearest_name(name, [*options, *other])
    if near is None:
        return ""
    return f"did you mean {near}? Here it is {other[near]}" if near in other else f"did you mean --{near}?"
