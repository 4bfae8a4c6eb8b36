"""Secrets: found on the worker when a step needs them, and masked in everything that leaves it.

    secret("TOKEN") ──▶ HOLDFAST_SECRET_TOKEN, else the file TOKEN in HOLDFAST_SECRETS_FOLDER ──▶ its value
                                                                    every form of it ──▶ ***

The secrets that a playbook names are masked in what is reported of each of its steps, for a later one may
find what an earlier one has stored: in the failure, its trace, the output (a service may send back what it
was sent); as they are, as they stand in addresses and in JSON, in base64, whatever stands before them there
(`Basic` auth), and where a text was cut in the middle of one. A value that was read is from then on masked in
all that this process logs.

A short value is refused: to mask `abc` everywhere would destroy text, and not to mask it would tell it.
"""

from __future__ import annotations

import base64
import contextlib
import html
import json
import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

from holdfast.core.errors import PermanentError
from holdfast.core.failures import Failure
from holdfast.core.masking import SECRET_CHARS_MIN
from holdfast.core.model import Completed, Failed, Outcome
from holdfast.core.payload import decode_payload, encode_payload

ENVIRONMENT_PREFIX = "HOLDFAST_SECRET_"
FOLDER_VARIABLE = "HOLDFAST_SECRETS_FOLDER"
SECRET_BYTES_MAX = 64 * 1024
# Of a form that is only a part of the value: a shorter one is found in any text.
PART_CHARS_MIN = 6
LINE_CHARS_MIN = 16
# How often a text may say that it was cut before nobody looks there any more.
CUTS_MAX = 200
# A text that was cut and does not say so is long.
UNMARKED_CHARS_MIN = 500
# Longer ones have lines, which are looked for by themselves.
DIVIDED_CHARS_MAX = 2_000
MASK = "***"

_CUT = re.compile(r"…|\.\.\.")
_PATH_SAFE = "/!$&'()*+,;=:@"
_ESCAPE = re.compile(r"%[0-9A-F]{2}")
_JSON_ESCAPE = re.compile(r"\\u([0-9a-f]{4})")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}", re.ASCII)


