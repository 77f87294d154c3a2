"""The page that follows a run: what it is told, while the run goes on and after it; and who may ask."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from boxwright.base.errors import CheckpointError, ConfigError
from boxwright.cli.monitor import monitor_command
from boxwright.evaluation.events import EventFile
from boxwright.inference.serving.settings import ServerSettings
from boxwright.report.monitor import make_monitor, read_log, thin
from boxwright.training.lock import read_run_state, run_lock

STEPS = [{"step": 20 * n, "Loss/total_loss": 2.0 / n, "learning_rate": 0.1, "steps_per_sec": 2.0} for n in (1, 2, 3)]
EVALUATED = {"step": 60, "evaluation": "eval", "DetectionBoxes_Precision/mAP": 0.25, "Loss/total_loss": 1.5}
CONFIG = "train_config { batch_size: 4 num_steps: 100 }"


def write_log(folder: Path, *rows: dict[str, Any]) -> None:
    with (folder / "metrics.jsonl").open("a") as log:
        log.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "my run"
    folder.mkdir()
    (folder / "pipeline.config").write_text(CONFIG)
    write_log(folder, *STEPS, EVALUATED)
    return folder


@pytest.fixture
def client(run: Path) -> Iterator[TestClient]:
    with TestClient(make_monitor(run, ServerSettings())) as client:
        yield client


def ask(client: TestClient, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the page asks for, after what it knows."""
    known = known or {"file": "", "stop": 0}
    answer = client.get("/run", params={"file": known["file"], "start": known["stop"]})
    assert answer.status_code == 200
    content: dict[str, Any] = answer.json()
    return content


def test_what_the_page_is_told(client: TestClient) -> None:
    told = ask(client)
    assert (told["run"], told["steps"], told["batch_size"], told["state"]) == ("my run", 100, 4, "ended")
    assert told["rows"] == [*STEPS, EVALUATED]
    assert told["names"] == {"DetectionBoxes_Precision/mAP": "AP", "Loss/total_loss": "total loss"}
    assert told["pictures"] == []
    assert 0 <= told["age"] < 3600


def test_only_new_lines_are_sent(run: Path, client: TestClient) -> None:
    """A line that is being written waits until it is whole."""
    first = ask(client)
    assert first["again"]
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"step": 80, "Loss/total')
    second = ask(client, first)
    assert (second["rows"], second["again"]) == ([], False)
    with (run / "metrics.jsonl").open("a") as log:
        log.write('_loss": 0.5}\n')
    third = ask(client, second)
    assert third["rows"] == [{"step": 80, "Loss/total_loss": 0.5}]
    assert not third["again"]
    assert ask(client, third)["rows"] == []


def test_a_run_that_resumes_is_read_anew(run: Path, client: TestClient) -> None:
    """It replaces its log by one without the steps that it does again."""
    first = ask(client)
    (run / "shorter").write_text(json.dumps(STEPS[0]) + "\n")
    os.replace(run / "shorter", run / "metrics.jsonl")
    second = ask(client, first)
    assert second["again"]
    assert second["rows"] == STEPS[:1]
    write_log(run, STEPS[1])
    assert ask(client, second)["rows"] == STEPS[1:2]


@pytest.mark.parametrize("damage", [b"\xff\xfe not json\n", b"[1, 2]\n", b'{"step": "x"}\n', b"[" * 100_000 + b"\n"])
def test_lines_that_are_damaged_are_left_out(damage: bytes, run: Path, client: TestClient) -> None:
    with (run / "metrics.jsonl").open("ab") as log:
        log.write(damage)
    write_log(run, {"step": 70, "Loss/total_loss": float("nan")})
    # JSON has no NaN.
    assert ask(client)["rows"] == [*STEPS, EVALUATED, {"step": 70, "Loss/total_loss": None}]


@pytest.mark.parametrize("query", ["start=-1", "start=1e9", "start=99999999", "start=x&file=%00", "file=" + "a" * 5000])
def test_any_query_gets_the_whole_log(query: str, client: TestClient) -> None:
    answer = client.get(f"/run?{query}")
    assert answer.status_code == 200
    assert len(answer.json()["rows"]) == 4


def test_long_logs_are_thinned_evenly() -> None:
    rows: list[dict[str, object]] = [{"step": n} for n in range(1000)]
    rows[500]["evaluation"] = "eval"
    kept = [row["step"] for row in thin(rows, most=100)]
    assert kept[-1] == 999
    assert 500 in kept
    assert 100 <= len(kept) <= 101
    assert set(np.diff([step for step in kept if step != 500])) <= {10, 11}
    assert thin(rows, most=5000) == rows
    assert thin([], most=5) == []


def test_the_newest_pictures(run: Path, client: TestClient) -> None:
    """Of each folder those of the last step, whole files alone; another evaluation replaces them while it goes on."""
    first, second = (np.full((8, 12, 3), gray, np.uint8) for gray in (50, 200))
    with EventFile(run / "eval") as events:
        for number in range(2):
            events.image(f"eval_side_by_side_{number}_0", first, 20)
        events.scalar("Loss/total_loss", 1.0, 20)
        events.flush()
        assert [(one["name"], one["step"]) for one in ask(client)["pictures"]] == [
            ("eval/eval_side_by_side_0_0", 20),
            ("eval/eval_side_by_side_1_0", 20),
        ]
        events.image("eval_side_by_side_0_0", second, 60)
        events.flush()
    with EventFile(run / "train") as events:
        events.image("train_input_images/0", first, 1)
        events.image("Loss/some_distribution", first, 1)
    told = ask(client)["pictures"]
    assert [(one["name"], one["step"]) for one in told] == [
        ("eval/eval_side_by_side_0_0", 60),
        ("train/train_input_images/0", 1),
    ]
    answer = client.get(f"/pictures/{told[0]['name']}")
    with Image.open(io.BytesIO(answer.content)) as picture:
        assert picture.getpixel((0, 0)) == (200, 200, 200)
    assert answer.headers["content-type"] in ("image/png", "image/jpeg")


