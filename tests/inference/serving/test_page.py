"""The page in a browser: what people do on it, by mouse, keyboard and with nothing but its words."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_masks

from boxwright.base.drawing import label_color, text_color
from boxwright.data.coco import CocoDataset
from boxwright.inference.serving.settings import ServerSettings
from boxwright.runtime.exported import open_exported
from tests.exporters.exported import exported_detector
from tests.exporters.small_detectors import pictures
from tests.inference.serving.running import serving

BROWSER = "BOXWRIGHT_BROWSER"
CHROMIUM = os.environ.get(BROWSER) or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=f"no chromium here, and {BROWSER} names none"),
]
FLAGS = [
    "--no-sandbox", "--disable-dev-shm-usage", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
]  # fmt: skip
SETTINGS = ServerSettings(batch_wait_ms=0, timeout_s=120)
# Names of classes are never run.
SCRIPT = "<img src=x onerror=\"document.title='run'\">"
SIZES = {"screen": (1280, 900), "tablet": (820, 1000), "phone": (360, 780)}


@dataclass
class Opened:
    """A page, and what went wrong on it."""

    page: Any
    problems: list[str] = field(default_factory=list)

    def shows(self, place: str, text: str | re.Pattern[str]) -> None:
        from playwright.sync_api import expect

        # A function of ours in the page would not run: its policy allows no code from strings.
        expect(self.page.locator(place)).to_have_text(text, timeout=60_000)

    def score(self, value: float) -> None:
        self.page.locator("#score").fill(str(value))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    with (
        serving(SETTINGS) as one,
        serving(SETTINGS, ("first", "second")) as two,
        serving(SETTINGS, api_key="secret") as locked,
    ):
        servers = {"one": one, "two": two, "locked": locked}
        yield {name: f"http://127.0.0.1:{server.address[1]}/" for name, server in servers.items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pictures")
    for number, picture in enumerate(pictures()[:3]):
        Image.fromarray(picture).save(folder / f"{number}.png")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return open_exported(exported_detector().file).detect(pictures()[:3])


def opened(browser: Any, address: str, size: str = "screen", scheme: str = "light") -> Opened:
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, permissions=["camera"], accept_downloads=True
    )
    one = Opened(context.new_page())
    one.page.on("pageerror", lambda error: one.problems.append(str(error)))
    one.page.on("console", lambda line: one.problems.append(line.text))
    own = lambda url: url.startswith((address, "blob:"))  # noqa: E731
    one.page.on("request", lambda wanted: own(wanted.url) or one.problems.append(wanted.url))
    one.page.goto(address)
    return one


@pytest.fixture
def one(browser: Any, addresses: dict[str, str]) -> Iterator[Opened]:
    found = opened(browser, addresses["one"])
    yield found
    assert found.problems == []
    found.page.context.close()


@pytest.fixture
def two(browser: Any, addresses: dict[str, str]) -> Iterator[Opened]:
    found = opened(browser, addresses["two"])
    yield found
    assert found.problems == []
    found.page.context.close()


def objects(count: int) -> re.Pattern[str]:
    return re.compile(rf"^{count} objects?\b")


def test_pictures_and_the_least_score(one: Opened, files: list[Path], expected: list[Any]) -> None:
    one.page.set_input_files("#file", files)
    for least in (0.5, 0.0, 0.6):
        one.score(least)
        one.shows("#summary", objects(int((expected[0].scores >= least).sum())))
    assert one.page.locator("#strip [role=option]").count() == 3
    shown = np.asarray(Image.open(io.BytesIO(one.page.locator("#canvas").screenshot())).convert("RGB")).astype(int)
    assert shown.std() > 5
    one.page.locator("#strip [role=option]").nth(1).click()
    one.shows("#summary", objects(int((expected[1].scores >= 0.6).sum())))
    # What is no picture is said, and the others stay.
    one.page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": b"rubbish"})
    one.shows("#error", "a.png: this browser cannot display it")
    assert one.page.locator("#strip [role=option]").count() == 4


def test_a_drop_and_a_paste(one: Opened, files: list[Path], expected: list[Any]) -> None:
    visible = objects(int((expected[0].scores >= 0.5).sum()))
    data = base64.b64encode(files[0].read_bytes()).decode()
    for event in ("drop", "paste"):
        given = one.page.evaluate_handle(
            "data => { const all = new DataTransfer(); const raw = Uint8Array.from(atob(data), c => c.charCodeAt(0));"
            "all.items.add(new File([raw], 'a.png', {type: 'image/png'})); return all }",
            data,
        )
        if event == "drop":
            one.page.dispatch_event("#drop", "drop", {"dataTransfer": given})
        else:
            one.page.evaluate(
                "given => document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: given }))", given
            )
        one.shows("#summary", visible)
    assert one.page.locator("#strip [role=option] span:first-of-type").all_inner_texts() == ["a.png", "a-2.png"]


def test_classes_are_switched_and_written_as_coco(
    two: Opened, files: list[Path], expected: list[Any], tmp_path: Path
) -> None:
    two.page.set_input_files("#file", files)
    two.score(0.3)
    both = two.page.locator(".stage figcaption .note")
    count = int((expected[0].scores >= 0.3).sum())
    for number in range(2):
        two.shows(f".stage:nth-child({number + 1}) figcaption .note", objects(count))
    assert both.count() == 2
    hidden = expected[0].names()[0]
    two.page.locator("#classes li", has_text=hidden).locator("input").uncheck()
    left = [(row.scores >= 0.3) & (np.array(row.names()) != hidden) for row in expected]
    two.shows(".stage:nth-child(1) figcaption .note", objects(int(left[0].sum())))
    two.page.locator("#strip [role=option]", has_text="waiting").first.wait_for(state="detached")
    with two.page.expect_download() as saved:
        two.page.get_by_role("button", name="COCO file: second").click()
    assert saved.value.suggested_filename == "second.json"
    saved.value.save_as(tmp_path / "second.json")
    content = json.loads((tmp_path / "second.json").read_text())
    assert [row["file_name"] for row in content["images"]] == [path.name for path in files]
    assert [row["name"] for row in content["categories"]] == ["circle", "square", "triangle", "star"]
    read = CocoDataset(tmp_path / "second.json", files[0].parent)
    assert len(read) == 3
    for number, (found, kept) in enumerate(zip(expected, left, strict=True)):
        rows = [row for row in content["annotations"] if row["image_id"] == number + 1]
        assert [row["score"] for row in rows] == pytest.approx(found.scores[kept].tolist(), abs=1e-6)
        assert [row["category_id"] for row in rows] == (found.labels[kept] + 1).tolist()
        boxes = np.array([row["bbox"] for row in rows]).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        np.testing.assert_allclose(boxes, found.boxes[kept], atol=0.02)
    two.page.get_by_role("button", name="None").click()
    two.shows("#no-objects", "No objects above the threshold in the chosen classes.")
    with two.page.expect_download() as drawn:
        two.page.get_by_role("button", name="This picture").click()
    with Image.open(drawn.value.path()) as picture:
        assert picture.width > 500
    two.page.locator("#other").select_option(label="nothing")
    two.page.locator(".stage").nth(1).wait_for(state="hidden")
    two.shows(".stage:nth-child(1) figcaption b", "0.png")


def test_the_keyboard_alone(one: Opened, files: list[Path], expected: list[Any]) -> None:
    """Tab goes down the page in its order, and shows where it is; arrows move in lists; Delete removes a picture."""
    page = one.page
    page.set_input_files("#file", files)
    # Any score counts, so that there are objects; filling the field would move the focus.
    page.locator("#score").evaluate("field => { field.value = 0; field.dispatchEvent(new Event('input')) }")
    one.shows("#summary", objects(len(expected[0])))
    reached: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        name = page.evaluate(
            "document.activeElement.id || document.activeElement.classList[0] || document.activeElement.name"
        )
        if page.evaluate("document.activeElement === document.body"):
            break
        reached.append(name)
        style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert style == "solid", name
    order = ["skip", "model", "choose", "webcam", "thumb", "score", "boxes", "names"]
    assert [name for name in reached if name in order] == order
    assert reached.count("thumb") == reached.count("object") == 1, "arrows move in lists, not Tab"
    page.locator("#strip [aria-selected=true]").focus()
    page.keyboard.press("ArrowRight")
    one.shows("#summary", objects(len(expected[1])))
    assert page.evaluate("document.activeElement.textContent").startswith("1.png")
    page.keyboard.press("End")
    page.keyboard.press("Delete")
    assert page.locator("#strip [role=option]").count() == 2
    first = page.locator("#objects [role=option]").first
    first.focus()
    assert first.get_attribute("aria-selected") == "true"
    page.keyboard.press("ArrowDown")
    assert first.get_attribute("aria-selected") == "false"
    page.locator("#score").focus()
    page.keyboard.press("ArrowRight")
    one.shows("#least", "0.01")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_is_named_and_can_be_read(
    size: str, scheme: str, browser: Any, addresses: dict[str, str], files: list[Path], expected: list[Any]
) -> None:
    found = opened(browser, addresses["two"], size, scheme)
    page = found.page
    for full in (False, True):
        if full:
            page.set_input_files("#file", files)
            found.shows(".stage:nth-child(1) figcaption .note", objects(int((expected[0].scores >= 0.5).sum())))
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        for one in page.locator("button:visible, input:visible, select:visible").all():
            named = one.evaluate("e => (e.labels?.[0] ?? e).textContent.trim() || e.ariaLabel")
            assert named, one
            assert (one.bounding_box() or {})["height"] >= 16
        assert page.evaluate(CONTRASTS) == []
    assert "object" in (page.locator("#canvas").get_attribute("aria-label") or "")
    assert found.problems == []
    page.context.close()


# Of all texts, those whose color is closer to what is behind them than 4.5 to 1 (WCAG 2, AA).
CONTRASTS = """() => {
  const levels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = color.slice(0, 3).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const color = levels(getComputedStyle(at).backgroundColor);
      if (color[3] !== 0) return color;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("body *")].filter((one) => one.offsetParent && !one.disabled && one.tagName !== "OPTION"
    && !one.matches(".play") && [...one.childNodes].some((part) => part.nodeType === 3 && part.data.trim())).map((one) => {
    const pair = [light(levels(getComputedStyle(one).color)), light(behind(one))].sort((a, b) => a - b);
    return [one.textContent.trim(), (pair[1] + 0.05) / (pair[0] + 0.05)];
  }).filter((pair) => pair[1] < 4.5);
}"""


def test_a_webcam_and_its_frames(one: Opened) -> None:
    """By the camera that the browser makes up; a frame that is kept is a picture."""
    one.page.get_by_role("button", name="Webcam").click()
    one.shows("#summary", re.compile(r"^\d+ object"))
    assert one.page.locator("#webcam").get_attribute("aria-pressed") == "true"
    one.page.get_by_role("button", name="Add this frame").click()
    one.page.get_by_role("button", name="Stop the webcam").click()
    one.shows(".stage:nth-child(1) figcaption b", "frame.jpg")
    assert one.page.evaluate("document.getElementById('video').srcObject") is None
    assert one.page.locator("#player").is_hidden()


def test_a_video_is_played_stopped_and_sought(one: Opened, tmp_path: Path) -> None:
    recorded = one.page.evaluate(RECORD)
    (tmp_path / "clip.webm").write_bytes(base64.b64decode(recorded))
    one.page.set_input_files("#file", tmp_path / "clip.webm")
    one.shows("#summary", re.compile(r"^\d+ object"))
    one.shows(".stage:nth-child(1) figcaption b", "clip.webm")
    one.shows("#play", "Play")
    one.page.locator("#seek").fill("0.1")
    one.shows("#time", "0.1 s")
    one.page.locator("#play").click()
    one.shows("#play", re.compile("Pause|Play"))
    one.page.set_input_files("#file", {"name": "b.mp4", "mimeType": "video/mp4", "buffer": b"rubbish"})
    one.shows("#error", "b.mp4: this browser cannot play the video")


# A second of a moving square, as WebM.
RECORD = """async () => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 160, height: 120 }), pen = canvas.getContext("2d");
  const parts = [], recorder = new MediaRecorder(canvas.captureStream(20), { mimeType: "video/webm" });
  recorder.ondataavailable = (event) => parts.push(event.data);
  recorder.start();
  for (let frame = 0; frame < 15; frame++) {
    pen.fillStyle = "#234"; pen.fillRect(0, 0, 160, 120);
    pen.fillStyle = "#fc3"; pen.fillRect(5 * frame, 40, 40, 40);
    await new Promise((done) => setTimeout(done, 60));
  }
  await new Promise((done) => { recorder.onstop = done; recorder.stop(); });
  const bytes = new Uint8Array(await new Blob(parts).arrayBuffer());
  return btoa(String.fromCharCode(...bytes));
}"""


def test_masks_keypoints_and_names_that_are_no_markup(one: Opened, tmp_path: Path) -> None:
    """A mask of COCO's run lengths tints its pixels alone; keypoints below 0.3 are not drawn."""
    generator = np.random.default_rng(0)
    mask = np.zeros((120, 200), np.uint8)
    mask[20:100, 30:90] = generator.random((80, 60)) < 0.7
    mask[40:80, 40:80] = 1
    code = coco_masks.encode(np.asfortranarray(mask))
    row = {
        "box": [20, 10, 120, 110], "score": 0.9, "class_id": 1, "class": SCRIPT,
        "segmentation": {"size": [120, 200], "counts": code["counts"].decode()},
        "keypoints": [[130.0, 60.0, 0.9], [180.0, 60.0, 0.2], [150.0, 20.0, 0.9]],
    }  # fmt: skip
    answer = {"detections": [row], "width": 200, "height": 120, "model": "detector", "version": 1}
    classes = [{"id": 1, "name": SCRIPT, "keypoints": ["a", "b", "c"]}]
    about = {"name": "detector", "version": 1, "classes": classes, "edges": [[0, 1], [0, 2]]}
    one.page.route("**/models", lambda route: route.fulfill(json={"models": [about], "least_score": 0.5}))
    one.page.reload()
    one.page.route("**/detect?*", lambda route: route.fulfill(json=answer))
    Image.new("RGB", (200, 120), (0, 0, 0)).save(tmp_path / "black.png")
    one.page.set_input_files("#file", tmp_path / "black.png")
    one.shows("#summary", f"1 object (1 {SCRIPT})")
    for name in ("boxes", "names"):
        one.page.locator(f"#layers [name={name}]").uncheck()

    def lit(points: list[tuple[float, float]]) -> list[bool]:
        """Whether pixels of the picture, by x and y, are not black on the canvas."""
        script = """(canvas, points) => points.map(([x, y]) => {
          const scale = canvas.width / 200;
          return canvas.getContext("2d").getImageData((x + 0.5) * scale, (y + 0.5) * scale, 1, 1).data.slice(0, 3).some((v) => v > 40);
        })"""
        one.page.wait_for_timeout(200)
        return list(one.page.locator("#canvas").evaluate(script, points))

    points = [(int(x), int(y)) for x, y in zip(*generator.integers([[25], [15]], [[95], [105]], (2, 300)), strict=True)]
    # Wherever a pixel and its neighbors agree: the canvas is larger than the picture.
    same: list[tuple[float, float]] = [
        (x, y) for x, y in points if len(set(mask[y - 1 : y + 2, x - 1 : x + 2].ravel().tolist())) == 1
    ]
    inside = [bool(mask[int(y), int(x)]) for x, y in same]
    assert set(inside) == {True, False}
    assert lit(same) == inside
    assert lit([(130, 60), (180, 60), (155, 60), (139.5, 39.5)]) == [True, False, False, True]
    with one.page.expect_download() as saved:
        one.page.get_by_role("button", name="COCO file").click()
    content = json.loads(Path(saved.value.path()).read_text())
    (written,) = content["annotations"]
    assert written["area"] == int(mask.sum())
    assert (coco_masks.decode(written["segmentation"]) == mask).all()
    assert (written["keypoints"], written["num_keypoints"]) == ([130, 60, 2, 0, 0, 0, 150, 20, 2], 2)
    for name in ("masks", "keypoints"):
        one.page.locator(f"#layers [name={name}]").uncheck()
    assert not any(lit([*same, (130, 60)]))
    assert SCRIPT in one.page.locator("#classes").inner_text()
    assert one.page.title() == "Boxwright: try a detector"


