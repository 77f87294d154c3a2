"""Pictures of pages that commands make, taken in a Chromium where there is one; without one the stored pictures stay.

    python -m website.screenshots WORK DOCS

takes them of the folder WORK, in which an earlier `python -m website.build FOLDER WORK` ran commands, into DOCS.
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
# The tour's.
_REPORT = "boxwright evaluate --model_dir demo/model --out evaluation --report report"
_DATA = "boxwright inspect demo/data/val.record --sheet validation.png --report data-page"
_EXPORT = "boxwright export demo/model"
_PICTURES = slice(9, 15)  # the first of these has several objects


def chromium() -> str | None:
    """Return the program that BOXWRIGHT_BROWSER names, or a Chromium that is here, or None."""
    return os.environ.get("BOXWRIGHT_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")


def take(commands: Commands, folder: Path) -> None:
    """Write `report.jpg`, `data_report.jpg` and `playground.jpg` into a folder; without a browser, say so."""
    program = chromium()
    if program is None:
        print("no Chromium is here, and BOXWRIGHT_BROWSER names none: pictures of pages are those of docs")
        return
    from playwright.sync_api import sync_playwright

    for line in (_REPORT, _DATA, _EXPORT):
        commands.output(line)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        _of_file(browser, commands.work / "report" / "index.html", folder / "report.jpg", "#summary", 1420)
        _of_file(browser, commands.work / "data-page" / "index.html", folder / "data_report.jpg", "#classes", 980)
        with _served(commands.work, "demo/model/export/detector.onnx") as address:
            _of_playground(browser, address, commands.work, folder / "playground.jpg")
        browser.close()


def _page(browser: Browser, width: int, height: int) -> Page:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    page.set_default_timeout(300_000)  # a machine with other work takes minutes for what else takes a second
    return page


def file_address(path: Path) -> str:
    """Return the file:// address of a path, which may be relative to the current folder."""
    return path.resolve().as_uri()


def _of_file(browser: Browser, source: Path, target: Path, place: str, height: int) -> None:
    page = _page(browser, 880, height)
    page.goto(file_address(source))
    page.wait_for_timeout(1500)
    page.locator(place).first.evaluate("one => window.scrollTo(0, one.getBoundingClientRect().top + scrollY - 60)")
    _write(page, target)


def _of_playground(browser: Browser, address: str, work: Path, target: Path) -> None:
    page = _page(browser, 1080, 675)
    page.goto(address)
    pictures = sorted((work / "demo" / "photos" / "images").rglob("*.*"))[_PICTURES]
    page.set_input_files("#file", [str(path) for path in pictures])
    page.locator("#score").fill("0.3")
    page.locator("#strip [role=option]", has_text="waiting").first.wait_for(state="detached")
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
