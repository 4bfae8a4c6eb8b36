"""The errors of the world that Holdfast knows by itself, without a word from the user.

Four tables, from the surest to the vaguest: SQLSTATEs, exception types, HTTP statuses, and words in the
exception's name and message. Each has one function that looks an error up in it and answers with the
error type and what told it, or None. They take plain values, so that nothing here depends on where the
error comes from.
"""

import builtins
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from holdfast.core.masking import MESSAGE_CHARS_MAX

Known: TypeAlias = tuple[str, str]
"""The error type, and what told it."""

# ── SQLSTATEs ────────────────────────────────────────────────────────────────────────────────────

# Whole codes before their classes; a class that is missing (a function's own RAISE) says nothing.
_ERROR_BY_SQLSTATE: Mapping[str, str] = {
    "40002": "validation_error",
    "40": "database_lock",
    "55P03": "database_lock",
    "55006": "database_lock",
    "57014": "timeout",
    "08": "storage_unavailable",
    "25006": "storage_unavailable",
    "53": "storage_unavailable",
    "57P": "storage_unavailable",
    "58": "storage_unavailable",
    "28": "auth_error",
    "42501": "auth_error",
    "0A": "validation_error",
    "21": "validation_error",
    "22": "validation_error",
    "23": "validation_error",
    "3D": "validation_error",
    "3F": "validation_error",
    "42": "validation_error",
    "44": "validation_error",
    "54": "validation_error",
}


def known_by_sqlstate(sqlstate: str | None) -> Known | None:
    code = (sqlstate or "").upper()
    for length in (5, 3, 2):
        error_type = _ERROR_BY_SQLSTATE.get(code[:length])
        if error_type is not None:
            return error_type, f"sqlstate {code}"
    return None


# ── exception types ──────────────────────────────────────────────────────────────────────────────

