"""SSAConjunction one episode and one number at a time, written literally from its rules."""

from __future__ import annotations

import math

import numpy as np

from headrace_ssa import conjunction as game
from headrace_ssa import orbits, risk, scene, sensors, tracking
from headrace_ssa.orbits import EARTH_RADIUS, Drifts, Elements
from headrace_ssa.outlook import BURN_MS, FEATURES, RADIUS_M

STEP_S = 120.0


def sees_any(position, earth_angle):
    """Return whether a radar sees a point, by elevation and distance."""
    for latitude, longitude in sensors.SITES_DEG:
        lat, lon = math.radians(latitude), math.radians(longitude) + earth_angle
        zenith = (math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat))
        ray = [p - EARTH_RADIUS * z for p, z in zip(position, zenith, strict=True)]
        distance = math.hypot(*ray)
        sine = sum(r * z for r, z in zip(ray, zenith, strict=True)) / distance
        elevation = math.degrees(math.asin(max(-1.0, min(1.0, sine))))
        if elevation >= sensors.MIN_ELEVATION_DEG and distance <= sensors.MAX_RANGE_M:
            return True
    return False


def one_step_later(x, p):
    """Return mean and covariance of position and rate after a step: F p F' + Q."""
    (a, b), (_, d) = p
    h, q = STEP_S, tracking.ACCELERATION**2
    a, b, d = a + 2 * h * b + h * h * d, b + h * d, d
    a, b, d = a + q * h**4 / 4, b + q * h**3 / 2, d + q * h**2
    return [x[0] + h * x[1], x[1]], [[a, b], [b, d]]


def after_look(x, p, measured):
    """Return mean and covariance after a measurement of the position."""
    total = p[0][0] + tracking.SENSOR_M**2
    gain = [p[0][0] / total, p[1][0] / total]
    news = measured - x[0]
    x = [x[i] + gain[i] * news for i in range(2)]
    p = [[p[i][j] - gain[i] * p[0][j] for j in range(2)] for i in range(2)]
    return x, p


class SlowObject:
    """A catalogue object: its true state, and what is known of it."""

    def __init__(self, drawn, index):
        at, i = drawn, index
        self.elements = Elements(*(float(x[0, 1 + i]) for x in at.elements))
        self.drifts = Drifts(*(float(x[0, 1 + i]) for x in at.drifts))
        self.tca = int(at.tca[0, i])
        self.miss, self.own = at.miss[0, i].tolist(), at.own_error[0, i].tolist()
        self.spread, self.push = at.spread[0, i].tolist(), at.push[0, i].tolist()
        self.path, self.offset = at.path[0, :, i].tolist(), at.offset[0, :, i].tolist()
        self.x = [0.0, 0.0]
        self.p = [[float(at.track.var[0, i]), 0.0], [0.0, float(at.track.var_rate[0, i])]]
        self.side, self.side_var = [0.0, 0.0], at.side_var[0, :, i].tolist()
        self.shift, self.alarms = [0.0, 0.0], 0

    def position(self, time):
        """Return ``x, y, z`` of the catalogue orbit."""
        return [float(x) for x in orbits.position(orbits.moved(self.elements, self.drifts, time))]

    def missed_by(self, with_burns):
        """Return the true distance at the closest approach."""
        errors = (self.offset[0], self.path[self.tca], self.offset[1])
        vector = []
        for i in range(2):
            m = self.miss[i] + self.own[i]
            m += sum(self.spread[i][f] * errors[f] for f in range(3))
            vector.append(m - (self.shift[i] if with_burns else 0.0))
        return math.hypot(*vector)

    def foreseen(self, steps):
        """Return mean and covariance of the miss, ``steps`` from now."""
        x, p = self.x, self.p
        for _ in range(steps):
            x, p = one_step_later(x, p)
        known = (self.side[0], x[0], self.side[1])
        var = (self.side_var[0], p[0][0], self.side_var[1])
        mean, cov = [], [[0.0, 0.0], [0.0, 0.0]]
        for i in range(2):
            of = self.spread[i]
            mean.append(self.miss[i] - self.shift[i] + sum(of[f] * known[f] for f in range(3)))
            for j in range(2):
                cov[i][j] = sum(of[f] * self.spread[j][f] * var[f] for f in range(3))
            cov[i][i] += scene.OWN_M**2
        return mean, cov


def probability(mean, cov):
    """Return one collision probability."""
    (xx, xy), (_, yy) = cov
    variance = tuple(np.array([v]) for v in (xx, xy, yy))
    miss = np.array(mean).reshape(2, 1)
    return float(risk.collision_probability(miss, variance, RADIUS_M)[0])


