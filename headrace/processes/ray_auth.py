"""How this program gets into a Ray cluster, and nobody else into one that it starts."""

from __future__ import annotations

import os
import secrets
import socket
import sys

from headrace.errors import ConfigError

_ANSWER_S = 10.0  # for an address to answer


def close_doors(asker: str) -> None:
    """Let a cluster that is started here listen on the loopback interface, to who has its token.

    Ray reads this when it is imported.

    Raises:
        ConfigError: it has been imported without a token.
    """
    if "ray" not in sys.modules:  # no machines but this one: loopback only
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("SPT_NOENV", "1")  # its processes stay known by their variables
    if os.environ.get("RAY_AUTH_MODE") == "token":
        return
    if "ray" in sys.modules:
        raise ConfigError(
            f"{asker}: this program imported ray before, without RAY_AUTH_MODE=token, so a "
            "cluster that is started now would let anybody in; import it later, set "
            "RAY_AUTH_MODE, or start the cluster yourself with ray.init()"
        )
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def reach(address: str) -> None:
    """Raise OSError unless something listens there: Ray itself would try for long."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()


def why_not(error: Exception, where: str, local: bool) -> str:
    """Why this program could not connect, and what to do."""
    cause = " ".join(str(error).split())
    if local:
        words = f"no cluster could be started {where}"
    elif cause.startswith("Version mismatch"):
        words = f"the cluster {where} has other versions: install the same Ray and Python here"
    elif type(error).__name__ == "AuthenticationError" or cause.startswith("Failed to connect"):
        words = (  # something has answered, and Ray prints itself what was wrong with a token
            f"what answers {where} doesn't let this program in: set RAY_AUTH_MODE=token and its "
            "RAY_AUTH_TOKEN"
        )
    elif isinstance(error, OSError):
        words = f"nothing answers {where}: start it with `ray start --head`, or open its port"
    else:
        words = f"no way into the cluster {where}"
    return f"{words} ({cause})"