# By qualified name, so that nothing needs to be installed to be recognised, and a worker elsewhere can
# report it. A class stands for its subclasses. AttributeError, NameError and ImportError are left out
# on purpose: half a deployment looks like that, and heals.
_TYPES_BY_ERROR: Mapping[str, str] = {
    "timeout": """
        builtins.TimeoutError asyncio.exceptions.TimeoutError concurrent.futures._base.TimeoutError
        socket.timeout subprocess.TimeoutExpired
        httpx.TimeoutException httpcore.TimeoutException
        requests.exceptions.Timeout requests.exceptions.ConnectTimeout
        aiohttp.client_exceptions.ServerTimeoutError urllib3.exceptions.TimeoutError
        botocore.exceptions.ConnectTimeoutError botocore.exceptions.ReadTimeoutError
        redis.exceptions.TimeoutError sqlalchemy.exc.TimeoutError pymongo.errors.NetworkTimeout
        pymongo.errors.ServerSelectionTimeoutError""",
    "connection_error": """
        builtins.ConnectionError socket.gaierror socket.herror ssl.SSLError
        asyncio.exceptions.IncompleteReadError
        http.client.IncompleteRead http.client.BadStatusLine urllib.error.URLError
        httpx.NetworkError httpx.RemoteProtocolError httpx.ProxyError httpx.DecodingError
        httpcore.NetworkError
        requests.exceptions.ConnectionError requests.exceptions.ChunkedEncodingError
        aiohttp.client_exceptions.ClientConnectionError aiohttp.client_exceptions.ClientPayloadError
        urllib3.exceptions.NewConnectionError urllib3.exceptions.ProtocolError
        urllib3.exceptions.MaxRetryError
        botocore.exceptions.ConnectionError botocore.exceptions.HTTPClientError
        redis.exceptions.ConnectionError pymongo.errors.AutoReconnect
        websockets.exceptions.ConnectionClosed smtplib.SMTPServerDisconnected
        smtplib.SMTPConnectError""",
    "database_lock": """
        apsw.BusyError apsw.LockedError _duckdb.TransactionException duckdb.duckdb.TransactionException""",
    "storage_unavailable": """
        apsw.FullError apsw.IOError apsw.CantOpenError psycopg.OperationalError psycopg2.OperationalError
        holdfast.core.errors.StoreUnavailable""",
    "memory_limit": """
        builtins.MemoryError apsw.NoMemError
        _duckdb.OutOfMemoryException duckdb.duckdb.OutOfMemoryException""",
    "process_exited": "builtins.SystemExit",
    "transient_error": "builtins.BlockingIOError builtins.InterruptedError",
    "auth_error": """
        builtins.PermissionError apsw.AuthError apsw.PermissionsError apsw.ReadOnlyError
        _duckdb.PermissionException duckdb.duckdb.PermissionException
        botocore.exceptions.NoCredentialsError botocore.exceptions.PartialCredentialsError
        redis.exceptions.AuthenticationError smtplib.SMTPAuthenticationError
        paramiko.ssh_exception.AuthenticationException""",
    "not_found": "builtins.FileNotFoundError",
    "invalid_file": """
        apsw.NotADBError apsw.CorruptError
        zipfile.BadZipFile tarfile.ReadError gzip.BadGzipFile zlib.error _lzma.LZMAError
        pypdf.errors.PdfReadError openpyxl.utils.exceptions.InvalidFileException
        docx.opc.exceptions.PackageNotFoundError PIL.UnidentifiedImageError""",
    "encrypted_file": "pypdf.errors.FileNotDecryptedError",
    "empty_file": "pypdf.errors.EmptyFileError",
    "validation_error": """
        builtins.ValueError builtins.TypeError builtins.LookupError builtins.ArithmeticError
        builtins.AssertionError builtins.NotImplementedError
        pydantic_core._pydantic_core.ValidationError jsonschema.exceptions.ValidationError
        marshmallow.exceptions.ValidationError xml.etree.ElementTree.ParseError _csv.Error
        yaml.error.YAMLError jinja2.exceptions.TemplateError
        httpx.InvalidURL httpx.UnsupportedProtocol httpx.LocalProtocolError httpx.TooManyRedirects
        sqlite3.IntegrityError sqlite3.DataError sqlite3.ProgrammingError
        apsw.ConstraintError apsw.MismatchError apsw.RangeError apsw.TooBigError apsw.SQLError
        _duckdb.ProgrammingError _duckdb.DataError _duckdb.IntegrityError _duckdb.NotSupportedError
        duckdb.duckdb.ProgrammingError duckdb.duckdb.DataError duckdb.duckdb.IntegrityError
        duckdb.duckdb.NotSupportedError
        sqlalchemy.exc.IntegrityError sqlalchemy.exc.DataError
        holdfast.core.errors.InvalidInput holdfast.core.errors.UnknownName
        holdfast.steps.http_body.ResponseInvalid""",
}
_ERROR_BY_TYPE: Mapping[str, str] = {
    name: error_type for error_type, names in _TYPES_BY_ERROR.items() for name in names.split()
}

# It is a URLError, hence by its type a connection error; but the server did answer: its status decides.
_JUDGED_BY_STATUS = "urllib.error.HTTPError"

# Types that say little by themselves, with the words that tell their faults apart.
_LOCKED = re.compile(r"\b(?:is locked|deadlock)", re.IGNORECASE)
_DISK_TROUBLE = re.compile(
    r"disk i/o error|unable to open database file|disk is full|no space left on device"
    r"|disk quota exceeded|too many open files|input/output error|stale file handle",
    re.IGNORECASE,
)
_NO_MEMORY = re.compile(r"cannot allocate memory", re.IGNORECASE)
_UNREACHABLE = re.compile(r"network is (?:unreachable|down)|no route to host|host is down", re.IGNORECASE)
_DUCKDB_FILE = (
    (re.compile(r"could not set lock on file", re.IGNORECASE), "database_lock"),
    (re.compile(r"not a valid duckdb database file", re.IGNORECASE), "invalid_file"),
    (_DISK_TROUBLE, "storage_unavailable"),
)
_ERRORS_WITHIN_TYPE: Mapping[str, tuple[tuple[re.Pattern[str], str], ...]] = {
    "sqlite3.OperationalError": ((_LOCKED, "database_lock"), (_DISK_TROUBLE, "storage_unavailable")),
    "sqlalchemy.exc.OperationalError": ((_LOCKED, "database_lock"), (_DISK_TROUBLE, "storage_unavailable")),
    "_duckdb.IOException": _DUCKDB_FILE,
    "duckdb.duckdb.IOException": _DUCKDB_FILE,
    "builtins.OSError": (
        (_DISK_TROUBLE, "storage_unavailable"),
        (_UNREACHABLE, "connection_error"),
        (_NO_MEMORY, "memory_limit"),
    ),
}


