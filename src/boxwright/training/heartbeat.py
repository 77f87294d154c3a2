"""A sign at an address that a run is trained into it, since object stores have no locks.

The sign is an object with process, host and time, which is written anew every minute, and removed at the end. A run
that finds one of another host, younger than three minutes, does not begin. Two that begin at the same moment both write
theirs: the one that finds the other's in place of its own copies nothing more. What is left is the moment between
looking and copying.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from boxwright.base.errors import DataError, OutputError, TrainingError
from boxwright.base.files import write_whole
from boxwright.base.remote import address_in, find_remote_file, remove_remote, upload
from boxwright.base.text import visible_line, without_secrets

_LOG = logging.getLogger("boxwright.run")
SIGN = ".running.json"
_BEAT_SECONDS = 60.0
# By the clocks of both machines: a sign in the future is as young as can be.
_STALE_SECONDS = 180.0
_LARGEST = 4096  # bytes


class Heartbeat:
    """The sign of this run at an address."""

    def __init__(self, address: str) -> None:
        """Keep the address; nothing is written yet."""
        self.address, self._sign = address, address_in(address, SIGN)
        self._run = uuid4().hex
        self._since = time.strftime("%Y-%m-%d %H:%M:%S")
        self._ended = threading.Event()

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Write the sign while the block runs, and remove it at the end.

        Raises:
            TrainingError: If another host's run has given a sign within the last minutes.
            DataError: If the address cannot be read.
            OutputError: If it cannot be written to.
        """
        self._refuse_another()
        self._write()
        thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            with suppress(DataError, OutputError):  # it becomes stale by itself
                if self.is_ours():
                    remove_remote(self._sign)

    def is_ours(self) -> bool:
        """Return whether no other run has put its sign in place of this run's; a DataError if that cannot be seen."""
        sign = self._read()
        return sign is None or sign.get("run") == self._run

    def _refuse_another(self) -> None:
        sign = self._read()
        if sign is None or sign.get("host") == socket.gethostname():  # on one host, the folder's lock decides
            return
        beat = sign.get("time")
        age = time.time() - beat if isinstance(beat, int | float) else _STALE_SECONDS
        if age >= _STALE_SECONDS:
            return
        who = visible_line(f"process {sign.get('process')} on {sign.get('host')}, since {sign.get('since')}"[:300])
        raise TrainingError(
            f"{without_secrets(self.address)}: another run is trained into this address: {who}; its last sign is "
            f"{max(age, 0):.0f} s old. Use another address, or stop it; if it was killed, wait {_STALE_SECONDS:.0f} s, "
            f"or remove {without_secrets(self._sign)}"
        )

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT_SECONDS):
            try:
                if self.is_ours():
                    self._write()
            except (DataError, OutputError) as error:
                _LOG.debug("no sign could be given: %s", error)

    def _read(self) -> dict[str, object] | None:
        """Return what the sign says; None if there is none, or it says nothing."""
        file = find_remote_file(self._sign)
        if file is None or file.size > _LARGEST:
            return None
        try:
            content = json.loads(file.read(0, file.size))
        except ValueError:
            return None
        return content if isinstance(content, dict) else None

    def _write(self) -> None:
        holder = {"run": self._run, "process": os.getpid(), "host": socket.gethostname(), "since": self._since}
        with tempfile.TemporaryDirectory(prefix="boxwright-") as folder:
            upload(write_whole(Path(folder, SIGN), json.dumps({**holder, "time": time.time()})), self._sign)
