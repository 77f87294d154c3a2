"""Write the figures of three pages from the files that their commands wrote.

    python benchmarks/figures.py [--check]

A table stands between `<!-- table: race-cpu -->` and `<!-- end of table -->`, a figure between comments, too:
`<!-- small-data-cpu > training > contender=D-FINE-N > AP: .3f -->0.231<!-- -->`. The first part names a file of
`results` without `.json`; the others lead to the value: keys, the number of a list's item, or `key=value` for the first
item that has it. Then follows Python's format. `--check` ends with 1 if any is stale.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "benchmarks")]
import first_training_table  # noqa: E402  # scripts beside this one
import precision  # noqa: E402
import race  # noqa: E402
import small_data_table  # noqa: E402
import speed  # noqa: E402

PAGES = ("benchmarks/README.md", "docs/gpu.md", "docs/small_data.md")
# By the name of the file of `results`.
TABLES: dict[str, Callable[[Any], list[str]]] = {
    "first-training-budgets-cpu": first_training_table.budgets,
    "first-training-statistics-cpu": first_training_table.statistics,
    "first-training-variants-cpu": first_training_table.variants,
    "precision-cpu": precision.table,
    "race-cpu": race.table,
    "small-data-cpu": small_data_table.table,
    "speed-cpu": speed.table,
}
_TABLE = re.compile(r"<!-- table: (?P<name>[\w-]+) -->\n.*?<!-- end of table -->", re.DOTALL)
_FIGURE = re.compile(r"<!-- (?P<path>[^:>]+(?: > [^:>]+)+): (?P<form>[^>]+?) -->(?P<text>[^<\n]*)<!-- -->")


class FigureError(Exception):
    """A figure that leads to no value."""


@cache
def source(name: str) -> Any:
    """Return what a file of `results` holds."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    if not path.is_file():
        raise FigureError(f"{path.relative_to(ROOT)}: no such file")
    return json.loads(path.read_text())


def written(path: str, form: str) -> str:
    """Return the text of the number that a path leads to."""
    first, *parts = path.split(" > ")
    value = source(first)
    for part in parts:
        try:
            value = _step(value, part)
        except (KeyError, IndexError, ValueError, TypeError, StopIteration):
            raise FigureError(f"{path}: nothing at {part!r}") from None
    try:
        return format(value, form)
    except (TypeError, ValueError) as error:
        raise FigureError(f"{path}: {error}") from None


def _step(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value[part]
    key, equals, wanted = part.partition("=")
    return next(row for row in value if str(row[key]) == wanted) if equals else value[int(part)]


def written_table(name: str) -> str:
    """Return a table with the comments around it."""
    if name not in TABLES:
        raise FigureError(f"table {name}: expected one of {', '.join(TABLES)}")
    # Empty lines, as Markdown takes what follows a comment at once for HTML.
    return "\n".join([f"<!-- table: {name} -->", "", *TABLES[name](source(name)), "", "<!-- end of table -->"])


def filled(text: str) -> str:
    """Return a page with its figures and tables written anew."""
    text = _TABLE.sub(lambda table: written_table(table["name"]), text)
    return _FIGURE.sub(
        lambda figure: (
            f"<!-- {figure['path']}: {figure['form']} -->{written(figure['path'], figure['form'])}<!-- -->"
        ),
        text,
    )


def stale(text: str) -> Iterator[str]:
    """Yield a line for each figure or table that is not what its file says."""
    for figure in _FIGURE.finditer(text):
        if (now := written(figure["path"], figure["form"])) != figure["text"]:
            yield f"{figure['path']}: {figure['text'] or 'nothing'} is written, {now} was measured"
    for table in _TABLE.finditer(text):
        if written_table(table["name"]) != table[0]:
            yield f"table {table['name']}: it is not what was measured"
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
