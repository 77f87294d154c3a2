"""What commands write at addresses (s3://, gs://): on this machine first, and copied there when it is whole."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boxwright.base.errors import ConfigError, shortened
from boxwright.base.paths import require_path
from boxwright.base.remote import address_in, folder_of, is_remote, upload
from boxwright.base.text import without_secrets

_SCHEMES = ("s3://", "gs://")


def is_output_address(text: str) -> bool:
    """Return whether a text is an address that can be written to."""
    return is_remote(text) and text.lower().startswith(_SCHEMES)


def require_output_address(text: str, what: str) -> str:
    """Return an address without slashes at its end; a ConfigError, which names the option, if it is a bucket itself."""
    address = text.rstrip("/")
    if "/" not in address.split("://", 1)[1]:
        shown = shortened(without_secrets(address), 400)
        raise ConfigError(f"{what}: {shown} is a whole bucket; name a place in it, as {shown}/results")
    return address


def check_output(named: str, what: str) -> None:
    """Raise a ConfigError, which names the option, for what is neither a path nor an address to write to."""
    if is_output_address(named):
        require_output_address(named, what)
    else:
        require_path(named, what)


def local_files(folder: Path) -> list[Path]:
    """Return the files below a folder, without hidden ones, which are locks and unfinished."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(p for p in files if not any(part.startswith(".") for part in p.relative_to(folder).parts))


@contextmanager
def local_output(named: str, what: str) -> Iterator[Path]:
    """Yield the path at which to write a file or a folder: what was named, or of an address one in a temporary folder.

    When the block ends without an error, all that is beside it there is copied to the address, the named file last.

    Args:
        what: The option, for messages.

    Raises:
        ConfigError: For an empty text, or an address that cannot be written to.
        OutputError: If a file does not arrive there; those before it did.
    """
    if not is_output_address(named):
        yield require_path(named, what)
        return
    address = require_output_address(named, what)
    with tempfile.TemporaryDirectory(prefix="boxwright-") as folder:
        local = Path(folder, address.rsplit("/", 1)[-1])
        yield local
        for path in sorted(local_files(local.parent), key=lambda path: path == local):
            upload(path, address_in(folder_of(address), path.relative_to(folder).as_posix()))
