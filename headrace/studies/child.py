"""One run of a study, in a process of its own: ``python -m headrace.studies.child CONFIG.json``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from headrace.studies.children import end_with_starter


def main(path: Path) -> None:
    """Train with the settings of a file that holds what ``Config.to_json`` returned."""
    end_with_starter()
    from headrace.api import run
    from headrace.config import from_json

    run(from_json(json.loads(path.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
