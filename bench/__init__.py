"""Measurements that are not shipped with Holdfast: see README.md, and peers/ for other engines."""
