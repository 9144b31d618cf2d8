from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tries import examples

from headrace_ssa.risk import collision_probability, plane


def covariance(long, short, angle):
    """Return ``xx, xy, yy`` of an ellipse with these deviations and angle of the long axis."""
    c, s = math.cos(angle), math.sin(angle)
    return (
        np.array([long**2 * c * c + short**2 * s * s]),
        np.array([(long**2 - short**2) * c * s]),
        np.array([long**2 * s * s + short**2 * c * c]),
    )


def probability(miss, long, short, angle=0.0, radius=60.0):
    miss = np.reshape(miss, (2, 1))
    return float(collision_probability(miss, covariance(long, short, angle), radius)[0])


def rotated(x, y, angle):
    c, s = math.cos(angle), math.sin(angle)
    return x * c - y * s, x * s + y * c


# -- other ways to the same number -----------------------------------------------------------


NODE, WEIGHT = np.polynomial.legendre.leggauss(100)


def foster(x, y, long, short, radius):
    """Compute Foster's integral over the disc by quadrature in radius and angle."""
    rho = 0.5 * radius * (NODE[:, None] + 1)
    theta = 2 * np.pi * np.arange(400) / 400
    square = ((rho * np.cos(theta) - x) / long) ** 2 + ((rho * np.sin(theta) - y) / short) ** 2
    inner = np.exp(-0.5 * square).mean(axis=1) * 2 * np.pi
    return float((inner * rho[:, 0] * WEIGHT).sum() * 0.5 * radius / (2 * np.pi * long * short))


@pytest.mark.parametrize("aspect", [1.0, 1.5, 3.0, 10.0])
def test_it_is_fosters_integral(aspect):
    rng, num_above, worst = np.random.default_rng(int(10 * aspect)), 0, 0.0
    for size in (0.1, 0.3, 1.0, 2.0, 4.0, 10.0):  # radius over the short axis
        for offset in (0.0, 0.5, 1.0, 2.0, 3.5, 5.0):
            short, towards = 60.0 / size, rng.uniform(0, 2 * np.pi)
            x = offset * aspect * short * math.cos(towards)
            y = offset * short * math.sin(towards)
            angle = rng.uniform(0, 2 * np.pi)
            got = probability(rotated(x, y, angle), aspect * short, short, angle)
            want = foster(x, y, aspect * short, short, 60.0)
            if want > 1e-7:
                num_above += 1
                worst = max(worst, abs(got / want - 1))
                assert got == pytest.approx(want, rel=1e-6)
            assert got <= 1 + 1e-7
    print(f"\nprobability: {worst:.1e} of the integral at most, axes of 1 : {aspect:g}")
    assert num_above >= 24


@pytest.mark.parametrize(
    ("miss", "long", "short", "angle"),
    [
        ((30.0, 50.0), 80.0, 30.0, 0.7),
        ((200.0, -40.0), 300.0, 60.0, 2.5),
        ((0.0, 90.0), 25.0, 20.0, 0.0),
    ],
)
def test_so_many_of_ten_million_draws_lie_in_the_disc(miss, long, short, angle):
    rng, hits, num = np.random.default_rng(1), 0, 10_000_000
    for _ in range(10):
        z = rng.standard_normal((2, num // 10))
        x, y = rotated(long * z[0], short * z[1], angle)
        hits += np.count_nonzero((x + miss[0]) ** 2 + (y + miss[1]) ** 2 < 60.0**2)
    p = probability(miss, long, short, angle)
    error = math.sqrt(p * (1 - p) / num)
    print(f"\n10 million draws: {hits / num:.6f}, told {p:.6f}: {(hits / num - p) / error:+.1f} SE")
    assert abs(hits / num - p) < 4 * error


@pytest.mark.parametrize("sigma", [6.0, 20.0, 60.0, 400.0])
def test_a_round_cloud_around_the_satellite_has_a_closed_form(sigma):
    p = probability((0.0, 0.0), sigma, sigma)
    assert p == pytest.approx(-math.expm1(-(60.0**2) / (2 * sigma**2)), rel=1e-7)


# -- what must hold of any -------------------------------------------------------------------

lengths = st.floats(8.0, 500.0)
places = st.floats(-400.0, 400.0)
angles = st.floats(0.0, 2 * math.pi)


@examples(200)
@given(places, places, lengths, lengths, angles)
def test_only_the_picture_matters_and_not_how_it_is_turned_or_mirrored(x, y, long, short, angle):
    p = probability((x, y), long, short)
    assert 0.0 <= p <= 1.0 + 1e-7
    for other in (
        probability(rotated(x, y, angle), long, short, angle),
        probability((-x, -y), long, short),
        probability((x, -y), long, short),
        probability((y, x), short, long),
    ):
        assert other == pytest.approx(p, rel=1e-6, abs=2e-8)


@examples(200)
@given(places, places, st.floats(20.0, 500.0), st.floats(20.0, 500.0), st.floats(1.0, 100.0))
def test_a_larger_body_is_hit_more_often(x, y, long, short, radius):
    small = probability((x, y), long, short, 0.4, radius)
    large = probability((x, y), long, short, 0.4, 1.05 * radius)
    assert large >= small * (1 - 1e-7)
    if small > 1e-7:
        assert large > small


def test_far_away_means_none_and_nothing_above_the_floor_is_lost():
    offsets = np.linspace(0, 6000, 3001)
    zero = np.zeros_like(offsets)
    for long, short in ((200.0, 50.0), (30.0, 30.0), (300.0, 8.0)):
        variance = tuple(np.broadcast_to(v, offsets.shape) for v in covariance(long, short, 0.0))
        for miss in (np.stack([offsets, zero]), np.stack([zero, offsets])):
            p = collision_probability(miss, variance, 60.0)
            assert (np.diff(p) <= 1e-7 * p[:-1]).all()
            assert p[-1] == 0.0
            lost = np.flatnonzero(p == 0.0)[0]
            assert foster(*miss[:, lost], long, short, 60.0) < 1e-8


def test_only_what_is_wanted_is_computed_and_shapes_broadcast():
    rng = np.random.default_rng(3)
    miss = 100.0 * rng.standard_normal((2, 3, 4, 5))
    variance = tuple(np.full((4, 5), v) for v in (9e3, 2e3, 4e3))
    wanted = rng.random((4, 5)) < 0.5
    everywhere = collision_probability(miss, variance, 60.0)
    some = collision_probability(miss, variance, 60.0, wanted)
    assert some.shape == (3, 4, 5)
    assert (everywhere > 0).all()
    assert np.allclose(some, everywhere * wanted, rtol=1e-7, atol=0)
    assert (collision_probability(miss, variance, 60.0, False) == 0).all()


def test_one_alone_is_what_it_is_among_others():
    rng = np.random.default_rng(4)
    miss = 150.0 * rng.standard_normal((2, 50))
    long, short = rng.uniform(8, 400, (2, 50))
    zero = np.zeros(50)
    together = collision_probability(miss, (long**2, zero, short**2), 60.0)
    alone = [probability(miss[:, i], long[i], short[i]) for i in range(50)]
    assert np.allclose(together, alone, rtol=1e-7, atol=0)


def test_the_plane_lies_across_the_relative_velocity():
    rng = np.random.default_rng(5)
    velocity, radial = rng.standard_normal((2, 40, 3))
    axes = plane(1e4 * velocity, radial)
    assert np.allclose(axes @ np.swapaxes(axes, -1, -2), np.eye(2))
    assert np.allclose(np.einsum("nkx,nx->nk", axes, velocity), 0)
    assert np.allclose(np.einsum("nx,nx->n", axes[:, 0], radial), 0)
