"""The other side of `documents`: the bare libraries, as anybody would use them, in a process of their own.

    pdf     pypdfium2       the text of every page
    docx    python-docx     the text of all paragraphs and of all cells
    xlsx    python-calamine all sheets as Python values
    txt     decoded, parted into paragraphs, and these put together to pieces of about 1,200 characters
    texts   wordllama       a vector for each

Nothing is cleaned, placed, limited or handed on. The process is the program of this file: it takes tasks on
its standard input, answers on its standard output, and ends with the one that asks.

    python -m holdfast.bench.bare_documents
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

TEXTS = "texts"
CHUNK_CHARS = 1_200

_BETWEEN_PARAGRAPHS = re.compile(r"\n\s*\n")


class Task(msgspec.Struct):
    """`paths` are files of one kind; with `texts`, each is a list of texts as JSON."""

    kind: str
    paths: list[str]


class Done(msgspec.Struct):
    """`pieces` of all of them: words; of workbooks, cells; of texts, vectors."""

    seconds: float
    pieces: int


class BareProcess:
    """Used by one thread at a time."""

    def __init__(self) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "holdfast.bench.bare_documents"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # As our side: a core is a core.
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"},
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def ask(self, kind: str, paths: Sequence[Path]) -> Done:
        assert self._popen.stdin is not None and self._popen.stdout is not None
        task = msgspec.json.encode(Task(kind, [str(path) for path in paths]))
        self._popen.stdin.write(task + b"\n")
        self._popen.stdin.flush()
        answer = self._popen.stdout.readline()
        if not answer:
            raise RuntimeError(
                f"The process with the bare library of {kind} has died; see what it said above."
            )
        return msgspec.json.decode(answer, type=Done)

    def close(self) -> None:
        self._popen.kill()
        self._popen.communicate()


def done(task: Task) -> Done:
    if task.kind == TEXTS:
        return _embedded([Path(path) for path in task.paths])
    seconds, pieces = 0.0, 0
    for path in task.paths:
        started = time.perf_counter()
        found = _READ[task.kind](path)
        seconds += time.perf_counter() - started
        pieces += sum(map(_words_or_cells, found))
        del found
    return Done(seconds, pieces)


def read_pdf(path: str) -> list[str]:
    import pypdfium2  # type: ignore[import-untyped]

    document = pypdfium2.PdfDocument(path)
    texts = []
    for page in document:
        text_page = page.get_textpage()
        texts.append(text_page.get_text_range())
        text_page.close()
        page.close()
    document.close()
    return texts


def read_docx(path: str) -> list[str]:
    import docx

    document = docx.Document(path)
    texts = [paragraph.text for paragraph in document.paragraphs]
    texts += [cell.text for table in document.tables for row in table.rows for cell in row.cells]
    return texts


def read_xlsx(path: str) -> list[list[list[Any]]]:
    import python_calamine

    with python_calamine.CalamineWorkbook.from_path(path) as workbook:
        return [workbook.get_sheet_by_name(name).to_python() for name in workbook.sheet_names]


def read_txt(path: str) -> list[str]:
    text = Path(path).read_bytes().decode()
    chunks: list[str] = []
    chunk = ""
    for paragraph in _BETWEEN_PARAGRAPHS.split(text):
        if chunk and len(chunk) + len(paragraph) > CHUNK_CHARS:
            chunks.append(chunk)
            chunk = ""
        chunk += f"\n\n{paragraph}" if chunk else paragraph
    chunks.append(chunk)
    return chunks


_READ: dict[str, Callable[[str], Sequence[Any]]] = {
    "pdf": read_pdf,
    "docx": read_docx,
    "xlsx": read_xlsx,
    "txt": read_txt,
}


def _words_or_cells(part: Any) -> int:
    return len(part.split()) if isinstance(part, str) else sum(map(len, part))


def _embedded(paths: list[Path]) -> Done:
    model = _model()
    texts = [text for path in paths for text in msgspec.json.decode(path.read_bytes(), type=list[str])]
    started = time.perf_counter()
    vectors = model.embed(texts, norm=True)
    return Done(time.perf_counter() - started, len(vectors))


@cache
def _model() -> Any:
    import wordllama  # type: ignore[import-untyped]

    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)


def main() -> None:
    decode = msgspec.json.Decoder(Task).decode
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(done(decode(line))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
