"""`holdfast bench`: what the engine does on this machine, beside a bare loop on the same databases."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from holdfast.bench.suite import Results, Sitting

STORES = ("sqlite", "postgresql", "both")
SCENARIO_NAMES = (
    "submit",
    "drain",
    "processes",
    "settings",
    "pipeline",
    "latency",
    "retry",
    "batch",
    "claim",
    "http",
    "streams",
    "scrape",
    "growth",
    "conf",
    "documents",
)


@click.command()
@click.option("--quick", is_flag=True, help="Smaller sizes and fewer rounds: about six minutes in all.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, and nothing else.")
@click.option("--store", type=click.Choice(STORES), default="both", show_default=True)
@click.option(
    "--scenario", "scenarios", type=click.Choice(SCENARIO_NAMES), multiple=True, help="Default: all."
)
@click.option("--size", type=click.IntRange(min=1), hidden=True)
def bench(quick: bool, as_json: bool, store: str, scenarios: tuple[str, ...], size: int | None) -> None:
    """Measure the engine on real, durable databases that are made for it and removed again.

    Each rate stands beside another of the same sitting: that of a bare loop which writes the same rows in the
    same tables without an engine, of one process beside two, of an empty database beside one that has grown.
    The ratio is what counts, whatever the machine.
    """
    from holdfast.bench.postgres import PostgresFailed, PostgresNotFound
    from holdfast.bench.suite import Sitting

    sitting = Sitting(
        quick=quick,
        stores=STORES[:2] if store == "both" else (store,),
        scenarios=scenarios or SCENARIO_NAMES,
        size=size,
        progress=_tell_progress,
    )
    try:
        results = sitting.run()
    except (PostgresFailed, PostgresNotFound) as error:
        raise click.ClickException(
            f"{error}\nTo measure SQLite alone: holdfast bench --store sqlite"
        ) from None
    finally:
        _tell_progress("")
    _tell_missing(results, sitting)
    if as_json:
        click.echo(json.dumps(results, indent=2))
    else:
        _show(results, sitting)


def _tell_progress(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def _tell_missing(results: Results, sitting: Sitting) -> None:
    from holdfast.bench.conf import PEER_MISSING
    from holdfast.bench.documents import MISSING

    if any("peer_mb_rate" not in figures for figures in results.get("conf", {}).values()):
        click.echo(PEER_MISSING, err=True)
    if "documents" in sitting.scenarios and "documents" not in results:
        click.echo(MISSING, err=True)


def _show(results: Results, sitting: Sitting) -> None:
    from holdfast.bench.table import show

    show(results, sitting)
