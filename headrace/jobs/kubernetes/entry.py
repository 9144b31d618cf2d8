"""What a RayJob runs: the orders in its pod's environment, or what goes on from a checkpoint.

They aren't on the command line, since it goes through two shells that quote differently. KubeRay
runs it again on a new cluster when the head pod is lost, and when it has failed; then it is to
fail at once, by a file that it has left in the volume.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from headrace.errors import LaunchFailed
from headrace.jobs.job_spec import JobSpec
from headrace.jobs.ray_node import await_head

RUNS = "/runs"  # where the volume is
VARIABLE = "HEADRACE_ORDERS"
_LOST_S = 5.0  # in which a pod ends whose Ray has ended, and all that runs in it


def main() -> int:
    """Run the command, unless it has failed before; its exit status."""
    orders = JobSpec.read(os.environ[VARIABLE])
    failed = Path(RUNS) / f".headrace-{orders.key}"
    if failed.exists():
        print("headrace: the command has failed, which a new cluster doesn't mend", flush=True)
        return int(failed.read_text())
    status = _run(orders)
    if status != 0:
        time.sleep(_LOST_S)
        if await_head(os.environ["RAY_ADDRESS"], 1.0):  # so it wasn't for the loss of Ray
            with contextlib.suppress(OSError):
                failed.write_text(str(status))
    return status


def _run(orders: JobSpec) -> int:
    run_dir = Path(orders.run_dir) if orders.run_dir else None
    words: list[str] = []
    try:
        words = orders.words(run_dir, orders.key, address="auto")
        signal.signal(signal.SIGTERM, lambda *_: None)  # Ray sends it to the command, too
        process = subprocess.Popen(words)  # whose own handling of it is the default again
    except LaunchFailed as error:
        print(f"headrace: {error}", flush=True)
        return 1
    except OSError as error:
        print(f"headrace: {words[0]} can't be started: {error}", flush=True)
        return 1
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
