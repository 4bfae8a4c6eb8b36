"""The functions that fetch_and_store.yaml calls: `call: my_handlers:store` is `store` in this file.

A function is given the step's input by the names of its parameters; what it returns is the step's output. It
may run twice (its process may die before the result is stored), so it writes what it would write again:
the same file with the same contents.
"""

from __future__ import annotations

import json
import os
from typing import Any


def store(rows: list[dict[str, Any]], file: str) -> dict[str, Any]:
    unfinished = f"{file}.part"
    with open(unfinished, "w", encoding="utf-8") as out:
        json.dump(rows, out, indent=2)
    os.replace(unfinished, file)  # never half a file, whatever happens in between
    return {"file": file, "rows": len(rows), "total": sum(row["price"] for row in rows)}