def test_names_of_all_colors_can_be_read(one: Opened) -> None:
    """As in pictures of `boxwright predict`: the same color of a class, and the same black or white on it."""
    script = """async () => {
      const { colorOf, inkOn } = await import("/page/draw.js");
      return [...Array(91).keys()].map((n) => [colorOf(n), inkOn(colorOf(n))]);
    }"""
    inks = {"#000": (0, 0, 0), "#fff": (255, 255, 255)}
    for label, (color, ink) in enumerate(one.page.evaluate(script)):
        # The browser rounds where Python cuts off.
        assert np.abs(np.subtract(color, label_color(label))).max() <= 1
        assert inks[ink] == text_color(tuple(color))


def test_names_do_not_cover_each_other(one: Opened) -> None:
    """Five boxes at one corner: the names are filled at places that are apart."""
    script = """async () => {
      const { draw } = await import("/page/draw.js");
      const canvas = document.createElement("canvas"), host = document.createElement("div"), image = document.createElement("canvas");
      [image.width, image.height] = [400, 400];
      host.style.width = "400px";
      host.append(canvas);
      document.body.append(host);
      const filled = [], fill = CanvasRenderingContext2D.prototype.fillRect;
      CanvasRenderingContext2D.prototype.fillRect = function (...place) { filled.push(place); fill.apply(this, place); };
      const objects = [...Array(5).keys()].map((n) => ({ box: [100, 100, 250 + 5 * n, 240 + 5 * n], class: "cell", score: 0.9, color: [0, 0, 99] }));
      draw(canvas, { image, width: 400, height: 400 }, objects, { boxes: true, names: true });
      CanvasRenderingContext2D.prototype.fillRect = fill;
      host.remove();
      return filled;
    }"""
    places = one.page.evaluate(script)
    assert len(places) >= 4
    for number, (x, y, width, height) in enumerate(places):
        for left, top, wide, tall in places[:number]:
            assert x >= left + wide or left >= x + width or y >= top + tall or top >= y + height


def test_a_key_is_asked_for(browser: Any, addresses: dict[str, str], files: list[Path], expected: list[Any]) -> None:
    found = opened(browser, addresses["locked"])
    for key in ("wrong", "secret"):
        found.page.get_by_label("This server requires an API key").fill(key)
        found.page.keyboard.press("Enter")
    found.page.locator("#access").wait_for(state="hidden")
    found.page.set_input_files("#file", files[:1])
    found.shows("#summary", objects(int((expected[0].scores >= 0.5).sum())))
    # The browser itself reports each refusal on its console.
    assert [line for line in found.problems if "401" not in line] == []
    found.page.context.close()


def test_a_server_that_is_gone_is_said(browser: Any, files: list[Path]) -> None:
    with serving(SETTINGS) as server:
        found = opened(browser, f"http://127.0.0.1:{server.address[1]}/")
        found.page.locator("#model option").first.wait_for(state="attached")
    found.page.set_input_files("#file", files[:1])
    found.shows("#error", "the server is not responding")
    found.page.context.close()
