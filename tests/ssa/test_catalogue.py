"""Catalogues: the verification set of sgp4, in every format, and games on its orbits."""

from __future__ import annotations

import csv
import itertools
import json
import re
import sys
from importlib import resources

import numpy as np
import pytest
from sgp4.api import Satrec
from sgp4.exporter import export_omm
from sgp4.io import fix_checksum

from headrace.errors import ConfigError
from headrace_ssa import SSAConjunctionEnv, SSAConjunctionVectorEnv, catalogue, orbits

# SGP4 can't compute one of the set's objects.
pytestmark = pytest.mark.filterwarnings("ignore:.*skipped, because SGP4")

VERIFICATION = resources.files("sgp4").joinpath("SGP4-VER.TLE").read_text(encoding="ascii")
LINES = [
    fix_checksum(line[:69]) if line[:2] in ("1 ", "2 ") else line
    for line in VERIFICATION.splitlines()  # with times to compute behind, and sums wrong on purpose
]
PAIRS = [(one, two) for one, two in itertools.pairwise(LINES) if one[:2] == "1 "]


def omm(satellite, name):
    """Return its OMM fields, with typical values of those that the package doesn't write."""
    fields = export_omm(satellite, name)
    return {key: str(value) for key, value in fields.items()}


# On two-line elements that are complete: the set has some that are short on purpose.
COMPLETE = [pair for pair in PAIRS if pair[0][7] == "U" and pair[0][9:17].strip()]
FIELDS = [omm(Satrec.twoline2rv(*pair), f"OBJECT {i}") for i, pair in enumerate(COMPLETE)]


@pytest.fixture
def files(tmp_path):
    """Return the same objects in each format, by name."""
    tle = tmp_path / "objects.tle"
    tle.write_text("\n".join(f"OBJECT {i}\n{a}\n{b}" for i, (a, b) in enumerate(COMPLETE)) + "\n")
    return {"tle": tle, **written(tmp_path, FIELDS)}


