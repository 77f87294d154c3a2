"""Published weights on this machine: fetched once, then from the cache, with the digest that is stated for them.

Three variables: BOXWRIGHT_WEIGHTS is the cache's folder, BOXWRIGHT_WEIGHTS_MIRROR the address of a folder that is asked
in place of the publishers' servers, BOXWRIGHT_OFFLINE=1 forbids any connection. What is on Hugging Face's hub is
fetched into the hub's own cache.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, urlsplit

from boxwright.base.errors import CheckpointError, OutputError
from boxwright.base.files import (
    cause,
    diagnose_wrong_file,
    is_file,
    make_folder,
    open_regular,
    shown,
    waiting_lock,
)
from boxwright.weights.digest_records import DigestRecord, compute_record, read_records, write_record
from boxwright.weights.download import UnreachableError, discard_partial, download, require_secure
from boxwright.weights.fetching import OFFLINE, Fetching, is_offline, weights_cache
from boxwright.weights.hub import PREFIX, HubAddress, cached_file, fetch_model, hub_cache, hub_endpoint, hub_is_offline
from boxwright.weights.published import PublishedWeights, find_published, published_weights

_MIRROR = "BOXWRIGHT_WEIGHTS_MIRROR"
# How files begin, by the ends of their names.
_BEGINNINGS: dict[str, tuple[bytes, ...]] = {
    ".pth": (b"PK\x03\x04", b"\x80"),
    ".pt": (b"PK\x03\x04", b"\x80"),
    ".gz": (b"\x1f\x8b",),
}


def fetch_published(weights: PublishedWeights, fetching: Fetching | None = None) -> Path:
    """Return the file of published weights, fetching it if it is not on this machine.

    Raises:
        CheckpointError: If it is neither here nor can be fetched, or has another digest than the one stated.
        OutputError: If the cache cannot be written.
    """
    weights.check_supported()
    fetching = fetching or Fetching()
    target = fetching.folder / weights.file
    if not fetching.again and (local := _local(weights, target, fetching)) is not None:
        return local
    _require_address(weights, target)
    if _is_on_hub(weights):
        return _from_hub(weights, target, fetching)
    make_folder(fetching.folder)
    waiting = f"another process is fetching {weights.file}: waiting for it"
    with waiting_lock(fetching.folder / f".{weights.file}.lock", lambda: fetching.say(waiting)):
        if is_file(target) and not fetching.again:  # that process has fetched it
            _check(weights, target, fetching)
        else:
            _download(weights, target, fetching)
    return target


def _local(weights: PublishedWeights, target: Path, fetching: Fetching) -> Path | None:
    """Return the checked file of published weights in a cache or the working directory; None if it is in neither.

    No lock is taken for it, as a cache may have been filled by others, and be read-only.
    """
    path = cached_published(weights, target.parent)
    if path is None:
        return _carried(weights, fetching)
    _check(weights, path, fetching)
    return path


def cached_published(weights: PublishedWeights, cache: Path | None = None) -> Path | None:
    """Return the file of published weights in the cache; None if it is not there."""
    path = (cache or weights_cache()) / weights.file
    if is_file(path):
        return path
    return cached_file(*_hub_file(weights)) if _is_on_hub(weights) else None


def identify_published(path: Path) -> tuple[PublishedWeights | None, str]:
    """Return which published weights a file is, and its SHA-256; None and an empty text for a file of its own.

    By its digest, whatever its name; where none is stated, by the record that fetching it left.
    """
    if not is_file(path):
        return None, ""
    folder = weights_cache()
    name, record = _current_record(folder, path)
    weights = find_published(name)
    if weights is not None and record is not None and record.sha256.startswith(weights.sha256):
        return weights, record.sha256
    size = path.stat().st_size
    alike = [weights for weights in published_weights() if weights.sha256 and size == weights.size]
    alike += [weights for weights in published_weights() if weights.sha256 and weights.file == path.name]
    if not alike:
        return None, ""
    digest = (record or compute_record(folder, path)).sha256
    for weights in alike:
        # Eight digits alone could agree by chance: the name, which states them, has to agree as well.
        if weights.whole_digest == digest or (weights.file == path.name and digest.startswith(weights.sha256)):
            return weights, digest
    return None, digest


def _current_record(folder: Path, path: Path) -> tuple[str, DigestRecord | None]:
    """Return the name and the record of a file that has not changed since; "" and None if there is none."""
    try:
        records = read_records(folder)
    except CheckpointError:  # damaged records must not keep files of other origins from being opened
        return "", None
    current = (item for item in records.items() if item[1].is_current(folder, path))
    return next(current, ("", None))


def _check(weights: PublishedWeights, path: Path, fetching: Fetching) -> None:
    """Compare the digest of a file that is here with what is stated or was recorded; record it at the first use."""
    folder = fetching.folder
    record = None if fetching.again else read_records(folder).get(weights.name)
    if record is not None and record.is_current(folder, path) and record.sha256.startswith(weights.sha256):
        return
    if problem := _wrong_file(weights, path, path.suffix):
        raise CheckpointError(f"{shown(path)}: {problem}; put the right file there, or remove it to fetch it")
    current = compute_record(folder, path)
    try:
        _require_digest(weights, current.sha256, "" if record is None else record.sha256)
    except CheckpointError as error:
        raise CheckpointError(f"{shown(path)}: {error}") from None
    _remember(weights, current, fetching)


def _remember(weights: PublishedWeights, record: DigestRecord, fetching: Fetching) -> None:
    """Record a file's digest, or say that it cannot be: in a folder that is read-only."""
    try:
        write_record(make_folder(fetching.folder), weights.name, record)
    except OutputError as error:
        fetching.say(f"{error}; the SHA-256 of {record.path}, {record.sha256}, is computed anew at each use")


