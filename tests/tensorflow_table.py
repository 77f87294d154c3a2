"""The rows of fields in docs/tensorflow_users.md's table: `python -m tests.tensorflow_table` rewrites them."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from boxwright.config.message import Message
from boxwright.config.support import field_status
from tests.config.test_messages import EXTENSIONS, MESSAGES, NEW

DOCUMENT = Path(__file__).parent.parent / "docs" / "tensorflow_users.md"
HEAD = "| TensorFlow | verdict | how, or why |\n|---|---|---|\n"
# How a row of fields begins, so that it is known from those that are written by hand.
_FIELDS = "| fields "
_VERDICTS = {"honored": "differs", "without effect": "no effect", "refused": "refused"}
_MOST_NAMES = 6


def rows_of_fields() -> list[str]:
    """Return a row for each verdict and reason, refused ones last, and one that counts the fields that simply work."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    plain = 0
    for name, message in sorted(MESSAGES.items()):
        if name in NEW:
            continue
        for field in message.fields:
            status = field_status(message, field)
            if field in EXTENSIONS.get(name, ()):
                continue
            if status.verdict == "honored" and not status.note:
                plain += 1
            else:
                groups[_VERDICTS[status.verdict], status.note].append(f"{name}.{field}")
    order = sorted(groups.items(), key=lambda item: (list(_VERDICTS.values()).index(item[0][0]), item[1]))
    rows = [
        f"{_FIELDS}of all other messages, {plain} | works | as their descriptions say (`boxwright config fields`) |"
    ]
    for (verdict, reason), fields in order:
        rows.append(f"{_FIELDS}{_named(fields)} | {verdict} | {reason} |")
    return rows


def _named(fields: list[str]) -> str:
    """Return fields by name; messages all of whose fields are among them, and too many messages, are shortened."""
    by_message: dict[str, list[str]] = defaultdict(list)
    for field in fields:
        message, _, name = field.rpartition(".")
        by_message[message].append(name)
    named = [
        f"`{message}`" if _is_whole(MESSAGES[message], names) else ", ".join(f"`{message}.{name}`" for name in names)
        for message, names in by_message.items()
    ]
    if len(named) <= _MOST_NAMES:
        return ", ".join(named)
    return f"{', '.join(named[:_MOST_NAMES])} and {len(fields)} fields in all"


def _is_whole(message: type[Message], names: list[str]) -> bool:
    return len(names) > 1 and len(names) == len(message.fields)


def table(document: str) -> list[str]:
    """Return the rows of the document's table."""
    found = re.search(re.escape(HEAD) + r"((?:\|.*\n)+)", document)
    if found is None:
        raise ValueError("the table's head is missing")
    return found[1].splitlines()


def rewritten(document: str) -> str:
    """Return the document with its rows of fields as the code has them."""
    rows = table(document)
    fresh = [row for row in rows if not row.startswith(_FIELDS)] + rows_of_fields()
    return document.replace("\n".join(rows) + "\n", "\n".join(fresh) + "\n")


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