class SecretSource:
    """Where this worker finds secrets."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ

    def find(self, name: str) -> str:
        if _NAME.fullmatch(name) is None or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise _refused(
                "secret_missing",
                f"{name!r} is no name of a secret.",
                "A name has letters, digits, _, -, dots and slashes.",
            )
        value = self._environ.get(f"{ENVIRONMENT_PREFIX}{name}")
        if value is None:
            value = self._from_file(name)
        if value is None:
            raise _refused(
                "secret_missing",
                f"This worker has no secret {name}.",
                f"Set {ENVIRONMENT_PREFIX}{name} in the worker's environment, or put it into a file named"
                f" {name} in the folder that {FOLDER_VARIABLE} names; then retry.",
            )
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            # Bytes of the environment that are no text: they could be neither sent nor masked.
            raise _refused("secret_invalid", f"The secret {name} is not UTF-8 text.", "Store it in base64.")
        if len(value) < SECRET_CHARS_MIN:
            raise _refused(
                "secret_invalid",
                f"The secret {name} is shorter than {SECRET_CHARS_MIN} characters: it could not be masked.",
                "Give it a longer value; what is no secret can stand in the workload.",
            )
        return value

    def _from_file(self, name: str) -> str | None:
        folder = self._environ.get(FOLDER_VARIABLE)
        if not folder:
            return None
        try:
            with Path(folder, name).open("rb") as file:
                content = file.read(SECRET_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            # Its folder may be mounted late, or read again in this moment: it may heal.
            reason = error.strerror or type(error).__name__
            raise OSError(f"the secret {name} cannot be read from its file: {reason}") from None
        if len(content) > SECRET_BYTES_MAX:
            raise _refused(
                "secret_invalid",
                f"The file of the secret {name} is larger than {SECRET_BYTES_MAX:,} bytes.",
                "A secret is a short text; put large files elsewhere.",
            )
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise _refused(
                "secret_invalid", f"The file of the secret {name} is not UTF-8 text.", "Store it in base64."
            ) from None
        return text.removesuffix("\n").removesuffix("\r")


_WORDS = {
    "secret_missing": "A secret of the step is not there",
    "secret_invalid": "A secret of the step cannot be used",
}


def _refused(error_type: str, message: str, guidance: str) -> PermanentError:
    return PermanentError(message, error_type=error_type, user_message=_WORDS[error_type], guidance=guidance)


class AttemptSecrets:
    """The secrets that one attempt has read, and those that other steps of its playbook do."""

    def __init__(self, source: SecretSource, of_playbook: Sequence[str] = ()) -> None:
        self._source = source
        self._of_playbook = of_playbook
        self._values: dict[str, str] = {}
        self._mask: Mask | None = None

    def find(self, name: str) -> str:
        if name not in self._values:
            self._values[name] = value = self._source.find(name)
            self._mask = None
            mask_in_logs(value)
        return self._values[name]

    @property
    def mask(self) -> Mask | None:
        """None where there is no secret."""
        if self._mask is None and (values := frozenset((*self._values.values(), *self._others()))):
            self._mask = mask_of(values)
        return self._mask

    def _others(self) -> Iterator[str]:
        for name in self._of_playbook:
            if name not in self._values:
                with contextlib.suppress(PermanentError, OSError):  # a worker may lack what it has no use for
                    yield self._source.find(name)


@lru_cache(maxsize=64)
def mask_of(values: frozenset[str]) -> Mask:
    return Mask(values)


class Mask:
    """Replaces every form of some values by ***."""

    def __init__(self, values: Iterable[str]) -> None:
        values = list(values)
        forms = {form for value in values for form in forms_of(value)}
        # The longest first, or a form that begins with another one would leave its tail behind.
        self._forms = sorted(forms, key=len, reverse=True)
        self._values = frozenset(values)
        self._divided = [form for form in self._forms if PART_CHARS_MIN < len(form) <= DIVIDED_CHARS_MAX]
        # What can stand beside a cut: most texts that were cut have none of it.
        self._pieces = {
            form[place : place + PART_CHARS_MIN]
            for form in self._divided
            for place in range(len(form) - PART_CHARS_MIN + 1)
        }

    def text(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return self._without_parts(text)

    def _without_parts(self, text: str) -> str:
        """The beginning of a value before a cut, and the end of one after it, are parts of it, too."""
        cuts = list(islice(_CUT.finditer(text), CUTS_MAX))
        if not cuts and len(text) < UNMARKED_CHARS_MIN:
            return text
        parts: set[tuple[int, int]] = set()
        for end in (len(text), *(cut.start() for cut in cuts)):
            if text[max(end - PART_CHARS_MIN, 0) : end] in self._pieces:
                parts.update(filter(None, (_beginning_before(text, end, form) for form in self._divided)))
        for start in (0, *(cut.end() for cut in cuts)):
            if text[start : start + PART_CHARS_MIN] in self._pieces:
                parts.update(filter(None, (_end_after(text, start, form) for form in self._divided)))
        masked, since = [], 0
        for first, last in sorted(parts):
            if last > since:
                masked += [text[since : max(first, since)], MASK if first >= since else ""]
                since = last
        return "".join([*masked, text[since:]]) if parts else text

    def outcome(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Completed):
            return self._completed(outcome)
        if isinstance(outcome, Failed):
            return msgspec.structs.replace(outcome, failure=self.failure(outcome.failure))
        return outcome

    def failure(self, failure: Failure) -> Failure:
        return msgspec.structs.replace(
            failure,
            message=self.text(failure.message),
            exception=self.text(failure.exception),
            error_type=failure.error_type and self.text(failure.error_type),
            user_message=failure.user_message and self.text(failure.user_message),
            guidance=failure.guidance and self.text(failure.guidance),
            stack_trace=self.text(failure.stack_trace),
            data=self.value(failure.data),
        )

    def _completed(self, outcome: Completed) -> Completed:
        """By its values, not its text: a number in it may have the digits of a secret, and stays a number."""
        masked = self.value(decode_payload(outcome.result))
        return Completed(encode_payload(masked, what="output", bytes_max=1 << 40))

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.text(key): self.value(item) for key, item in value.items()}
        if isinstance(value, int | float) and not isinstance(value, bool) and str(value) in self._values:
            return MASK
        return value


def _beginning_before(text: str, end: int, form: str) -> tuple[int, int] | None:
    first = max(end - len(form) + 1, 0)
    least = _public_chars(form) + PART_CHARS_MIN
    while (first := text.find(form[:least], first, end)) >= 0:
        if form.startswith(text[first:end]):
            return first, end
        first += 1
    return None


def _public_chars(form: str) -> int:
    """Of an address, scheme and host: how such a secret begins is no secret."""
    host = form.find("://") + len("://")
    return host + len(re.split("[/?#]", form[host:], maxsplit=1)[0]) if host >= len("://") else 0


def _end_after(text: str, start: int, form: str) -> tuple[int, int] | None:
    last = start + len(form) - 1
    while (found := text.rfind(form[-PART_CHARS_MIN:], start, last)) >= 0:
        last = found + PART_CHARS_MIN
        if form.endswith(text[start:last]):
            return start, last
        last -= 1
    return None


@lru_cache(maxsize=256)
def forms_of(value: str) -> frozenset[str]:
    """How a value may look in a text."""
    forms = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    forms |= _url_forms(value)
    # All of them, browsers' own choice, and what may stand in a path, a query, a form.
    forms |= {quote(form, safe=safe) for form in (*forms, value) for safe in ("", "!'()*", "/", _PATH_SAFE)}
    forms.add(quote_plus(value))
    forms |= {
        html.escape(value, quote=False),
        html.escape(value),
        html.escape(value).replace("&#x27;", "&#39;"),
        html.escape(value).replace("&#x27;", "&apos;"),
    }
    forms |= {value.replace("'", "''"), value.replace("'", "'\\''")}  # in SQL, in a shell
    # Some services write every slash of JSON as \/, and the digits of escapes in small or capital letters.
    forms |= {form.replace("/", "\\/") for form in forms}
    forms |= {_ESCAPE.sub(lambda escape: escape[0].lower(), form) for form in forms}
    forms |= {_JSON_ESCAPE.sub(lambda escape: "\\u" + escape[1].upper(), form) for form in forms}
    encoded = value.encode()
    forms |= {encoded.hex(), encoded.hex().upper()}
    for offset in range(3):
        forms |= _base64_forms(encoded, offset)
    # A key of several lines is quoted line by line.
    forms |= {line.strip() for line in value.splitlines() if len(line.strip()) >= LINE_CHARS_MIN}
    return frozenset(form for form in forms if form == value or len(form) >= PART_CHARS_MIN)


def _url_forms(value: str) -> set[str]:
    """Where the value is an address: how it is written by those who read it, and its telling parts. Where a
    password or a query is the secret of it, the rest is public and stays: the service's links have it."""
    if "://" not in value:
        return set()
    import httpx  # which takes long, and most secrets are no address

    try:
        url = httpx.URL(value)
        bare = url.copy_with(userinfo=b"", query=None, fragment=None)
    except (httpx.InvalidURL, ValueError):
        return set()
    asked = url.copy_with(userinfo=b"", fragment=None)
    forms = {str(url), *filter(_is_token, url.params.values())}
    if len(url.password) >= PART_CHARS_MIN and url.password != url.username:
        forms.add(url.password)
    if url.query:
        forms.add(str(asked))
    if not (url.userinfo or url.query) or any(map(_is_token, bare.path.split("/"))):
        path = bare.raw_path.decode()
        forms |= {str(bare), *([path] if len(path) >= LINE_CHARS_MIN else ())}
    return forms


