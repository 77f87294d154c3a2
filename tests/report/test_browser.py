"""The report in a browser, opened from disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from boxwright.cli.main import app
from boxwright.evaluation.events import EventFile
from boxwright.report.compare import write_comparison
from boxwright.report.settings import ReportSettings
from boxwright.report.sources import source_of_files
from boxwright.report.write import write_report
from tests.report import made

BROWSER = "BOXWRIGHT_BROWSER"
CHROMIUM = os.environ.get(BROWSER) or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=f"no chromium here, and {BROWSER} names none"),
]
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage"]
# What the page says of a model is never run.
SCRIPT = "<img src=x onerror=\"document.title='run'\">"
# More images than are drawn at once.
IMAGES = 150


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made_in = tmp_path_factory.mktemp("report")
    content, rows = made.messy(0, IMAGES)
    content["categories"][1]["name"] = SCRIPT
    paths = made.write(made_in, content, rows)
    made.draw(made_in, content)
    # Two images that are the same.
    (made_in / "2.jpg").write_bytes((made_in / "1.jpg").read_bytes())
    return write_report(source_of_files(*paths), made_in / "report").parent


@pytest.fixture(params=[{"width": 1200, "height": 900}, {"width": 390, "height": 800}], ids=["screen", "phone"])
def page(request: pytest.FixtureRequest, folder: Path) -> Iterator[Any]:
    """The page, without an error, a line on the console or a request to anything but the disk."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        opened = browser.new_page(viewport=request.param)
        said: list[str] = []
        opened.on("console", lambda message: said.append(message.text))
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.on("request", lambda wanted: wanted.url.startswith(("file:", "data:")) or said.append(wanted.url))
        opened.on("requestfailed", lambda wanted: said.append(f"missing {wanted.url}"))
        opened.goto((folder / "index.html").as_uri())
        yield opened
        assert said == []
        assert "Boxwright" in opened.title()
        browser.close()


def drawn(page: Any) -> int:
    """How many pictures are drawn."""
    return int(page.evaluate("document.querySelectorAll('image, img').length"))


def test_it_fits_and_draws_few_pictures_at_once(page: Any) -> None:
    assert 0 < drawn(page) <= 100
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator("#pr path.line").count() == 7
    assert page.locator("#classes tbody th").nth(1).inner_text() == SCRIPT
    page.locator("#curve-class").select_option("1")
    page.wait_for_function("report.data['curves-0'] !== undefined")


def test_filters_and_a_click_on_the_matrix(page: Any) -> None:
    shown = page.locator("#shown")
    page.locator("#filters [name=type]").select_option(label="missed")
    page.wait_for_function("document.querySelector('#shown').textContent.includes(' of ')")
    kinds = page.locator("#gallery .card span:last-child").all_inner_texts()
    assert kinds
    assert set(kinds) == {"missed"}
    assert drawn(page) <= 100
    # The table of errors has their number, and leads to them.
    page.locator("#filters button[type=reset]").click()
    missed = page.locator("#errors button[data-type]").last
    count = int(missed.inner_text().replace(",", ""))
    missed.click()
    page.wait_for_function(f"document.querySelector('#shown').textContent.startsWith('{count} of ')")
    assert page.locator("#filters [name=type]").input_value() == missed.get_attribute("data-type")
    # A wrong class is told from the right one, whether or not another detection found the object.
    page.locator("#filters [name=type]").select_option(label="classification")
    page.wait_for_function("document.querySelector('#gallery .card span:last-child').textContent === 'classification'")
    texts = page.locator("#gallery .card span:first-of-type").all_inner_texts()
    assert all((" found as " in text) != (", on " in text) for text in texts)
    page.locator("#filters button[type=reset]").click()
    # A cell's number is that of its images.
    cell = page.locator("#matrix tbody tr").nth(0).locator("button").nth(2)
    count = int(cell.inner_text())
    cell.click()
    page.wait_for_function(f"document.querySelector('#shown').textContent.startsWith('{count} of ')")
    assert page.locator("#gallery .card").count() == count
    page.locator("#filters button[type=reset]").click()
    page.wait_for_function("document.querySelector('#gallery').children.length === 30")
    assert "events" in shown.inner_text()


def test_the_keyboard_alone(page: Any) -> None:
    """Tab reaches a picture, Enter opens it, an arrow goes to the next, Space hides the truth, Escape closes."""
    page.locator("#gallery .card").first.focus()
    page.keyboard.press("Enter")
    viewer = page.locator("#viewer")
    viewer.locator("svg").wait_for()
    before = viewer.locator(".caption").inner_text()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"document.querySelector('#viewer .caption').textContent !== {before!r}")
    truth = viewer.locator(".truth").count()
    viewer.locator("input").first.focus()
    page.keyboard.press("Space")
    assert viewer.locator(".truth").count() == 0 < truth
    page.keyboard.press("Escape")
    assert not page.evaluate("document.querySelector('#viewer').open")
    assert page.evaluate("document.activeElement.classList.contains('card')")


