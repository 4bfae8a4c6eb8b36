"""From what was written in a step to its type's canonical fields, which is what a worker is given.

Each value keeps the place that it was written at, so that a fault in one of its templates is told there. What
can be known before the step runs is checked here; what templates yield, the type checks itself.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from holdfast.core.errors import HoldfastError
from holdfast.core.handlers import CODE, FUNCTION_PREFIX, SHELL
from holdfast.core.retry import DURATION_FORMS, parse_duration
from holdfast.playbook.document import Path
from holdfast.playbook.faults import value_shown
from holdfast.playbook.language import (
    FUNCTION,
    HttpStep,
    PlaybookStep,
    PythonStep,
    ShellStep,
    SleepStep,
    SqlStep,
    StepFields,
    is_path,
)
from holdfast.playbook.shape import Report, WrittenStep

CONTROL_HANDLER: Final = "control"
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
SLEEP_SECONDS_MAX: Final = 366 * 86_400.0
CODE_CHECKED_CHARS_MAX: Final = 100_000
_WITHOUT_BODY: Final = ("GET", "HEAD", "DELETE", "OPTIONS")
_URL_SCHEMES: Final = {
    "sqlite": ("sqlite:///",),
    "duckdb": ("duckdb://",),
    "postgres": ("postgresql://", "postgres://"),
}
_SECRET_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}", re.ASCII)
_URL_FORMS: Final = {
    "sqlite": "sqlite:///file.db",
    "postgres": "postgresql://user@host/name",
    "duckdb": "duckdb:///file.db, or duckdb:// in memory",
}


class Value(NamedTuple):
    """As it is kept, and where it was written."""

    value: Any
    path: Path


Config = dict[str, Value]


def handler_of(kind: str, model: StepFields) -> str:
    """What a worker must offer to be given the step."""
    if kind == "control":
        return CONTROL_HANDLER
    if isinstance(model, PythonStep):
        return CODE if model.call is None else FUNCTION_PREFIX + model.call
    return SHELL if kind == "shell" else f"type/{kind}"


def config_of(report: Report, step: WrittenStep) -> Config:
    model = step.model
    for kind, read in _READERS.items():
        if isinstance(model, kind):
            return read(_Fields(report, step), model)
    return {}


def has_template(text: object) -> bool:
    return isinstance(text, str) and "{{" in text


class _Fields:
    """The written fields of one step."""

    def __init__(self, report: Report, step: WrittenStep) -> None:
        self.step = step
        self._report = report

    def at(self, *parts: str | int) -> Path:
        return (*self.step.path, *parts)

    def fault(self, field: str, message: str, allowed: str = "", *, line: int | None = None) -> None:
        """`line` is counted inside the field's text."""
        path = self.at(field) if field else self.step.path
        place = None if line is None else self._report.document.line_in(path, line)
        self._report.add(path, message, allowed, line=place)

    def one_of(self, *names: str) -> Value | None:
        """The one of these fields that is given, which are words for the same."""
        given = [name for name in names if self.step.raw.get(name) is not None]
        for extra in given[1:]:
            self.fault(extra, f"`{given[0]}` and `{extra}` are written together.", "Keep one of them.")
        return Value(self.step.raw[given[0]], self.at(given[0])) if given else None

    def plain(self, *names: str) -> Config:
        """Those fields that are kept as they were written."""
        raw = self.step.raw
        return {name: Value(raw[name], self.at(name)) for name in names if raw.get(name) is not None}


