"""Writing pages: Jinja2's templates with escaping, and data as scripts, which a browser opens from disk."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from boxwright.base.files import write_whole
from boxwright.base.paths import refuse_foreign_page
from boxwright.base.text import visible

# Beside each page: what its template loads.
_ASSETS = {
    "report.html": ("report.css", "charts.js", "pictures.js", "gallery.js"),
    "data.html": ("report.css", "charts.js", "pictures.js", "data.js"),
    "compare.html": ("report.css", "charts.js", "pictures.js", "compare.js"),
}


def environment() -> jinja2.Environment:
    """Return the templates, in which every value is escaped."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("boxwright.report", "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["number"] = shown_number
    made.filters["percent"] = lambda value: "–" if _unknown(value) else f"{100 * value:.1f} %"
    return made


def _unknown(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def shown_number(value: Any, digits: int = 3) -> str:
    """Return a number for people; a dash for None and NaN."""
    if _unknown(value):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def write_page(folder: Path, template: str, content: dict[str, Any]) -> None:
    """Write `index.html`, with styles and scripts beside it; OutputError if there is one that is not ours."""
    refuse_foreign_page(folder)
    for name in _ASSETS[template]:
        write_whole(folder / name, files("boxwright.report").joinpath("assets", name).read_bytes())
    write_whole(folder / "index.html", visible(environment().get_template(template).render(content)))


def remove_parts(folder: Path) -> None:
    """Remove the data and pictures of an earlier page."""
    for path in [*folder.glob("data/*.js"), *folder.glob("pictures/[0-9][0-9][0-9][0-9][0-9][0-9].jpg")]:
        path.unlink()


def write_data(folder: Path, name: str, value: Any) -> None:
    """Write data that the page reads as `report.data[name]`; a script, as browsers fetch no file from disk."""
    text = json.dumps(_finite(value), separators=(",", ":"), ensure_ascii=True)
    # As a string of JSON, which browsers parse several times as fast as a script's objects.
    write_whole(folder / "data" / f"{name}.js", f"report.add({json.dumps(name)}, {json.dumps(text)});\n")


def _finite(value: Any) -> Any:
    """Return a value with None for numbers that JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
