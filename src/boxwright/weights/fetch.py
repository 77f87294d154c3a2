"""Published weights on this machine: fetched once, then from the cache, with the digest that is stated for them.

Three variables: BOXWRIGHT_WEIGHTS is the cache's folder, BOXWRIGHT_WEIGHTS_MIRROR the address of a folder that is asked
in place of the publishers' servers, BOXWRIGHT_OFFLINE=1 forbids any connection. What is on Hugging Face's hub is
fetched by its own client into its own cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

from boxwright.base.errors import CheckpointError, OutputError
from boxwright.base.files import cache_folder, cause, closed_in_children, is_file, lock, make_folder, shown, write_whole
from boxwright.weights.download import Connection, UnreachableError, discard_partial, download
from boxwright.weights.hub import PREFIX, HubAddress, fetch_model
from boxwright.weights.published import PublishedWeights, find_published, published_weights

_RECORDS = "digests.json"
_FOLDER, _MIRROR, _OFFLINE = "BOXWRIGHT_WEIGHTS", "BOXWRIGHT_WEIGHTS_MIRROR", "BOXWRIGHT_OFFLINE"
_POLL_SECONDS = 0.2
# How files begin, by the ends of their names.
_BEGINNINGS: dict[str, tuple[bytes, ...]] = {
    ".pth": (b"PK\x03\x04", b"\x80"),
    ".pt": (b"PK\x03\x04", b"\x80"),
    ".gz": (b"\x1f\x8b",),
}


def weights_cache() -> Path:
    """Return the folder of fetched weights, which may not exist yet."""
    return Path(os.environ.get(_FOLDER) or cache_folder() / "weights")


@dataclass(frozen=True)
class Fetching:
    """How weights are fetched.

    Attributes:
        cache: The folder; None for `weights_cache()`.
        connection: How servers are reached.
        again: Whether to fetch a file that is there, and accept another digest than the one recorded.
        console: Where the first fetch's line and progress go.
    """

    cache: Path | None = None
    connection: Connection | None = None
    again: bool = False
    console: Console | None = None


def fetch_published(weights: PublishedWeights, fetching: Fetching | None = None) -> Path:
    """Return the file of published weights, fetching it if it is not on this machine.

    Raises:
        CheckpointError: If it is neither here nor can be fetched, or has another digest than the one stated.
        OutputError: If the cache cannot be written.
    """
    fetching = fetching or Fetching()
    if weights.address.startswith(PREFIX):
        return _from_hub(weights, fetching)
    folder = make_folder(fetching.cache or weights_cache())
    with _one_process(folder / f".{weights.file}.lock", weights, fetching):
        target = folder / weights.file
        if fetching.again:
            discard_partial(target)
            target.unlink(missing_ok=True)
        if is_file(target):
            return _checked(weights, target, folder)
        carried = Path(weights.file)
        if is_file(carried) and weights.whole_digest and _sha256(carried) == weights.whole_digest:
            return carried
        digest = _download(weights, target, fetching)
        _record(folder, target, weights, digest)
        return target


def cached_published(weights: PublishedWeights, cache: Path | None = None) -> Path | None:
    """Return the file of published weights in the cache; None if it is not there."""
    if weights.address.startswith(PREFIX):
        from huggingface_hub import try_to_load_from_cache

        address, name = _hub_file(weights)
        cached = try_to_load_from_cache(address.repository, name, revision=address.revision)
        return Path(cached) if isinstance(cached, str) else None
    path = (cache or weights_cache()) / weights.file
    return path if is_file(path) else None


def identify_published(path: Path) -> tuple[PublishedWeights | None, str]:
    """Return which published weights a file is, and its SHA-256; None and an empty text for a file of its own.

    By its digest, whatever its name; where none is stated, by the record that fetching it left.
    """
    if not is_file(path):
        return None, ""
    state = path.stat()
    recorded = _records(weights_cache()).get(str(path.resolve()), {})
    if (recorded.get("size"), recorded.get("mtime_ns")) == (state.st_size, state.st_mtime_ns):
        return find_published(str(recorded.get("name"))), str(recorded.get("sha256"))
    alike = [one for one in published_weights() if one.sha256 and (one.size == state.st_size or one.file == path.name)]
    if not alike:
        return None, ""
    digest = _sha256(path)
    for weights in alike:
        # Eight digits alone could agree by chance: the name, which states them, has to agree as well.
        if weights.whole_digest == digest or (weights.file == path.name and digest.startswith(weights.sha256)):
            return weights, digest
    return None, digest


def _checked(weights: PublishedWeights, path: Path, folder: Path) -> Path:
    """Return a file that is there, after comparing its digest with what is stated or was recorded."""
    state = path.stat()
    recorded = _records(folder).get(str(path.resolve()), {})
    if (recorded.get("size"), recorded.get("mtime_ns")) == (state.st_size, state.st_mtime_ns):
        return path
    digest = _sha256(path)
    _require_digest(weights, path, digest, str(recorded.get("sha256", "")))
    _record(folder, path, weights, digest)
    return path


def _require_digest(weights: PublishedWeights, path: Path, digest: str, recorded: str) -> None:
    if not digest.startswith(weights.sha256):
        raise CheckpointError(
            f"{shown(path)}: its SHA-256 is {digest}, but that of {weights.name} is {weights.sha256}"
            f"{'' if weights.whole_digest else '…'}; fetch it again: boxwright weights fetch {weights.name} --again"
        )
    if recorded and recorded != digest:
        raise CheckpointError(
            f"{shown(path)}: it has changed: its SHA-256 is {digest}, and was {recorded} when it was fetched; "
            f"accept what is published now: boxwright weights fetch {weights.name} --again"
        )


def _download(weights: PublishedWeights, target: Path, fetching: Fetching) -> str:
    """Download a file and return its digest, which agrees with the one stated."""
    mirror = os.environ.get(_MIRROR, "").rstrip("/")
    address = f"{mirror}/{weights.file}" if mirror else weights.address
    known = str(_records(target.parent).get(str(target.resolve()), {}).get("sha256", ""))
    if not address:
        raise CheckpointError(_by_hand(weights, target, "no address leads to it directly"))
    if os.environ.get(_OFFLINE):
        raise CheckpointError(_by_hand(weights, target, f"{_OFFLINE} is set"))
    if mirror and not (weights.sha256 or known):
        raise CheckpointError(
            f"{weights.name}: no digest of {weights.file} is stated, so that a mirror's file cannot be checked; fetch "
            f"it once without {_MIRROR}"
        )
    console = fetching.console or Console(stderr=True)
    console.print(announcement(weights, target, address), markup=False, highlight=False, soft_wrap=True)
    try:
        with _bar(console, weights.file) as progress:
            digest = download(address, target, weights.size, progress, fetching.connection)
        _require_kind(target)
        _require_digest(weights, target, digest, "" if fetching.again else known)
    except UnreachableError as error:
        raise CheckpointError(_by_hand(weights, target, str(error))) from None
    except CheckpointError as error:
        discard_partial(target)
        target.unlink(missing_ok=True)
        raise CheckpointError(f"{weights.name} from {address}: {error}") from None
    return digest


def announcement(weights: PublishedWeights, target: Path, address: str) -> str:
    """Return the line that a first fetch begins with: what, from where, under which terms, and whereto."""
    size = "" if weights.size is None else f" ({weights.size / 1e6:.1f} MB)"
    license = weights.license if weights.license != "not stated" else f"not stated (the code's: {weights.code_license})"
    terms = f" {weights.terms}" if weights.terms else ""
    return (
        f"fetching {weights.file}{size} of {weights.publisher} from {urlsplit(address).hostname} into {target.parent}; "
        f"license of the weights: {license}; trained on {', then '.join(weights.data)}.{terms}"
    )


def _by_hand(weights: PublishedWeights, target: Path, reason: str) -> str:
    """Return an error's line that says how to carry a file here by hand."""
    where = weights.address or weights.page
    size = "" if weights.size is None else f", {weights.size:,} bytes"
    return (
        f"{weights.name} is not on this machine and could not be fetched: {reason}. Its file {weights.file}{size}, is "
        f"at {where}; put it at {shown(target)}"
    )


