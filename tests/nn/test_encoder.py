from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple
from gymnasium.vector.utils import batch_space

import headrace as hr
from headrace.errors import ConfigError, EnvironmentFault
from headrace.nn.convolutions import CONVOLUTIONS, ImageTorso
from headrace.nn.predict import inputs_of
from headrace.ops import tree
from headrace.spaces import observations as spaces
from headrace.spaces.images import channels_first
from headrace.spaces.json import space_from_json, space_to_json

IMAGE = Box(0, 255, (84, 84, 4), np.uint8)
SPACES = {
    "vector": Box(-1, 1, (3,), np.float32),
    "float64": Box(-np.inf, np.inf, (3,), np.float64),
    "scalar": Box(-1, 1, (), np.float32),
    "matrix": Box(-1, 1, (2, 3), np.float32),
    "rank 3": Box(-1, 1, (2, 3, 4), np.float32),
    "rank 4": Box(-1, 1, (2, 2, 3, 4), np.float32),
    "integers": Box(-5, 5, (4,), np.int16),
    "ram": Box(0, 255, (128,), np.uint8),
    "uint16": Box(0, 60000, (3,), np.uint16),
    "bool": Box(0, 1, (3,), np.bool_),
    "discrete": Discrete(5, start=-2),
    "multi-discrete": MultiDiscrete([3, 4]),
    "multi-discrete 2d": MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "multi-binary": MultiBinary(6),
    "multi-binary 2d": MultiBinary([2, 3]),
    "image": IMAGE,
    "image, channels first": Box(0, 255, (4, 84, 84), np.uint8),
    "image without channels": Box(0, 255, (42, 40), np.uint8),
    "small image": Box(0, 255, (7, 7, 3), np.uint8),
    "stacked images": Box(0, 255, (4, 40, 40, 3), np.uint8),
    "nested": Dict(
        {
            "b": Tuple([Discrete(3), MultiBinary(2), Dict({"x": Box(0, 1, (2, 2), np.float32)})]),
            "a": Box(0, 255, (10, 12, 3), np.uint8),
        }
    ),
    "tuple": Tuple([Box(-1, 1, (2,), np.float64), Discrete(4)]),
}


def policy_for(space, network=None, action=None, **kwargs) -> hr.Policy:
    torch.manual_seed(0)
    return hr.Policy(space, action or Discrete(3), network, **kwargs)


def observations(space: gymnasium.Space, num: int):
    batched = batch_space(space, num)
    batched.seed(1)
    return batched.sample()


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
@pytest.mark.parametrize("core", [None, "gru"])
def test_every_observation_space_acts_learns_and_predicts(space, core):
    policy = policy_for(space, hr.Network((16,), core=core, core_size=8))
    obs = observations(space, 6)
    rows = tree.map_leaves(lambda x: torch.as_tensor(x).unflatten(0, (3, 2)), obs)
    first = torch.zeros(3, 2, dtype=torch.bool)
    params, value, _ = policy(rows, first, policy.initial_core(2))
    assert params.shape == (3, 2, 3)
    assert value.shape == (3, 2)
    (params.square().sum() + value.square().sum()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in policy.parameters())
    action, state = policy.predict(obs)
    assert action.shape == (6,)
    single, _ = policy.predict(tree.map_leaves(lambda x: x[0], obs))
    assert single == action[0]
    policy.predict(obs, state)


def test_predict_reads_the_same_pixels_alike_in_any_integer_type():
    policy = policy_for(IMAGE)
    obs = observations(IMAGE, 3)
    params = [
        policy.act(inputs_of(policy, x, None, np.ones(3, bool), None, None)[0], None, ())[0]
        for x in (obs, obs.astype(np.int64))
    ]
    assert torch.equal(*params)
    with pytest.raises(ConfigError, match="give whole numbers"):
        policy.predict(obs / 255.0)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_every_space_survives_json(space):
    import json

    again = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert again == space
    assert [path for path, _ in spaces.leaves(again)] == [path for path, _ in spaces.leaves(space)]


