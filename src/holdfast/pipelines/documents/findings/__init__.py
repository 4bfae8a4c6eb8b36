"""What a document says, for people who have no time to read it: its findings.

    chunks ──local.analyze──────────▶ findings       by rules, on this machine: the default
           ──llm.analyze_by_model───▶ findings       by a model behind an OpenAI-compatible API

Both take the chunks one by one and hold of a document only what is bounded, and both give the same records
(`finding.py`): the key phrases, dates, amounts, parties, a summary, and the tables of figures, each with the
numbers of the chunks where it stands. A document is data from strangers: whatever it holds, the findings are
bounded, fit to be stored, and found in time that grows with its length and no faster.
"""