def written(folder, fields):
    """Return objects in each format of OMM."""
    with (folder / "objects.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(fields[0]))
        writer.writeheader()
        writer.writerows(fields)
    (folder / "objects.json").write_text(json.dumps(fields, indent=1))
    (folder / "objects.xml").write_text(xml(fields).replace(">None<", "><"))
    return {kind: folder / f"objects.{kind}" for kind in ("csv", "json", "xml")}


PARTS = {
    "metadata": ("OBJECT_NAME", "OBJECT_ID"),
    "meanElements": ("EPOCH", "MEAN_MOTION", "ECCENTRICITY", "INCLINATION", "RA_OF_ASC_NODE",
                     "ARG_OF_PERICENTER", "MEAN_ANOMALY"),
    "tleParameters": ("EPHEMERIS_TYPE", "CLASSIFICATION_TYPE", "NORAD_CAT_ID", "ELEMENT_SET_NO",
                      "REV_AT_EPOCH", "BSTAR", "MEAN_MOTION_DOT", "MEAN_MOTION_DDOT"),
}  # fmt: skip


def xml(objects):
    """Return one segment each, three lines long."""

    def part(fields, name):
        inside = "".join(f"<{key}>{fields[key]}</{key}>" for key in PARTS[name])
        return f"<{name}>{inside}</{name}>"

    segments = [
        f"<segment>{part(o, 'metadata')}\n<data>{part(o, 'meanElements')}\n"
        f"{part(o, 'tleParameters')}</data></segment>"
        for o in objects
    ]
    return (
        "<?xml version='1.0'?>\n<ndm><omm><body>\n" + "\n".join(segments) + "\n</body></omm></ndm>"
    )


def without(text, name, segment):
    """Return XML whose ``segment`` lacks an element, with the same number of lines."""
    parts = text.split("<segment>")
    found = re.search(f"<{name}>.*</{name}>", parts[segment + 1], re.DOTALL)
    empty = "\n" * found[0].count("\n")
    parts[segment + 1] = parts[segment + 1].replace(found[0], empty)
    return "<segment>".join(parts)


# -- reading ---------------------------------------------------------------------------------


def test_the_verification_set_is_read_and_what_games_cannot_use_is_left_out(tmp_path):
    path = tmp_path / "all.tle"
    path.write_text("\n".join(LINES))
    found = catalogue.read(path)
    wanted = []
    for pair in PAIRS:
        one = Satrec.twoline2rv(*pair)
        mean_m = (orbits.MU / (one.no_kozai / 60) ** 2) ** (1 / 3) if one.no_kozai > 0 else 1e12
        low, high = ((mean_m * (1 + s * one.ecco) - orbits.EARTH_RADIUS) / 1e3 for s in (-1, 1))
        if one.ecco < 0.05 and low < 1000 and high > 400 and np.radians(10) < one.inclo:
            wanted.append((mean_m, one.ecco, one.inclo))
    assert len(found.a) == len(wanted) >= 4
    a, e, inc = np.array(wanted).T
    assert np.allclose(found.a, a, rtol=0, atol=20_000)  # of another theory, and of a Kozai mean
    assert np.allclose(found.e, e, rtol=0, atol=2e-3)
    assert np.allclose(found.inc, inc, rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", ["csv", "json", "xml"])
def test_every_format_gives_the_same_orbits(files, kind):
    lines, other = catalogue.read(files["tle"]), catalogue.read(files[kind])
    assert len(lines.a) >= 3
    for one, two in zip(lines, other, strict=True):
        assert np.allclose(one, two, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["csv", "json", "xml"])
def test_what_the_package_does_not_read_and_orbits_do_not_need_loses_no_object(files, kind):
    """Numbers beyond 339,999, epochs of whole seconds, and empty counters."""
    wanted = catalogue.read(files[kind])
    empty = dict.fromkeys(("REV_AT_EPOCH", "ELEMENT_SET_NO", "EPHEMERIS_TYPE"))
    fields = [
        {**one, **empty, "NORAD_CAT_ID": "799500123", "EPOCH": one["EPOCH"].partition(".")[0]}
        for one in FIELDS
    ]
    found = catalogue.read(written(files[kind].parent, fields)[kind])
    for one, two in zip(wanted, found, strict=True):
        assert np.allclose(one, two, rtol=1e-6, atol=1e-9)


def test_a_file_may_begin_with_a_mark_of_its_encoding(tmp_path):
    lines = "\n".join(line for pair in COMPLETE for line in pair)
    for name, encoding in (("plain", "utf-8"), ("marked", "utf-8-sig")):
        (tmp_path / name).write_text(lines, encoding=encoding)
    plain, marked = (catalogue.read(tmp_path / name) for name in ("plain", "marked"))
    assert marked.a.tolist() == plain.a.tolist()


@pytest.mark.parametrize(
    "change",
    [
        lambda t: re.sub("<segment>", "<segment id='1'>", t),
        lambda t: re.sub("<segment>", "<segment\n>", t),
        lambda t: t.replace("<omm>", "<omm><!-- <segment> -->"),
    ],
)
def test_no_segment_of_xml_is_lost(files, change):
    wanted = catalogue.read(files["xml"])
    files["xml"].write_text(change(files["xml"].read_text()))
    assert catalogue.read(files["xml"]).a.tolist() == wanted.a.tolist()


def test_behind_a_comment_the_right_line_is_named(files):
    commented = files["xml"].read_text().replace("<omm>", "<omm><!-- <segment> -->")
    files["xml"].write_text(commented.replace("<BSTAR>", "<BSTAR>x", 1))
    with pytest.raises(ConfigError, match="line 3 can't be read"):
        catalogue.read(files["xml"])


def test_objects_whose_sum_of_digits_is_wrong_are_left_out_and_the_first_is_told(tmp_path):
    """Like those of the verification set, which are wrong on purpose."""
    path, mended = tmp_path / "as_it_is.tle", tmp_path / "mended.tle"
    path.write_text(VERIFICATION)
    told = r"3 of its 33 objects are skipped, because a checksum .*line 100 .*as 4 .*tallies to 2"
    with pytest.warns(UserWarning, match=told):
        found = catalogue.read(path)
    good = [pair for pair in PAIRS if pair[0] in VERIFICATION and pair[1] in VERIFICATION]
    assert len(good) == len(PAIRS) - 3
    mended.write_text("\n".join(line for pair in good for line in pair))
    assert found.a.tolist() == catalogue.read(mended).a.tolist()
    path.write_text("\n".join(f"{line[:68]}{(int(line[68]) + 1) % 10}" for line in COMPLETE[0]))
    with pytest.raises(ConfigError, match=r"line 1 can't be read .*checksum"):
        catalogue.read(path)


def test_times_may_end_in_z_and_lines_may_be_indented(files):
    wanted = catalogue.read(files["tle"])
    lines = files["tle"].read_text().splitlines()
    files["tle"].write_text("\n".join(f"  {line}" for line in lines))
    assert catalogue.read(files["tle"]).a.tolist() == wanted.a.tolist()
    for ending in ("Z", ".0Z"):
        fields = [{**one, "EPOCH": one["EPOCH"].partition(".")[0] + ending} for one in FIELDS]
        found = catalogue.read(written(files["json"].parent, fields)["json"])
        assert np.allclose(found.a, wanted.a, rtol=1e-6)


@pytest.mark.parametrize("missing", [dict.fromkeys, lambda names: {}])
def test_what_the_shape_of_an_orbit_does_not_need_may_be_empty_or_missing(files, missing):
    wanted = catalogue.read(files["json"])
    others = [name for name in FIELDS[0] if name not in (*PARTS["meanElements"],)]
    fields = [
        {name: one[name] for name in PARTS["meanElements"]} | missing(others) for one in FIELDS
    ]
    found = catalogue.read(written_json(files["json"], fields))
    assert np.allclose(found.a, wanted.a, rtol=1e-9)


def written_json(path, fields):
    path.write_text(json.dumps(fields))
    return path


def test_a_table_may_have_spaces_behind_its_commas(files):
    wanted = catalogue.read(files["csv"])
    files["csv"].write_text(files["csv"].read_text().replace(",", ", "))
    assert catalogue.read(files["csv"]).a.tolist() == wanted.a.tolist()


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("tle", lambda t: t.replace("2 00005", "3 00005"), "line 3 must be the second line"),
        ("tle", lambda t: "2" + t[t.index("\n2 ") + 2 :], "line 1 is the second line.*missing"),
        ("tle", lambda t: t[: t.rindex("\n2 ")], "is the first line of an object whose second"),
        ("tle", lambda t: t.replace(" 34.2682", "34.2682", 1), "line 2 .*68 characters"),
        ("csv", lambda t: t.replace(FIELDS[1]["MEAN_MOTION"], "fast"), "line 3 .*fast"),
        ("csv", lambda t: t.replace("EPOCH", "WHEN", 1), "line 2 begins an object without EPOCH"),
        ("csv", lambda t: f"{t}OBJECT,1998-067A\n", r"line \d+ begins an object without EPOCH"),
        ("csv", lambda t: t.replace("OBJECT 1", "OBJECT,1"), "line 3 has more cells than"),
        ("csv", lambda t: t + '"' + "x" * 140_000, r"line \d+ isn't CSV \(field larger"),
        ("json", lambda t: t.replace('"EPOCH"', '"WHEN"', 1), "line 2 begins .*without EPOCH"),
        ("json", lambda t: "[\n1, 2]", "line 2 has 1 where an object of OMM must be"),
        ("json", lambda t: re.sub('N": "(1.*)"', r'N": "-\1"', t), "line .* -1.* must be above 0"),
        ("json", lambda t: re.sub('INCLINATION": .*,', 'INCLINATION": NaN,', t), "inclin.* of nan"),
        ("json", lambda t: t.replace("}", "]", 1), r"line \d+ isn't JSON"),
        ("xml", lambda t: t.replace("</segment>", "", 1), r"line \d+ isn't XML"),
        ("xml", lambda t: t.replace("<BSTAR>", "<BSTAR>x", 1), "line 3 can't be read .*x"),
        ("xml", lambda t: t.replace("<ndm>", "<ndm xmlns='urn:x'>"), "line 3 begins .*namespace"),
        ("xml", lambda t: without(t, "data", 1), "line 6 begins an object that isn't an OMM"),
        ("xml", lambda t: without(t, "metadata", 1), "line 6 begins an object that isn't an OMM"),
    ],
)
def test_a_bad_line_is_named_in_one_sentence(files, kind, change, message):
    files[kind].write_text(change(files[kind].read_text()))
    with pytest.raises(ConfigError, match=message) as error:
        SSAConjunctionVectorEnv(2, catalogue=str(files[kind]))
    assert "\n" not in str(error.value)


