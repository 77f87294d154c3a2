"""A run at an address (s3://, gs://): it lives in a folder of this machine, and its whole states are copied there.

A state is copied when a checkpoint is complete: logs first, then checkpoints, so that an address never has a checkpoint
without the log up to it. Training never waits for it, and goes on while the address cannot be reached.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from boxwright.base.errors import DataError, OutputError
from boxwright.base.files import cache_folder, make_folder, read_bytes, write_whole
from boxwright.base.outputs import is_output_address, local_files, require_output_address
from boxwright.base.paths import require_path
from boxwright.base.remote import address_in, download_remote, list_remote, remove_remote, upload
from boxwright.base.text import without_secrets
from boxwright.runtime.formats import CHECKPOINT_NAME
from boxwright.training.heartbeat import SIGN, Heartbeat
from boxwright.training.lock import run_lock

_LOG = logging.getLogger("boxwright.run")
_LOOK_SECONDS = 1.0
# What is at the address: by name, the size and the time of the file that was copied there.
_KNOWN = ".uploaded.json"
_Stamp = tuple[int, int]


@contextmanager
def run_folder(named: str | Path) -> Iterator[Path]:
    """Yield a run's folder on this machine; a run at an address is fetched there, and copied back as it goes on.

    Among several processes, the first one does so.

    Raises:
        TrainingError: If another host trains into the address, as far as it shows.
        DataError: If the run cannot be fetched, or was removed at its address.
        OutputError: If the address cannot be written to when the run begins; or the last state does not arrive there,
            and is whole on this machine.
    """
    if not is_output_address(str(named)):
        yield require_path(named, "model_dir")
        return
    address = require_output_address(str(named), "model_dir")
    digest = hashlib.sha256(address.encode()).hexdigest()[:16]
    folder = cache_folder() / "runs" / f"{address.rsplit('/', 1)[-1]}-{digest}"
    if os.environ.get("RANK", "0") != "0":
        yield folder
        return
    heartbeat = Heartbeat(address)
    with heartbeat.beating(), _Mirror(address, folder, heartbeat).following():
        yield folder


class _Mirror:
    """A run's folder and its copy at an address."""

    def __init__(self, address: str, folder: Path, heartbeat: Heartbeat) -> None:
        self.address, self.folder, self.shown = address, folder, without_secrets(address)
        self._heartbeat = heartbeat
        self._known = _read_known(folder)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Fetch a run that went on elsewhere; then copy each state while the block runs, and the last at its end."""
        self._fetch()
        _LOG.info("%s is trained in %s, and copied after each checkpoint", self.shown, self.folder)
        ended = threading.Event()
        thread = threading.Thread(target=self._follow, args=(ended,), name="mirror", daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            ended.set()
            thread.join()
            with suppress(OutputError):  # the error at hand is the one to report
                self._copy()
            raise
        ended.set()
        thread.join()
        try:
            self._copy()
        except OutputError as error:
            raise OutputError(
                f"{error}; the run's last state is whole in {self.folder}: the same command copies it there"
            ) from None

    def _fetch(self) -> None:
        """Bring the folder to the state at the address, if that is ahead.

        Raises:
            DataError: If the address cannot be read, or has lost the checkpoints that were copied there.
        """
        files = {name: file for name, file in list_remote(self.address).items() if name != SIGN}
        there, here = _last_step(files), _last_step(path.name for path in self.folder.glob("ckpt-*"))
        if there < 0 and _last_step(self._known) >= 0:
            raise DataError(
                f"{self.shown}: the run's checkpoints are gone, and {self.folder} still has them; remove that folder "
                "to begin anew, or name it as the run's folder to go on in it"
            )
        if there <= here:
            return
        _LOG.info("%s: step %d is fetched to %s", self.shown, there, self.folder)
        with run_lock(self.folder):
            for old in self.folder.iterdir():
                if old.is_dir():
                    shutil.rmtree(old, ignore_errors=True)
                elif old.name != ".lock":
                    old.unlink(missing_ok=True)
            self._known = {}
            # The newest checkpoint last: a fetch that is interrupted is done again.
            for name in sorted(files, key=_order):
                path = _within(self.folder, name)
                make_folder(path.parent)
                download_remote(files[name], path)
                self._known[name] = _stamp(path)
            self._keep_known()

    def _follow(self, ended: threading.Event) -> None:
        """Copy the folder whenever its checkpoints have changed, until the block has ended."""
        copied: dict[str, _Stamp] = {}
        while not ended.wait(_LOOK_SECONDS):
            now = self._checkpoints()
            if not now or now == copied:
                continue
            try:
                self._copy()
            except OutputError as error:
                _LOG.warning("%s; training goes on, and the next checkpoint is tried again", error)
            copied = now

    def _checkpoints(self) -> dict[str, _Stamp]:
        """Return what tells that a checkpoint is new."""
        found = {}
        for path in self.folder.glob("*.pt"):
            with suppress(FileNotFoundError):  # a newer one took its place
                found[path.name] = _stamp(path)
        return found

    def _copy(self) -> None:
        """Bring the address to the folder's state; an OutputError if it cannot be reached, or is another run's now."""
        self._require_place()
        names = [path.relative_to(self.folder).as_posix() for path in local_files(self.folder)]
        for name in sorted(names, key=_order):
            path = self.folder / name
            with suppress(FileNotFoundError):  # a newer one took its place
                if (stamp := _stamp(path)) != self._known.get(name):
                    self._upload(path, name)
                    self._known[name] = stamp
        for name in [name for name in self._known if not (self.folder / name).exists()]:
            remove_remote(address_in(self.address, name))
            del self._known[name]
        self._keep_known()

    def _require_place(self) -> None:
        try:
            ours = self._heartbeat.is_ours()
        except DataError as error:
            raise OutputError(str(error)) from None
        if not ours:
            raise OutputError(f"{self.shown}: another run is trained into this address since; nothing is copied there")

    def _upload(self, path: Path, name: str) -> None:
        try:
            upload(path, address_in(self.address, name))
        except OutputError:
            path.stat()  # it was removed meanwhile, which is no failure
            raise

    def _keep_known(self) -> None:
        if self.folder.is_dir():
            write_whole(self.folder / _KNOWN, json.dumps(self._known))


def _read_known(folder: Path) -> dict[str, _Stamp]:
    """Return what was copied to the address; nothing if that is not known, and all is copied again."""
    with suppress(OSError, ValueError, AttributeError, TypeError):
        return {
            str(name): (int(size), int(time)) for name, (size, time) in json.loads(read_bytes(folder / _KNOWN)).items()
        }
    return {}


def _last_step(names: Iterable[str]) -> int:
    """Return the step of the newest checkpoint among files; -1 without one."""
    return max((int(match[1]) for name in names if (match := CHECKPOINT_NAME.fullmatch(name))), default=-1)


def _order(name: str) -> tuple[int, str]:
    """Return where a file stands in the order of copying: checkpoints last, by their steps."""
    step = _last_step([name])
    return (step + 2 if step >= 0 else int(name.endswith(".pt")), name)


def _stamp(path: Path) -> _Stamp:
    state = path.stat()
    return state.st_size, state.st_mtime_ns


def _within(folder: Path, name: str) -> Path:
    """Return the path of a file of a run; a DataError for a name that leads out of its folder."""
    if ".." in name.split("/") or name.startswith("/") or "\\" in name:
        raise DataError(f"{name[:100]!r}: not the name of a run's file")
    return folder / name
