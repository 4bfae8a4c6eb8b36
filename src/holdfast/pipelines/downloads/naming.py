"""What a file is called where it is kept: as its item says, else as the portal does, made harmless.

A name from outside is a name of one part: it cannot lead anywhere, hide, or hold what a file system or a
terminal would take for something else.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

NAME_BYTES_MAX = 150
NAME_DEFAULT = "file"

_EXTENDED = re.compile(r"""filename\*\s*=\s*"?([A-Za-z0-9!#$&+^_`{}~-]+)'[^']*'([^;"]+)""", re.IGNORECASE)
_QUOTED = re.compile(r'filename\s*=\s*"((?:[^"\\]|\\.)*)"', re.IGNORECASE)
_BARE = re.compile(r"filename\s*=\s*([^;\"\s]+)", re.IGNORECASE)
# What Windows has for itself; a storage may be mounted there.
_DEVICES = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[\d¹²³])(?:\..*)?", re.IGNORECASE)
_FORBIDDEN = re.compile(r'[<>:"|?*]')
_HEADER_CHARS_MAX = 2_000


def name_told(headers: Mapping[str, str], url: str) -> str:
    """What the portal calls the file: in Content-Disposition, else at the end of its address."""
    disposition = headers.get("content-disposition", "")[:_HEADER_CHARS_MAX]
    if match := _EXTENDED.search(disposition):
        try:
            return unquote(match[2].strip(), encoding=match[1], errors="strict")
        except (LookupError, ValueError):  # codecs fail each in its own way
            pass
    if match := _QUOTED.search(disposition):
        return re.sub(r"\\(.)", r"\1", match[1])
    if match := _BARE.search(disposition):
        return match[1]
    return unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2])


def harmless(name: str) -> str:
    """One part of a path, whatever was given."""
    name = name.encode(errors="replace").decode()
    # What cannot be seen goes first: it may keep apart what belongs together.
    name = "".join(character for character in name if character.isprintable())
    # Before anything is looked for: what looks like a slash may become one.
    name = re.split(r"[/\\]", unicodedata.normalize("NFC", name))[-1]
    name = _shortened(_FORBIDDEN.sub("_", name).strip(" .")) or NAME_DEFAULT
    return _shortened(f"{NAME_DEFAULT}-{name}") if _DEVICES.fullmatch(name) else name


def _shortened(name: str) -> str:
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    suffix = PurePosixPath(name).suffix
    suffix = suffix if len(suffix.encode()) <= 20 else ""
    stem = name.removesuffix(suffix).encode()[: NAME_BYTES_MAX - len(suffix.encode())]
    return stem.decode(errors="ignore").rstrip(" .") + suffix
