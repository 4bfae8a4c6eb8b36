"""The built-in pipeline `downloads` as tests use it: the real engine on a clock that jumps, real HTTP.

    with rehearsed(tmp_path) as downloads:
        run = downloads.one(item(portal, download=["break", "503"]))
        assert downloads.files == {"downloads/1/north.csv": content_of("north")}

At its end it checks what holds whatever has happened: a file is there whole or not at all, nothing lies
outside of the storage, and no word for people speaks of what nobody has done.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.core.failures import StoredError
from holdfast.core.model import EventType
from holdfast.pipelines.downloads import fetching
from holdfast.pipelines.downloads.playbook import PATH, playbook_text
from holdfast.pipelines.downloads.settings import DownloadSettings
from holdfast.pipelines.registry import all_functions, taking_in
from holdfast.testing import Rehearsal
from holdfast.testing.run import Run
from portal_scenario import Entry, Portal

STORAGE = "files"
# Nobody has uploaded anything, and there is no document; nor has the step a field to correct.
_OUT_OF_PLACE = re.compile(r"upload|document|save_to|the step's url", re.IGNORECASE)
_PROMISE = re.compile(r"\bwill (?:be )?retr|automatically|\bretrying\b|try again", re.IGNORECASE)


class Downloads:
    """A rehearsal of the pipeline, and the storage that it downloads into."""

    def __init__(self, rehearsal: Rehearsal, hf: Holdfast, folder: Path) -> None:
        self.rehearsal = rehearsal
        self.hf = hf
        self._folder = folder
        self.storage = folder / STORAGE

    def one(self, workload: Any) -> Run:
        [run] = self.all(workload)
        return run

    def all(self, *workloads: Any) -> list[Run]:
        """These as one batch, to their ends."""
        self.submit(*workloads)
        return self.rehearsal.drain()[-len(workloads) :]

    def submit(self, *workloads: Any) -> None:
        take_in = taking_in(PATH)
        assert take_in is not None
        self.rehearsal.do(self.hf.batch(PATH, [take_in(workload) for workload in workloads]))

    @property
    def files(self) -> dict[str, bytes]:
        return {name: content for name, content in self._there.items() if not name.startswith(".drafts/")}

    @property
    def drafts(self) -> list[bytes]:
        """What lies there for later attempts."""
        return [content for name, content in self._there.items() if name.endswith(".draft")]

    @property
    def _there(self) -> dict[str, bytes]:
        paths = sorted(path for path in self.storage.rglob("*") if path.is_file())
        return {str(path.relative_to(self.storage)): path.read_bytes() for path in paths}

    def check(self) -> None:
        assert {path.name for path in self._folder.iterdir()} <= {STORAGE}
        told = {}
        for run in self.rehearsal.runs():
            if "download" in run.outputs:
                output = run.outputs["download"]
                told[output["file"]] = (output["size"], output["sha256"])
            for event in run.events:
                if event.type is EventType.ACTION_ERROR:
                    check_words(event.data["user_message"], event.data["guidance"])
            if run.error is not None:
                check_words_of_the_last(run.error)
        found = {name: (len(content), sha256(content)) for name, content in self.files.items()}
        assert found == told


def check_words(*words: str) -> None:
    assert all(words), words
    assert not [text for text in words if _OUT_OF_PLACE.search(text)]


def check_words_of_the_last(error: StoredError) -> None:
    check_words(error.user_message, error.guidance)
    assert error.final
    assert not _PROMISE.search(error.guidance), error.guidance


@contextmanager
def rehearsed(
    folder: Path, settings: DownloadSettings | None = None, *, url: str | None = None, **environ: str
) -> Iterator[Downloads]:
    """Within it the storage is in the folder, which is empty, and workers have these variables."""
    hf = Holdfast("sqlite:///nowhere.db")
    hf.add_functions(all_functions())
    with pytest.MonkeyPatch.context() as patch, Rehearsal(hf, url=url) as rehearsal:
        patch.chdir(folder)
        patch.setenv("HOLDFAST_STORAGE", str(folder / STORAGE))
        for name, value in environ.items():
            patch.setenv(name, value)
        # Certificates are of no use here, and take longer to read than most tests take.
        patch.setattr(ssl, "create_default_context", lambda **_: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        # In a test a portal is at its best again at once.
        patch.setattr(fetching, "RESUME_SECONDS_MIN", 0.0)
        rehearsal.do(hf.add_playbook(playbook_text(settings or DownloadSettings())))
        downloads = Downloads(rehearsal, hf, folder)
        yield downloads
        downloads.check()


def item(
    portal: Portal,
    report: str = "north",
    *,
    request: Sequence[str] = (),
    download: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """A report of a portal that obeys, with the troubles that it meets."""
    troubles = {"request": list(request), "download": list(download)}
    asked = {"report": report, "troubles": {phase: those for phase, those in troubles.items() if those}}
    return {"request": {"url": f"{portal.url}/reports", "json": asked}, **more}


def fetches(portal: Portal) -> list[tuple[int, int | None, int]]:
    """Of each download: its first byte, the status, and how many bytes were sent."""
    return [(entry.range, entry.status, entry.sent) for entry in entries(portal, "download")]


def entries(portal: Portal, phase: str) -> list[Entry]:
    return [entry for entry in portal.log if entry.phase == phase]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
