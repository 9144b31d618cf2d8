"""The numbers of OrbitalDominance, each with its reason, and how its actions are numbered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

AGENTS = ("blue", "red")
STEP_S = 120.0
"""Seconds of a step, as in SSAConjunction: 48 steps are a revolution."""
BURN_MS = 0.5
"""Change of speed by a burn, m/s. Along the track it moves a satellite 8.7 km in a revolution,
which is as far as satellites are apart."""
INSPECTOR_BURNS, ASSET_BURNS = 20, 10
"""10 m/s for an inspector: to come near an asset and stay there takes 3 to 6. 5 m/s for an
asset, which only keeps its station."""
JAMS = 10
"""Steps that a satellite can jam: a fifth of a revolution, so that it has to choose when."""
JAM_RANGE_M = 5_000.0
"""Within which a jammed satellite's measurements don't get home: a quarter of what a sensor sees,
so that a jammer has to go where it can be seen."""

SENSOR_RANGE_M = 20_000.0
"""How far a small telescope sees a satellite: all that stays near."""
FIELD_DEG = 5.0
"""Half of the field of view: 900 m to a side at 10 km, 90 m at 1 km, where one burn leaves it."""
SUN_DEG = 40.0
"""No sensor looks so near to the Sun: about what baffles of star trackers ask for."""
NOISE_M, NOISE_PER_RANGE = 10.0, 0.005
"""Error of a measured position, m, in each direction: of the own position, and milliradians."""
SURVEY_STEPS, SURVEY_M = 16, 1_000.0
"""Every third of a revolution radars on the ground measure all satellites, with errors as in public
catalogues: enough to know where to look again, not enough for custody."""
FIRST_M, FIRST_MS = 500.0, 0.3
"""What is known at first, in each direction: a good catalogue's position, and a rate that adds
about as much within half an hour."""
KICK_MS = BURN_MS / np.sqrt(3.0 * 6.0)
"""Change of speed in a step that a track allows for, in each direction: a burn in one step of 6."""

CUSTODY_M = 500.0
"""A side has custody of an asset while its track is less than this from the truth."""
INSPECTION_M = 2_000.0
"""An asset is inspected by a sensor that sees it from within: where 1 m is half a milliradian."""
COLLISION_M = 30.0
"""Satellites that pass each other nearer collide: their size, and some room."""
STATION_M = 5_000.0
"""How far an asset may go from where it would be without burns, and still do its work."""

CUSTODY, INSPECTION = 1.0, 3.0
"""Points for each step of custody, and of inspection."""
OFF_STATION = -1.0
"""Points for each step in which the own asset is off its station: to flee is no way to hide."""
BURN = -0.2
"""Points for a burn: all burns together cost as much as 6 steps of custody."""
COLLISION = -50.0
"""Points, for both sides: what half a game of custody is worth."""

DIRECTIONS = np.concatenate([np.eye(3), -np.eye(3)])[[0, 3, 1, 4, 2, 5]]
"""Of the 6 burns: away from the Earth and towards it, forwards and back, left and right."""


@dataclass(frozen=True)
class Actions:
    """How the actions of a side with ``n`` satellites are numbered, and what each one does.

    0 holds. Then come the 6 burns of satellite 0, of satellite 1 …; then satellite 0 points its
    sensor at the other side's satellite 0, at 1 …, then satellite 1 does; then satellite 0 jams,
    satellite 1 …
    """

    n: int

    @property
    def count(self) -> int:
        """How many there are."""
        return 1 + self.n * (len(DIRECTIONS) + self.n + 1)

    @property
    def first_point(self) -> int:
        """The first one that points a sensor."""
        return 1 + self.n * len(DIRECTIONS)

    @property
    def first_jam(self) -> int:
        """The first one that jams."""
        return self.first_point + self.n * self.n

    @classmethod
    def of(cls, count: int) -> Actions:
        """From how many actions there are."""
        return cls(round((np.sqrt(49.0 + 4.0 * (count - 1)) - 7.0) / 2.0))