def known_by_type(names: Iterable[str], message: str) -> Known | None:
    """`names` are the qualified names of the exception's classes, the most specific first."""
    for name in names:
        if name == _JUDGED_BY_STATUS:
            return None
        error_type = _ERROR_BY_TYPE.get(name)
        if error_type is not None:
            return error_type, f"exception type {short_name(name)}"
        for pattern, within in _ERRORS_WITHIN_TYPE.get(name, ()):
            match = pattern.search(message)
            if match:
                return within, f"exception type {short_name(name)}, words {match.group().lower()!r}"
    return None


_OF_ALL = (BaseException, object)


def type_names(kind: type) -> tuple[str, ...]:
    """The qualified names of an exception's classes, as a worker reports them."""
    return tuple([qualified_name(each) for each in kind.__mro__ if each not in _OF_ALL])


def builtin_type_names(name: str) -> tuple[str, ...]:
    """For a worker that reports no more than a name: Python's own exceptions are known by it."""
    kind = vars(builtins).get(name)
    return type_names(kind) if isinstance(kind, type) else (name,)


def qualified_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def short_name(qualified: str) -> str:
    return qualified.rpartition(".")[2]


# ── HTTP statuses ────────────────────────────────────────────────────────────────────────────────

_ERROR_BY_STATUS: Mapping[int, str] = {
    401: "auth_error",
    403: "auth_error",
    404: "not_found",
    410: "not_found",
    408: "timeout",
    504: "timeout",
    425: "rate_limit",
    429: "rate_limit",
}


