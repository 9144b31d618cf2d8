"""Entry point of a RayJob: runs the job spec in its pod's environment, or resumes.

The spec isn't on the command line, because that passes through two shells that quote differently.
KubeRay restarts the entry point on a new cluster if the head pod is lost, and also if the command
failed. In the second case it must fail at once, which a file in the volume signals.
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
from headrace.ray.node import await_head
from headrace.rundir.checksums import JOB

RUNS = "/runs"  # mount path of the volume
VARIABLE = "HEADRACE_JOB_SPEC"
_LOST_S = 5.0  # grace period of a pod whose Ray has ended


def main() -> int:
    """Run the command, unless it has failed before; return its exit status."""
    spec = JobSpec.read(os.environ[VARIABLE])
    failed = Path(RUNS) / f".headrace-{spec.key}"
    if failed.exists():
        print("headrace: the command has failed, and a new cluster would not fix it", flush=True)
        return int(failed.read_text())
    status = _run(spec)
    if status != 0:
        time.sleep(_LOST_S)
        if await_head(os.environ["RAY_ADDRESS"], 1.0):  # so Ray's loss wasn't the cause
            with contextlib.suppress(OSError):
                failed.write_text(str(status))
    return status


def _run(spec: JobSpec) -> int:
    run_dir = Path(spec.run_dir) if spec.run_dir else None
    words: list[str] = []
    try:
        words = spec.words(run_dir, spec.key, address="auto")
        signal.signal(
            signal.SIGTERM, lambda *_: None
        )  # Ray sends the signal to the command as well
        environment = os.environ | {JOB: spec.key}
        process = subprocess.Popen(words, env=environment)  # restore the command's default handling
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
