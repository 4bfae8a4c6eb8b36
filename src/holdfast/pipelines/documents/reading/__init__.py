"""Reading: a file on disk becomes chunks of text, in a process of its own.

    Readers.read ── path, limits ──▶ child: kinds ─▶ pdf | docx | xlsx | txt ─▶ blocks ─▶ chunks
         ▲ parts of chunks, facts or an error ──┘

`chunk` is the data that comes out, `readers` the pool of children, `child` their side of it, `document` one
reading from the bytes to the facts. What a file is, its bytes tell and never its name.
"""