def test_images_that_are_the_same_are_shown(page: Any) -> None:
    cards = page.locator("#duplicates .card")
    assert cards.count() >= 2
    assert cards.nth(0).locator("span").all_inner_texts() == ["group 1", "1.jpg"]
    cards.nth(0).click()
    for name in ("1.jpg", "2.jpg"):
        page.wait_for_function(f"document.querySelector('#viewer .caption').textContent.includes('{name}')")
        page.keyboard.press("ArrowRight")


def overlapping(page: Any, texts: str) -> int:
    """How many pairs of texts cover each other on the screen."""
    return int(
        page.evaluate(
            """(texts) => {
              const places = [...document.querySelectorAll(texts)].map((one) => one.getBoundingClientRect());
              return places.flatMap((a, n) => places.slice(n + 1).filter((b) => a.left < b.right - 0.5 && b.left < a.right - 0.5
                && a.top < b.bottom - 0.5 && b.top < a.bottom - 0.5)).length;
            }""",
            texts,
        )
    )


def test_the_verdict_and_its_picture(page: Any) -> None:
    """The page opens with them; texts beside boxes do not cover each other, and can be read on a phone, too."""
    assert page.locator(".headline").inner_text().startswith("AP 0.")
    assert page.locator("#picture svg .box").count() > 0
    assert page.locator("#picture .label").count() > 0
    assert overlapping(page, "#picture .label rect") == 0
    page.locator("#see-them").click()
    page.wait_for_function("document.querySelector('#shown').textContent.includes(' of ')")
    assert page.locator("#filters [name=type]").input_value() != ""
    page.locator("#picture button").click()
    page.locator("#viewer .label").first.wait_for()
    assert overlapping(page, "#viewer .label rect") == 0
    heights = page.evaluate(
        "[...document.querySelectorAll('#viewer .label rect')].map((one) => one.getBoundingClientRect().height)"
    )
    assert min(heights) >= 12


def test_walls_of_images_show_boxes(page: Any) -> None:
    page.locator("#images .card").first.scroll_into_view_if_needed()
    page.locator("#images .card .box").first.wait_for(state="attached")
    first = page.locator("#images .card").first
    counted = sum(int(part.split()[0]) for part in first.locator("span").last.inner_text().split(", "))
    assert first.locator(".box").count() == counted


def test_what_has_no_pages_cannot_be_turned(page: Any) -> None:
    page.locator("#filters [name=low]").fill("1")
    page.locator("#filters [name=high]").fill("0.5")
    page.locator("#filters [name=type]").select_option(label="classification")
    page.wait_for_function("document.querySelector('#shown').textContent.startsWith('0 of ')")
    assert page.locator("#before").is_disabled()
    assert page.locator("#after").is_disabled()
    assert page.locator("#page").inner_text() == "nothing to show"
    # It looks disabled, too: another opacity than a button that can be pressed.
    opacity = "(one) => getComputedStyle(one).opacity"
    assert page.locator("#before").evaluate(opacity) < page.locator("#filters button").evaluate(opacity)


def test_columns_are_sorted(page: Any) -> None:
    page.locator("#classes thead button", has_text="objects").click()
    counts = [int(text) for text in page.locator("#classes tbody td:nth-child(2)").all_inner_texts()]
    assert counts == sorted(counts, reverse=True)


def test_a_comparison_and_masks(tmp_path: Path) -> None:
    """Both pages without an error; objects that were gained, and a mask that can be hidden."""
    from playwright.sync_api import sync_playwright

    content, rows = made.messy(0, 30)
    for row in content["annotations"]:
        x, y, width, height = row["bbox"]
        row["segmentation"] = [[x, y, x + width, y, x, y + height]]
    made.write(tmp_path, content, rows)
    made.draw(tmp_path, content)
    exact = [{**row, "score": 0.99} for row in content["annotations"][::2]]
    better = made.write(tmp_path / "b", content, rows + exact)
    sources = [
        source_of_files(*paths, tmp_path)
        for paths in ((tmp_path / "instances.json", tmp_path / "results.json"), better)
    ]
    report = write_report(sources[1], tmp_path / "r")
    write_comparison((sources[0], sources[1]), tmp_path / "c", ReportSettings())
    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("requestfailed", lambda wanted: said.append(f"missing {wanted.url}"))
        page.goto((tmp_path / "c" / "index.html").as_uri())
        assert page.locator("#summary tbody td").nth(4).inner_text() == "better"
        assert 0 < page.locator("#gallery .card").count() <= 60
        page.locator("#gallery .card").first.click()
        assert page.locator("#viewer .truth").count() == 1
        page.goto(report.as_uri())
        page.locator("#filters [name=type]").select_option(label="right")
        page.wait_for_function("document.querySelector('#shown').textContent.includes(' of ')")
        page.locator("#gallery .card").first.click()
        page.locator("#viewer path.truth").first.wait_for()
        page.locator("#viewer label", has_text="masks").locator("input").click()
        assert page.locator("#viewer path.truth").count() == 0
        browser.close()
    assert said == []


