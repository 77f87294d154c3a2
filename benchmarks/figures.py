"""Write the figures of some pages from the files that their commands wrote.

    python benchmarks/figures.py [--check]

A figure stands between comments: `<!-- detectors-cpu > some key > other key: .2f -->0.68<!-- -->`. The first part
names a file of `results` without `.json`, or `preset NAME` for what `boxwright models NAME --json` prints; the others
lead to the value: keys, the number of a list's item, or `key=value` for the first item that has it. Then follows
Python's format, and before it, where wanted, `1/` for the inverse or `1e-6*` for a multiple. A whole table
stands between `<!-- table: small-data-cpu -->` and `<!-- end of table -->`. `--check` ends with 1 if any is stale.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "benchmarks")]
import first_training_table  # noqa: E402  # a script beside this one
from small_data_table import table  # noqa: E402

PAGES = ("README.md", "benchmarks/README.md", "docs/d_fine.md", "docs/small_data.md")
# By the name of the file of `results`.
TABLES = {
    "small-data-cpu": table,
    "first-training-budgets-cpu": first_training_table.budgets,
    "first-training-variants-cpu": first_training_table.variants,
    "first-training-statistics-cpu": first_training_table.statistics,
}
_TABLE = re.compile(r"<!-- table: (?P<name>[\w-]+) -->\n.*?<!-- end of table -->", re.DOTALL)
_FIGURE = re.compile(r"<!-- (?P<path>[^:>]+(?: > [^:>]+)+): (?P<form>[^>]+?) -->(?P<text>[^<\n]*)<!-- -->")
_FORM = re.compile(r"(?P<inverse>1/)?(?:(?P<factor>[\d.e+-]+)\*)?(?P<spec>[,.\d]*[dfg])")


class FigureError(Exception):
    """A figure that leads to no value."""


@cache
def source(name: str) -> Any:
    """Return what a file of `results` holds, or what is known of a preset."""
    kind, _, preset = name.partition(" ")
    if kind == "preset":
        from boxwright.cli.benchmarking.preset_costs import read_costs

        return vars(read_costs()[preset])
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    if not path.is_file():
        raise FigureError(f"{path.relative_to(ROOT)}: no such file")
    return json.loads(path.read_text())


def value_of(path: str) -> float:
    """Return the number that a path leads to."""
    first, *parts = path.split(" > ")
    value = source(first)
    for part in parts:
        try:
            value = _step(value, part)
        except (KeyError, IndexError, ValueError, TypeError, StopIteration):
            raise FigureError(f"{path}: nothing at {part!r}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FigureError(f"{path}: expected a number, found {type(value).__name__}")
    number: int | float = value
    return number


def _step(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value[part]
    key, equals, wanted = part.partition("=")
    return next(row for row in value if str(row[key]) == wanted) if equals else value[int(part)]


def written(path: str, form: str) -> str:
    """Return a figure's text."""
    found = _FORM.fullmatch(form)
    if found is None:
        raise FigureError(f"{path}: {form!r} is no format")
    value = value_of(path)
    value = 1 / value if found["inverse"] else value
    return format(value * float(found["factor"]) if found["factor"] else value, found["spec"])


def written_table(name: str) -> str:
    """Return a table with the comments around it."""
    if name not in TABLES:
        raise FigureError(f"table {name}: expected one of {', '.join(TABLES)}")
    # Empty lines, as Markdown takes what follows a comment at once for HTML.
    return "\n".join([f"<!-- table: {name} -->", "", *TABLES[name](source(name)), "", "<!-- end of table -->"])


def filled(text: str) -> str:
    """Return a page with its figures and tables written anew."""
    text = _TABLE.sub(lambda one: written_table(one["name"]), text)
    return _FIGURE.sub(
        lambda one: f"<!-- {one['path']}: {one['form']} -->{written(one['path'], one['form'])}<!-- -->", text
    )


def stale(text: str) -> Iterator[str]:
    """Yield a line for each figure or table that is not what its file says."""
    for one in _FIGURE.finditer(text):
        if (now := written(one["path"], one["form"])) != one["text"]:
            yield f"{one['path']}: {one['text'] or 'nothing'} is written, {now} was measured"
    for one in _TABLE.finditer(text):
        if written_table(one["name"]) != one[0]:
            yield f"table {one['name']}: it is not what was measured"
    # Markdown takes a line that begins with a comment for HTML, as it stands.
    yield from (
        f"{line[:60]} …: a figure begins a line"
        for line in text.splitlines()
        if line.startswith("<!--") and "<!-- -->" in line
    )
    # One that is misspelt would never be filled.
    if odd := text.count("<!-- -->") - len(_FIGURE.findall(text)):
        yield f"{odd} of the comments that end a figure end none"


def main() -> int:
    """Write the pages, or check them; return 1 if a figure is stale or leads nowhere."""
    wrong = []
    for page in PAGES:
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        try:
            if "--check" in sys.argv[1:]:
                wrong += [f"{page}: {line}" for line in stale(text)]
            else:
                path.write_text(filled(text), encoding="utf-8")
        except FigureError as error:
            wrong.append(f"{page}: {error}")
    if wrong:
        print("\n".join([*wrong, "to write them: python benchmarks/figures.py"]))
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main())
