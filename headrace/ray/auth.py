"""Authenticates with Ray clusters, and protects a cluster that is started here."""

from __future__ import annotations

import os
import secrets
import socket
import sys

from headrace.errors import ConfigError

_ANSWER_S = 10.0  # connection timeout


def require_token(setting_name: str) -> None:
    """Restrict a cluster started here to the loopback interface and clients with its token.

    Ray reads this when it is imported.

    Raises:
        ConfigError: Ray has been imported without a token.
    """
    if "ray" not in sys.modules:  # this machine only: loopback
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("SPT_NOENV", "1")  # keeps the variables of its processes visible
    if os.environ.get("RAY_AUTH_MODE") == "token":
        return
    if "ray" in sys.modules:
        raise ConfigError(
            f"{setting_name}: this program has imported ray without RAY_AUTH_MODE=token, so a "
            "cluster started now would accept any client; import ray later, set "
            "RAY_AUTH_MODE, or start the cluster yourself with ray.init()"
        )
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def reach(address: str) -> None:
    """Raise OSError unless the address accepts connections; Ray itself retries for long."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()


def connection_error(error: Exception, where: str, local: bool) -> str:
    """Explain why this program could not connect, and how to fix it."""
    cause = " ".join(str(error).split())
    if local:
        words = f"could not start a cluster {where}"
    elif cause.startswith("Version mismatch"):
        words = f"the cluster {where} has other versions: install the same Ray and Python here"
    elif type(error).__name__ == "AuthenticationError" or cause.startswith("Failed to connect"):
        words = (  # Ray itself prints the problem with the token
            f"the cluster {where} rejected this program: set RAY_AUTH_MODE=token and its "
            "RAY_AUTH_TOKEN"
        )
    elif isinstance(error, OSError):
        words = f"nothing answers {where}: start it with `ray start --head`, or open its port"
    else:
        words = f"could not connect to the cluster {where}"
    return f"{words} ({cause})"
