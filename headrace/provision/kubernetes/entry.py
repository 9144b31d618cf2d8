"""What a RayJob runs: the orders in its pod's environment, or what goes on from a checkpoint.

They aren't on the command line, since it goes through two shells that quote differently. KubeRay
runs it again on a new cluster when the head pod is lost.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headrace.errors import LaunchFailed
from headrace.provision.orders import Orders

VARIABLE = "HEADRACE_ORDERS"


def main() -> None:
    """Become the command."""
    orders = Orders.read(os.environ[VARIABLE])
    run_dir = Path(orders.run_dir) if orders.run_dir else None
    try:
        words = orders.words(run_dir, orders.key, address="auto")
        os.execvp(words[0], words)
    except LaunchFailed as error:
        sys.exit(f"headrace: {error}")
    except OSError as error:
        sys.exit(f"headrace: {words[0]} can't be started: {error}")


if __name__ == "__main__":
    main()
