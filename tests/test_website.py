"""How the site is laid out; `make docs` builds it."""

from __future__ import annotations

import base64
import json
from collections import OrderedDict
from pathlib import Path
from typing import cast, get_args

import pytest
import torch
from website import drawn, families, formats, notebooks, reference, screenshots
from website.links import broken_links, led_to_the_site
from website.sections import ELSEWHERE, SECTIONS
from website.versions import publish

from boxwright import sample_images
from boxwright.cli.commands import COMMANDS
from boxwright.config.preset import preset_names
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.training.log import Event

ROOT = Path(__file__).parent.parent


def test_every_page_has_a_place() -> None:
    shown = [page for pages in SECTIONS.values() for page in pages.values()]
    there = {path.name for path in (ROOT / "docs").glob("*.md")} | set(ELSEWHERE) | set(reference.GENERATED)
    there |= {notebooks.page_name(path) for path in notebooks.NOTEBOOKS.glob("*.ipynb")}
    assert len(shown) == len(set(shown))
    assert set(shown) == there


def test_a_notebooks_page_has_text_code_and_what_it_shows(tmp_path: Path) -> None:
    png = base64.b64encode(b"a picture").decode()
    outputs = [
        {"output_type": "stream", "name": "stderr", "text": ["a warning\n"]},
        {"output_type": "stream", "name": "stdout", "text": ["\x1b[1m3\x1b[0m objects\n"]},
        {"output_type": "display_data", "data": {"image/png": png, "text/plain": "<PIL.Image>"}},
        {"output_type": "execute_result", "data": {"text/plain": ["0.5"]}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": "look()", "outputs": outputs},
    ]
    assert notebooks.render({"cells": cells}, "look", tmp_path) == (
        "# Title\ntext\n\n*This is the notebook `notebooks/look.ipynb`, run when this page was built.*\n\n"
        "```python\nlook()\n```\n\n```text\n3 objects\n```\n\n![What this cell shows](notebooks/look-1.png)\n\n"
        "```text\n0.5\n```\n"
    )
    assert (tmp_path / "notebooks" / "look-1.png").read_bytes() == b"a picture"


def test_a_notebooks_page_does_not_say_where_the_package_is(tmp_path: Path) -> None:
    printed = {"output_type": "stream", "name": "stdout", "text": f"compared on {sample_images()[0].parent}\n"}
    cells = [{"cell_type": "markdown", "source": "# T"}, {"cell_type": "code", "source": "go()", "outputs": [printed]}]
    assert "compared on boxwright/assets/blood_cells/test\n" in notebooks.render({"cells": cells}, "look", tmp_path)


def test_links_lead_to_where_pages_are_in_the_site(tmp_path: Path) -> None:
    for name in ("docs/a.md", "docs/b.jpg", "READ.md", "results/c.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    pages = {"docs/a.md": "a.md", "READ.md": "index.md"}
    text = "[1](a.md#x) ![2](b.jpg) [3](../READ.md) [4](../results/c.json) [5](../results) [6](https://e.example)\n"
    text += "```text\n[7](a.md)\n```\n"
    found, files = led_to_the_site(text, tmp_path / "docs" / "z.md", tmp_path, pages)
    assert found == (
        "[1](a.md#x) ![2](b.jpg) [3](index.md) [4](results/c.json) 5 [6](https://e.example)\n```text\n[7](a.md)\n```\n"
    )
    assert files == [tmp_path / "docs" / "b.jpg", tmp_path / "results" / "c.json"]


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<h2 id="x">X</h2><a href="b.html#y">1</a><a href="#x">2</a><a href="#z">3</a>')
    (tmp_path / "b.html").write_text('<a href="a.html#x">1</a><img src="none.png"><a href="https://e.example/q">2</a>')
    assert list(broken_links(tmp_path)) == [
        "a.html: b.html#y: no such place",
        "a.html: #z: no such place",
        "b.html: none.png: no such file",
    ]


def test_versions_stand_beside_each_other(tmp_path: Path) -> None:
    sites = {}
    for version in ("0.9.0", "0.10.0", "1.0.0rc1"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "index.html").write_text(f"<p>{version}</p>")
        sites[version] = tmp_path / version
    out = tmp_path / "out"
    (out / "0.8.0").mkdir(parents=True)
    publish(out, sites)
    listed = json.loads((out / "versions.json").read_text())
    assert [row["version"] for row in listed] == ["1.0.0rc1", "0.10.0", "0.9.0"]
    assert [row["aliases"] for row in listed] == [[], ["latest"], []], "no candidate is the newest release"
    assert (out / "0.9.0" / "index.html").read_text() == "<p>0.9.0</p>"
    assert 'url=0.10.0/index.html"' in (out / "index.html").read_text()
    assert list(broken_links(out)) == []
    assert not (out / "0.8.0").exists()


@pytest.mark.parametrize(
    ("version", "error"),
    [("", "no site of any version"), ("one", "'one' is no version"), ("0.1.0", "has no index.html; run `make site`")],
)
def test_what_is_no_version(version: str, error: str, tmp_path: Path) -> None:
    if version == "one":
        (tmp_path / "index.html").touch()
    with pytest.raises(SystemExit, match=error):
        publish(tmp_path / "out", {version: tmp_path} if version else {})
    assert not (tmp_path / "out").exists()


def test_every_field_is_shown_once() -> None:
    page = reference.fields()
    assert page.count("\n## ") == len({line for line in page.splitlines() if line.startswith("## ")})
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 900
    assert all(f"| `{name}` | " in page for name in TrainEvalPipelineConfig.fields)


class _Commands:
    """Says which command it was, and makes the file that a comment names."""

    def __init__(self, work: Path) -> None:
        self.work = work

    def output(self, line: str) -> str:
        target = self.work / line.split()[-1]
        target.parent.mkdir(exist_ok=True)
        target.write_text("drawn")
        return f"said {line}\n"


def test_what_commands_draw_takes_the_comments_place(tmp_path: Path) -> None:
    text = (
        "before\n\n<!-- drawn: a.png | Curves\nboxwright one\nboxwright history run --out a.png -->\n\n"
        "<!-- drawn: page/index.html | A page\nboxwright report --out page/index.html -->\n"
        "<!-- printed:\nboxwright doctor x -->\n<!-- not run: no -->\n"
    )
    found = drawn.placed(text, cast(drawn.Commands, _Commands(tmp_path)), tmp_path / "pages")
    assert found == (
        "before\n\n![Curves](drawn/a.png)\n\n*Curves, drawn by `boxwright one`; `boxwright history run --out a.png` when "
        "this page was built.*\n\n**[A page](drawn/page/index.html)**, as `boxwright report --out page/index.html` wrote "
        "it when this page was built.\n`boxwright doctor x` prints:\n\n```text\nsaid boxwright doctor x\n```\n"
        "<!-- not run: no -->\n"
    )
    assert (tmp_path / "pages" / "drawn" / "a.png").is_file()
    assert (tmp_path / "pages" / "drawn" / "page" / "index.html").is_file()


def test_pages_ask_for_commands_that_there_are() -> None:
    texts = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    lines = {name: drawn.asked(text) for name, text in texts.items()}
    assert sum(map(len, lines.values())) > 9
    assert {line.split()[1] for of_page in lines.values() for line in of_page} <= set(COMMANDS)
    for name, text in texts.items():
        assert text.count("<!-- drawn:") + text.count("<!-- printed:") == len(list(drawn.ASKED.finditer(text))), name


def test_a_command_that_fails_ends_the_build(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"boxwright --nothing: exit status 2"):
        drawn.Commands(tmp_path).output("boxwright --nothing")


def test_pictures_are_taken_of_a_build_in_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make site` builds into the relative path build/website, and a relative path has no file:// address."""
    monkeypatch.chdir(tmp_path)
    assert screenshots.file_address(Path("a b/index.html")) == f"file://{tmp_path}/a%20b/index.html"


def test_what_a_file_holds_is_listed_by_key_and_kind() -> None:
    content = {"step": 3, "rate": 0.5, "best": None, "names": ["a"], "rows": [{"box": [1.0], "seen": True}], "none": []}
    assert list(formats._keys({**content, "network": OrderedDict(w=torch.zeros(2, 3))}, 0)) == [
        "step: integer", "rate: number", "best: null", "names: list of text", "rows: list of object",
        "  box: list of number", "  seen: true or false", "none: empty list", "network: object", "  w: float32 [2, 3]",
    ]  # fmt: skip
    assert list(formats._keys([{"score": 0.5}], 0)) == ["list of 1, the first:", "  score: number"]


@pytest.mark.parametrize("page", families.PAGES)
def test_a_page_on_models_has_presets_weights_and_numbers(page: str) -> None:
    text = families.section(page)
    assert "| preset | input | parameters | GMAC | weights that fit, and their licenses |\n|---|" in text
    _, heading, measured = text.partition("## Measured\n")
    assert bool(heading) == (page in ("ssd.md", "two_stage.md", "context_rcnn.md", "centernet.md"))
    assert measured.count("\n| ") > 2 or not heading, measured
    assert not families.section("data.md")


def test_every_preset_is_on_one_page() -> None:
    tables = "".join(families.section(page).partition("## Measured")[0] for page in families.PAGES)
    for name in preset_names():
        assert tables.count(f"| `{name}` |") == 1, name


def test_every_event_is_shown_with_its_fields() -> None:
    text = reference.events()
    assert "### Evaluated\n" in text
    assert "| `learning_rate` | float \\| None | `None` |" in text
    written = (ROOT / "docs" / "events.md").read_text()
    assert all(f"`{event.__name__}`" in written for event in get_args(Event))


@pytest.mark.slow
def test_pages_are_complete() -> None:
    commands = reference.command_line()
    assert all(f"## boxwright {name}\n" in commands for name in COMMANDS)
    assert "--pipeline_config_path" in commands
    assert "no such folder or checkpoint" in reference.error_messages()
    assert "::: boxwright.api.model.load" in reference.python()
