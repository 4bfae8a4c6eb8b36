"""The built-in pipeline `conf_archives` as tests use it: the real engine, a storage in a folder, archives
made on the spot.

    with rehearsed(tmp_path, url=store_url) as confs:
        run = confs.run("web.tgz", tgz(APP))
        assert run.status == "COMPLETE"
        assert confs.stanzas(run)[0].name == "access_combined"
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.pipelines.conf_archives.intake import CONF_RULES
from holdfast.pipelines.conf_archives.playbook import playbook_text
from holdfast.pipelines.conf_archives.runs import Run, Runs
from holdfast.pipelines.conf_archives.settings import ConfSettings
from holdfast.pipelines.conf_archives.stanzas import RunFile, StanzaLine, StanzaReader
from holdfast.pipelines.intake import Intake, TakenIn
from holdfast.pipelines.places import open_storage
from pipeline_scenario import RehearsedPipeline, pieces, rehearsed_pipeline

APP = {
    "web/default/props.conf": (
        "CHARSET = UTF-8\n"
        "[access_combined]\n"
        "TIME_FORMAT = %d/%b/%Y:%H:%M:%S\n"
        "# a comment\n"
        'EXTRACT-status = HTTP/1\\.\\d" (?<status>\\d+) # no comment\n'
        "[source::/var/log/[a-z]/web.log]\n"
        "sourcetype = access_combined\n"
    ),
    "web/local/props.conf": (
        "[access_combined]\nTIME_FORMAT = %s\ndescription = two \\\nlines\nTIME_FORMAT = %s.%3N\n"
    ),
    "web/default/inputs.conf": "[monitor:///var/log/web.log]\nindex = web\ndisabled =\n",
    "web/metadata/default.meta": "[]\naccess = read : [ * ], write : [ admin ]\n",
    "web/bin/tool.py": "print('no configuration')\n",
    "web/README.txt": "read me\n",
}


def tar(files: Mapping[str, str | bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, text in files.items():
            content = text.encode() if isinstance(text, str) else text
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return target.getvalue()


def tgz(files: Mapping[str, str | bytes]) -> bytes:
    """The same bytes for the same files, whatever the time."""
    return gzip.compress(tar(files), mtime=0)


def zipped(files: Mapping[str, str | bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return target.getvalue()


def many_stanzas(count: int, *, files: int = 1) -> dict[str, str | bytes]:
    def text(file: int) -> str:
        return "".join(
            f"[source::/var/log/{file}/{n}]\nsourcetype = kind_{n % 7}\nTRANSFORMS-{n} = a, b\nline = {n}\n"
            for n in range(count // files)
        )

    return {f"app{file}/default/props.conf": text(file) for file in range(files)}


class Confs(RehearsedPipeline):
    """A rehearsal of the pipeline, on a clock that jumps."""

    def upload(self, filename: str, content: bytes, **more: Any) -> TakenIn:
        async def take() -> TakenIn:
            intake = Intake(self.engine, open_storage(), CONF_RULES, bytes_max=64 * 1024**2)
            return await intake.take(filename, pieces(content), **more)

        return self.do(take())

    def run(self, filename: str, content: bytes, **more: Any) -> Run:
        """Uploaded, and run to its end."""
        taken = self.upload(filename, content, **more)
        self.drain()
        return self.shown(taken.id)

    def shown(self, run_id: int) -> Run:
        async def get() -> Run:
            return await Runs(self.engine).get(run_id)

        return self.do(get())

    def stanzas(self, run: Run | int, **filters: Any) -> list[StanzaLine]:
        async def read() -> list[StanzaLine]:
            return (await self._reader(run).stanzas(**{"limit": 10_000, **filters})).items

        return self.do(read())

    def files(self, run: Run | int, **filters: Any) -> list[RunFile]:
        async def read() -> list[RunFile]:
            return (await self._reader(run).files(**{"limit": 10_000, **filters})).items

        return self.do(read())

    def _reader(self, run: Run | int) -> StanzaReader:
        return StanzaReader(self.engine.store, run if isinstance(run, int) else run.id)

    def completed(self, run_id: int) -> Run:
        async def get() -> Run:
            return await Runs(self.engine).completed(run_id)

        return self.do(get())

    def traceback(self, run: Run) -> str | None:
        async def get() -> str | None:
            return await Runs(self.engine).traceback(run)

        return self.do(get())

    def rows(self, run_id: int) -> tuple[int, int]:
        """How many files and stanzas are stored of it, shown or not."""
        return self._count("holdfast_conf_files", run_id), self._count("holdfast_conf_stanzas", run_id)

    def _count(self, table: str, run_id: int) -> int:
        sql = f"SELECT count(*) FROM {table} WHERE run_id = $1"
        [(count,)] = self.do(self.engine.store.fetch_rows(sql, run_id))
        return int(count)

    def reader(self, run: Run | int) -> StanzaReader:
        return self._reader(run)


def settings_of(stanzas: list[StanzaLine]) -> dict[str, dict[str, str]]:
    return {stanza.name: stanza.settings for stanza in stanzas}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def rehearsed(folder: Path, *, url: str | None = None, **environ: str) -> Iterator[Confs]:
    def playbook() -> str:
        return playbook_text(ConfSettings.from_environment(environ))

    with rehearsed_pipeline(Confs, playbook, folder, url=url, prefix="conf", **environ) as confs:
        yield confs
