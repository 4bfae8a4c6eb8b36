"""Holdfast beside the job queues and durable engines people would use instead, in one sitting.

    python -m bench.peers [--quick] [--only NAME]... [--measure NAME]... [--rounds N]

    measures.py     what is measured
    contenders.py   who is measured: settings to choose from, durability, the question "is anything left?"
    adapters/       one small program per contender: prepare, fill, enqueue, pace, work
    places.py       one PostgreSQL, one broker, a fresh database for each turn
    turn.py         one contender, one measure, once: processes with limits, and one answer
    sitting.py      everybody in turns, the best setting of each, the reference in between
    bars.py         medians, ratios, and the bars Holdfast has set itself
    report.py       the tables and the JSON file
    chart.py        the SVG

The driver is plain synchronous code; whatever is measured runs in processes of its own.
"""
