"""What runs on a cluster that is up, at first and after a start before it was cut short."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Orders:
    """What a job is to do, as it stands in its script or manifest; words in braces are known there.

    ``run_dir`` may have %j, %A and %a in it, as sbatch has them in names of files.
    """

    command: list[str]  # on a cluster that is up
    again: list[str]  # the same, where run_dir has a checkpoint
    run_dir: str  # "" for commands that have none
    start_timeout_s: float = 300.0
    requeue: bool = True
    ray: bool = True  # bring Ray up before; False for what one node does without
    meet: str = ""  # a folder where a driver elsewhere is met, which the cluster is for; ""

    @staticmethod
    def read(text: str) -> Orders:
        return Orders(**json.loads(text))

    def write(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def words(self, run_dir: Path | None, restarted: bool, **known: str) -> list[str]:
        """The command: the one that goes on, where an earlier start has left what to go on from.

        Args:
            run_dir: as it is called here. restarted: there was an earlier start.
            known: what stands for "{address}" and the like.
        """
        goes_on = restarted and run_dir is not None and any(run_dir.glob("checkpoints/step_*"))
        words = self.again if goes_on else self.command
        if restarted and not goes_on and run_dir is not None and run_dir.exists():
            words = [*words, "--overwrite"]
        for name, value in {"run": str(run_dir), **known}.items():
            words = [word.replace(f"{{{name}}}", value) for word in words]
        return words
