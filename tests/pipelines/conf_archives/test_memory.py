"""The memory that the whole step `parse` needs for the greediest archives, in a process of its own."""

from __future__ import annotations

import lzma
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from conf_scenario import rehearsed
from hostile_archives import tar, tar_entry, tar_header

MEGABYTES_MAX = 100
NAMES = 45_000
XZ_WINDOW_BYTES = 64 * 1024**2
STRANGE = "\N{GRINNING FACE}"  # makes four bytes of each character beside it

BODIES = {
    # A control character is six in JSON.
    "two settings": f"[x]\na={STRANGE}{chr(1) * 262_000}\nb={STRANGE}{chr(1) * 262_000}\n",
    "many settings": "[x]\n" + "".join(f"k{n}={STRANGE}{chr(1) * 18}\n" for n in range(19_900)),
    "many words": "[x]\n" + "".join(f"k{n}=" + f"{n} " * 4 + "\n" for n in range(19_000)),
    "no settings": "[]\n" * 100_000,
}


def greedy(path: Path, body: str) -> None:
    """A full window of xz, many names, and a file that is large as text."""
    names = b"".join(tar_header(f"{number}/{number}/{number}.txt") for number in range(NAMES))
    noise = random.Random(1).randbytes(2 * 1024**2) * 22  # for the ratio; with the names it fills the window
    window = {"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": XZ_WINDOW_BYTES}
    packer = lzma.LZMACompressor(filters=[window])
    file = tar_entry("a/default/props.conf", body.encode() * 7)
    path.write_bytes(
        packer.compress(tar_entry("noise", noise) + names) + packer.compress(tar(file)) + packer.flush()
    )


@pytest.mark.parametrize("name", BODIES)
def test_no_archive_takes_a_hundred_megabytes(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "greedy.txz"
    greedy(archive, BODIES[name])
    command = [sys.executable, __file__, str(archive)]
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.returncode == 0, done.stderr
    status, megabytes = done.stdout.split()
    assert status == "COMPLETE" and 10 < float(megabytes) < MEGABYTES_MAX


def peak_bytes() -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line]
    return int(line.split()[1]) * 1024


def main(archive: Path) -> None:
    with rehearsed(archive.parent) as confs:
        confs.run("first.conf", b"[a]\n")  # all that is needed is imported
        taken = confs.upload(archive.name, archive.read_bytes())
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        idle = peak_bytes()
        confs.drain()
        print(confs.shown(taken.id).status, (peak_bytes() - idle) / 1e6)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