def test_a_uint8_image_passes_convolutions_and_never_the_perceptron():
    policy = policy_for(IMAGE)
    assert policy.torso.mlp is None
    assert [m for m in policy.modules() if isinstance(m, torch.nn.Conv2d)]
    assert policy.value_torso is None


@pytest.mark.parametrize("first", [False, True])
def test_channels_are_found_at_either_end(first):
    picture = torch.randint(0, 256, (2, 5, 6, 3), dtype=torch.uint8)
    given = picture.permute(0, 3, 1, 2) if first else picture
    space = Box(0, 255, tuple(given.shape[1:]), np.uint8)
    assert torch.equal(channels_first(space, "auto")(given), picture.permute(0, 3, 1, 2))


def test_frames_stacked_in_front_of_pictures_become_channels_frame_by_frame():
    picture = torch.randint(0, 256, (2, 4, 9, 8, 3), dtype=torch.uint8)
    space = Box(0, 255, (4, 9, 8, 3), np.uint8)
    x = channels_first(space, "auto")(picture)
    assert x.shape == (2, 12, 9, 8)
    assert torch.equal(x[:, 3 * 2 + 1], picture[:, 2, :, :, 1])


@pytest.mark.parametrize(
    ("conv", "layout"),
    [
        *((conv, "channels_first") for conv in CONVOLUTIONS),
        ("nature", "channels_last"),
        *(
            pytest.param(conv, "channels_last", marks=pytest.mark.full)
            for conv in CONVOLUTIONS
            if conv != "nature"
        ),
    ],
)
def test_convolutions_are_given_bytes_as_fractions_and_fractions_as_they_are(conv, layout):
    side = 42
    shape = (4, side, side) if layout == "channels_first" else (side, side, 4)
    picture = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    plain = ImageTorso(conv, 4, side, side)
    for dtype, given in ((np.uint8, picture), (np.float32, picture / 255)):
        space = Box(0, 255 if dtype == np.uint8 else 1, shape, dtype)
        torso = policy_for(space, hr.Network(conv=conv)).torso
        plain.load_state_dict(torso.parts[0].convolutions.state_dict())
        first = picture if layout == "channels_first" else picture.movedim(-1, 1)
        with torch.no_grad():
            torch.testing.assert_close(torso(given), plain(first / 255), rtol=1e-4, atol=1e-3)


def test_bytes_become_fractions_in_rows_of_numbers_too():
    space = Box(0, 255, (2,), np.uint8)
    x = spaces.values(space, torch.tensor([[0, 255], [51, 102]], dtype=torch.uint8), torch.float32)
    torch.testing.assert_close(x, torch.tensor([[0.0, 1.0], [0.2, 0.4]]))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_are_normalised_by_the_pixels_of_some_of_them(last, dtype):
    shape = (20, 21, 3) if last else (3, 20, 21)
    space = Dict({"map": Box(0, 2, (20, 20), np.uint8), "seen": Box(0, 255, shape, dtype)})
    shown = hr.Network((8,), conv="impala_shallow", one_hot=("map",), normalize_images=True)
    policy = policy_for(space, shown)
    torch.manual_seed(0)
    seen = torch.randint(0, 256, (16, 6, *shape)).to(torch.uint8)
    seen = seen if dtype == np.uint8 else seen.float()
    (found,) = policy.moments({"map": torch.zeros(16, 6, 20, 20, dtype=torch.uint8), "seen": seen})
    assert found.count == 32  # of 96
    rows = seen.flatten(0, 1)[torch.linspace(0, 95, 32).long()].double()
    rows = rows.movedim(-1, 1) if last else rows
    torch.testing.assert_close(found.mean, rows.mean(0).flatten())
    policy.take([found])
    (part,) = (x for x in policy.torso.parts if x.normalizer is not None)
    given = []
    part.convolutions.register_forward_pre_hook(lambda module, args: given.append(args[0]))
    part(seen[0])
    expected = seen[0].movedim(-1, 1) if last else seen[0]
    away, of_rows = expected - rows.mean(0), rows - rows.mean(0)
    torch.testing.assert_close(given[0], (away / of_rows.square().mean().sqrt()).float())
    scales = [x.convolutions.layers[0].scale for x in policy.torso.parts]
    assert scales == [1.0, 1.0]  # neither these nor symbols are fractions of 255


