"""Where a file of an archive belongs: to which app, which layer, which configuration.

    etc/apps/search/local/props.conf      app etc/apps/search, layer local, conf props
    TA_web/metadata/default.meta          app TA_web, layer default, conf metadata
    props.conf                            no app, no layer, conf props

A configuration is what the files of its name say together in the layers of one app.
"""

from __future__ import annotations

from typing import NamedTuple

DEFAULT, LOCAL = "default", "local"
METADATA = "metadata"


class Place(NamedTuple):
    app: str
    """The folder of the app, as a path in the archive; "" where the file is in no app's layer."""
    layer: str
    conf: str


def place_of(path: str) -> Place:
    folder, _, name = path.rpartition("/")
    app, _, last = folder.rpartition("/")
    stem, _, ending = name.rpartition(".")
    if ending.lower() == "meta":
        layer = stem if last == METADATA and stem in (DEFAULT, LOCAL) else ""
        return Place(app if layer else "", layer, METADATA)
    if last in (DEFAULT, LOCAL):
        return Place(app, last, stem)
    return Place("", "", stem)


def is_wanted(path: str) -> bool:
    """Whether a file of an archive is one that is read. What macOS packs beside files is not."""
    folder, _, name = path.rpartition("/")
    if name.startswith("._") or "__MACOSX" in folder.split("/"):
        return False
    return is_conf(path) or (name.lower().endswith(".meta") and folder.rpartition("/")[2] == METADATA)


def is_conf(path: str) -> bool:
    return path.lower().endswith(".conf")
