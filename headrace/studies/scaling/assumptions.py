"""Lists the assumptions of a scaling model's extrapolation."""

from __future__ import annotations

import math

from headrace.studies.scaling.model import Cost, Link, Model


def assumptions(model: Model, num_cores: int) -> list[str]:
    """Return the assumptions of the extrapolation as sentences with the fitted numbers."""
    (a, b), (c, d) = model.rollout, model.learn
    link, counts = model.link, {n: model.messages.count(n) for n in model.messages}
    messages = " and ".join(f"{count} of {n:,} bytes" for n, count in counts.items())
    network = "the network is this machine's loopback"
    if link != Link():
        network = f"a network adds {link.latency_s * 1e6:g} µs to each message"
        if math.isfinite(link.bytes_per_s):
            network += f" and carries at most {link.bytes_per_s * 8e-9:g} Gbit/s"
    return [
        "t_iter = t_rollout + t_learn + t_comm + t_sync"
        f" + {_ms(model.other_s)} that belongs to no part.",
        f"t_rollout = {_ms(a)} + {_ms(b)} / W; t_learn = {_ms(c)} + {_ms(d)} / W.",
        f"t_comm = {_ms(model.own_comm_s)} of local work of a rank, and {len(model.messages)} "
        f"sums per iteration ({messages}). Up to W = {model.largest} they go through shared "
        f"memory, where W rows are read after one wait: {_per_message(model.memory)}.",
        f"Beyond, {model.largest} ranks are assumed on each machine, which add up in memory; the "
        "machines then by recursive doubling, large sums by halving and doubling, over gloo's "
        f"sockets: {_per_message(model.sockets)}; {network}. The broadcast of each rank "
        f"({sum(model.rows)} bytes) takes ceil(log2 W) messages.",
        f"t_sync = {_ms(model.sync_s)} * sqrt(2 ln W): the slowest of W ranks whose delays are "
        "independent and normal.",
        f"Cores beyond this machine's {num_cores} are assumed to be equal, with separate cores for "
        "each rank; the fit excludes measured world sizes that exceed them.",
        "The model predicts speed only, not the effect of a larger batch on learning.",
        *model.notes,
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def _per_message(cost: Cost) -> str:
    return f"{cost.alpha_s * 1e6:.1f} µs a message and {cost.beta_s * 1e9:.3f} ns a byte"
