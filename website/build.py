"""Lay out the site's pages: `python -m website.build FOLDER` writes them and `zensical.toml`, which Zensical builds.

With a second folder, commands run there, and a demo that an earlier build left in it is not trained again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

from boxwright import __version__
from website import architecture, drawn, families, formats, notebooks, reference, screenshots
from website.links import led_to_the_site
from website.notebooks import NOTEBOOKS
from website.reference import GENERATED
from website.sections import ELSEWHERE, SECTIONS

ROOT = Path(__file__).parent.parent

_SETTINGS = """\
# Written by website/build.py.
[project]
site_name = "Boxwright"
site_description = "Train object detectors on your own pictures, see where they fail, and run them anywhere."
copyright = "Version {version} · The Boxwright developers · Apache-2.0"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
extra_css = ["site.css"]
extra_javascript = ["models.js"]
nav = [
{nav}
]

[project.extra.version]
provider = "mike" # the list that website/versions.py writes beside each version's folder

[project.theme]
features = [
  "content.code.copy",
  "navigation.footer",
  "navigation.path",
  "navigation.tabs",
  "navigation.top",
  "navigation.tracking",
  "search.highlight",
]
font = false # nothing is fetched from others

[[project.theme.palette]]
media = "(prefers-color-scheme)"
toggle.icon = "lucide/sun-moon"
toggle.name = "Switch to light mode"

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Switch to dark mode"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Switch to system preference"

[project.markdown_extensions.admonition]
[project.markdown_extensions.attr_list]
[project.markdown_extensions.md_in_html]
[project.markdown_extensions.tables]
[project.markdown_extensions.toc]
permalink = true
toc_depth = 3
slugify = {{ object = "pymdownx.slugs.slugify", kwds = {{ case = "lower" }} }}
[project.markdown_extensions.pymdownx.highlight]
[project.markdown_extensions.pymdownx.inlinehilite]
[project.markdown_extensions.pymdownx.superfences]
custom_fences = [{{ name = "mermaid", class = "mermaid", format = "pymdownx.superfences.fence_code_format" }}]

[project.plugins.mkdocstrings.handlers.python]
inventories = []
paths = ["{source}"]
[project.plugins.mkdocstrings.handlers.python.options]
docstring_style = "google"
show_root_heading = true
show_root_toc_entry = true
show_root_full_path = false
show_source = false
heading_level = 2
members_order = "source"
separate_signature = true
line_length = 80
show_signature_annotations = true
signature_crossrefs = false
"""


def build(target: Path, work: Path) -> None:
    """Write pages, pictures and settings into a folder, which is emptied first.

    Args:
        work: Where commands run of whose output pages have pictures; a demo that is there is used.
    """
    shutil.rmtree(target, ignore_errors=True)
    pages = target / "pages"
    pages.mkdir(parents=True)
    written = {path.name: path for path in (ROOT / "docs").glob("*.md")}
    written |= {name: ROOT / path for name, path in ELSEWHERE.items()}
    names = {str(path.relative_to(ROOT)): name for name, path in written.items()}
    names |= {f"docs/{name}": name for name in GENERATED}
    commands = drawn.Commands(work)
    commands.make_demo()
    for name, path in written.items():
        text, files = led_to_the_site(path.read_text(encoding="utf-8"), path, ROOT, names)
        text = drawn.placed(text, commands, pages) + families.section(name) + architecture.section(pages, name)
        (pages / name).write_text(text + _generated(name, commands), encoding="utf-8")
        for file in files:
            copy = pages / str(file.relative_to(ROOT)).removeprefix("docs/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
    screenshots.take(commands, pages)
    _write_notebooks(pages, work)
    for name, make in GENERATED.items():
        (pages / name).write_text(make(), encoding="utf-8")
    for name in ("site.css", "models.js"):
        shutil.copy(Path(__file__).parent / name, pages)
    shown = {page for section in SECTIONS.values() for page in section.values()}
    there = set(written) | set(GENERATED) | {notebooks.page_name(path) for path in NOTEBOOKS.glob("*.ipynb")}
    if shown != there:
        raise SystemExit(f"sections.py and the pages differ: {sorted(shown ^ there)}")
    settings = _SETTINGS.format(version=__version__, nav=_navigation(), source=ROOT / "src")
    (target / "zensical.toml").write_text(settings, encoding="utf-8")


def _write_notebooks(pages: Path, work: Path) -> None:
    """Run the notebooks and write their pages; what an earlier build left of a notebook that did not change is used."""
    kept = work / "notebooks"
    kept.mkdir(parents=True, exist_ok=True)
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        ran = kept / f"{path.stem}-{digest}.json"
        if not ran.is_file():
            ran.write_text(json.dumps(notebooks.run(path, kept)), encoding="utf-8")
        text = notebooks.render(json.loads(ran.read_text(encoding="utf-8")), path.stem, pages)
        (pages / notebooks.page_name(path)).write_text(text, encoding="utf-8")


def _generated(name: str, commands: drawn.Commands) -> str:
    """Return what is generated of a page that is otherwise written."""
    if name == "events.md":
        return reference.events()
    return formats.section(commands) if name == "file_formats.md" else ""


def _navigation() -> str:
    sections = []
    for title, pages in SECTIONS.items():
        items = ", ".join(f'{{ "{name}" = "{page}" }}' for name, page in pages.items())
        sections.append(f'  {{ "{title}" = [{items}] }},')
    return "\n".join(sections)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    build(folder, Path(sys.argv[2]) if len(sys.argv) > 2 else folder / "work")