def test_files_without_a_usable_object_or_that_are_not_there_are_errors(tmp_path):
    far = tmp_path / "far.tle"
    far.write_text("\n".join(PAIRS[0]))  # 600 to 3,800 km high
    with pytest.raises(
        ConfigError, match=r"near-circular orbit between 400 and 1000 km.*its 1 objects are"
    ):
        catalogue.read(far)
    for text in ("nothing\n", "", "[]", "<a></a>", "EPOCH,MEAN_MOTION\n"):
        far.write_text(text)
        with pytest.raises(ConfigError, match=r"elements of orbits.*XML or JSON; none were found"):
            catalogue.read(far)
    with pytest.raises(ConfigError, match=r"can't be read .*No such file"):
        SSAConjunctionEnv(catalogue=str(tmp_path / "missing"))


@pytest.mark.parametrize("wrong", [5, "", ["objects.tle"], b"objects.tle", "zero\0byte"])
def test_what_is_no_path_is_one_sentence(wrong):
    with pytest.raises(ConfigError, match="catalogue="):
        SSAConjunctionVectorEnv(2, catalogue=wrong)


def test_of_a_path_that_is_not_full_it_is_told_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    where = re.escape(str(tmp_path / "mine.tle"))
    with pytest.raises(ConfigError, match=f"catalogue='mine.tle' .*'{where}'.* absolute path"):
        SSAConjunctionEnv(catalogue="mine.tle")


