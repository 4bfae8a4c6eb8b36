"""How configuration is taken in: what is refused at once, and what makes it the same upload.

The same file gives the same run; a .conf by itself is the same where its name is, too, since that says what
it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.core.errors import PermanentError
from holdfast.engine import Engine
from holdfast.pipelines.conf_archives.archive import Kind, kind_of
from holdfast.pipelines.conf_archives.playbook import PATH
from holdfast.pipelines.conf_archives.settings import UPLOAD_BYTES_MAX, ConfSettings
from holdfast.pipelines.conf_archives.tables import ADD_RUN, tables_for
from holdfast.pipelines.intake import Intake, IntakeRules, key_with_name
from holdfast.pipelines.places import open_storage
from holdfast.pipelines.upload import Upload, UploadPlace

CONF_UPLOADS = UploadPlace(
    folder="conf_archives",
    prefix="conf",
    what="a configuration archive",
    how="Upload it by `holdfast ingest FILE`, or by POST /v1/uploads.",
)


def intake_for(engine: Engine, environ: Mapping[str, str] = os.environ) -> Intake:
    bytes_max = ConfSettings.from_environment(environ).upload_bytes_max
    return Intake(engine, open_storage(environ), CONF_RULES, bytes_max=bytes_max)


def check_kind(filename: str, head: bytes) -> None:
    """Refuse what is no configuration at all; what is broken becomes a run that says so."""
    try:
        kind_of(filename, head)
    except PermanentError as error:
        if error.error_type == "unsupported_format":
            raise


def _key_of(upload: Upload, head: bytes) -> str:
    """Of a single .conf the name says what it configures; and nothing at all is alike under any name."""
    try:
        is_named = kind_of(upload.filename, head) is Kind.CONF
    except PermanentError:
        is_named = not head
    return key_with_name(upload) if is_named else upload.sha256


CONF_RULES = IntakeRules(
    path=PATH,
    place=CONF_UPLOADS,
    tables_for=tables_for,
    add_row=ADD_RUN,
    check=check_kind,
    key_of=_key_of,
    too_large=f"Pack less of it, or raise {UPLOAD_BYTES_MAX} where it is taken in.",
)
