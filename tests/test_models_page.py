"""The site's page of all models: its rows, and in a browser how they sort and filter."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from website import models

from boxwright.config.preset import preset_names
from boxwright.weights.published import published_weights

SCRIPT = Path(models.__file__).parent / "models.js"
CHROMIUM = os.environ.get("BOXWRIGHT_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def rows() -> dict[str, list[str]]:
    """The page's rows by the model's name, without the name."""
    lines = [line for line in models.page().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_a_row_says_what_its_publisher_states(rows: dict[str, list[str]]) -> None:
    # D-FINE's own table: 48.5 AP, 10 M parameters, 25 GFLOPs (two operations for a multiplication and an addition).
    row = rows["d_fine_s_coco"]
    assert [*row[:8], row[10]] == [
        "[D-FINE](d_fine.md)", "2024", "48.5", "10.3", "41.8", "Apache-2.0", "640×640", "12.8", "COCO 2017",
    ]  # fmt: skip


def test_latency_is_that_of_the_race_or_of_its_own_benchmark(rows: dict[str, list[str]]) -> None:
    """Five presets were raced, with PyTorch and ONNX Runtime, and ten of queries measured."""
    opened = {weights.name: weights for weights in published_weights()}
    raced = {name: (row[8], row[9]) for name, row in rows.items() if row[8] or row[9]}
    assert raced["ssd_mobilenet_v2_fpnlite_320_coco17"] == ("54", "19")
    assert {opened[name].presets[0] for name in raced} == set(models.latencies("torch"))
    assert len(models.latencies("torch")) == 5 + 10


def test_what_weights_change_has_no_numbers_of_the_preset(rows: dict[str, list[str]]) -> None:
    # EfficientDet-Lite0 at 320×320 is another network than its preset, efficientdet_d0 at 512×512.
    assert rows["effdet_tf_efficientdet_lite0"][3:10] == ["", "", "not stated", "320×320", "", "", ""]
    # DEIM changes the decoder's activation and the loss, and no parameter.
    assert rows["deim_d_fine_n_coco"][3] == "3.8"


def test_every_model_has_a_row_and_recent_families_come_first(rows: dict[str, list[str]]) -> None:
    opened = {
        weights.name: set(weights.presets) for weights in published_weights() if weights.opens and weights.presets
    }
    assert set(opened) <= set(rows)
    assert set(preset_names()) <= set(rows).union(*opened.values())
    years = [int(row[1]) for row in rows.values()]
    assert years == sorted(years, reverse=True)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    """A page with the script and a table of four models."""
    from playwright.sync_api import sync_playwright

    body = "".join(
        f"<tr><td>{name}</td><td>{family}</td><td>{ap}</td><td>{parameters}</td><td>{license}</td></tr>"
        for name, family, ap, parameters, license in (
            ("d_fine_n", "D-FINE", "42.8", "3.8", "Apache-2.0"),
            ("d_fine_s", "D-FINE", "48.5", "10.3", "Apache-2.0"),
            ("srn", "SRN", "", "53.4", "not stated"),
            ("ssd", "SSD", "9.9", "6.1", ""),
        )
    )
    heads = "".join(f"<th>{head}</th>" for head in ("model", "family", "AP", "parameters, M", "license of the weights"))
    (tmp_path / "index.html").write_text(
        f"<!doctype html><div class='models'><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
        f"<script>{SCRIPT.read_text()}</script>"
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        opened = browser.new_page()
        opened.goto((tmp_path / "index.html").as_uri())
        yield opened
        browser.close()


def _names(page: Any) -> list[str]:
    return [row.inner_text().split()[0] for row in page.locator("tbody tr").all() if row.is_visible()]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here, and BOXWRIGHT_BROWSER names none")
def test_the_table_sorts_and_filters(page: Any) -> None:
    ap = page.get_by_role("button", name="AP")
    ap.click()
    assert _names(page) == ["d_fine_s", "d_fine_n", "ssd", "srn"], "as numbers, the largest first, empty cells last"
    ap.click()
    assert _names(page) == ["ssd", "d_fine_n", "d_fine_s", "srn"]
    assert page.locator("th[aria-sort=ascending]").inner_text() == "AP"
    page.get_by_role("button", name="model").click()
    assert _names(page) == ["d_fine_n", "d_fine_s", "srn", "ssd"]
    page.get_by_label("at most M parameters").fill("7")
    assert _names(page) == ["d_fine_n", "ssd"]
    page.get_by_label("with weights").check()
    assert _names(page) == ["d_fine_n"]
    assert page.locator("output").inner_text() == "1 of 4"
    page.get_by_label("at most M parameters").fill("")
    page.get_by_label("family").select_option("SRN")
    assert _names(page) == ["srn"]
    page.get_by_label("name").fill("d_fine")
    assert _names(page) == []
