from __future__ import annotations

import copy
import inspect
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tries import examples

from headrace.errors import ConfigError
from headrace.nn import recurrent as module
from headrace.nn.recurrent import CORES, Recurrent, orthogonal_gates, segments

NUM_INPUTS, SIZE = 3, 5
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-10}

PATTERNS = {
    "no reset": [],
    "row 0": [(0, 0), (0, 2)],
    "last row": [(6, 1)],
    "row 0 and within": [(0, 0), (3, 0), (5, 2)],
    "consecutive rows": [(2, 1), (3, 1), (4, 1)],
    "every row of a column": [(t, 1) for t in range(7)],
    "every row": [(t, b) for t in range(7) for b in range(3)],
}


def pattern(name, num_rows=7, num_columns=3):
    first = torch.zeros(num_rows, num_columns, dtype=torch.bool)
    for row, column in PATTERNS[name]:
        first[row, column] = True
    return first


def make(kind, first, dtype=torch.float64, seed=0, cls=Recurrent):
    """Return a core with random weights, inputs, a state, and weights for the sum of outputs."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    core = cls(kind, NUM_INPUTS, SIZE).to(dtype)
    for parameter in core.parameters():
        parameter.data = 0.5 * random(*parameter.shape)
    num_rows, num_columns = first.shape
    x = random(num_rows, num_columns, NUM_INPUTS).requires_grad_()
    state = {k: random(num_columns, SIZE).requires_grad_() for k in core.initial(1)}
    return core, x, state


def by_formula(core, x, first, state):
    """Compute the gates one after the other as in the documentation of torch.nn.LSTM and GRU."""
    w_ih, w_hh, b_ih, b_hh = core.rnn.parameters()
    h, c, ys = state["h"], state.get("c"), []
    for x_t, first_t in zip(x, first, strict=True):
        h = torch.stack([0 * row if f else row for f, row in zip(first_t, h, strict=True)])
        xs = (x_t @ w_ih.T + b_ih).split(SIZE, 1)
        hs = (h @ w_hh.T + b_hh).split(SIZE, 1)
        if core.kind == "lstm":
            c = torch.where(first_t[:, None], torch.zeros_like(c), c)
            i, f = torch.sigmoid(xs[0] + hs[0]), torch.sigmoid(xs[1] + hs[1])
            g, o = torch.tanh(xs[2] + hs[2]), torch.sigmoid(xs[3] + hs[3])
            c = f * c + i * g
            h = o * torch.tanh(c)
        else:
            r, z = torch.sigmoid(xs[0] + hs[0]), torch.sigmoid(xs[1] + hs[1])
            h = (1 - z) * torch.tanh(xs[2] + r * hs[2]) + z * h
        ys.append(h)
    return torch.stack(ys), {"h": h} if core.kind == "gru" else {"h": h, "c": c}


def by_steps(core, x, first, state):
    ys = []
    for x_t, first_t in zip(x, first, strict=True):
        y, state = core.step(x_t, first_t, state)
        ys.append(y)
    return torch.stack(ys), state


def by_packing(core, x, first, state):
    """Run ``forward`` as on an accelerator."""
    return core._packed(x, first, core._begin(first[0], state))


def forward(core, x, first, state):
    return core(x, first, state)


WAYS = {"steps": by_steps, "forward": forward, "packed": by_packing}


def results(way, core, x, first, state):
    """Return outputs, last state, and the gradients of a weighted sum of both."""
    y, last = way(core, x, first, state)
    values = [y, *last.values()]
    generator = torch.Generator().manual_seed(99)
    loss = sum((v * torch.randn(v.shape, generator=generator, dtype=v.dtype)).sum() for v in values)
    sources = [x, *state.values(), *core.parameters()]
    return values + list(torch.autograd.grad(loss, sources))


def assert_same(got, want, tolerance):
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        scale = max(1.0, float(w.detach().abs().max())) if w.numel() else 1.0
        torch.testing.assert_close(g, w, rtol=0, atol=tolerance * scale)


def check(way, kind, first, dtype=torch.float64, seed=0, cls=Recurrent):
    core, x, state = make(kind, first, dtype, seed, cls)
    want = results(by_formula, core, x, first, state)
    assert_same(results(way, core, x, first, state), want, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "float64"])
@pytest.mark.parametrize("kind", CORES)
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("way", WAYS)
def test_outputs_state_and_all_gradients_equal_the_formulas(way, name, kind, dtype):
    check(WAYS[way], kind, pattern(name), dtype)


@pytest.mark.parametrize("kind", CORES)
@examples(60)
@given(data=st.data())
def test_any_resets_in_any_shape_give_what_the_formulas_give(kind, data):
    num_rows = data.draw(st.integers(1, 9))
    num_columns = data.draw(st.integers(1, 5))
    bits = data.draw(st.lists(st.booleans(), min_size=num_rows * num_columns, max_size=45))
    first = torch.tensor(bits[: num_rows * num_columns]).view(num_rows, num_columns)
    for way in WAYS.values():
        check(way, kind, first, seed=data.draw(st.integers(0, 9)))


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.1])
def test_an_lstm_of_a_long_fragment_takes_one_fused_call_of_a_row_more_for_each_reset(
    rate, monkeypatch
):
    torch.manual_seed(0)
    first = torch.rand(200, 4) < rate
    core, x, state = make("lstm", first, torch.float32)
    calls, lstm = [], module.torch.lstm
    monkeypatch.setattr(module.torch, "lstm", lambda *a: calls.append(len(a[0])) or lstm(*a))
    core(x, first, state)
    assert calls in ([], [200 + int(first[1:].sum(0).max())])  # without resets it is nn.LSTM's own


@examples(100)
@given(data=st.data())
def test_segments_are_whole_runs_between_resets_and_packed_longest_first(data):
    num_rows, num_columns = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 5))
    bits = data.draw(st.lists(st.booleans(), min_size=num_rows * num_columns, max_size=45))
    first = torch.tensor(bits[: num_rows * num_columns]).view(num_rows, num_columns)
    batch_sizes, place, order, initial, final = segments(first)
    runs = []
    for b in range(num_columns):
        for t in range(num_rows):
            if t == 0 or first[t, b]:
                runs.append([])
            runs[-1].append(t * num_columns + b)
    lengths = sorted(map(len, runs), reverse=True)
    assert batch_sizes.tolist() == [sum(n > t for n in lengths) for t in range(lengths[0])]
    assert torch.equal(order[place], torch.arange(first.numel()))
    packed = torch.nn.utils.rnn.PackedSequence(order, batch_sizes)
    rows, sizes = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    unpacked = [row[:n].tolist() for row, n in zip(rows, sizes, strict=True)]
    assert sorted(unpacked) == sorted(runs)
    assert [unpacked[s][0] for s in initial] == list(range(num_columns))
    last = (num_rows - 1) * num_columns
    assert [unpacked[s][-1] for s in final] == [last + b for b in range(num_columns)]


@pytest.mark.parametrize("kind", CORES)
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("way", WAYS)
def test_two_fragments_with_the_carried_state_equal_one_of_twice_the_length(way, name, kind):
    first = torch.cat((pattern(name), pattern(name).flip(1)))
    core, x, state = make(kind, first)

    def in_halves(core, x, first, state):
        y1, middle = WAYS[way](core, x[:7], first[:7], state)
        y2, last = WAYS[way](core, x[7:], first[7:], middle)
        return torch.cat((y1, y2)), last

    whole = results(WAYS[way], core, x, first, state)
    assert_same(results(in_halves, core, x, first, state), whole, 1e-12)


@pytest.mark.parametrize("kind", CORES)
@pytest.mark.parametrize("way", WAYS)
def test_permuting_columns_permutes_outputs_and_state(way, kind):
    first = pattern("row 0 and within")
    core, x, state = make(kind, first)
    index = torch.tensor([2, 0, 1])
    y, last = WAYS[way](core, x, first, state)
    moved = {name: part[index] for name, part in state.items()}
    y_moved, last_moved = WAYS[way](core, x[:, index], first[:, index], moved)
    assert_same(
        [y_moved, *last_moved.values()], [y[:, index], *(p[index] for p in last.values())], 1e-12
    )


@pytest.mark.parametrize("kind", CORES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row", [0, 3, 6])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "float64"])
def test_what_came_before_a_reset_has_exactly_no_influence_after_it(dtype, way, row, kind):
    first = torch.zeros(7, 2, dtype=torch.bool)
    first[row, 0] = True
    core, x, state = make(kind, first, dtype)
    y, last = WAYS[way](core, x, first, state)
    after = y[row:, 0].square().sum() + sum(part[0].square().sum() for part in last.values())
    gradients = torch.autograd.grad(after, [*state.values(), x])
    assert all(bool((g[0] == 0).all()) for g in gradients[:-1])
    assert (gradients[-1][:row] == 0).all()
    assert gradients[-1][row:, 0].abs().sum() > 0
    poisoned = {name: part.detach().clone() for name, part in state.items()}
    for part in poisoned.values():
        part[0] = torch.nan
    spoiled = x.detach().clone()
    spoiled[:row, 0] = torch.inf
    again, last_again = WAYS[way](core, spoiled, first, poisoned)
    sound = [y[row:, 0], y[:, 1], *last.values()]  # in other calls, which round differently
    assert_same([again[row:, 0], again[:, 1], *last_again.values()], sound, TOLERANCE[dtype])
    finite = x.detach().clone()
    finite[:row, 0] = 1e3
    y_finite, last_finite = WAYS[way](core, finite, first, state)
    assert torch.equal(y_finite[row:, 0], y[row:, 0])
    assert all(torch.equal(last_finite[name][0], last[name][0]) for name in last)


@pytest.mark.parametrize("kind", CORES)
def test_the_backward_passes_equal_finite_differences(kind):
    first = pattern("row 0 and within")
    core, x, state = make(kind, first)

    def function(x, *parts):
        y, last = core(x, first, dict(zip(state, parts, strict=True)))
        return (y, *last.values())

    assert torch.autograd.gradcheck(function, (x, *state.values()))


@pytest.mark.parametrize("kind", CORES)
def test_inputs_are_left_alone_and_parts_without_gradient_are_allowed(kind):
    first = pattern("row 0 and within")
    core, x, state = make(kind, first)
    x, state = x.detach(), {name: part.detach() for name, part in state.items()}
    before = copy.deepcopy((x, first, state))
    y, _ = core(x, first, state)
    gradients = torch.autograd.grad(y.sum(), list(core.parameters()))
    core.step(x[0], first[0], state)
    assert torch.equal(x, before[0])
    assert torch.equal(first, before[1])
    assert all(torch.equal(state[name], before[2][name]) for name in state)
    with torch.no_grad():
        assert torch.equal(core(x, first, state)[0], y)
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("kind", CORES)
def test_step_under_inference_mode_equals_forward_with_gradients(kind):
    first = pattern("row 0 and within")
    core, x, state = make(kind, first, torch.float32)
    with torch.inference_mode():
        y, _ = by_steps(core, x, first, {name: part.detach() for name, part in state.items()})
    torch.testing.assert_close(y, core(x, first, state)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", CORES)
def test_threads_that_share_a_core_get_what_one_thread_gets(kind):
    cases = []
    core, _, _ = make(kind, pattern("no reset"))
    for seed, name in enumerate(list(PATTERNS) * 6):
        _, x, state = make(kind, pattern(name), seed=seed)
        cases.append((forward, core, x, pattern(name), state))
    want = [results(*case) for case in cases]
    # As in the learner: one thread of torch for each of the pool.
    with ThreadPoolExecutor(4, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        got = list(pool.map(lambda case: results(*case), cases))
    for g, w in zip(got, want, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(g, w, strict=True))


@pytest.mark.parametrize("kind", CORES)
def test_the_initial_state_is_zeros_of_the_parameters_dtype(kind):
    core = Recurrent(kind, NUM_INPUTS, SIZE).double()
    state = core.initial(4)
    assert list(state) == (["h", "c"] if kind == "lstm" else ["h"])
    assert all(part.shape == (4, SIZE) and not part.any() for part in state.values())
    assert all(part.dtype == torch.float64 for part in state.values())


@pytest.mark.parametrize(("kind", "num_gates"), [("lstm", 4), ("gru", 3)])
def test_every_gate_starts_orthogonal_and_only_forget_gates_with_a_bias(kind, num_gates):
    rnn = Recurrent(kind, 9, 6).double().rnn
    orthogonal_gates(rnn)
    for gate in rnn.weight_hh_l0.split(6):
        torch.testing.assert_close(gate @ gate.T, torch.eye(6).double())
    for gate in rnn.weight_ih_l0.split(6):
        torch.testing.assert_close(gate @ gate.T, torch.eye(6).double())
    assert not rnn.bias_hh_l0.any()
    ones = [0.0] * 6 + [1.0] * 6 + [0.0] * 12 if kind == "lstm" else [0.0] * 18
    assert rnn.bias_ih_l0.tolist() == ones
    count = sum(p.numel() for p in rnn.parameters())
    assert count == num_gates * 6 * (9 + 6) + 2 * num_gates * 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("LSTM", 3, 5), ["'LSTM'", "lstm, gru", "Did you mean 'lstm'"]),
        (("rnn", 3, 5), ["'rnn'", "lstm, gru"]),
        (("gru", 3, 0), ["size=0", "gru", "at least 1"]),
        (("gru", -1, 5), ["num_inputs=-1", "at least 1"]),
    ],
)
def test_wrong_settings_are_named(arguments, words):
    with pytest.raises(ConfigError) as raised:
        Recurrent(*arguments)
    assert all(word in str(raised.value) for word in words)


# The way that must go wrong, the text that is replaced in the module, and by what.
MUTANTS = [
    ("forward", "lstm", "if not first_cpu[1:].any()", "if not first_cpu[2:].any()"),
    ("forward", "lstm", "[[-1.0, -1.0], [-1.0, 1.0]", "[[0.0, -1.0], [-1.0, 1.0]"),
    ("forward", "lstm", "[[-1.0, -1.0], [-1.0, 1.0]", "[[-1.0, 0.0], [-1.0, 1.0]"),
    ("forward", "lstm", "[[-1.0, -1.0], [-1.0, 1.0]", "[[-1.0, -1.0], [0.0, 1.0]"),
    ("forward", "lstm", "[[-1.0, -1.0], [-1.0, 1.0]", "[[-1.0, -1.0], [-1.0, 0.0]"),
    ("forward", "lstm", "rows[:, num_inputs + 1] = 1.0", "pass"),
    ("forward", "lstm", "place[resets] - num_columns", "place[resets]"),
    ("forward", "lstm", " + before * num_columns", ""),
    (
        "forward",
        "lstm",
        "part.unsqueeze(0) for part in begin)",
        "0 * part[None] for part in begin)",
    ),
    ("forward", "lstm", '"c": c[0]}', '"c": begin[1]}'),
    ("forward", "lstm", "begin = self._begin(first[0]", "begin = self._begin(first[1]"),
    ("forward", "gru", "h_before = hs[t].masked_fill(begins[t], 0.0)", "h_before = hs[t]"),
    ("forward", "gru", "h_before = hs[:-1].masked_fill(begins, 0.0)", "h_before = hs[:-1]"),
    (
        "forward",
        "gru",
        "w_hh).masked_fill_(begins[t], 0.0)\n        grad =",
        "w_hh)\n        grad =",
    ),
    ("forward", "gru", "slope[:, :, 2] = slope_n", "pass"),
    ("forward", "gru", "torch.lerp(n, h_before, z", "torch.lerp(h_before, n, z"),
    ("forward", "gru", "if not first_cpu[1:].any()", "if not first_cpu[2:].any()"),
    ("packed", "lstm", "descending=True", "descending=False"),
    ("packed", "lstm", "begins[0] = True", "pass"),
    ("packed", "lstm", "rank[0], rank[-1]", "rank[0], rank[0]"),
    ("packed", "gru", "zeros.index_copy(0, initial, part)", "zeros"),
    ("packed", "gru", "y.data[place]", "y.data[order]"),
    ("packed", "gru", "masked_fill(first.unsqueeze(1), 0.0)", "clone()"),
    ("steps", "lstm", 'state["c"].masked_fill(begins, 0.0)', 'state["c"]'),
    ("steps", "gru", 'state["h"].masked_fill(begins, 0.0)', 'state["h"]'),
]


@pytest.mark.parametrize(("way", "kind", "old", "new"), MUTANTS)
def test_a_broken_copy_is_rejected(way, kind, old, new):
    source = inspect.getsource(module)
    assert old in source
    broken = {"__name__": "broken"}
    exec(compile(source.replace(old, new), "broken.py", "exec"), broken)
    firsts = [pattern(name) for name in PATTERNS]
    firsts.append(torch.tensor([[False, False], [True, False]]))
    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        for first in firsts:
            check(WAYS[way], kind, first, cls=broken["Recurrent"])