def test_the_page_on_data(tmp_path: Path) -> None:
    """Charts follow the class, odd boxes their reason, images their class; the viewer shows boxes."""
    from playwright.sync_api import sync_playwright

    content, _ = made.messy(0, IMAGES)
    content["categories"][1]["name"] = SCRIPT
    content["annotations"].append({**content["annotations"][0], "id": 9999})
    path, _ = made.write(tmp_path, content, [])
    made.draw(tmp_path, content)
    (tmp_path / "2.jpg").write_bytes((tmp_path / "1.jpg").read_bytes())
    words = ["inspect", str(path), "--sheet", str(tmp_path / "s.png"), "--report", str(tmp_path / "r")]
    assert CliRunner().invoke(app, words).exit_code == 0
    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda wanted: wanted.url.startswith(("file:", "data:")) or said.append(wanted.url))
        page.on("requestfailed", lambda wanted: said.append(f"missing {wanted.url}"))
        page.goto((tmp_path / "r" / "index.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert 0 < drawn(page) <= 100
        before = page.locator("#sides").inner_html()
        page.locator("#shape-class").select_option("1")
        page.wait_for_function(f"document.querySelector('#sides').innerHTML !== {before!r}")
        assert page.locator("#places rect").count() == 24 * 24 + 1
        page.locator("#reason").select_option(label="twice in this image")
        assert page.locator("#odd .card span:last-child").all_inner_texts() == ["twice in this image"]
        assert page.locator("#duplicates .card").count() >= 2
        page.locator("#filters [name=class]").select_option("0")
        wanted = len({row["image_id"] for row in content["annotations"] if row["category_id"] == 1})
        page.wait_for_function(f"document.querySelector('#shown').textContent === '{wanted} of {IMAGES} images'")
        page.locator("#images .card").first.focus()
        page.keyboard.press("Enter")
        page.locator("#viewer rect.truth").first.wait_for()
        page.keyboard.press("ArrowRight")
        page.locator("#viewer input").click()
        assert page.locator("#viewer rect.truth").count() == 0
        assert SCRIPT in page.locator("#classes").inner_text()
        browser.close()
    assert said == []


@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_of_a_run(width: int, tmp_path: Path) -> None:
    """It fits, says what the log says, and shows a new step without being loaded again."""
    from playwright.sync_api import sync_playwright

    rows = [
        {"step": 20 * n, "Loss/total_loss": 2.0 / n, "steps_per_sec": 2.0, "learning_rate": 0.1} for n in range(1, 4)
    ]
    evaluated = {"step": 60, "evaluation": "eval", "DetectionBoxes_Precision/mAP": 0.25}
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in [*rows, evaluated]))
    (tmp_path / "pipeline.config").write_text("train_config { batch_size: 4 num_steps: 100 }")
    with EventFile(tmp_path / "eval") as events:
        events.image("eval_side_by_side_0_0", np.zeros((40, 80, 3), np.uint8), 60)
    said, requests = list[str](), list[str]()
    with monitored(tmp_path) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda wanted: requests.append(wanted.url))
        page.goto(address)
        page.locator("#pictures img").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.locator("#step").inner_text() == "60 of 100"
        assert page.locator("#best").inner_text() == "0.250 at step 60"
        assert page.locator("#speed").inner_text() == "8.0 images/s"
        assert page.locator("#metrics th[scope=row]").all_inner_texts() == ["AP"]
        assert page.locator("#losses .legend li").all_inner_texts() == ["total 0.667"]
        with log.open("a") as more:
            more.write(json.dumps({"step": 80, "Loss/total_loss": 0.5}) + "\n")
        # The page's policy allows no code of a test's in it.
        page.locator("#step", has_text="80 of 100").wait_for()
        assert page.locator("#losses .legend li").all_inner_texts() == ["total 0.500"]
        page.locator("#pictures button").click()
        assert page.locator("#viewer img").is_visible()
        assert all(url.startswith((address, "blob:")) for url in requests), "nothing comes from elsewhere"
        browser.close()
    assert said == []


@contextmanager
def monitored(run: Path) -> Iterator[str]:
    """`boxwright monitor` in a process, by its address."""
    command = [sys.executable, "-u", "-m", "boxwright", "monitor", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}) as process:
        try:
            assert process.stdout is not None
            yield next(word for word in process.stdout.readline().split() if word.startswith("http"))
        finally:
            process.terminate()
