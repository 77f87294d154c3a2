"""What is wrong with the words and files of `boxwright serve`: a line each, before anything is opened."""

from __future__ import annotations

import datetime
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from boxwright.base.errors import ConfigError
from tests.cli.test_export_commands import run
from tests.exporters.exported import exported_detector
from tests.inference.serving.running import served_by_command


def refused(*words: object) -> str:
    told = run("serve", exported_detector().file, *words, fails=True)
    (line,) = told.splitlines()
    return line


@pytest.mark.parametrize("name", ["a/b", "", ".", "..", "a b", "a?b", "a#b", "100%", "a\\b", "a\nb"])
def test_names_that_are_no_part_of_an_address(name: str) -> None:
    assert "--name" in refused("--name", name)


def certificate(folder: Path, password: bytes = b"") -> tuple[Path, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    day = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    built = x509.CertificateBuilder(name, name, key.public_key(), 7, day, day.replace(year=2100))
    shut = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, shut)
    )
    return folder / "cert.pem", folder / "key.pem"


def test_certificates(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    (tmp_path / "junk").write_bytes(bytes(range(256)))
    junk, none = tmp_path / "junk", tmp_path / "none"
    assert f"--keyfile {key}: a key needs its certificate" in refused("--keyfile", key)
    assert f"--certfile {none}: No such file" in refused("--certfile", none)
    assert f"--keyfile {none}: No such file" in refused("--certfile", cert, "--keyfile", none)
    assert f"--certfile {tmp_path}: Is a directory" in refused("--certfile", tmp_path)
    for words in (("--certfile", junk), ("--certfile", cert, "--keyfile", junk), ("--certfile", cert)):
        assert f"--certfile {words[1]}" in refused(*words)
    (tmp_path / "shut").mkdir()
    _, shut = certificate(tmp_path / "shut", b"password")
    assert f"--keyfile {shut}" in refused("--certfile", tmp_path / "shut" / "cert.pem", "--keyfile", shut)


@pytest.mark.slow
def test_a_certificate_is_spoken(tmp_path: Path) -> None:
    import httpx

    cert, key = certificate(tmp_path)
    words = [sys.executable, "-m", "boxwright", "serve", str(exported_detector().file), "--port", "0", "--certfile", str(cert), "--keyfile", str(key), "--grace_s", "1"]  # fmt: skip
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"https://127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found
            with (
                socket.create_connection(("127.0.0.1", int(found[1])), timeout=120),
                httpx.Client(transport=httpx.HTTPTransport(verify=False), timeout=120) as client,
            ):
                assert client.get(f"{found[0]}/healthz").text == "ok\n", "beside one that never shakes hands"
                process.send_signal(signal.SIGTERM)
                assert process.wait(120) in (0, 143, -signal.SIGTERM)
        finally:
            process.kill()


def test_files_of_a_key(tmp_path: Path) -> None:
    for number, data in enumerate([b"", b"\n", b"  \nsecret", bytes(range(256)), b"\xff\xfe", b"a\0b\n"]):
        path = tmp_path / str(number)
        path.write_bytes(data)
        assert f"--api_key_file {path}" in refused("--api_key_file", path)
    assert f"--api_key_file {tmp_path}: Is a directory" in refused("--api_key_file", tmp_path)
    assert "No such file" in refused("--api_key_file", tmp_path / "none")


@pytest.mark.slow
def test_an_address_of_six_is_printed_in_brackets() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no ::1")
    words = [sys.executable, "-m", "boxwright", "serve", str(exported_detector().file), "--port", "0", "--host", "::1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.kill()
    assert re.search(r"http://\[::1\]:\d+/", first)


@pytest.mark.parametrize("host", ["a..b", "x" * 300])
def test_what_is_no_host(host: str) -> None:
    from boxwright.cli.serving import listening_socket

    with pytest.raises(ConfigError, match="cannot listen on"):
        listening_socket(host, 0)


@pytest.mark.slow
def test_a_server_says_how_many_requests_it_answered() -> None:
    with served_by_command() as (process, _):
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=120)
    assert "requests were answered" in said
