"""Forms (multipart/form-data, RFC 7578), split in one pass: no nested parts, and few parts and headers."""

from __future__ import annotations

import re

from boxwright.inference.serving.requests import BadRequest

# A boundary has at most 70 characters (RFC 2046, section 5.1.1).
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s";,]{1,70}))\s*(?:;|$)', re.IGNORECASE)
_FILENAME = re.compile(rb";\s*filename\*?=", re.IGNORECASE)
_MOST_PARTS, _MOST_HEADER_BYTES = 100, 8192
_UNENCODED = (b"", b"binary", b"8bit", b"7bit")
_END = b"--"


def file_of_form(body: bytes, content_type: str) -> bytes:
    """Return the only file in a form.

    Raises:
        BadRequest: If it is not a form, or does not have exactly one file.
    """
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise BadRequest(400, "the form cannot be read: its Content-Type has no boundary")
    files = _files(body, (boundary[1] or boundary[2]).encode("latin-1", "replace"))
    if len(files) != 1:
        raise BadRequest(400, f"expected a form with one file, found {len(files)}")
    return files[0]


def _files(body: bytes, boundary: bytes) -> list[bytes]:
    between = b"\r\n--" + boundary
    place = body.find(between[2:])
    # Some clients begin with an empty line, of two bytes.
    if place not in (0, 2) or body[:place].strip():
        raise BadRequest(400, "the form cannot be read: it does not begin with its boundary")
    place += len(between) - 2
    files: list[bytes] = []
    for _ in range(_MOST_PARTS):
        if body.startswith(_END, place):
            return files
        if not body.startswith(b"\r\n", place):
            raise BadRequest(400, "the form cannot be read: a boundary is not followed by a line break")
        end = body.find(between, place + 2)
        if end < 0:
            raise BadRequest(400, "the form cannot be read: it is truncated")
        # A part without headers begins with an empty line.
        blank = body.find(b"\r\n\r\n", place, min(end, place + _MOST_HEADER_BYTES))
        if blank < 0:
            raise BadRequest(400, f"the form cannot be read: a part has no headers, or over {_MOST_HEADER_BYTES} bytes")
        if _is_file(body[place:blank]):
            files.append(body[blank + 4 : end])
        place = end + len(between)
    raise BadRequest(400, f"the form has more than {_MOST_PARTS} parts")


def _is_file(head: bytes) -> bool:
    lines = [line.partition(b":") for line in head.split(b"\r\n")]
    fields = {name.strip().lower(): value.strip() for name, _, value in lines}
    if fields.get(b"content-transfer-encoding", b"").lower() not in _UNENCODED:
        raise BadRequest(400, "the form's file must be sent unencoded, without a Content-Transfer-Encoding")
    return _FILENAME.search(fields.get(b"content-disposition", b"")) is not None
