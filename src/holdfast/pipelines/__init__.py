"""The built-in pipelines: ordinary users of the public API.

Each is a playbook, the functions that it calls, and routes of its own. `registry.py` names those there
are; it alone is imported by what puts the parts together.
"""
