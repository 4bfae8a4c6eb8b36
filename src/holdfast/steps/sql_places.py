"""Which database a sql step's `url` means, and whether this worker may open it.

A playbook may be written by somebody who may not read the worker's files. So, on a worker without leave for
code, databases in files lie in one folder, wherever links may lead.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.core.errors import PermanentError
from holdfast.steps.fields import refused
from holdfast.steps.interface import StepSettings
from holdfast.steps.sql_text import Dialect

IN_MEMORY = ":memory:"
# SQLite keeps these beside a database, and trusts what is in them; an empty one passes for an empty database.
_COMPANIONS = ("-journal", "-wal", "-shm")

_FORMS = "Use sqlite:///file.db, postgresql://user@host/name, duckdb:///file.duckdb or duckdb://."
_SCHEMES = {
    "sqlite": Dialect.SQLITE,
    "postgresql": Dialect.POSTGRESQL,
    "postgres": Dialect.POSTGRESQL,
    "duckdb": Dialect.DUCKDB,
}


def dialect_of(url: str) -> Dialect:
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    dialect = _SCHEMES.get(scheme)
    if dialect is None:
        shown = f"the scheme {scheme[:40]!r}" if scheme else "no scheme"
        raise refused(f"The url has {shown}, and no database of a sql step.", _FORMS)
    if "\0" in url:
        raise refused("The url has a NUL character.", _FORMS)
    return dialect


def forbidden(message: str) -> PermanentError:
    return PermanentError(
        message,
        error_type="target_forbidden",
        user_message="The step may not reach this file",
        guidance="Keep it in the folder that HOLDFAST_SQL_FOLDER names;"
        " or let the worker's owner give leave for code (--allow-code).",
    )


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def file_of(url: str, settings: StepSettings) -> str:
    """The path of the database, or :memory:. A relative one is relative to the folder of the setting."""
    rest = url.partition("://")[2]
    if rest in ("", "/", f"/{IN_MEMORY}", IN_MEMORY):
        return IN_MEMORY
    if not rest.startswith("/"):
        raise refused("The url of a file has three slashes, or four before an absolute path.", _FORMS)
    folder = Path(settings.sql_folder).expanduser()
    try:
        path = (folder / rest[1:]).resolve()
        is_inside = path.is_relative_to(folder.resolve())
        is_file, is_there, has_parent = path.is_file(), path.exists(), path.parent.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        raise refused(f"The path in the url cannot be used: {error}.", _FORMS) from None
    if not is_inside and not settings.allow_code:
        raise forbidden("The url names a file outside the folder for databases.")
    if path.name.lower().endswith(_COMPANIONS) and not settings.allow_code:
        raise forbidden(f"The url names what SQLite keeps beside a database ({', '.join(_COMPANIONS)}).")
    if not has_parent:
        raise refused(f"There is no folder {path.parent}.", "Make it, or name another file.")
    if is_there and not is_file:
        raise refused(f"{path} is no file.", _FORMS)
    return str(path)


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, repr=False)
class Server:
    hosts: list[str] | None
    ports: list[int] | None
    user: str
    password: str
    database: str
    sslmode: str | None
    application_name: str

    @property
    def shown(self) -> str:
        return f"the database {self.database} at {', '.join(self.hosts or ['the local socket'])}"


_PARAMETERS = frozenset(
    {
        "host",
        "port",
        "user",
        "password",
        "dbname",
        "database",
        "sslmode",
        "application_name",
        "connect_timeout",
    }
)


def server_of(url: str) -> Server:
    """All that is needed to connect is in the url: what the worker's own environment and password file say is
    for others, and would be sent to whatever host a playbook names."""
    try:
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise refused("The url of the database is not valid.", _FORMS) from None
    unknown = sorted(set(given) - _PARAMETERS)
    if unknown:
        allowed = ", ".join(sorted(_PARAMETERS))
        raise refused(f"The url has the parameter {unknown[0][:40]!r}.", f"Allowed are: {allowed}.")
    credentials, _, places = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    hosts, ports = _hosts(places or given.get("host", ""), given.get("port", ""))
    user = unquote(user) or given.get("user", "")
    if not user:
        raise refused("The url names no user.", "Write postgresql://user:password@host/name.")
    return Server(
        hosts=hosts,
        ports=ports,
        user=user,
        password=unquote(password) or given.get("password", ""),
        database=unquote(parts.path.lstrip("/")) or given.get("dbname") or given.get("database") or user,
        sslmode=given.get("sslmode"),
        application_name=given.get("application_name", "holdfast"),
    )


def _hosts(places: str, port: str) -> tuple[list[str] | None, list[int] | None]:
    if not places:
        return None, _ports([port]) if port else None
    hosts, ports = [], []
    for place, default in zip(places.split(","), _spread(port, places.count(",") + 1), strict=True):
        if place.startswith("["):  # an IPv6 address
            host, _, rest = place[1:].partition("]")
            own = rest.removeprefix(":")
        elif unquote(place).startswith("/"):
            host, own = unquote(place), ""
        else:
            host, _, own = place.partition(":")
        hosts.append(unquote(host))
        ports.append(own or default)
    return hosts, _ports(ports)


def _spread(port: str, count: int) -> list[str]:
    ports = port.split(",") if port else ["5432"]
    return ports * count if len(ports) == 1 else (ports + ["5432"] * count)[:count]


def _ports(texts: list[str]) -> list[int]:
    for text in texts:
        if not text.isdecimal() or not 0 < int(text[:6]) < 65_536:
            raise refused("The url has a port that is no number from 1 to 65535.", _FORMS)
    return [int(text) for text in texts]


def connect_arguments(server: Server) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "user": server.user,
        # Never None: then the driver would look in the worker's environment and password file.
        "password": server.password,
        "database": server.database,
        "server_settings": {"application_name": server.application_name},
    }
    if server.hosts:
        arguments["host"] = server.hosts
    else:
        arguments["host"] = ["/run/postgresql", "/var/run/postgresql", "/tmp"]
    if server.ports:
        arguments["port"] = server.ports if len(server.ports) == len(arguments["host"]) else server.ports[0]
    if server.sslmode:
        arguments["ssl"] = server.sslmode
    return arguments
