"""Kalman filter of an object's position: prediction between observations, and updates.

Errors are in the object's own frame: radial, along the track, across it. The error along the track
grows: an error of the mean motion moves the object ahead or back at a steady rate, and unmodelled
forces (mostly drag) change that rate at random. Position and rate along the track are therefore the
two states of a Kalman filter, driven by a white acceleration that is constant within a step
(Bar-Shalom, Li and Kirubarajan, Estimation with Applications to Tracking and Navigation, 2001,
section 6.3.2). In the Clohessy-Wiltshire equations (1960) only the along-track error has a secular
part; the errors in the two other directions oscillate and are modelled as constant.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

STEP_S = 120.0  # seconds of a step
ACCELERATION = 4e-6  # m/s², standard deviation along the track within a step
SENSOR_M = 6.0  # m, standard deviation of a measured position in each direction


class Along(NamedTuple):
    """Mean and covariance of position (m) and rate (m/s) along the track."""

    mean: np.ndarray
    rate: np.ndarray
    var: np.ndarray  # m²
    cov: np.ndarray  # m²/s
    var_rate: np.ndarray  # m²/s²


def predicted(track: Along, steps: np.ndarray) -> Along:
    """Predict the track ``steps`` (0 or more) ahead."""
    seconds = STEP_S * steps
    noise = ACCELERATION**2 * steps
    return Along(
        track.mean + track.rate * seconds,
        track.rate,
        track.var
        + seconds * (2.0 * track.cov + seconds * track.var_rate)
        + noise * STEP_S**4 * (4.0 * steps * steps - 1.0) / 12.0,
        track.cov + seconds * track.var_rate + 0.5 * noise * STEP_S**3 * steps,
        track.var_rate + noise * STEP_S**2,
    )


def observed(track: Along, measured: np.ndarray) -> Along:
    """Update the track with a measured position of standard deviation ``SENSOR_M``."""
    total = track.var + SENSOR_M**2
    gain, gain_rate = track.var / total, track.cov / total
    news = measured - track.mean
    return Along(
        track.mean + gain * news,
        track.rate + gain_rate * news,
        track.var - gain * track.var,
        track.cov - gain * track.cov,
        track.var_rate - gain_rate * track.cov,
    )


def combined(
    mean: np.ndarray, var: np.ndarray, measured: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Update mean and variance of a constant with a measurement."""
    gain = var / (var + SENSOR_M**2)
    return mean + gain * (measured - mean), var - gain * var


def true_path(start: np.ndarray, rate: np.ndarray, acceleration: np.ndarray) -> np.ndarray:
    """Return positions ``[..., T + 1, N]`` along the track under accelerations ``[..., T, N]``.

    Args:
        start, rate: ``[..., N]``, m and m/s at step 0. acceleration: m/s², constant in each step.
    """
    rates = rate[..., None, :] + STEP_S * (np.cumsum(acceleration, axis=-2) - acceleration)
    moves = STEP_S * rates + 0.5 * STEP_S**2 * acceleration
    return np.concatenate([start[..., None, :], moves], axis=-2).cumsum(axis=-2)
