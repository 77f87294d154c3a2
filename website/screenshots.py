"""Pictures of what the demo of blood cells makes: detections, and pages, which need a Chromium.

    python -m website.screenshots WORK DOCS

runs the demo's commands in the folder WORK, unless they ran there, and writes the pictures into DOCS. Without a
Chromium the stored pictures of pages stay. All detections are those of the detector that comes with Boxwright, in
pictures that it did not learn from.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from website.drawn import Commands

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = ["--no-sandbox", "--disable-dev-shm-usage"]
DETECTOR = "demo/detector.onnx"
COMMANDS = (
    "boxwright demo",
    "boxwright inspect demo/blood_cells --sheet sheet.png --report data-page",
    f"boxwright export demo {DETECTOR} --images demo/blood_cells/test",
)
# The demo's sheet has three rows of pictures; two of them fit on a screen together with some text.
_ROWS, _SHOWN_ROWS, _SHEET_WIDTH = 3, 2, 1200
# Of the test pictures, in order of their names; the first has cells of all classes.
_PICTURES = slice(9, 15)


def chromium() -> str | None:
    """Return the program that BOXWRIGHT_BROWSER names, or a Chromium that is here, or None."""
    return os.environ.get("BOXWRIGHT_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")


def take(commands: Commands, folder: Path) -> None:
    """Write `detections.jpg`, `report.jpg`, `data_report.jpg` and `playground.jpg` into a folder.

    Without a browser only the first is written, and a line says so.
    """
    program = chromium()
    for line in COMMANDS if program is not None else COMMANDS[:1]:
        commands.output(line)
    _of_sheet(commands.work / "demo" / "detections.jpg", folder / "detections.jpg")
    if program is None:
        print("no Chromium is here, and BOXWRIGHT_BROWSER names none: pictures of pages are those of docs")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        _of_file(browser, commands.work / "demo" / "report" / "index.html", folder / "report.jpg", "#look", (880, 900))
        _of_file(
            browser, commands.work / "data-page" / "index.html", folder / "data_report.jpg", "#classes", (1200, 720)
        )
        with _served(commands.work, DETECTOR) as address:
            _of_playground(browser, address, commands.work, folder / "playground.jpg")
        browser.close()


def _of_sheet(source: Path, target: Path) -> None:
    """Write the first rows of a contact sheet, scaled to the width of a page."""
    with Image.open(source) as sheet:
        rows = sheet.crop((0, 0, sheet.width, sheet.height * _SHOWN_ROWS // _ROWS))
        size = (_SHEET_WIDTH, round(rows.height * _SHEET_WIDTH / rows.width))
        rows.resize(size, Image.Resampling.LANCZOS).save(target, quality=85, optimize=True)


def _page(browser: Browser, width: int, height: int) -> Page:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    page.set_default_timeout(300_000)  # a machine with other work takes minutes for what else takes a second
    return page


def file_address(path: Path) -> str:
    """Return the file:// address of a path, which may be relative to the current folder."""
    return path.resolve().as_uri()


def _of_file(browser: Browser, source: Path, target: Path, place: str, size: tuple[int, int]) -> None:
    page = _page(browser, *size)
    page.goto(file_address(source))
    page.wait_for_timeout(1500)
    page.locator(place).first.evaluate("one => window.scrollTo(0, one.getBoundingClientRect().top + scrollY - 60)")
    _write(page, target)


def _of_playground(browser: Browser, address: str, work: Path, target: Path) -> None:
    page = _page(browser, 1080, 675)
    page.goto(address)
    pictures = sorted((work / "demo" / "blood_cells" / "test").glob("*.jpg"))[_PICTURES]
    page.set_input_files("#file", [str(path) for path in pictures])
    page.locator("#score").fill("0.5")
    page.locator("#score").blur()  # or a ring would be drawn around it
    page.locator("#strip [role=option]", has_text="waiting").first.wait_for(state="detached")
    # How long a detection took on a machine that builds documentation says nothing about the detector.
    page.locator("#stages .note").first.evaluate("one => { one.textContent = one.textContent.split(' · ')[0] }")
    page.wait_for_timeout(1000)
    _write(page, target)


def _write(page: Page, target: Path) -> None:
    with Image.open(io.BytesIO(page.screenshot())) as picture:
        picture.convert("RGB").save(target, quality=85, optimize=True)
    page.close()


@contextmanager
def _served(work: Path, *models: str) -> Iterator[str]:
    """Yield the address of a server of models, which ends with the block."""
    command = [sys.executable, "-u", "-m", "boxwright", "serve", *models, "--port", "0"]
    with subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            yield next(word for line in server.stdout or () for word in line.split() if word.startswith("http://127"))
        finally:
            server.terminate()


if __name__ == "__main__":
    take(Commands(Path(sys.argv[1])), Path(sys.argv[2]))
