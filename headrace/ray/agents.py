"""Keeps a Ray cluster on this machine alive if one of its agents dies.

A raylet runs two agents, for runtime environments and for metrics, and shuts down if one dies, for
example when memory runs out. Ray then kills each program on the node without an exception. A run
needs neither agent.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Iterator
from typing import Any

from headrace.processes.fork_server import environment_variable

# A shell that survives the agent's death, Ctrl-C and, while the agent lives, SIGTERM. It ends when
# the raylet's exit closes its input. The agent inherits ignored signals, but not the trap of TERM.
_OUTLIVED = ("/bin/sh", "-c", 'trap "" INT HUP; trap : TERM; "$@"; exec cat >/dev/null', "agent")
_COMPONENTS = ("dashboard_agent", "runtime_env_agent")
_BUILDER = "_build_python_executable_command_memory_profileable"  # private; may not exist
_BY_PIPE = "RAY_enable_pipe_based_agent_to_parent_health_check"  # the agents' parent is the shell


@contextlib.contextmanager
def agents_may_die() -> Iterator[None]:
    """Let raylets that are started inside the block survive their agents, where possible."""
    services = importlib.import_module("ray._private.services")
    build = getattr(services, _BUILDER, None)
    if build is None or not os.access(_OUTLIVED[0], os.X_OK) or _BY_PIPE in os.environ:
        yield
        return

    @functools.wraps(build)
    def build_outlived(component: str, *args: Any, **settings: Any) -> list[str]:
        command = list(build(component, *args, **settings))
        return [*_OUTLIVED, *command] if component in _COMPONENTS else command

    setattr(services, _BUILDER, build_outlived)
    try:
        with environment_variable(_BY_PIPE, "1"):
            yield
    finally:
        setattr(services, _BUILDER, build)