def _require_digest(weights: PublishedWeights, digest: str, recorded: str) -> None:
    """Raise unless a digest is the one stated and the one recorded; either may be empty."""
    again = f"boxwright weights fetch {weights.name} --again"
    if not digest.startswith(weights.sha256):
        raise CheckpointError(
            f"its SHA-256 is {digest}, but that of {weights.name} is {weights.sha256}"
            f"{'' if weights.whole_digest else '…'}; fetch it again: {again}"
        )
    if recorded and recorded != digest:
        raise CheckpointError(
            f"it has changed: its SHA-256 is {digest}, and was {recorded} when it was first used; "
            f"accept what is published now: {again}"
        )


def _carried(weights: PublishedWeights, fetching: Fetching) -> Path | None:
    """Return the file in the working directory if its digest is the one stated; say so, or why it is not used."""
    path = Path(weights.file)
    if not is_file(path):
        return None
    if not weights.whole_digest:
        fetching.say(
            f"not using {path} in this folder, as no SHA-256 is stated in full that it could be compared with; "
            f"if you trust it, move it to {fetching.folder / weights.file}"
        )
        return None
    _, recorded = _current_record(fetching.folder, path)
    current = recorded or compute_record(fetching.folder, path)
    if current.sha256 != weights.whole_digest:
        fetching.say(
            f"not using {path} in this folder: its SHA-256 is {current.sha256}, but that of {weights.name} is "
            f"{weights.sha256}"
        )
        return None
    if recorded is None:
        _remember(weights, current, fetching)
    fetching.say(f"using {path} in this folder, whose SHA-256 agrees with that of {weights.name}")
    return path


def _require_address(weights: PublishedWeights, target: Path) -> None:
    """Raise a CheckpointError that says how to carry a file here by hand if it cannot be fetched."""
    if not (weights.address or os.environ.get(_MIRROR)):
        raise CheckpointError(_by_hand(weights, target, "no address leads to it directly"))
    if is_offline():
        raise CheckpointError(_by_hand(weights, target, f"{OFFLINE} is set"))