def _from_hub(weights: PublishedWeights, fetching: Fetching) -> Path:
    """Return a file in the hub's cache, fetched by the hub's client together with what lies beside it."""
    address, name = _hub_file(weights)
    if cached_published(weights) is None:
        console = fetching.console or Console(stderr=True)
        where = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / name
        console.print(
            announcement(weights, where, weights.page or "https://huggingface.co"),
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    try:
        path = fetch_model(address, offline=bool(os.environ.get(_OFFLINE))) / name
    except CheckpointError as error:
        raise CheckpointError(f"{weights.name}: {error}") from None
    folder = make_folder(fetching.cache or weights_cache())
    if fetching.again:
        _record(folder, path, weights, _sha256(path))
    return _checked(weights, path, folder)


def _hub_file(weights: PublishedWeights) -> tuple[HubAddress, str]:
    """Return the repository of weights on the hub, and their file's name there."""
    repository, _, name = weights.address.removeprefix(PREFIX).rpartition("/")
    repository, _, revision = repository.partition("@")
    return HubAddress(repository, revision or None), name


@contextmanager
def _one_process(path: Path, weights: PublishedWeights, fetching: Fetching) -> Iterator[None]:
    """Hold a file's lock; wait while another process, which may be fetching it, holds it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise OutputError(f"{shown(path.parent)}: could not be written: {cause(error)}") from None
    with closed_in_children(descriptor):
        said = False
        while True:
            try:
                lock(descriptor)
                break
            except BlockingIOError:
                if not said:
                    console = fetching.console or Console(stderr=True)
                    console.print(f"another process is fetching {weights.file}: waiting for it", markup=False)
                said = True
                time.sleep(_POLL_SECONDS)
        yield


def _records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what was recorded of files by their paths; empty if there is no record, or it is damaged."""
    try:
        records = json.loads((folder / _RECORDS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    entries = records.items() if isinstance(records, dict) else ()
    return {path: entry for path, entry in entries if isinstance(entry, dict)}


def _record(folder: Path, path: Path, weights: PublishedWeights, digest: str) -> None:
    """Remember the digest of a file, by which a later change is noticed."""
    state = path.stat()
    entry = {"name": weights.name, "sha256": digest, "size": state.st_size, "mtime_ns": state.st_mtime_ns}
    with _records_lock(folder):
        records = {**_records(folder), str(path.resolve()): entry}
        write_whole(folder / _RECORDS, json.dumps(records, indent=1) + "\n")


@contextmanager
def _records_lock(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder / f".{_RECORDS}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    with closed_in_children(descriptor):
        while True:
            try:
                lock(descriptor)
                break
            except BlockingIOError:
                time.sleep(_POLL_SECONDS)
        yield


def _require_kind(path: Path) -> None:
    """Raise if a file does not begin as files of its name do."""
    with path.open("rb") as file:
        head = file.read(16)
    if path.suffix.lower() == ".safetensors":
        right = len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size
    else:
        right = head.startswith(_BEGINNINGS.get(path.suffix.lower(), (b"",)))
    if not right:
        raise CheckpointError(f"what arrived is no {path.suffix.lower()} file: it begins with {head[:8]!r}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _bar(console: Console, name: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar with rate and time left, on a terminal; yield what advances it."""
    columns = (BarColumn(20), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Bar(
        TextColumn("{task.description}"), *columns, console=console, transient=True, disable=not console.is_terminal
    )
    task = bar.add_task(name, total=None)
    with bar:
        yield lambda done, total: bar.update(task, completed=done, total=total)
