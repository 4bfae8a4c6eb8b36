"""The command: `python -m bench.peers`, run by `make bench-peers` in the environment it has made."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from pathlib import Path

import click
from rich.console import Console

from bench.peers.bars import verdicts
from bench.peers.chart import chart
from bench.peers.contenders import CONTENDERS, Contender
from bench.peers.measures import MEASURES
from bench.peers.places import Places
from bench.peers.report import default_paths, described, node_version, show, table_of, to_keep, verdict_line
from bench.peers.sitting import Sitting
from bench.peers.turn import ROOT, Programs

NODE_ROOT = ROOT / ".bench-peers" / "node"
ROUNDS = 3
ROUNDS_QUICK = 1


def find_programs() -> Programs:
    """The Node that came with the peers, else the system's."""
    installed = NODE_ROOT / "node_modules" / ".bin" / "node"
    for node in (str(installed), shutil.which("node")):
        if node and node_version(Programs(node=node)) is not None:
            return Programs(node=node, node_root=NODE_ROOT)
    return Programs(node=None, node_root=NODE_ROOT)


def split(chosen: list[Contender], programs: Programs) -> tuple[list[Contender], dict[str, str]]:
    """Who can be measured here, and why the others cannot."""
    there, missing = [], {}
    for contender in chosen:
        if contender.runs_on_node and programs.node is None:
            missing[contender.key] = "there is no Node here"
        elif contender.version(programs.node_root) is None:
            missing[contender.key] = f"{contender.package} is not installed; make bench-peers installs it"
        else:
            there.append(contender)
    return there, missing


@click.command(help="Measure Holdfast beside other engines, all in turns, in one sitting.")
@click.option("--quick", is_flag=True, help="Smaller sizes and one round: to see that all works.")
@click.option("--only", multiple=True, type=click.Choice(list(CONTENDERS)), help="Only this contender.")
@click.option(
    "--measure", "names", multiple=True, type=click.Choice(list(MEASURES)), help="Only this measure."
)
@click.option("--rounds", type=click.IntRange(1, 20), help=f"Default {ROUNDS}; {ROUNDS_QUICK} with --quick.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Where the JSON goes.")
@click.option(
    "--chart", "chart_path", type=click.Path(dir_okay=False, path_type=Path), help="Where the SVG goes."
)
def main(
    quick: bool,
    only: tuple[str, ...],
    names: tuple[str, ...],
    rounds: int | None,
    out: Path | None,
    chart_path: Path | None,
) -> None:
    console = Console(width=140) if not Console().is_terminal else Console()
    programs = find_programs()
    chosen = [contender for key, contender in CONTENDERS.items() if not only or key in only]
    there, missing = split(chosen, programs)
    for key, reason in missing.items():
        console.print(f"[bold]{CONTENDERS[key].name} will not be measured[/]: {reason}.")
    measures = [measure for name, measure in MEASURES.items() if not names or name in names]
    rounds = rounds or (ROUNDS_QUICK if quick else ROUNDS)
    started = time.monotonic()

    def tell(line: str) -> None:
        seconds = int(time.monotonic() - started)
        console.print(f"{seconds // 60:3}:{seconds % 60:02}  {line}", markup=False, highlight=False)

    with Places() as places:
        sitting = Sitting(
            there, measures, places=places, programs=programs, rounds=rounds, quick=quick, tell=tell
        )
        results = sitting.run()
        postgres = places.postgres_version()
    whole = described(
        results=results,
        contenders=there,
        missing=missing,
        reference=sitting.reference,
        programs=programs,
        postgres=postgres,
        rounds=rounds,
        quick=quick,
    )
    show(console, whole)
    console.print(verdict_line(verdicts(table_of(results))))
    default_out, default_chart = default_paths(ROOT, whole=not (quick or only or names or missing))
    for path, text in (
        (out or default_out, json.dumps(to_keep(whole), indent=1) + "\n"),
        (chart_path or default_chart, chart(whole)),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        console.print(f"Written: {path}", highlight=False)


if __name__ == "__main__":
    # Asked to end, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    main()
