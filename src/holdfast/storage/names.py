"""The names that files and drafts may have: none of them leads out of the place it is put in."""

from __future__ import annotations

import re

from holdfast.core.errors import InvalidInput

NAME_CHARS_MAX = 500
PART_BYTES_MAX = 200  # of a name between two slashes; file systems hold 255 bytes

_KEY = re.compile(r"[A-Za-z0-9_-]{1,100}")


def check_file_name(name: object) -> str:
    """A relative path with / between its parts that stays where it is put."""
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"The name of a stored file must be a text, not {name!r}.", guidance=_NAMES)
    if len(name) > NAME_CHARS_MAX:
        raise InvalidInput(
            f"The name of a stored file has {len(name)} characters; the limit is {NAME_CHARS_MAX}.",
            guidance=_NAMES,
        )
    if not name.isprintable() or "\\" in name:  # surrogates are not printable either
        raise InvalidInput(f"The name of a stored file {name!r} has a forbidden character.", guidance=_NAMES)
    for part in name.split("/"):
        if not part or part.startswith("."):
            why = "has an empty part" if not part else f"has the part {part!r}, which begins with a dot"
            raise InvalidInput(f"The name of a stored file {name!r} {why}.", guidance=_NAMES)
        if len(part.encode()) > PART_BYTES_MAX:
            raise InvalidInput(
                f"The name of a stored file has a part of more than {PART_BYTES_MAX} bytes.", guidance=_NAMES
            )
    return name


_NAMES = "Use a relative path such as reports/2024.csv, without .., hidden parts or control characters."


def check_draft_key(key: object) -> str:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidInput(
            f"The key of a draft must be a text of 1 to 100 letters, digits, - and _, not {key!r}.",
            guidance="Use a key that is the same in every attempt, such as the job's idempotency key.",
        )
    return key
