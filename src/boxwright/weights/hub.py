"""Models on Hugging Face's hub, fetched into the hub's own cache."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from boxwright.base.errors import CheckpointError, first_line, shortened
from boxwright.base.files import is_file

PREFIX = "hf://"
OFFLINE = "BOXWRIGHT_OFFLINE"
# Of transformers, which says the size of inputs.
_SIZE = "preprocessor_config.json"
LOGIN = "log in with `hf auth login`, or set HF_TOKEN"
_ADDRESS = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[^@\s]+))?")
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
    if match is None:
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
        f"Hugging Face's hub: {PREFIX}USER/NAME"
    )


def is_offline() -> bool:
    """Return whether BOXWRIGHT_OFFLINE forbids any connection."""
    return os.environ.get(OFFLINE, "").lower() not in ("", "0", "false", "no", "off")


def hub_cache() -> Path:
    """Return the folder of the hub's cache, which may not exist yet."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def fetch_model(address: HubAddress, *, again: bool = False) -> Path:
    """Return the folder of a model's files in the hub's cache, downloading those that are not there.

    Without a connection, or with HF_HUB_OFFLINE=1 or BOXWRIGHT_OFFLINE=1, the revision that was fetched last is used.

    Args:
        address: Of the model.
        again: Whether to download what is in the cache, too.

    Raises:
        CheckpointError: If there is no such repository or revision, it has no weights, or it can neither be reached
            nor found in the cache.
    """
    from huggingface_hub import constants, errors, snapshot_download

    from boxwright.weights.export_weights import CONFIG, FILES, WEIGHTS

    try:
        folder = Path(
            snapshot_download(
                address.repository,
                revision=address.revision,
                allow_patterns=[*FILES, _SIZE],
                local_files_only=is_offline(),
                force_download=again,
            )
        )
    except errors.GatedRepoError:
        raise CheckpointError(f"{address}: access has to be requested on its page first; then {LOGIN}") from None
    except errors.RepositoryNotFoundError:
        raise CheckpointError(f"{address}: no such repository, or it is private: then {LOGIN}") from None
    except errors.RevisionNotFoundError:
        raise CheckpointError(f"{address}: the repository has no branch, tag or commit of that name") from None
    except errors.HFValidationError as error:
        raise CheckpointError(f"{address}: {first_line(error)}") from None
    except errors.LocalEntryNotFoundError as error:
        reason = "" if error.__cause__ is None else f" ({first_line(error.__cause__)})"
        raise CheckpointError(
            f"{address}: the hub cannot be reached{reason}, and {constants.HF_HUB_CACHE} does not hold it: connect "
            "once, or copy the cache of a machine that has it to there"
        ) from None
    except Exception as error:  # of the hub's library, of the one it reaches the network with, and of the disk
        raise CheckpointError(
            f"{address}: could not be fetched: {type(error).__name__}: {first_line(error)}"
        ) from error
    if not is_file(folder / WEIGHTS):
        raise CheckpointError(
            f"{address}: has no {WEIGHTS}; expected a model of bw.push_to_hub ({WEIGHTS}, {CONFIG} …)"
        )
    return folder
