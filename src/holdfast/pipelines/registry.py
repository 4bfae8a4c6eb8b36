"""Which pipelines are built in, for those who put the parts together: servers, workers, the command line.

A pipeline is registered when something is submitted to it, with the settings of whoever takes it in; a
database that has no use for one never hears of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Protocol

from holdfast.pipelines.conf_archives import playbook as conf_playbook
from holdfast.pipelines.conf_archives.settings import ConfSettings
from holdfast.pipelines.documents import playbook as documents_playbook
from holdfast.pipelines.documents.settings import DocumentSettings
from holdfast.pipelines.downloads.playbook import PATH, playbook_text
from holdfast.pipelines.downloads.settings import DownloadSettings, file_bytes_max
from holdfast.pipelines.places import open_storage
from holdfast.playbook.definition import Definition
from holdfast.server.endpoints import Endpoint

Function = Callable[..., Any]


class TakeIn(Protocol):
    """What is stored of an item at this place of its batch; or InvalidInput, also for those before it."""

    def __call__(self, workload: Any, place: int = 0) -> Any: ...


class Providing(Protocol):
    """What an engine is to this file."""

    def provide(self, path: str, provided: Callable[[], tuple[Definition, str]]) -> None: ...


@dataclass(frozen=True, slots=True)
class Pipeline:
    path: str
    limit: str | None
    """That its steps name."""
    functions: Callable[[], Mapping[str, Function]]
    """By the names that its playbook calls them by."""
    text: Callable[[Mapping[str, str]], str]
    """Its playbook, from an environment; what is wrong there is InvalidInput."""
    check_worker: Callable[[Mapping[str, str]], object]
    """What its functions would read of an environment; raises InvalidInput."""
    endpoints: Callable[[], list[Endpoint]]
    taking_in: Callable[[str | None], TakeIn] | None
    """For the items of one batch, which has this key; None where its work is not submitted in items."""
    needs_database: bool = False
    """Whether its functions write into tables: a worker that has only a server does not offer them."""
    needs_modules: tuple[str, ...] = ()
    """What its functions import of the extra of its name: a worker without them does not offer them."""

    @property
    def is_installed(self) -> bool:
        return all(find_spec(name) is not None for name in self.needs_modules)


def _downloads_functions() -> Mapping[str, Function]:
    from holdfast.pipelines import downloads

    return {f"{downloads.__name__}:{name}": getattr(downloads, name) for name in downloads.__all__}


def _downloads_text(environ: Mapping[str, str]) -> str:
    return playbook_text(DownloadSettings.from_environment(environ))


def _downloads_endpoints() -> list[Endpoint]:
    from holdfast.pipelines.downloads import routes

    return routes.endpoints


def _taking_in_downloads(key: str | None) -> TakeIn:
    from holdfast.pipelines.downloads.item import TakingIn  # what it needs is slow to load

    return TakingIn(key)


def _conf_functions() -> Mapping[str, Function]:
    from holdfast.pipelines import conf_archives

    return {
        f"{conf_archives.__name__}:{name}": getattr(conf_archives, name) for name in conf_archives.__all__
    }


def _conf_text(environ: Mapping[str, str]) -> str:
    return conf_playbook.playbook_text(ConfSettings.from_environment(environ))


def _conf_endpoints() -> list[Endpoint]:
    from holdfast.pipelines.conf_archives import routes

    return routes.endpoints


def _documents_functions() -> Mapping[str, Function]:
    from holdfast.pipelines import documents

    return {f"{documents.__name__}:{name}": getattr(documents, name) for name in documents.__all__}


def _documents_text(environ: Mapping[str, str]) -> str:
    return documents_playbook.playbook_text(DocumentSettings.from_environment(environ))


def _documents_endpoints() -> list[Endpoint]:
    from holdfast.pipelines.documents import routes

    return routes.endpoints


PIPELINES = (
    Pipeline(
        path=conf_playbook.PATH,
        limit=None,
        functions=_conf_functions,
        text=_conf_text,
        check_worker=ConfSettings.from_environment,
        endpoints=_conf_endpoints,
        taking_in=None,
        needs_database=True,
    ),
    Pipeline(
        path=documents_playbook.PATH,
        limit=None,
        functions=_documents_functions,
        text=_documents_text,
        check_worker=DocumentSettings.from_environment,
        endpoints=_documents_endpoints,
        taking_in=None,
        needs_database=True,
        needs_modules=("charset_normalizer", "lxml", "numpy", "pypdfium2"),
    ),
    Pipeline(
        path=PATH,
        limit="portal",
        functions=_downloads_functions,
        text=_downloads_text,
        check_worker=file_bytes_max,
        endpoints=_downloads_endpoints,
        taking_in=_taking_in_downloads,
    ),
)


def provide_all(engine: Providing) -> None:
    """Have all of them ready on this engine, by the settings of this process."""
    for pipeline in PIPELINES:
        engine.provide(pipeline.path, partial(_loaded, pipeline))


def check_settings(*, of_worker: bool) -> None:
    """Raise what would otherwise be told by the first item. Servers keep files, too: uploads."""
    open_storage()
    for pipeline in PIPELINES:
        if of_worker:
            pipeline.check_worker(os.environ)
        else:
            pipeline.text(os.environ)


def all_functions(*, has_database: bool = True) -> dict[str, Function]:
    """What a worker offers of them."""
    offered = [
        pipeline
        for pipeline in PIPELINES
        if pipeline.is_installed and (has_database or not pipeline.needs_database)
    ]
    return {name: function for pipeline in offered for name, function in pipeline.functions().items()}


def all_endpoints() -> list[Endpoint]:
    return [endpoint for pipeline in PIPELINES for endpoint in pipeline.endpoints()]


def built_in(path: str) -> Pipeline | None:
    return next((pipeline for pipeline in PIPELINES if pipeline.path == path), None)


def taking_in(path: str, key: str | None = None) -> TakeIn | None:
    """What takes in the items of a batch with this key; None where they are stored as they are."""
    found = built_in(path)
    return None if found is None or found.taking_in is None else found.taking_in(key)


def _loaded(pipeline: Pipeline) -> tuple[Definition, str]:
    from holdfast.playbook.load import load_playbook  # slow to load, and most processes submit nothing here

    playbook = load_playbook(pipeline.text(os.environ))
    return playbook.definition, playbook.source