@pytest.mark.parametrize("columns", [1, 2, 8, 32, 64])
def test_the_images_whose_statistics_are_taken_are_of_all_columns(columns):
    policy = policy_for(Box(0, 255, (3, 20, 20), np.uint8), hr.Network(normalize_images=True))
    seen = torch.zeros(64, columns, 3, 20, 20, dtype=torch.uint8)
    seen[:] = torch.arange(columns).view(-1, 1, 1, 1)
    (found,) = policy.moments(seen)
    assert found.count == 32
    variety = torch.arange(columns).double().var(unbiased=False)
    assert 0.8 * variety <= found.variance[0] <= 1.2 * variety


def test_discrete_observations_are_one_hot_from_their_start():
    x = torch.tensor([[-1, 2], [1, 3]])
    space = MultiDiscrete([3, 2], start=[-1, 2])
    assert spaces.encode(space, x).tolist() == [[1, 0, 0, 1, 0], [0, 0, 1, 0, 1]]
    assert spaces.encode(Discrete(3, start=4), torch.tensor([4, 6])).tolist() == [
        [1, 0, 0],
        [0, 0, 1],
    ]


def test_normalisation_touches_the_numbers_of_boxes_only():
    space = Dict({"d": Discrete(2), "x": Box(-1, 1, (1,), np.float32)})
    policy = policy_for(space, hr.Network((8,), normalize_observations=True))
    rows = {"d": torch.ones(1, 50, dtype=torch.int64), "x": 100 + torch.randn(1, 50, 1)}
    policy.take(policy.moments(rows))
    assert policy.torso.normalizer.mean.shape == (1,)
    torch.testing.assert_close(policy.torso.normalizer.mean, rows["x"].double().mean().view(1))
    vector = policy.torso.numbers(tree.map_leaves(lambda x: x[0], rows))
    torch.testing.assert_close(vector[:, 0].mean(), torch.tensor(0.0), atol=1e-4, rtol=0)
    assert torch.equal(vector[:, 1:], torch.tensor([[0.0, 1.0]]).expand(50, 2))


def test_a_text_is_read_by_an_lstm_and_its_padding_is_ignored():
    space = Dict({"instruction": MultiDiscrete([10] * 5), "x": Box(-1, 1, (2,), np.float32)})
    policy = policy_for(space, hr.Network((8,), text=("instruction",)))
    base = {"instruction": np.array([3, 4, 0, 0, 0]), "x": np.zeros(2, np.float32)}
    obs = tree.map_leaves(lambda x: torch.as_tensor(x)[None], base)
    other = {**obs, "instruction": torch.tensor([[4, 3, 0, 0, 0]])}
    assert not torch.equal(policy.torso(obs), policy.torso(other))
    assert policy.torso.mlp[0].in_features == 2


