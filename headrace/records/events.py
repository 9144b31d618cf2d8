"""TensorBoard's event files, as bytes: who writes them knows at once whether the disk took them.

torch's SummaryWriter writes in a thread of its own, which a full disk ends with a traceback; and
what TensorBoard itself writes them with takes a quarter of a second to import. So they are written
here: records of TensorFlow's (a length and the data, a CRC-32C behind each) that hold a message of
Protocol Buffers, an ``Event`` (``tensorboard/compat/proto/event.proto``).
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Mapping

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # how a field is written
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7  # fields of an Event
_VALUE = 1  # of a Summary
_TAG, _SIMPLE_VALUE = 1, 2  # of a Summary.Value
_STATUS, _START = 1, 1  # of a SessionLog
_POLYNOMIAL, _MASK = 0x82F63B78, 0xA282EAD8


def file_name() -> str:
    """Of a new file of events."""
    return f"events.out.tfevents.{time.time_ns() // 10**9}.{socket.gethostname()}.{os.getpid()}"


def header(purge_step: int | None) -> bytes:
    """How a file begins; TensorBoard leaves out what earlier files say from ``purge_step`` on."""
    first = _event(_bytes(_FILE_VERSION, b"brain.Event:2"))
    if purge_step is None:
        return first
    began = _bytes(_SESSION_LOG, _whole(_STATUS, _START))
    return first + _event(_whole(_STEP, purge_step) + began)


def scalars(values: Mapping[str, float], step: int) -> bytes:
    """Numbers by name, as float32."""
    summary = b"".join(_bytes(_VALUE, _value(*named)) for named in values.items())
    return _event(_whole(_STEP, step) + _bytes(_SUMMARY, summary))


def _value(name: str, value: float) -> bytes:
    rounded = ctypes.c_float(value).value  # infinite where float32 has no such number
    number = _key(_SIMPLE_VALUE, _FIXED32) + struct.pack("<f", rounded)
    return _bytes(_TAG, name.encode()) + number


def _event(fields: bytes) -> bytes:
    """The record of an event that happens now."""
    data = _key(_WALL_TIME, _FIXED64) + struct.pack("<d", time.time()) + fields
    size = struct.pack("<Q", len(data))
    return size + _checksum(size) + data + _checksum(data)


def _key(field: int, kind: int) -> bytes:
    return bytes([field << 3 | kind])


def _whole(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last have the eighth bit set."""
    low = []
    while value > 127:
        low.append(value & 127 | 128)
        value >>= 7
    return bytes([*low, value])


def _remainder(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_REMAINDERS = [_remainder(byte) for byte in range(256)]


def _checksum(data: bytes) -> bytes:
    """CRC-32C, rotated by 15 bits and shifted by a constant, as these files have it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _REMAINDERS[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (crc >> 15 | crc << 17) + _MASK & 0xFFFFFFFF)
