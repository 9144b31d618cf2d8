"""OrbitalDominance one game and one number at a time, written literally from its rules."""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.linalg import expm

MU, EARTH, HEIGHT, STEP_S = 3.986004418e14, 6_378_137.0, 600e3, 120.0
J2 = 1.08262668e-3
BURN_MS, KICK_MS = 0.5, 0.5 / math.sqrt(18)
BURNS = ((1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1))


def pull(place, j2):
    """Return the Earth's gravity with its oblateness; the last axis is the Earth's."""
    r2 = (place * place).sum()
    bulge = 1.5 * j2 * EARTH**2 / r2 * (np.array([1, 1, 3]) - 5 * place[2] ** 2 / r2)
    return -MU / r2**1.5 * place * (1 + bulge)


@functools.cache
def averages(inclination, j2):
    """Return the rate of rotation over the orbit, and the gravity gradient in the moving frame."""
    tilt, radius = math.radians(inclination), EARTH + HEIGHT
    inwards, change, places = 0.0, np.zeros((3, 3)), 2 * math.pi * np.arange(16) / 16
    for u in places:
        frame = np.array(
            [
                [math.cos(u), math.sin(u) * math.cos(tilt), math.sin(u) * math.sin(tilt)],
                [-math.sin(u), math.cos(u) * math.cos(tilt), math.cos(u) * math.sin(tilt)],
                [0, -math.sin(tilt), math.cos(tilt)],
            ]
        )
        inwards -= frame[0] @ pull(radius * frame[0], j2) / 16
        # Complex step of a metre: a derivative to the last digit.
        beside = [pull(radius * frame[0] + 1j * axis, j2).imag for axis in frame]
        change += frame @ np.array(beside).T / 16
    return math.sqrt(inwards / radius), change


@functools.cache
def flow(seconds, inclination, j2):
    """Return the matrix exponential of relative motion in the rotating frame."""
    turn, change = averages(inclination, j2)
    system = np.zeros((6, 6))
    system[:3, 3:] = np.eye(3)
    system[3:, :3] = change + np.diag([turn**2, turn**2, 0])
    system[3, 4], system[4, 3] = 2 * turn, -2 * turn
    return expm(system * seconds)


def length(v):
    return math.sqrt(sum(x * x for x in v))


def minus(a, b):
    return [x - y for x, y in zip(a, b, strict=True)]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