def test_event_files_that_are_cut_or_damaged(run: Path, client: TestClient) -> None:
    """A record that is not complete is read once it is; after damage nothing more of that file is shown."""
    with EventFile(run / "eval") as events:
        events.image("eval_side_by_side_0_0", np.zeros((8, 8, 3), np.uint8), 7)
    (path,) = (run / "eval").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert ask(client)["pictures"] == []
    path.write_bytes(whole)
    assert len(ask(client)["pictures"]) == 1
    path.write_bytes(whole + b"\x00" * 100)
    assert len(ask(client)["pictures"]) == 1


@pytest.mark.parametrize("name", ["../metrics.jsonl", "eval/..%2f..%2fpipeline.config", "%2fetc%2fpasswd", "", "x"])
def test_no_file_is_read_by_its_path(name: str, client: TestClient) -> None:
    assert client.get(f"/pictures/{name}").status_code == 404


def test_a_run_is_told_from_one_that_ended_or_was_killed(run: Path) -> None:
    assert read_run_state(run) == "ended"
    with run_lock(run):
        assert read_run_state(run) == "training"
    assert read_run_state(run) == "ended"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = {"process": gone.pid, "host": socket.gethostname()}
    (run / ".lock").write_text(json.dumps(here))
    assert read_run_state(run) == "killed"
    (run / ".lock").write_text(json.dumps({**here, "host": "another machine"}))
    assert read_run_state(run) == "elsewhere"
    (run / ".lock").write_bytes(b"\xff\x00{")
    assert read_run_state(run) == "ended"


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("")
    with TestClient(make_monitor(tmp_path, ServerSettings())) as client:
        told = ask(client)
        assert (told["rows"], told["age"], told["pictures"]) == ([], None, [])
        assert "steps" not in told
        (tmp_path / "pipeline.config").write_text("train_config { broken")
        assert "steps" not in ask(client)
        (tmp_path / "pipeline.config").write_text(CONFIG)
        write_log(tmp_path, STEPS[0])
        told = ask(client, told)
        assert (told["steps"], told["rows"]) == (100, STEPS[:1])


@pytest.mark.parametrize(
    ("made", "message"),
    [("", "no run is in this folder"), ("notes.txt", "no run is in this folder"), (None, "no such folder")],
)
def test_a_folder_without_a_run(made: str | None, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    if made is not None:
        folder.mkdir()
    if made:
        (folder / made).write_text("")
    with pytest.raises(CheckpointError, match=rf"folder: {message}.*--model_dir"):
        monitor_command(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="no such folder"):
        monitor_command(tmp_path / "file")


def test_others_need_a_key(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--host 0\.0\.0\.0: others can reach this address; name a key"):
        monitor_command(run, host="0.0.0.0")
    with pytest.raises(ConfigError, match="name a key"):
        monitor_command(run, host="example.com")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="expected a text file whose first line is the key"):
        monitor_command(run, host="0.0.0.0", api_key_file=tmp_path / "empty")
    with TestClient(make_monitor(run, ServerSettings(), "secret")) as client:
        # The page itself asks for the key.
        assert client.get("/").status_code == 200
        assert client.get("/page/monitor.js").status_code == 200
        for path in ("/run", "/pictures/x"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/run", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_pages_of_others_cannot_ask(client: TestClient) -> None:
    assert client.get("/run", headers={"Origin": "http://evil.example"}).status_code == 403
    rebound = {"Host": "evil.example", "User-Agent": "Mozilla/5.0"}
    assert client.get("/run", headers=rebound).status_code == 403


def test_the_page_has_its_own_files_alone(client: TestClient) -> None:
    page = client.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    names = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
    assert sorted(names) == [
        "page/charts.js",
        "page/icon.svg",
        "page/monitor.css",
        "page/monitor.js",
        "page/report.css",
    ]
    for name in names:
        answer = client.get(f"/{name}")
        assert answer.status_code == 200
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer.text)
    # Styles and scripts in the page would not run under its policy.
    assert not re.search(r"<style| style=| on[a-z]+=|<script[^>]*>[^<]", page.text)


def test_nothing_of_the_run_is_changed(run: Path) -> None:
    with EventFile(run / "eval") as events:
        events.image("eval_side_by_side_0_0", np.zeros((8, 8, 3), np.uint8), 7)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with TestClient(make_monitor(run, ServerSettings())) as client:
        ask(client, ask(client))
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_log_that_cannot_be_read_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    assert read_log(tmp_path).rows == []


@pytest.mark.slow
def test_the_command_serves_and_ends_quietly(run: Path) -> None:
    """On this machine's address alone; Ctrl-C ends it with status 0, and without a traceback."""
    command = [sys.executable, "-u", "-m", "boxwright", "monitor", str(run)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "COLUMNS": "200"}
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:(\d+)/ \(Ctrl-C ends it\)", first)
        assert address, first + process.stdout.read()
        with socket.create_connection(("127.0.0.1", int(address[1])), timeout=120) as connection:
            connection.sendall(b"GET /run HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=120)
        assert rest == ""
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_a_port_in_use(run: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"):
            monitor_command(run, port=port)
