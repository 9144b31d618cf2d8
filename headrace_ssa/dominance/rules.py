"""Constants of OrbitalDominance with their reasons, and the numbering of its actions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

AGENTS = ("blue", "red")
STEP_S = 120.0
"""Seconds of a step, as in SSAConjunction: 48 steps are a revolution."""
BURN_MS = 0.5
"""Change of speed by a burn, m/s. Along the track it moves a satellite 8.7 km per revolution,
about the distance between satellites."""
INSPECTOR_BURNS, ASSET_BURNS = 20, 10
"""Burns per satellite. An inspector has 10 m/s, because approaching an asset and staying there
takes 3 to 6. An asset has 5 m/s, because it only keeps its station."""
JAMS = 10
"""Steps that a satellite can jam: a fifth of a revolution, so it has to choose the time."""
JAM_RANGE_M = 5_000.0
"""Range within which measurements of a satellite are jammed: a quarter of the range of a sensor, so
a jammer has to come into view."""

SENSOR_RANGE_M = 20_000.0
"""Range of a small telescope: it covers all satellites that stay near."""
FIELD_DEG = 5.0
"""Half of the field of view: 900 m at 10 km, and 90 m at 1 km, where one burn leaves it."""
SUN_DEG = 40.0
"""Exclusion angle around the Sun, about that of star trackers with baffles."""
NOISE_M, NOISE_PER_RANGE = 10.0, 0.005
"""Standard deviation of a measured position per direction: metres for the own position, plus
metres per metre of range (5 mrad)."""
SURVEY_STEPS, SURVEY_M = 16, 1_000.0
"""Interval and standard deviation of ground radar measurements of all satellites. The errors are
those of public catalogues: enough to find a satellite again, too large for custody."""
FIRST_M, FIRST_MS = 500.0, 0.3
"""Initial standard deviations per direction: the position of a good catalogue, and a rate whose
error grows to about the same within half an hour."""
KICK_MS = BURN_MS / np.sqrt(3.0 * 6.0)
"""Process noise of a track, m/s per step and direction: a burn in one of 6 steps."""

CUSTODY_M = 500.0
"""Maximum error of a track that counts as custody of an asset."""
INSPECTION_M = 2_000.0
"""Maximum range of an inspection: 1 m is half a milliradian there."""
COLLISION_M = 30.0
"""Distance below which satellites collide: their size plus a margin."""
STATION_M = 5_000.0
"""Maximum distance of an asset from its station, its position without burns."""

CUSTODY, INSPECTION = 1.0, 3.0
"""Points for each step of custody, and of inspection."""
OFF_STATION = -1.0
"""Points per step with the own asset off its station, so that fleeing has a cost."""
BURN = -0.2
"""Points for a burn: all burns together cost as much as 6 steps of custody."""
COLLISION = -50.0
"""Points for both sides for a collision: the value of half a game of custody."""

DIRECTIONS = np.concatenate([np.eye(3), -np.eye(3)])[[0, 3, 1, 4, 2, 5]]
"""Directions of the 6 burns: away from the Earth, towards it, forwards, back, left and right."""


@dataclass(frozen=True)
class Actions:
    """Numbering of the actions of a side with ``n`` satellites.

    0 holds. Next are the 6 burns of each satellite in turn. Then each satellite in turn points its
    sensor at each satellite of the other side. Finally each satellite jams.
    """

    n: int

    @property
    def count(self) -> int:
        """Return the number of actions."""
        return 1 + self.n * (len(DIRECTIONS) + self.n + 1)

    @property
    def first_point(self) -> int:
        """Return the first action that points a sensor."""
        return 1 + self.n * len(DIRECTIONS)

    @property
    def first_jam(self) -> int:
        """Return the first action that jams."""
        return self.first_point + self.n * self.n

    @classmethod
    def of(cls, count: int) -> Actions:
        """Return the numbering for a number of actions."""
        return cls(round((np.sqrt(49.0 + 4.0 * (count - 1)) - 7.0) / 2.0))
