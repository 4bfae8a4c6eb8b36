"""What the Celery workers of the storm run: the stages of the storm, with their transactions."""

from __future__ import annotations

import os
from pathlib import Path

from faults.dying import Order
from faults.ledger import Ledger
from faults.storm_worker import app

# Made before Celery forks: its processes append to one file, and each line tells which of them wrote it.
_ledger = Ledger(Path(os.environ["FLEET_FOLDER"]), os.environ.get("FLEET_WORKER", "dispatcher"))
hf = app(os.environ["HOLDFAST_DB"], _ledger, Order(_ledger, None))