def _is_token(text: str) -> bool:
    """Whether it looks like something that was drawn, and not like a word."""
    is_mixed = any(not char.isalpha() for char in text) and any(map(str.isalpha, text))
    return len(text) >= 20 or (len(text) >= PART_CHARS_MIN and (is_mixed or text.isupper()))


def _base64_forms(value: bytes, offset: int) -> set[str]:
    """What of it stands in base64 for certain where so many bytes (modulo 3) stand before it, any behind."""
    first = (0, 2, 3)[offset]  # characters that share bits with what stands before
    whole = (offset + len(value)) * 8 // 6
    found = set()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        found.add(encode(bytes(offset) + value).decode()[first:whole])
    return found


# in logs

_lock = threading.Lock()
_logged: set[str] = set()
_log_mask: Mask | None = None
_is_installed = False


def mask_in_logs(value: str) -> None:
    """From now on, in everything that this process logs: also libraries tell of addresses and headers."""
    global _is_installed, _log_mask
    with _lock:
        if value in _logged:
            return
        _logged.add(value)
        _log_mask = Mask(_logged)
        if not _is_installed:
            _is_installed = True
            _install()


def _install() -> None:
    make = logging.getLogRecordFactory()

    def make_masked(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = make(*arguments, **named)
        mask = _log_mask
        if mask is None:
            return record
        try:
            message = record.getMessage()
        except Exception:  # its own author's fault, which logging tells of, with all that it was given
            record.msg, record.args = _masked_part(mask, record.msg), _masked_parts(mask, record.args)
            return record
        masked = mask.text(message)
        if masked != message:
            record.msg, record.args = masked, ()
        if record.exc_info and record.exc_info[1] is not None:
            trace = _FORMATTER.formatException(record.exc_info)
            if (masked := mask.text(trace)) != trace:
                record.exc_text = masked
        return record

    logging.setLogRecordFactory(make_masked)


def _masked_parts(mask: Mask, args: Any) -> Any:
    if isinstance(args, tuple):
        return tuple(_masked_part(mask, arg) for arg in args)
    return args if args is None else _masked_part(mask, args)


def _masked_part(mask: Mask, part: Any) -> Any:
    """As it is where it shows no secret."""
    try:
        shown = part if isinstance(part, str) else repr(part)
    except Exception:
        return part
    masked = mask.text(shown)
    return part if masked == shown else masked


_FORMATTER = logging.Formatter()
