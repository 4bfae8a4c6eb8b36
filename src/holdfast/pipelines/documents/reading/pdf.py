"""Reads a PDF, page by page, with PDFium: what is on the page, then what is filled in its form.

PDFium's own functions are called directly: they are called for each page, and what wraps them takes time.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pypdfium2  # type: ignore[import-untyped]
import pypdfium2.raw as pdfium  # type: ignore[import-untyped]

from holdfast.core.errors import PermanentError
from holdfast.pipelines.documents.reading.chunk import Facts
from holdfast.pipelines.documents.reading.chunks import Chunker
from holdfast.pipelines.documents.reading.clean_text import one_line
from holdfast.pipelines.documents.reading.pdf_text import page_text
from holdfast.pipelines.documents.reading.refusals import (
    empty,
    encrypted,
    invalid,
    shown,
    without_text,
)
from holdfast.pipelines.documents.reading.warnings import Warnings, numbers_shown

END_SEARCHED_BYTES = 64 * 1024
FIELD_CHARS_MAX = 32_768
FIELDS_PER_PAGE_MAX = 5_000
# A stamp or a page number upon a scan, rather than what the page says; and a picture that is the page.
HARDLY_ANY_CHARS = 100
PICTURE_SHARE = 0.5
OBJECTS_LOOKED_AT_MAX = 1_000

_PASSWORD, _SECURITY = pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY
_ERRORS = {
    pdfium.FPDF_ERR_FILE: "the file cannot be read",
    pdfium.FPDF_ERR_FORMAT: "it is not in the format of a PDF, or damaged",
}
_CHECKED = frozenset({pdfium.FPDF_FORMFIELD_CHECKBOX, pdfium.FPDF_FORMFIELD_RADIOBUTTON})
_UNTOLD = frozenset({pdfium.FPDF_FORMFIELD_PUSHBUTTON, pdfium.FPDF_FORMFIELD_SIGNATURE})


def read_pdf(path: Path, filename: str, chunker: Chunker, facts: Facts, warnings: Warnings) -> None:
    _refuse_cut_off(path, filename)
    document = _opened(path, filename)
    try:
        _Pages(document, filename, chunker, facts, warnings).read()
    finally:
        document.close()


def _refuse_cut_off(path: Path, filename: str) -> None:
    """PDFium finds what it can in the rest of a file, and nobody would know that half of it is missing."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - END_SEARCHED_BYTES, 0))
        end = file.read()
    if b"%%EOF" not in end and b"startxref" not in end:
        raise invalid(f"{shown(filename)} is a PDF whose end is missing.")


def _opened(path: Path, filename: str) -> Any:
    """By PDFium's own call: pypdfium2 takes a PDF without pages for one that did not open, and names the
    error of another one, which this process has read before."""
    opened = pdfium.FPDF_LoadDocument(os.fsencode(path), None)
    if not opened:
        raise _not_opened(pdfium.FPDF_GetLastError(), filename)
    return pypdfium2.PdfDocument(opened)


def _not_opened(code: int, filename: str) -> PermanentError:
    if code == _PASSWORD:
        return encrypted(f"{shown(filename)} is a PDF that only opens with a password.")
    if code == _SECURITY:
        return encrypted(f"{shown(filename)} is a PDF that is encrypted in a way that is not known here.")
    return invalid(f"{shown(filename)} is a PDF that cannot be opened: {_ERRORS.get(code, f'error {code}')}.")


