"""``headrace sweep``: samples settings, trains with them and ranks the trials."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from headrace.config import Config
from headrace.errors import HeadraceError
from headrace.rundir.countdown import Countdown
from headrace.studies import flags
from headrace.studies.children import Children
from headrace.studies.identity import alone
from headrace.studies.machine import head, wide_console
from headrace.studies.sweep import report
from headrace.studies.sweep.settings import Sweep
from headrace.studies.sweep.store import Store
from headrace.studies.sweep.trials import Measure, do_trial, measured
from headrace.studies.workers import work

_LOOK_S = 1.0  # polling interval for trials of other processes


def main(argv: Sequence[str]) -> int:
    """``headrace sweep [ALGORITHM] [--recipe NAME] [flags]``; 1 if trials were cut short.

    Raises:
        ConfigError: a flag is invalid; nothing was started.
    """
    return run(flags.parse(Sweep, "headrace sweep", argv, Config()), wide_console())


def run(sweep: Sweep, console: Console, measure: Measure = measured) -> int:
    """Run missing trials, together with other processes, then write the page and the plot.

    Args:
        measure: function that trains one run of a trial.

    Raises:
        ConfigError: nothing is sampled, there is no such environment, or the folder contains a
            sweep with other settings; nothing was started.
        CheckpointError: the folder's file system has no locks; nothing was started.
    """
    sweep.check()
    flags.check_made(sweep.config)
    first = Store(sweep)
    drawn = ", ".join(one.name for one in sweep.parameters)
    env = flags.named(sweep.config)
    head(Sweep.__doc__, f"{sweep.config.algo_name} on {env}: {drawn}", console)
    given_up: set[int] = set()
    stores, countdown = threading.local(), Countdown(sweep.trials, first.num_ended())

    def turn(children: Children) -> bool:
        if not hasattr(stores, "store"):
            stores.store = Store(sweep)  # each thread reads the journal through its own store
        store: Store = stores.store
        claim = store.claim(given_up)
        if claim is None:
            left = [t for t in store.trials() if not t.state.is_finished()]
            if all(trial.number in given_up for trial in left):
                return False
            time.sleep(_LOOK_S)  # other processes run them, but may be interrupted
            return True
        values = ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}"
                           for k, v in claim.values.items())  # fmt: skip
        try:
            line = do_trial(sweep, store, claim, children, measure)
        except (RuntimeError, HeadraceError) as error:
            given_up.add(claim.number)
            claim.lock.release()
            line = f"interrupted, start the command again to resume it: {error}"
        where = countdown.text(store.num_ended())
        console.print(f"{where} trial {claim.number} ({values}): {line}", soft_wrap=True)
        return True

    work(sweep.jobs, turn)
    with alone(Path(sweep.output)):
        report.write(sweep, first, console)
    return 1 if given_up else 0