def _http(fields: _Fields, model: HttpStep) -> Config:
    config = fields.plain(
        "headers",
        "params",
        "json",
        "body",
        "form",
        "auth",
        "follow_redirects",
        "response_bytes_max",
        "save_to",
    )
    method = (model.method or "GET").upper() if not has_template(model.method) else str(model.method)
    if not has_template(method) and method not in METHODS:
        fields.fault("method", f"There is no method {value_shown(model.method)}.", ", ".join(METHODS) + ".")
    config["method"] = Value(method, fields.at("method"))
    url = fields.one_of("url", "endpoint")
    if url is None:
        fields.fault("", "An http step needs a `url`.", 'url: "https://example.com/items".')
    else:
        config["url"] = url
        if not has_template(url.value) and not re.match(r"https?://[^/\s]", url.value, re.IGNORECASE):
            fields.fault(
                str(url.path[-1]), f"It cannot be {value_shown(url.value)}.", "http://… or https://…."
            )
    _add_data(fields, config, method)
    bodies = [name for name in ("json", "body", "form") if name in config]
    for extra in bodies[1:]:
        place = str(config[extra].path[2])
        fields.fault(place, f"The request would have two bodies, `{bodies[0]}` and `{extra}`.", "Keep one.")
    return config


def _add_data(fields: _Fields, config: Config, method: str) -> None:
    """The dialects' `data`: {query, body}, or whatever a request of that method sends."""
    data = fields.one_of("data", "payload")
    if data is None:
        return
    parts: dict[str, Value] = {}
    if data.value.keys() <= {"query", "body"} and isinstance(data.value.get("query", {}), dict):
        names = {"query": "params", "body": "json"}
        parts = {names[key]: Value(value, (*data.path, key)) for key, value in data.value.items()}
    elif has_template(method):
        message = "Whether it is sent as query or as body depends on the method, which is a template."
        fields.fault(str(data.path[-1]), message, "params for the query, json for the body.")
    else:
        parts = {"params" if method in _WITHOUT_BODY else "json": data}
    for name, value in parts.items():
        if name in config:
            fields.fault(
                str(data.path[-1]), f"It gives `{name}`, which is written as well.", "Keep one of them."
            )
        elif value.value is not None:
            config[name] = value


def _python(fields: _Fields, model: PythonStep) -> Config:
    if FUNCTION in (model.type, model.tool):
        if model.code is not None:
            fields.fault("code", "A function step has no `code`.", "call: module:function; or type: python.")
        if model.call is None:
            fields.fault("", "A function step needs `call`.", "call: module:function.")
    elif (model.call is None) == (model.code is None):
        message = (
            "A python step needs `call` or `code`."
            if model.call is None
            else "`call` and `code` are written together."
        )
        fields.fault("", message, "call: module:function, or code with def main(input_data).")
    if model.code is not None and not model.code.strip():
        fields.fault("code", "The code is empty.", "def main(input_data): …")
    elif model.code is not None and len(model.code) <= CODE_CHECKED_CHARS_MAX:
        _check_code(fields, model.code)
    return fields.plain("call", "code")