class _Pages:
    def __init__(
        self, document: Any, filename: str, chunker: Chunker, facts: Facts, warnings: Warnings
    ) -> None:
        self._document = document
        self._filename = filename
        self._chunker = chunker
        self._facts = facts
        self._warnings = warnings
        self._unreadable: list[int] = []
        self._without_text: list[int] = []
        self._scanned: list[int] = []
        self._blank = 0
        self._form: Any = None

    def read(self) -> None:
        count = len(self._document)
        self._facts.pages = count
        if count == 0:
            raise invalid(f"{shown(self._filename)} is a PDF without any page.")
        self._facts.title = one_line(self._document.get_metadata_value("Title"))[:500] or None
        form_type = self._document.get_formtype()
        if form_type != pdfium.FORMTYPE_NONE:
            try:
                self._document.init_forms()
                self._form = self._document.formenv
            except pypdfium2.PdfiumError:
                self._warnings.add("The document's form could not be read.")
            if form_type != pdfium.FORMTYPE_ACRO_FORM:
                self._warnings.add("The document has an XFA form, whose own fields are not read.")
        for number in range(1, count + 1):
            self._chunker.share = (number - 1) / count
            self._chunker.place(page=number)
            self._read_page(number)
        self._chunker.place()
        self._tell(count)

    def _read_page(self, number: int) -> None:
        page = pdfium.FPDF_LoadPage(self._document, number - 1)
        if not page:
            self._unreadable.append(number)
            return
        try:
            text = self._text_of(page, number)
            if text is None:
                return
            if text:
                self._chunker.flow(text)
            fields = self._fields_of(page) if self._form is not None else ""
            if fields:
                self._chunker.place(page=number, kind="form")
                self._chunker.flow(fields)
            if text or fields:
                if len(text) + len(fields) < HARDLY_ANY_CHARS and _is_a_picture(page):
                    self._scanned.append(number)
                return
            if pdfium.FPDFPage_CountObjects(page) > 0:
                self._without_text.append(number)
            else:
                self._blank += 1
        finally:
            pdfium.FPDF_ClosePage(page)

    def _text_of(self, page: Any, number: int) -> str | None:
        text_page = pdfium.FPDFText_LoadPage(page)
        if not text_page:
            self._unreadable.append(number)
            return None
        try:
            count = pdfium.FPDFText_CountChars(text_page)
            if count <= 0:
                return ""
            # It writes UTF-16 and a zero; a character may be two units.
            buffer = (ctypes.c_ushort * (2 * count + 1))()
            units = pdfium.FPDFText_GetText(text_page, 0, count, buffer)
            raw = bytes(memoryview(buffer).cast("B")[: max(units - 1, 0) * 2])
        finally:
            pdfium.FPDFText_ClosePage(text_page)
        return page_text(raw.decode("utf-16-le", "replace")).strip()

    # Forms

    def _fields_of(self, page: Any) -> str:
        lines: list[str] = []
        for index in range(min(pdfium.FPDFPage_GetAnnotCount(page), FIELDS_PER_PAGE_MAX)):
            annotation = pdfium.FPDFPage_GetAnnot(page, index)
            if not annotation:
                continue
            try:
                if pdfium.FPDFAnnot_GetSubtype(annotation) == pdfium.FPDF_ANNOT_WIDGET and (
                    line := self._field(annotation)
                ):
                    lines.append(line)
            finally:
                pdfium.FPDFPage_CloseAnnot(annotation)
        return "\n".join(lines)

    def _field(self, annotation: Any) -> str:
        kind = pdfium.FPDFAnnot_GetFormFieldType(self._form, annotation)
        if kind in _UNTOLD:
            return ""
        name = self._told(pdfium.FPDFAnnot_GetFormFieldAlternateName, annotation) or self._told(
            pdfium.FPDFAnnot_GetFormFieldName, annotation
        )
        if kind in _CHECKED:
            if not pdfium.FPDFAnnot_IsChecked(self._form, annotation):
                return ""
            value = self._told(pdfium.FPDFAnnot_GetFormFieldExportValue, annotation)
            value = "yes" if value in ("", "On", "Yes", "1") else value
        else:
            value = self._told(pdfium.FPDFAnnot_GetFormFieldValue, annotation)
        return f"{name}: {value}" if name and value else value

    def _told(self, function: Any, annotation: Any) -> str:
        size = function(self._form, annotation, None, 0)
        if size <= 2:
            return ""
        buffer = ctypes.create_string_buffer(size)
        function(self._form, annotation, ctypes.cast(buffer, ctypes.POINTER(pdfium.FPDF_WCHAR)), size)
        return one_line(buffer.raw[: size - 2].decode("utf-16-le", "replace"))[:FIELD_CHARS_MAX]

    # The end

    def _tell(self, count: int) -> None:
        if len(self._unreadable) == count:
            raise invalid(f"{shown(self._filename)} is a PDF of which no page can be read.")
        if not self._chunker.characters:
            if self._without_text or self._unreadable:
                raise without_text(f"{shown(self._filename)} is a PDF with pictures, and no text.")
            raise empty(f"{shown(self._filename)} is a PDF whose pages are blank.")
        for numbers, one, several in (
            (self._unreadable, "could not be read.", "could not be read."),
            (self._without_text, "has no text.", "have no text."),
            (
                self._scanned,
                "is a picture with hardly any text. If it is a scan, run text recognition (OCR) over it.",
                "are pictures with hardly any text. If they are scans, run text recognition (OCR) over them.",
            ),
        ):
            if numbers:
                which = f"{'Page' if len(numbers) == 1 else 'Pages'} {numbers_shown(numbers)}"
                self._warnings.add(f"{which} {one if len(numbers) == 1 else several}")


def _is_a_picture(page: Any) -> bool:
    """Whether one picture has most of the page."""
    area = pdfium.FPDF_GetPageWidthF(page) * pdfium.FPDF_GetPageHeightF(page)
    left, bottom, right, top = (ctypes.c_float() for _ in range(4))
    for index in range(min(pdfium.FPDFPage_CountObjects(page), OBJECTS_LOOKED_AT_MAX)):
        thing = pdfium.FPDFPage_GetObject(page, index)
        if (
            pdfium.FPDFPageObj_GetType(thing) == pdfium.FPDF_PAGEOBJ_IMAGE
            and pdfium.FPDFPageObj_GetBounds(thing, left, bottom, right, top)
            and (right.value - left.value) * (top.value - bottom.value) > area * PICTURE_SHARE
        ):
            return True
    return False
