"""Distributed steps that send all weights as JSON, the baseline of aaps.py.

The head sends each worker one JSON message with all weights per step, over TCP. The worker loads
them, acts, steps, and sends its rows back as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.processes import die_with_parent

WORKERS, ENVS = 2, 32


class Mlp(nn.Module):
    """Agent with separate policy and value networks, each with two tanh layers of 64 units."""

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        super().__init__()
        self.policy, self.value = _layers(num_inputs, num_actions), _layers(num_inputs, 1)

    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions and their log-probabilities."""
        log_p = self.policy(obs).log_softmax(-1)
        action = torch.multinomial(log_p.exp(), 1)
        return action.squeeze(-1), log_p.gather(-1, action).squeeze(-1)

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return the action distribution."""
        return self.policy(obs).log_softmax(-1).gather(-1, action[:, None]).squeeze(-1)


def _layers(num_inputs: int, num_outputs: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(num_inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()),
        nn.Linear(64, num_outputs),
    )


def agent_for(env_id: str) -> Mlp:
    """Return an untrained agent with fixed weights, as only its cost matters."""
    torch.manual_seed(0)
    envs = hr.make_vec(env_id, 1, "sync")
    sizes = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    envs.close()
    return Mlp(*sizes)


class Link:
    """Sends and receives JSON over a connected socket, one line per message."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._lines = connection, connection.makefile("rb")

    def send(self, message: dict[str, Any]) -> int:
        """Send a message. Return its size in bytes."""
        text = json.dumps(message).encode()
        self._connection.sendall(text + b"\n")
        return len(text)

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None once the other side has closed the connection."""
        line = self._lines.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._connection.close()


def serve_json(port: int, env_id: str, engine: str, index: int) -> None:
    """Run a worker of that scheme: receive weights, step once, send rows."""
    die_with_parent()
    torch.set_num_threads(1)
    envs, agent = hr.make_vec(env_id, ENVS, engine), agent_for(env_id)
    obs, _ = envs.reset(seed=index * ENVS)
    link = Link(socket.create_connection(("127.0.0.1", port), timeout=60.0))
    with torch.no_grad():
        while (message := link.receive()) is not None:
            weights = {name: torch.tensor(value) for name, value in message["weights"].items()}
            agent.load_state_dict(weights)
            action, log_prob = agent.act(torch.as_tensor(obs))
            obs, *rows, _ = envs.step(action.numpy())
            columns = [np.asarray(x).tolist() for x in (obs, action, log_prob, *rows)]
            names = ("obs", "action", "log_prob", "reward", "terminated", "truncated")
            link.send(dict(zip(names, columns, strict=True)))


class JsonWorkers:
    """Head of that scheme, with its workers."""

    def __init__(self, env_id: str, engine: str, agent: Mlp) -> None:
        self._agent, self.bytes_per_step = agent, 0
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(60.0)
        context = multiprocessing.get_context("spawn")
        arguments = (listener.getsockname()[1], env_id, engine)
        self._processes = [
            context.Process(target=serve_json, args=(*arguments, i), daemon=True)
            for i in range(WORKERS)
        ]
        for process in self._processes:
            process.start()
        self._links = [Link(listener.accept()[0]) for _ in self._processes]
        listener.close()

    def step(self) -> list[dict[str, np.ndarray]]:
        """Step all environments. Return the rows of each worker."""
        weights = {name: value.tolist() for name, value in self._agent.state_dict().items()}
        sizes = [link.send({"kind": "step", "weights": weights}) for link in self._links]
        self.bytes_per_step = sum(sizes)
        rows = [link.receive() for link in self._links]
        if None in rows:
            raise ConnectionError("a worker has exited")
        return [{name: np.asarray(value) for name, value in row.items()} for row in rows]

    def close(self) -> None:
        """Stop the workers."""
        for link in self._links:
            link.close()
        for process in self._processes:
            process.join(timeout=10.0)
