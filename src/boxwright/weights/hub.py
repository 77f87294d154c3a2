"""Models on Hugging Face's hub, fetched into the hub's own cache.

The cache has the hub's layout, so that its own tools find what is fetched here, and we what they fetched; but the hub
says only which of the files that a model may have there are, and the commit: no path comes from it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from boxwright.base.errors import CheckpointError, shortened, translated
from boxwright.base.files import is_file, make_folder, read_bytes, waiting_lock, write_whole
from boxwright.weights.download import Connection, UnreachableError, download, read_answer
from boxwright.weights.fetching import Fetching, is_offline

PREFIX = "hf://"
# Of transformers, which says the size of inputs.
_SIZE = "preprocessor_config.json"
_COMMIT, _SHA256 = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{64}")
_NO_ACCESS, _NOT_FOUND = (401, 403), 404
LOGIN = "log in with `hf auth login`, or set HF_TOKEN"
# As Git and the hub have them; both become names of folders in the cache.
_NAME, _PART = r"\w(?:[\w.-]*\w)?", r"(?!\.)[^@\s:?*\[\\^~/\"<>|]+"
_ADDRESS = re.compile(rf"(?P<repository>{_NAME}/{_NAME})(@(?P<revision>{_PART}(/{_PART})*))?")
_WEB = re.compile(r"(https?|ftp|s3|gs|az)://?", re.IGNORECASE)
_PAGE = re.compile(r"https?://?(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)", re.IGNORECASE)


@dataclass(frozen=True)
class HubAddress:
    """Where a model is on the hub.

    Attributes:
        repository: USER/NAME.
        revision: A branch, tag or commit; None for the newest of the main branch.
    """

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return PREFIX + self.repository + (f"@{self.revision}" if self.revision else "")


def hub_address(source: str | Path) -> HubAddress | None:
    """Return the address that a source of weights is; None for a path.

    Raises:
        CheckpointError: If it begins as an address and is none, or is one of the web.
    """
    text = str(source)
    if not text.startswith(PREFIX):
        _refuse_web(text)
        return None
    match = _ADDRESS.fullmatch(text.removeprefix(PREFIX).rstrip("/"))
    if match is None or any(pair in match["repository"] for pair in ("--", "..")):
        raise CheckpointError(f"{shortened(text, 200)}: expected hf://USER/NAME or hf://USER/NAME@REVISION")
    return HubAddress(match["repository"], match["revision"])


def _refuse_web(text: str) -> None:
    """Raise for an address of the web or of a store, from which nothing is fetched."""
    # A path loses the second slash.
    web = _WEB.match(text)
    if web is None:
        return
    page = _PAGE.match(text)
    if page is not None:
        raise CheckpointError(f"{shortened(text, 200)}: use the hub's own address: {PREFIX}{page[1]}")
    raise CheckpointError(
        f"{shortened(text, 200)}: weights are not fetched from there; download the file and name that, or a model on "
        f"Hugging Face's hub ({PREFIX}USER/NAME), or at s3:// or gs:// (as text, not a Path)"
    )


def hub_is_offline() -> bool:
    """Return whether BOXWRIGHT_OFFLINE, or HF_HUB_OFFLINE, forbids connections to the hub."""
    from huggingface_hub import constants

    return is_offline() or bool(constants.HF_HUB_OFFLINE)


def hub_endpoint() -> str:
    """Return the address of the hub: HF_ENDPOINT, or Hugging Face's."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def hub_cache() -> Path:
    """Return the folder of the hub's cache, which may not exist yet."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def cached_file(address: HubAddress, name: str) -> Path | None:
    """Return a file of the revision that was fetched last; None if it is not in the hub's cache."""
    folder, revision = _repository_folder(address), address.revision or "main"
    commit = revision if _COMMIT.fullmatch(revision) else _noted_commit(folder, revision)
    path = folder / "snapshots" / commit / name
    return path if commit and is_file(path) else None


def fetch_model(address: HubAddress, fetching: Fetching | None = None) -> Path:
    """Return the folder of a model's files in the hub's cache, downloading those that are not there.

    Without a connection, or with HF_HUB_OFFLINE=1 or BOXWRIGHT_OFFLINE=1, the revision that was fetched last is used.

    Raises:
        CheckpointError: If there is no such repository or revision, it has no weights, or it can neither be reached
            nor found in the cache.
        OutputError: If the cache cannot be written.
    """
    from boxwright.weights.export_weights import CONFIG, WEIGHTS

    fetching = fetching or Fetching()
    cached = cached_file(address, WEIGHTS)
    if hub_is_offline():
        return _without_connection(address, cached, "")
    # What is in the cache need not wait for a hub that is busy.
    connection = replace(fetching.connection, authorization=_authorization())
    try:
        revision = _ask(address, replace(connection, pauses=()) if cached else connection)
    except UnreachableError as error:
        if error.status:
            raise _refused(address, error) from None
        folder = _without_connection(address, cached, f" ({error})")
        fetching.say(f"{address}: the hub cannot be reached ({error}): using what was fetched last, {folder}")
        return folder
    if WEIGHTS not in revision.files:
        raise CheckpointError(
            f"{address}: has no {WEIGHTS}; expected a model of bw.push_to_hub ({WEIGHTS}, {CONFIG} …)"
        )
    _fetch_files(address, revision, replace(fetching, connection=connection))
    return _repository_folder(address) / "snapshots" / revision.commit


@dataclass(frozen=True)
class _File:
    """What the hub says of a file, as far as it does."""

    size: int | None
    sha256: str


@dataclass(frozen=True)
class _Revision:
    """A commit, and the files of a model that are in it, the weights last: where they are, the others are, too."""

    commit: str
    files: dict[str, _File]