def test_a_string_is_read_as_the_words_that_it_has_without_being_named():
    space = Dict({"task": Text(20), "x": Box(-1, 1, (2,), np.float32)})
    policy = policy_for(space, hr.Network((8,), vocabulary=("go", "left", "right"), max_words=3))
    with torch.no_grad():
        policy.policy_head.weight.mul_(100.0)

    def params(*texts):
        obs = {"task": texts, "x": np.zeros((len(texts), 2), np.float32)}
        inputs, _ = inputs_of(policy, obs, None, np.ones(len(texts), bool), None, None)
        assert inputs["task"].dtype == torch.int32
        return policy.act(inputs, None, ())[0]

    alike = params("go left", "Go  LEFT")
    assert torch.equal(alike[0], alike[1])
    apart = params("go left", "left go", "go", "")
    assert len({tuple(row.tolist()) for row in apart}) == 4
    with pytest.warns(UserWarning, match="max_words=3"):
        cut = params("go left up and on", "go left down")  # up and down are unknown words
    assert torch.equal(cut[0], cut[1])


def test_predict_reads_one_text_or_several_and_names_what_is_none():
    space = Dict({"task": Text(20), "x": Box(-1, 1, (2,), np.float32)})
    policy = policy_for(space, hr.Network((8,), core="lstm", core_size=4))
    x = np.zeros(2, np.float32)
    single, state = policy.predict({"task": "go left", "x": x})
    both, _ = policy.predict({"task": ["go left", "go"], "x": np.stack([x, x])})
    assert single == both[0]
    policy.predict({"task": "go", "x": x}, state)
    for wrong in (3, None, ["go", 3]):
        with pytest.raises(ConfigError, match="has no text at 'task', which must be a str"):
            policy.predict({"task": wrong, "x": x})
    with pytest.raises(ConfigError, match="has no text at 'task'"):
        policy.predict({"x": x})


def test_a_space_that_is_a_text_alone_acts():
    policy = policy_for(Text(10), hr.Network((8,)))
    assert policy.predict("hello")[0] in range(3)
    assert policy.predict(("hello", "you"))[0].shape == (2,)


def test_a_grid_is_one_hot_where_it_is_asked_for_and_a_strange_symbol_is_named():
    grid = Box(0, 255, (7, 7, 3), np.uint8)
    policy = policy_for(grid, hr.Network(one_hot=("obs",), num_symbols=11))
    assert policy.torso.parts[0].convolutions.layers[0].in_channels == 33
    obs = np.random.default_rng(0).integers(0, 11, (4, 7, 7, 3)).astype(np.uint8)
    assert policy.predict(obs)[0].shape == (4,)
    obs[1, 2, 3, 0] = 11
    with pytest.raises(
        EnvironmentFault, match=r"one_hot='obs' holds 11, .* 0 to 10: give another num_s"
    ):
        policy.predict(obs)
    assert policy_for(grid).torso.parts[0].convolutions.layers[0].in_channels == 3


@pytest.mark.parametrize(
    ("height", "width", "conv"),
    [
        (36, 40, "nature"), (35, 40, "small"), (15, 16, "small"), (15, 9, "minatar"),
        (3, 3, "minatar"), (2, 9, "small"), (1, 1, "small"),
    ],
)  # fmt: skip
def test_default_convolutions_are_small_for_small_images(height, width, conv):
    space = Box(0, 255, (3, height, width), np.uint8)
    layout = "channels_first"
    kinds = [hr.Network(conv=name, image_layout=layout) for name in ("auto", conv)]
    torsos = [policy_for(space, kind).torso for kind in kinds]
    assert str(torsos[0]) == str(torsos[1])


def test_bytes_are_divided_by_their_largest_value():
    dim, bright = (policy_for(Box(0, n, (2, 9, 9), np.uint8)).torso for n in (1, 255))
    bright.load_state_dict(dim.state_dict())
    x = torch.randint(0, 2, (4, 2, 9, 9), dtype=torch.uint8)
    torch.testing.assert_close(dim(x), bright(255 * x))


def test_clipped_symbols_count_as_the_nearest_one():
    network = hr.Network(one_hot=("obs",), num_symbols=5, clip_symbols=True)
    torso = policy_for(Box(0, 255, (7, 7, 3), np.uint8), network).torso
    x = torch.randint(0, 256, (4, 7, 7, 3), dtype=torch.uint8)
    torso.check(x)
    torch.testing.assert_close(torso(x), torso(x.clamp(max=4)))