def test_without_the_package_the_install_line_is_told(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "sgp4", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[catalogue\]'"):
        catalogue.read(files["tle"])


def test_a_file_is_read_once_until_it_is_another(files, monkeypatch):
    first = catalogue.read(files["tle"])
    calls, records = [], catalogue._records
    monkeypatch.setattr(catalogue, "_records", lambda *a: calls.append(a) or records(*a))
    SSAConjunctionVectorEnv(2, catalogue=str(files["tle"]))
    SSAConjunctionEnv(catalogue=str(files["tle"]))
    assert not calls
    text = files["tle"].read_text()
    files["tle"].write_text(text + text)
    assert len(catalogue.read(files["tle"]).a) == 2 * len(first.a)
    assert len(calls) == 1
    with pytest.raises(ValueError, match="read-only"):
        first.a[0] = 0.0


def test_what_sgp4_cannot_compute_is_left_out_with_a_word(files):
    with pytest.warns(UserWarning, match=rf"1 of its {len(COMPLETE)} objects are skipped"):
        catalogue.read(files["tle"])


# -- games -----------------------------------------------------------------------------------


def test_games_are_drawn_from_the_file_and_single_ones_are_the_same(files):
    path = str(files["tle"])
    games = SSAConjunctionVectorEnv(3, n_objects=5, horizon=100, catalogue=path)
    obs, _ = games.reset(seed=4)
    found = catalogue.read(path)
    inclinations = games.scene.elements.inc[:, 1:, None]
    assert np.abs(inclinations - found.inc).min(axis=-1).max() < 2e-3
    assert (np.abs(np.linalg.norm(games.scene.miss, axis=-1)) < 2_100.0).all()
    single = SSAConjunctionEnv(n_objects=5, horizon=100, catalogue=path)
    assert np.allclose(single.reset(seed=5)[0], obs[1], rtol=0, atol=1e-6)
    for _ in range(101):
        obs, *_ = games.step(np.ones(3, int))
    assert games.single_observation_space.contains(obs[0])
    other = SSAConjunctionVectorEnv(3, n_objects=5, horizon=100).reset(seed=4)[0]
    assert not np.allclose(other, obs, atol=1e-3)


def test_with_a_catalogue_an_episode_is_longer_than_a_revolution(files):
    with pytest.raises(ConfigError, match=r"horizon=99 must be at least 100 \(nearest: 100\)"):
        SSAConjunctionVectorEnv(2, horizon=99, catalogue=str(files["tle"]))