class SlowGame:
    """Literal copy of a game that was drawn for one row."""

    def __init__(self, drawn, horizon, inclination=None, j2=J2):
        self.earth = (0.0, 0.0) if inclination is None else (inclination, j2)
        self.horizon, self.time, self.n = horizon, 0, drawn.burns.shape[2]
        self.satellites = drawn.state[0].copy()
        self.home = drawn.station[0].copy()
        self.sun_at, self.noise, self.survey = drawn.sun[0], drawn.noise[0], drawn.survey[0]
        self.tracks = [
            [(drawn.mean[0, s, j].copy(), drawn.cov[0, s, j].copy()) for j in range(self.n)]
            for s in (0, 1)
        ]
        self.burns = [[10] + [20] * (self.n - 1) for _ in (0, 1)]
        self.jams = [[10] * self.n for _ in (0, 1)]
        self.target = [[None] * self.n for _ in (0, 1)]
        self.sees = [[False] * self.n for _ in (0, 1)]

    def sun(self, ahead=0):
        elevation, start = self.sun_at
        angle = start + averages(*self.earth)[0] * STEP_S * (self.time + ahead)
        return (
            math.cos(elevation) * math.cos(angle),
            -math.cos(elevation) * math.sin(angle),
            math.sin(elevation),
        )

    def light(self, ahead=0):
        """Return whether a point is outside a cylinder of the Earth's radius on the night side."""
        sun, place = self.sun(ahead), (EARTH + HEIGHT, 0.0, 0.0)
        towards = dot(place, sun)
        beside = length([p - towards * s for p, s in zip(place, sun, strict=True)])
        return towards > 0 or beside > EARTH

    def commands(self):
        """Return each action as (what, satellite, more)."""
        each = [("hold", 0, 0)]
        each += [("burn", k, d) for k in range(self.n) for d in BURNS]
        each += [("point", k, j) for k in range(self.n) for j in range(self.n)]
        return each + [("jam", k, 0) for k in range(self.n)]

    def mask(self, side):
        def allowed(what, k, more):
            if what == "burn":
                return self.burns[side][k] > 0
            if what == "point":
                return self.target[side][k] != more
            return what == "hold" or self.jams[side][k] > 0

        return [allowed(*command) for command in self.commands()]

    def step(self, actions):
        """Return points of both sides, whether the game ended, and inspections of both."""
        points, jammers, inspections = [0.0, 0.0], [], [0, 0]
        for side, action in enumerate(actions):
            what, k, more = self.commands()[action]
            if not self.mask(side)[action]:
                continue
            if what == "burn":
                self.satellites[side, k, 3:] += [BURN_MS * x for x in more]
                self.burns[side][k] -= 1
                points[side] -= 0.2
            elif what == "point":
                self.target[side][k] = more
            elif what == "jam":
                self.jams[side][k] -= 1
                jammers.append((side, k))
        collided = self.move()
        self.measure(jammers, inspections)
        for side in (0, 1):
            asset = self.satellites[1 - side][0][:3]
            points[side] += length(minus(self.tracks[side][0][0][:3], asset)) < 500
            points[side] += 3 * inspections[side]
            points[side] -= length(minus(self.satellites[side][0][:3], self.home[side][:3])) > 5000
            points[side] -= 50 * collided
        return points, collided or self.time == self.horizon, inspections

    def move(self):
        phi, before = flow(STEP_S, *self.earth), self.satellites.copy()
        for side in (0, 1):
            self.home[side] = phi @ self.home[side]
            for k in range(self.n):
                self.satellites[side, k] = phi @ self.satellites[side, k]
                mean, cov = self.tracks[side][k]
                cov = cov.copy()
                for i in (3, 4, 5):
                    cov[i, i] += KICK_MS**2  # at the start of the step
                self.tracks[side][k] = phi @ mean, phi @ cov @ phi.T
        self.time += 1
        pairs = [(i, j) for i in range(self.n) for j in range(self.n)]
        ways = [
            (before[0, i] - before[1, j], self.satellites[0, i] - self.satellites[1, j])
            for i, j in pairs
        ]
        return any(self.nearest(a[:3], b[:3]) < 30 for a, b in ways)

    @staticmethod
    def nearest(a, b):
        """Return the positions on the straight line from a to b, in small steps."""
        shares = np.linspace(0, 1, 2001)
        return np.linalg.norm(a + np.outer(shares, b - a), axis=1).min()

    def measure(self, jammers, inspections):
        aims = [
            [
                minus(self.tracks[s][j or 0][0][:3], self.satellites[s][k][:3])
                for k, j in enumerate(self.target[s])
            ]
            for s in (0, 1)
        ]
        for k in range(self.n):
            for side in (0, 1):
                j = self.target[side][k]
                self.sees[side][k] = False
                if j is None:
                    continue
                own, other = self.satellites[side][k][:3], self.satellites[1 - side][j][:3]
                jammed = any(
                    s != side and length(minus(own, self.satellites[s][i][:3])) <= 5000
                    for s, i in jammers
                )
                real = minus(other, own)
                if jammed or not self.visible(real, aims[side][k]):
                    continue
                self.sees[side][k] = True
                sigma = 10 + 0.005 * length(real)
                place = np.array(other) + sigma * self.noise[self.time - 1, side, k]
                self.tracks[side][j] = self.updated(*self.tracks[side][j], place, sigma)
                inspections[side] += j == 0 and length(real) <= 2000
        if self.time % 16 == 0:
            for side in (0, 1):
                for j in range(self.n):
                    error = self.survey[self.time // 16 - 1, side, j]
                    place = self.satellites[1 - side][j][:3] + 1000 * error
                    self.tracks[side][j] = self.updated(*self.tracks[side][j], place, 1000)

    def visible(self, real, believed):
        def angle(a, b):
            cosine = dot(a, b) / max(1e-9, length(a) * length(b))
            return math.degrees(math.acos(max(-1.0, min(1.0, cosine))))

        return (
            self.light()
            and length(real) <= 20_000
            and angle(real, believed) <= 5
            and angle(real, self.sun()) >= 40
        )

    @staticmethod
    def updated(mean, cov, place, sigma):
        """Apply Kalman's update in Joseph's form."""
        seen = np.eye(3, 6)
        gain = cov @ seen.T @ np.linalg.inv(seen @ cov @ seen.T + sigma**2 * np.eye(3))
        rest = np.eye(6) - gain @ seen
        after = rest @ cov @ rest.T + sigma**2 * gain @ gain.T
        return mean + gain @ (place - mean[:3]), after

    def observation(self, side):
        n, mine, theirs = self.n, self.satellites[side], self.tracks[side]
        numbers = [1 - self.time / self.horizon, 1 - self.time % 16 / 16, *self.sun()]
        numbers += [self.light(a) for a in (0, 4, 8, 16)]

        def scaled(state, share=1.0):
            return [x / 40_000 * share for x in state[:3]] + [v / 20 * share for v in state[3:]]

        for k in range(n):
            numbers += scaled(mine[k])
        numbers += [b / (20 if k else 10) for k, b in enumerate(self.burns[side])]
        numbers += [j / 10 for j in self.jams[side]]
        numbers += self.sees[side]
        numbers += [self.target[side][k] == j for k in range(n) for j in range(n)]
        numbers += scaled(mine[0] - self.home[side], 4)
        for mean, _ in theirs:
            numbers += scaled(mean)
        for _, cov in theirs:
            spread = math.sqrt(sum(cov[i][i] for i in range(3)) / 3)
            numbers.append(math.log(1 + spread) / math.log(40_001))
        for _, cov in theirs:
            spread = math.sqrt(sum(cov[i][i] for i in range(3, 6)) / 3)
            numbers.append(math.log(1 + 1000 * spread) / math.log(20_001))
        for k in range(n):
            for mean, _ in theirs:
                for ahead in (0, 4, 12, 24):
                    between = flow(STEP_S * ahead, *self.earth) @ (mean - mine[k])
                    numbers += [math.asinh(x / 200) / math.asinh(200) for x in between[:3]]
        return [max(-1.0, min(1.0, float(x))) for x in numbers]