def _check_code(fields: _Fields, code: str) -> None:
    """Only that it can be read: nothing of it is run here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except SyntaxError as error:
        message = f"The code is not Python: {error.msg}."
        fields.fault("code", message, "Correct it; the line is that of the playbook.", line=error.lineno or 1)
    except (RecursionError, MemoryError, ValueError):
        pass  # nothing is known of it then; the worker that runs it will tell


def _sql(fields: _Fields, model: SqlStep) -> Config:
    config = fields.plain("params", "rows_max")
    dialect = model.type or model.tool or "sql"
    if url := _sql_url(fields, model, dialect):
        config["url"] = url
    query = fields.one_of("query", "sql", "command", "commands")
    if query is None:
        fields.fault("", f"A {dialect} step needs a `query`.", 'query: "SELECT …".')
        return config
    if isinstance(query.value, list):
        query = Value(";\n".join(text.strip().rstrip(";") for text in query.value), query.path)
    if not query.value.strip():
        fields.fault(str(query.path[-1]), "The statement is empty.", 'Write one, such as "SELECT 1".')
    config["query"] = query
    return config


def _sql_url(fields: _Fields, model: SqlStep, dialect: str) -> Value | None:
    given = fields.one_of("url", "auth", "database")
    if given is None:
        if dialect == "duckdb":
            return Value("duckdb://", fields.step.path)
        more = "; or auth: NAME of the secret that holds it." if dialect == "postgres" else "."
        fields.fault("", f"A {dialect} step needs a `url`.", _url_forms(dialect) + more)
        return None
    field, text = str(given.path[-1]), str(given.value)
    if field == "auth":
        if dialect not in ("postgres", "sql"):
            fields.fault("auth", f"A {dialect} step has nothing to log in to.", "url, or database.")
        elif _SECRET_NAME.fullmatch(text) is None:
            message = f"It cannot be {value_shown(text)}."
            fields.fault("auth", message, 'the name of a secret that holds the URL; or url: "{{ … }}".')
        return Value(f'{{{{ secret("{text}") }}}}', given.path)
    if field == "database":
        if dialect not in ("duckdb", "sqlite"):
            fields.fault("database", f"A {dialect} step has no `database`.", f"url: {_url_forms(dialect)}.")
        if text == ":memory:":
            return Value("duckdb://" if dialect == "duckdb" else "sqlite:///:memory:", given.path)
        return Value(f"{dialect}:///{text}", given.path)
    schemes = _URL_SCHEMES.get(dialect) or tuple(one for some in _URL_SCHEMES.values() for one in some)
    if not text.lstrip().startswith("{{") and not text.startswith(schemes):
        # Not its value: it may hold a password.
        fields.fault("url", f"It is no URL of a {dialect} database.", f"{_url_forms(dialect)}.")
    return given


def _url_forms(dialect: str) -> str:
    return _URL_FORMS.get(dialect) or ", ".join(_URL_FORMS.values())


def _shell(fields: _Fields, model: ShellStep) -> Config:
    is_text = isinstance(model.command, str)
    if is_text and not model.shell:
        message = "A text is run by a shell only where that is said."
        fields.fault("command", message, "a list such as [echo, hello]; or `shell: true` beside it.")
    elif model.shell and not is_text:
        fields.fault("command", "A list is not given to a shell.", "a text; or leave out `shell: true`.")
    elif is_text and has_template(model.command):
        message = "A template in a text for a shell could be read as a command."
        fields.fault(
            "command", message, 'env: {NAME: "{{ … }}"} and "$NAME" in the text; or a list without shell.'
        )
    for index, part in enumerate([] if isinstance(model.command, str) else model.command):
        if isinstance(part, dict | list) or part is None:
            message = f"An argument cannot be {value_shown(part)}."
            fields.fault("command", message, f"texts, numbers, true and false (argument {index + 1}).")
    return fields.plain("command", "shell", "env", "cwd", "stdin")


def _sleep(fields: _Fields, model: SleepStep) -> Config:
    given = fields.one_of("seconds", "duration")
    if given is None:
        fields.fault("", "A sleep step needs `seconds`.", f"{DURATION_FORMS}.")
        return {}
    if has_template(given.value):
        return {"seconds": given}
    try:
        seconds = parse_duration(given.value)
        if seconds <= SLEEP_SECONDS_MAX:
            return {"seconds": Value(seconds, given.path)}
    except HoldfastError:
        pass
    message = f"It cannot be {value_shown(given.value)}."
    fields.fault(str(given.path[-1]), message, f"{DURATION_FORMS}, 366 days at most; or a template.")
    return {}


def _playbook(fields: _Fields, model: PlaybookStep) -> Config:
    if not has_template(model.path) and not is_path(model.path):
        message = f"It cannot be {value_shown(model.path)}."
        fields.fault("path", message, "the path of a playbook in the catalog, such as examples/child.")
    return fields.plain("path", "version")


_READERS: Final[Mapping[type[StepFields], Callable[[_Fields, Any], Config]]] = {
    HttpStep: _http,
    PythonStep: _python,
    SqlStep: _sql,
    ShellStep: _shell,
    SleepStep: _sleep,
    PlaybookStep: _playbook,
}