def is_status(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599


def known_by_status(status: int | None) -> Known | None:
    error_type = None if status is None else _error_of_status(status)
    return None if error_type is None else (error_type, f"http status {status}")


def _error_of_status(status: int) -> str | None:
    if status in _ERROR_BY_STATUS:
        return _ERROR_BY_STATUS[status]
    if 500 <= status <= 599:
        return "service_unavailable"
    return "validation_error" if 400 <= status <= 499 else None


# ── words ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Words:
    error_type: str
    pattern: re.Pattern[str]
    status: frozenset[int]


def _words(error_type: str, pattern: str, *status: int) -> _Words:
    return _Words(error_type, re.compile(rf"(?<!\w)(?:{pattern})(?!\w)"), frozenset(status))


# From specific to generic, among equals the transient first. Matched against lower case with
# CamelCase, hyphens and underscores taken apart.
_WORDS: tuple[_Words, ...] = (
    _words(
        "database_lock",
        r"lock (?:wait )?timeouts?|lock timed out|deadlock(?:s|ed)?|database(?: \w+)? is locked",
    ),
    _words("timeout", r"timeouts?|time outs?(?! of)|e?timed ?out"),
    _words("rate_limit", r"rate ?limit(?:s|ed|er|ing)?|too many requests", 429),
    _words("service_unavailable", r"service (?:(?:is|was|temporarily|currently) )*unavailable", 503),
    _words(
        "connection_error",
        r"connection (?:(?:is|was|has been|had been|unexpectedly) )*"
        r"(?:refused|reset|errors?|aborted|closed|lost)",
    ),
    _words(
        "invalid_file",
        r"invalid files?|corrupt(?:ed)? (?:\w+ )?files?"
        r"|files? (?:\S+ )?(?:(?:is|are|was|were|seems|appears|to be) )*corrupt(?:ed)?",
    ),
    _words(
        "unsupported_format",
        r"unsupported (?:(?:file|media|content|image|document|archive|mime) )?(?:format|type)s?"
        r"|(?:format|type) (?:is )?(?:not supported|unsupported)",
    ),
    _words("auth_error", r"permission denied|unauthori[sz]ed", 401, 403),
    _words("validation_error", r"validation errors?|invalid data"),
    _words("not_found", r"not found|(?:does not|doesn't|do not) exist", 404),
    _words("transient_error", r"temporar(?:y|ily)|transient"),
)

_CAMEL_SEAM = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LETTER_DIGIT_SEAM = re.compile(r"(?<=[A-Za-z])(?=\d)")
_SEPARATORS = re.compile(r"[\s_-]+")

# A bare number is a status only where the text around it says so: "HTTP 404" is, "404 rows" is not.
_STATUS_NUMBER = re.compile(r"(?<![\w./,#+-])(?:401|403|404|429|503)(?![\w%]|[.,:/-]\d)")
_STATUS_BEFORE = re.compile(  # sure, whatever follows: "HTTP/1.1 ", "status code: ", '"statusCode": '
    r"(?:\bhttps?(?:/\d(?:\.\d)?)?|(?<!exit )(?<![a-z0-9])status|\b(?:error|response|result)[ _-]?code)"
    r"(?:[ _-]?(?:client|server|error|status|response|code))*"
    r"['\"]?\s*(?:is|was|of)?\s*[:=]?\s*['\"(\[<]*$"
)
_SAID_BEFORE = re.compile(  # likely, unless something is being counted: "got ", "error ", "code="
    r"(?:(?<!key)(?<!value)(?<!index)error|exception"
    r"|\b(?:got|received|returned|returns|responded|answered|replied)"
    r"|\b(?:responded|answered|replied|failed|rejected) with"
    r"|(?<!exit )(?<!area )(?<!zip )\bcode)"
    r"['\"]?\s*(?:an?\s)?\s*[:=]?\s*['\"(\[<]*$"
)
_NOTHING_COUNTED = re.compile(
    r"\s*(?:$|[])>'\":;,.!?|\u2013\u2014-]|(?:for|from|on|at|by|when|while|after|during|response|error|status)\b)"
)
_REASON_AFTER = re.compile(
    r"[\s:,(\u2013\u2014-]*(?:unauthori[sz]ed|forbidden|not found|too many requests"
    r"|service (?:temporarily )?unavailable|client error|server error)\b"
)
_BRACKET_BEFORE = re.compile(r"(?<!\S)[(\[]$")
_BRACKET_AFTER = re.compile(r"[)\]]")
_END_OR_PAUSE = re.compile(r"\s*(?:$|[])>'\":;.!\u2013\u2014-])")
_CONTEXT_CHARS = 80


@lru_cache(maxsize=256)  # what nobody knows is looked for in every table, and often comes in thousands
def known_by_words(exception: str, message: str) -> Known | None:
    name, message = short_name(exception), message[:MESSAGE_CHARS_MAX]
    text = _spoken(f"{name}: {message}")
    statuses = _statuses_mentioned(message) | _statuses_mentioned(_LETTER_DIGIT_SEAM.sub(" ", name))
    for words in _WORDS:
        match = words.pattern.search(text)
        if match:
            return words.error_type, f"words {match.group()!r}"
        numbers = words.status & statuses
        if numbers:
            return words.error_type, f"words '{min(numbers)}'"
    return None


def _spoken(text: str) -> str:
    return _SEPARATORS.sub(" ", _CAMEL_SEAM.sub(" ", text)).lower()


def _statuses_mentioned(text: str) -> set[int]:
    lowered = text.lower()
    return {
        int(match.group())
        for match in _STATUS_NUMBER.finditer(lowered)
        if _reads_as_status(
            lowered[max(0, match.start() - _CONTEXT_CHARS) : match.start()],
            lowered[match.end() : match.end() + _CONTEXT_CHARS],
        )
    }


def _reads_as_status(before: str, after: str) -> bool:
    if _STATUS_BEFORE.search(before) or _REASON_AFTER.match(after):
        return True
    if _SAID_BEFORE.search(before):
        return _NOTHING_COUNTED.match(after) is not None
    if _BRACKET_BEFORE.search(before):
        return _BRACKET_AFTER.match(after) is not None
    return not before.strip(" \t\r\n'\"<") and _END_OR_PAUSE.match(after) is not None
