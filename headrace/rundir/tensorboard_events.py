"""Encodes TensorBoard event files as bytes, so that writers see disk errors at once.

torch's SummaryWriter writes in its own thread, which fails with a traceback on a full disk.
TensorBoard is imported with the first result, because that takes a quarter of a second.
"""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Mapping
from typing import Any


def file_name() -> str:
    """Return the name of a new event file."""
    return f"events.out.tfevents.{time.time_ns() // 10**9}.{socket.gethostname()}.{os.getpid()}"


def header(purge_step: int | None) -> bytes:
    """Encode the start of a file; TensorBoard ignores earlier files from ``purge_step`` on."""
    from tensorboard.compat.proto.event_pb2 import SessionLog

    first = _record(file_version="brain.Event:2")
    if purge_step is None:
        return first
    return first + _record(step=purge_step, session_log=SessionLog(status=SessionLog.START))


def scalars(values: Mapping[str, float], step: int) -> bytes:
    """Encode numbers by name."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    numbers = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
    return _record(step=step, summary=Summary(value=numbers))


def _record(**fields: Any) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    buffer = io.BytesIO()
    RecordWriter(buffer).write(Event(wall_time=time.time(), **fields).SerializeToString())
    return buffer.getvalue()