class SlowGame:
    """Literal copy of an episode, from an EpisodeState ``drawn`` with one row."""

    def __init__(self, drawn, horizon):
        self.objects = [SlowObject(drawn, i) for i in range(drawn.tca.shape[1])]
        self.horizon, self.time, self.burns_left = horizon, 0, game.MAX_BURNS
        self.a = float(drawn.elements.a[0, 0])
        self.earth_angle = float(drawn.earth_angle[0, 0])
        self.noise = drawn.noise[0].tolist()
        self.known = {}  # the risks of this step

    def coming(self):
        """Return the list: objects before their closest approach, the most dangerous one first."""
        later = [o for o in self.objects if o.tca > self.time]  # in order of their approaches
        return sorted(later, key=lambda o: -self.risks(o)[0][0])

    def visible(self, o):
        seconds = STEP_S * self.time
        turned = self.earth_angle + orbits.EARTH_RATE * seconds
        return sees_any(o.position(seconds), turned)

    def displaced(self, o):
        """Return how a forward burn now moves the satellite at an object's closest approach."""
        n = math.sqrt(orbits.MU / self.a**3)
        angle = n * STEP_S * (o.tca - self.time)
        radial = 2 / n * (1 - math.cos(angle)) * BURN_MS
        ahead = (4 * math.sin(angle) - 3 * angle) / n * BURN_MS
        return [o.push[i][0] * radial + o.push[i][1] * ahead for i in range(2)]

    def risks(self, o):
        """Return the probability now, after a forward and a backward burn, and the covariance."""
        if o not in self.known:
            self.known[o] = self._risks(o)
        return self.known[o]

    def _risks(self, o):
        mean, cov = o.foreseen(o.tca - self.time)
        move = self.displaced(o)
        plans = [[m - sign * d for m, d in zip(mean, move, strict=True)] for sign in (0, 1, -1)]
        return [probability(plan, cov) for plan in plans], cov

    def mask(self):
        coming = self.coming()
        looks = [self.visible(o) for o in coming] + [False] * (len(self.objects) - len(coming))
        burns = self.burns_left > 0 and len(coming) > 0
        return [True, *looks, burns, burns]

    def observation(self):
        coming = self.coming()
        numbers, safe, soon = [], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]
        for o in coming:
            risks, cov = self.risks(o)
            safe = [s * (1 - r) for s, r in zip(safe, risks, strict=True)]
            if o.tca - self.time <= 30:
                soon = [s * (1 - r) for s, r in zip(soon, risks, strict=True)]
            numbers += [(o.tca - self.time) / self.horizon, float(self.visible(o))]
            numbers += [1 + math.log10(max(r, 1e-8)) / 8 for r in risks]
            numbers.append(math.log10(1 + math.sqrt(o.p[0][0])) / 4)
            area = cov[0][0] * cov[1][1] - cov[0][1] ** 2
            numbers += [math.log10(1 + area**0.25) / 4, o.alarms / game.MAX_BURNS]
        numbers += [0.0] * (FEATURES * (len(self.objects) - len(coming)))
        start = [1 - self.time / self.horizon, self.burns_left / game.MAX_BURNS]
        return [min(x, 1.0) for x in [*start, *(1 - s for s in [*safe, *soon]), *numbers]]

    def step(self, action):
        """Return reward, end, and counts of collisions, avoided ones and false alarms."""
        reward = 0.0
        listed = self.coming()
        if self.mask()[action]:
            if 1 <= action <= len(self.objects):
                self._look(listed[action - 1])
            elif action > len(self.objects):
                self._burn(1 if action == len(self.objects) + 1 else -1, listed)
                reward += game.BURN
        self.time += 1
        self.known = {}
        collided, avoided, false = False, 0, 0
        for o in self.objects:
            if o.tca >= self.time:
                o.x, o.p = one_step_later(o.x, o.p)
            if o.tca != self.time:
                continue
            would_hit = o.missed_by(with_burns=False) < RADIUS_M
            hits = o.missed_by(with_burns=True) < RADIUS_M
            collided |= hits
            avoided += would_hit and not hits
            false += 0 if would_hit else o.alarms
        reward += game.COLLISION * collided + game.AVOIDED * avoided + game.FALSE_ALARM * false
        return reward, collided or self.time == self.horizon, (int(collided), avoided, false)

    def _look(self, o):
        along, radial, across = self.noise[self.time]
        o.x, o.p = after_look(o.x, o.p, o.path[self.time] + along)
        for k, error in enumerate((radial, across)):
            gain = o.side_var[k] / (o.side_var[k] + tracking.SENSOR_M**2)
            o.side[k] += gain * (o.offset[k] + error - o.side[k])
            o.side_var[k] *= 1 - gain

    def _burn(self, sign, listed):
        listed[0].alarms += 1
        for o in listed:
            o.shift = [s + sign * d for s, d in zip(o.shift, self.displaced(o), strict=True)]
        self.burns_left -= 1
        # A faster satellite is on a longer orbit: vis-viva at a circle.
        self.a *= 1 + 2 * sign * BURN_MS / math.sqrt(orbits.MU / self.a)


def shy(rng, mask):
    """Return a random action: mostly allowed ones, sometimes a forbidden one or a burn."""
    last = mask.shape[1] - 1
    weights = np.where(mask, 1.0, 0.1) * rng.random(mask.shape)
    weights[:, last - 1 :] *= 0.6
    return weights.argmax(axis=1)
