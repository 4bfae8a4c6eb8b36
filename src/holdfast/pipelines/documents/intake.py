"""How documents are taken in. Whatever is uploaded becomes a document: one that cannot be read says why,
where all others are looked for, too. The same content is the same document, under any name."""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.engine import Engine
from holdfast.pipelines.documents.playbook import PATH
from holdfast.pipelines.documents.reading.kinds import is_text_by_another_name
from holdfast.pipelines.documents.settings import UPLOAD_BYTES_MAX, DocumentSettings
from holdfast.pipelines.documents.tables import ADD_DOCUMENT, FIND_COMPLETE, tables_for
from holdfast.pipelines.intake import Intake, IntakeRules, key_with_name
from holdfast.pipelines.places import open_storage
from holdfast.pipelines.upload import Upload, UploadPlace

DOCUMENT_UPLOADS = UploadPlace(
    folder="documents",
    prefix="document",
    what="a document",
    how="Upload it by `holdfast documents add FILE`, or by POST /api/documents.",
)


def intake_for(engine: Engine, environ: Mapping[str, str] = os.environ) -> Intake:
    bytes_max = DocumentSettings.from_environment(environ).upload_bytes_max
    return Intake(engine, open_storage(environ), DOCUMENT_RULES, bytes_max=bytes_max)


def _check(filename: str, head: bytes) -> None:
    """Its bytes are judged where it is parsed."""


def _key_of(upload: Upload, head: bytes) -> str:
    """Nothing at all is alike under any name; and the name of a text says whether it is taken for one."""
    is_judged_by_name = not head or is_text_by_another_name(head, upload.filename)
    return key_with_name(upload) if is_judged_by_name else upload.sha256


DOCUMENT_RULES = IntakeRules(
    path=PATH,
    place=DOCUMENT_UPLOADS,
    tables_for=tables_for,
    add_row=ADD_DOCUMENT,
    check=_check,
    key_of=_key_of,
    find_complete=FIND_COMPLETE,
    too_large="Upload a smaller file, or split it into several;"
    f" or raise {UPLOAD_BYTES_MAX} where it is taken in.",
)