def test_none_as_a_name_is_no_grid_at_all():
    assert hr.Network(one_hot=("none",)).one_hot == ()


def test_symbols_are_looked_at_where_that_does_not_wait_for_an_accelerator():
    torso = policy_for(Box(0, 9, (7, 7, 1), np.uint8), hr.Network(one_hot=("obs",))).torso
    wrong = torch.full((2, 7, 7, 1), 99, dtype=torch.uint8)
    with pytest.raises(EnvironmentFault):
        torso(wrong)
    torso.to("meta")(wrong.to("meta"))  # of which no number can be read


@pytest.mark.parametrize(
    ("space", "network", "wrong", "kind"),
    [
        (Box(0, 9, (7, 7, 1), np.uint8), {"one_hot": ("obs",)}, (7, 7, 1), EnvironmentFault),
        (Box(0, 9, (7, 7, 1), np.uint16), {"one_hot": ("obs",)}, (7, 7, 1), EnvironmentFault),
        (MultiDiscrete([9] * 4), {"text": ("obs",)}, (4,), IndexError),
        (Box(0, 9, (4,), np.uint32), {"text": ("obs",)}, (4,), IndexError),
        (Discrete(9), {}, (), RuntimeError),
    ],
    ids=["symbols", "uint16 symbols", "tokens", "uint32 tokens", "choices"],
)
def test_a_torso_elsewhere_can_be_asked_what_it_could_not_read(space, network, wrong, kind):
    policy = policy_for(space, hr.Network(**network))
    torso = policy.torso.to("meta")
    torso.check(policy.inputs.example(3))
    with pytest.raises(kind):
        torso.check(torch.full((3, *wrong), 99, dtype=policy.inputs.example(1).dtype))


@pytest.mark.parametrize(
    ("space", "network", "words"),
    [
        (
            Dict({"a": Tuple([Discrete(2), Sequence(Discrete(5))])}),
            {},
            r"at 'a'/1 Sequence.*isn't supported: use Box",
        ),
        (Box(0, 255, (20, 20, 3), np.uint8), {"conv": "nature"}, r"nature.*20"),
        (SPACES["nested"], {"conv": "impact"}, r"at 'a'.*impact"),
        (SPACES["nested"], {"text": ("c",)}, r"text='c' is not in the observation space"),
        (SPACES["nested"], {"text": ("a",)}, r"text='a' is Box.*not a row of tokens"),
        (SPACES["nested"], {"one_hot": ("c",)}, r"one_hot='c' is not in the observation space"),
        (SPACES["nested"], {"one_hot": ("b.0",)}, r"one_hot='b.0' is Discrete.*not a grid"),
        (Dict({"a": Box(0, 255, (10, 9, 14), np.uint8)}), {}, r"at 'a': the shape \(10, 9, 14\)"),
        (Dict({}), {}, "is empty"),
    ],
)
def test_what_is_not_supported_is_said_with_its_path_and_what_would_work(space, network, words):
    with pytest.raises(ConfigError, match=words):
        policy_for(space, hr.Network(**network))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"core": "lstm", "shared": False}, "shared=False is for feed-forward networks"),
        ({"core": "rnn"}, "core='rnn' must be 'lstm' or 'gru'"),
        ({"conv": "nurture"}, "nearest: 'nature'"),
        ({"core_size": 0}, "core_size=0 must be 1 or more"),
        ({"vocabulary": ("red door",)}, "vocabulary has 'red door', which isn't one word"),
        ({"max_words": 0}, "max_words=0 must be 1 or more"),
        ({"torso": "x:y", "normalize_observations": True}, "is for the built-in torsos"),
    ],
)
def test_a_wrong_network_is_one_clear_sentence(settings, words):
    with pytest.raises(ConfigError, match=words):
        hr.Network(**settings)