def _repository_folder(address: HubAddress) -> Path:
    return hub_cache() / f"models--{address.repository.replace('/', '--')}"


def _noted_commit(folder: Path, revision: str) -> str:
    """Return the commit that a branch or tag was when it was fetched last; empty if it never was."""
    try:
        commit = read_bytes(folder / "refs" / revision).decode().strip()
    except (OSError, ValueError):
        return ""
    return commit if _COMMIT.fullmatch(commit) else ""


def _without_connection(address: HubAddress, cached: Path | None, reason: str) -> Path:
    if cached is None:
        raise CheckpointError(
            f"{address}: the hub cannot be reached{reason}, and {hub_cache()} does not hold it: connect once, or copy "
            "the cache of a machine that has it to there"
        )
    return cached.parent


def _authorization() -> str:
    """Return what identifies the account of HF_TOKEN or `hf auth login` to the hub; empty without one."""
    from huggingface_hub import constants, get_token

    if "@" in urlsplit(hub_endpoint()).netloc:
        raise CheckpointError("HF_ENDPOINT has a user in its address; set HF_TOKEN instead")
    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return ""
    with translated(CheckpointError, "the hub's token cannot be read"):  # its library may ask for a new one
        token = get_token()
    if token and not (token.isascii() and token.isprintable()):
        raise CheckpointError("the hub's token has characters that no token has; set HF_TOKEN anew")
    return f"Bearer {token}" if token else ""


def _ask(address: HubAddress, connection: Connection) -> _Revision:
    """Return what the hub says of a revision; an UnreachableError if it cannot be reached, or refuses to."""
    which = "" if address.revision is None else f"/revision/{quote(address.revision, safe='')}"
    try:
        answer = read_answer(f"{hub_endpoint()}/api/models/{address.repository}{which}?blobs=true", connection)
        revision = _parse(json.loads(answer))
    except UnreachableError:
        raise
    except CheckpointError as error:
        raise CheckpointError(f"{address}: {error}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise CheckpointError(
            f"{address}: {urlsplit(hub_endpoint()).hostname} does not answer as Hugging Face's hub does"
        ) from None
    if address.revision and _COMMIT.fullmatch(address.revision) and address.revision != revision.commit:
        raise CheckpointError(f"{address}: the hub answers with another commit, {revision.commit}")
    return revision


def _parse(content: Any) -> _Revision:
    """Return a revision from JSON; raise ValueError, TypeError or KeyError if it is none."""
    from boxwright.weights.export_weights import FILES, WEIGHTS

    commit, found = content["sha"], {one["rfilename"]: one for one in content["siblings"]}
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise ValueError("no commit")
    files = {}
    for name in sorted(found.keys() & {*FILES, _SIZE}, key=lambda name: (name == WEIGHTS, name)):
        size, large = found[name].get("size"), found[name].get("lfs")
        sha256 = large["sha256"] if isinstance(large, dict) else ""
        if not (size is None or (isinstance(size, int) and size >= 0)) or (sha256 and not _SHA256.fullmatch(sha256)):
            raise ValueError("no file")
        files[name] = _File(size, sha256)
    return _Revision(commit, files)


def _refused(address: HubAddress, error: UnreachableError) -> CheckpointError:
    """Return the error for what the hub does not give."""
    match error.headers.get("X-Error-Code"):
        case "GatedRepo":
            return CheckpointError(f"{address}: access has to be requested on its page first; then {LOGIN}")
        case "RevisionNotFound":
            return CheckpointError(f"{address}: the repository has no branch, tag or commit of that name")
        case "EntryNotFound":
            return CheckpointError(f"{address}: a file that the hub lists is not there: {error}")
    if error.status in (*_NO_ACCESS, _NOT_FOUND):
        return CheckpointError(f"{address}: no such repository, or it is private: then {LOGIN}")
    return CheckpointError(f"{address}: {error}")


def _fetch_files(address: HubAddress, revision: _Revision, fetching: Fetching) -> None:
    """Download the files of a revision that are not in the cache, or all of them again, and note the revision there."""
    folder = _repository_folder(address)
    snapshot = folder / "snapshots" / revision.commit

    def missing() -> list[str]:
        return [name for name in revision.files if fetching.again or not is_file(snapshot / name)]

    if missing():
        make_folder(snapshot)
        locks = make_folder(hub_cache() / ".locks" / folder.name)
        waiting = f"another process is fetching {address}: waiting for it"
        with waiting_lock(locks / "boxwright.lock", lambda: fetching.say(waiting)):
            for name in missing():
                _fetch_file(address, revision, snapshot / name, fetching)
    name = address.revision or "main"
    if not _COMMIT.fullmatch(name) and _noted_commit(folder, name) != revision.commit:
        write_whole(make_folder((folder / "refs" / name).parent) / Path(name).name, revision.commit)


def _fetch_file(address: HubAddress, revision: _Revision, target: Path, fetching: Fetching) -> None:
    name = target.name
    expected = revision.files[name]

    def verify(path: Path, digest: str) -> None:
        if expected.sha256 and digest != expected.sha256:
            raise CheckpointError(f"its SHA-256 is {digest}, and not {expected.sha256}, as the hub lists it")

    at = f"{hub_endpoint()}/{address.repository}/resolve/{revision.commit}/{name}"
    try:
        with fetching.bar(name) as progress:
            download(at, target, expected.size, progress, fetching.connection, verify)
    except UnreachableError as error:
        if error.status:
            raise _refused(address, error) from None
        raise CheckpointError(f"{address}: {name} could not be fetched: {error}") from None
    except CheckpointError as error:
        raise CheckpointError(f"{address}: {name}: {error}") from None