def _download(weights: PublishedWeights, target: Path, fetching: Fetching) -> None:
    """Download a file whose digest agrees with what is stated and recorded, and record it."""
    record = read_records(fetching.folder).get(weights.name)
    recorded = "" if record is None or fetching.again else record.sha256
    mirror = os.environ.get(_MIRROR, "").rstrip("/")
    if mirror and not (weights.sha256 or recorded):
        raise CheckpointError(
            f"{weights.name}: no digest of {weights.file} is stated, so that a mirror's file cannot be checked; fetch "
            f"it once without {_MIRROR}, or copy it together with a cache's digests.json"
        )
    address = f"{mirror}/{quote(weights.file)}" if mirror else weights.address
    if fetching.again:
        discard_partial(target)

    def verify(path: Path, digest: str) -> None:
        if problem := _wrong_file(weights, path, target.suffix):
            raise CheckpointError(f"what arrived is {problem}")
        _require_digest(weights, digest, recorded)

    try:
        require_secure(address)
        fetching.say(announcement(weights, target, address))
        with fetching.bar(weights.file) as progress:
            digest = download(address, target, weights.size, progress, fetching.connection, verify)
    except UnreachableError as error:
        at = f" from {mirror}" if mirror else ""
        raise CheckpointError(_by_hand(weights, target, f"{error}", at)) from None
    except CheckpointError as error:
        raise CheckpointError(f"{weights.name} from {address}: {error}") from None
    state = target.stat()
    _remember(weights, DigestRecord(target.name, digest, state.st_size, state.st_mtime_ns), fetching)


def announcement(weights: PublishedWeights, target: Path, address: str) -> str:
    """Return the line that a first fetch begins with: what, from where, under which terms, and whereto."""
    size = "" if weights.size is None else f" ({weights.size / 1e6:.1f} MB)"
    license = weights.license if weights.license != "not stated" else f"not stated (the code's: {weights.code_license})"
    terms = f" {weights.terms}" if weights.terms else ""
    return (
        f"fetching {weights.file}{size} of {weights.publisher} from {urlsplit(address).hostname} into {target.parent}; "
        f"license of the weights: {license}; trained on {', then '.join(weights.data)}.{terms}"
    )


def _by_hand(weights: PublishedWeights, target: Path, reason: str, at: str = "") -> str:
    """Return an error's line that says how to carry a file here by hand."""
    where = _web_address(weights) if _is_on_hub(weights) else weights.address or weights.page
    described = f" (described at {weights.page})" if where != weights.page else ""
    size = "" if weights.size is None else f", {weights.size:,} bytes,"
    return (
        f"{weights.name} could not be fetched{at}: {reason}. Its file {weights.file}{size} "
        f"is at {where}{described}; put it at {shown(target.absolute())}"
    )


def _is_on_hub(weights: PublishedWeights) -> bool:
    return weights.address.startswith(PREFIX)


def _from_hub(weights: PublishedWeights, target: Path, fetching: Fetching) -> Path:
    """Return a file in the hub's cache, fetched together with what lies beside it."""
    address, name = _hub_file(weights)
    if not hub_is_offline():
        fetching.say(announcement(weights, hub_cache() / name, hub_endpoint()))
    try:
        path = fetch_model(address, fetching) / name
    except CheckpointError as error:
        raise CheckpointError(_by_hand(weights, target, str(error))) from None
    _check(weights, path, fetching)
    return path


def _hub_file(weights: PublishedWeights) -> tuple[HubAddress, str]:
    """Return the repository of weights on the hub, and their file's name there."""
    repository, _, name = weights.address.removeprefix(PREFIX).rpartition("/")
    repository, _, revision = repository.partition("@")
    return HubAddress(repository, revision or None), name


def _web_address(weights: PublishedWeights) -> str:
    """Return where a browser finds a file of the hub."""
    address, name = _hub_file(weights)
    return f"https://huggingface.co/{address.repository}/resolve/{address.revision or 'main'}/{name}"


def _wrong_file(weights: PublishedWeights, path: Path, suffix: str) -> str:
    """Return what a file is in place of the one expected, by its size and its beginning; empty if it may be the one."""
    try:
        with open_regular(path) as file:
            head, size = file.read(16), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise CheckpointError(f"{shown(path)}: {cause(error)}") from None
    suffix = suffix.lower()
    if suffix == ".safetensors":
        right = len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < size
    else:
        right = head.startswith(_BEGINNINGS.get(suffix, (b"",)))
    if not right:
        is_instead = diagnose_wrong_file(path)
        return f"no {suffix} file: it begins with {head[:8]!r}{is_instead and f' ({is_instead})'}"
    if weights.size not in (None, size):
        return f"a file of {size:,} bytes, not of {weights.size:,}"
    return ""
