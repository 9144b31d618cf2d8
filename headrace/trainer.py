"""The one file that wires the parts together.

actors ──► queue ──► fresh() ──► learner.update ──► publish ──► release
                      │ counts, drops what is too old
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import torch

from headrace import checkpoint
from headrace.config import Config, default_run_dir
from headrace.envs.make import make_vec, resolve
from headrace.errors import CheckpointError
from headrace.fleet import start_fork_server
from headrace.hogwild import SharedModel
from headrace.learner import Learner
from headrace.metrics import Episodes, Meter, Result, Writer
from headrace.nn.inputs import MASK
from headrace.nn.policy import Policy
from headrace.nn.space_json import space_to_json
from headrace.platform import keep_freed_memory, stop_signals, torch_threads
from headrace.rollouts import RolloutSource, Stopped
from headrace.types import Batch, Rollout, gather


class Trainer:
    """A run: iterate over it to train, a :class:`~headrace.metrics.Result` about every second.

    Args:
        config: all settings.
        started: when the run counts as started (``time.monotonic()``); now by default.
        notify: called with a line of text when something happens that a user should see.

    Raises:
        ConfigError: an environment, space or setting is wrong.
        CheckpointError: the run directory exists, or what is to be resumed can't be.
    """

    def __init__(
        self,
        config: Config,
        started: float | None = None,
        notify: Callable[[str], None] = print,
    ) -> None:
        self.config, self._notify = config, notify
        self._started = time.monotonic() if started is None else started
        self.env = resolve(config.env)
        now = time.strftime("%Y%m%d-%H%M%S")
        self.run_dir = Path(config.run_dir or default_run_dir(config, now))
        if config.transport == "shm":
            start_fork_server()
        observation_space, action_space, info_mask = self._probe()
        # One thread: the bits of the initial weights must not depend on the number of cores.
        with torch.random.fork_rng(devices=[]), torch_threads(1):
            torch.manual_seed(config.seed)
            self.policy = Policy(observation_space, action_space, config.network, info_mask)
            self.learner = Learner(
                self.policy,
                config.algo,  # type: ignore[arg-type]  # the base class alone has no loss
                num_threads=config.resolved_learner_threads,
                device=config.device,
            )
        self._model: SharedModel | None = None
        if config.algo.learns_in_actors:
            num_slots = config.num_actors * config.slots_per_actor
            self._model = SharedModel(self.learner, num_slots, config.transport == "shm")
        self._saved_config = {
            "format": checkpoint.FORMAT,
            "config": config.to_json(),
            "observation_space": space_to_json(observation_space),
            "action_space": space_to_json(action_space),
            "info_mask": info_mask,
        }
        checkpoint.prepare(self.run_dir, config.resume, config.overwrite)
        self.env_steps = self.updates = self.dropped = self._epoch = 0
        self.episodes, self._meter, self._total = Episodes(), Meter(), Meter()
        self.best_return: float | None = None
        self.first_update_s: float | None = None
        self._stopped = self.interrupted = False
        self.source: RolloutSource | None = None
        self._first_steps = 0
        self._first_time = self._last_time = time.monotonic()
        if config.resume:
            self._load(checkpoint.find(self.run_dir))
        checkpoint.write_json(self.run_dir / "config.json", self._saved_config)

    def _probe(self) -> tuple[gymnasium.Space, gymnasium.Space, bool]:
        """The environment's spaces, and whether it shows an action mask in its infos."""
        engine = "sync" if self.config.engine == "async" else self.config.engine
        envs = make_vec(self.env, 1, engine, self.config.env_kwargs)
        try:
            _, infos = envs.reset(seed=self.config.seed)
            return envs.single_observation_space, envs.single_action_space, MASK in infos
        finally:
            envs.close()

    # -- starting and stopping ------------------------------------------------------------------

    def stop(self) -> None:
        """End training after the update in progress; a checkpoint is written."""
        self._stopped = True

    def _interrupt(self) -> None:
        self.interrupted = True
        self.stop()

    def close(self) -> None:
        """End all processes and threads; safe to call twice."""
        if self.source is not None:
            self.source.close()
        self.learner.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the loop -------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Result]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch_threads(1))
            stack.enter_context(stop_signals(self._interrupt))
            stack.callback(self.close)
            keep_freed_memory()
            if self._model is not None:
                self._model.set_learning_rate(self._learning_rate())
            state = (self.policy, self.updates, self._epoch)
            self.source = RolloutSource(self.config, self.env, *state, self._notify, self._model)
            writer = Writer(self.run_dir, self.env_steps if self.config.resume else None)
            stack.callback(writer.close)
            self._last_time, last_steps = time.monotonic(), self.env_steps
            while not self._finished():
                self._update(self.source)
                now = time.monotonic()
                if now - self._last_time >= self.config.log_interval_s or self._finished():
                    result = self._result((self.env_steps - last_steps) / (now - self._last_time))
                    self._last_time, last_steps = now, self.env_steps
                    self._meter = Meter()
                    self.source.kill_hung()
                    writer.write(result)
                    yield result
            if self._model is not None:
                self.source.close()  # what is saved and returned is learnt from no more
            if self.updates:
                self._save()

    def _finished(self) -> bool:
        config, mean = self.config, self.episodes.mean_return
        reached = (
            config.stop_return is not None
            and self.episodes.full
            and mean is not None
            and mean >= config.stop_return
        )
        return self._stopped or reached or self.env_steps >= config.total_steps

    def _update(self, source: RolloutSource) -> None:
        before, start = self.env_steps, time.monotonic()
        meter = Meter()
        taken: list[int] = []

        def fresh() -> Batch:
            return self._fresh(source, meter, taken)

        try:
            if self._model is None:
                meter.losses = [self.learner.update(fresh, self._learning_rate())]
            else:
                self._model.set_learning_rate(self._learning_rate())
                self.learner.watch(fresh, self.config.rollouts_per_update)
                meter.losses = [self._model.metrics(slot) for slot in taken]
        except Stopped:
            return
        learned = time.monotonic()
        meter.learn_s = learned - start - meter.wait_s
        self.updates += 1
        self.env_steps += meter.env_steps
        interval = self.config.checkpoint_interval
        if self.env_steps // interval > before // interval and not self._finished():
            self._save()
        source.publish(self.policy, self.updates, self._epoch)
        source.release(taken)
        meter.sync_s = time.monotonic() - learned
        self._meter.add(meter)
        self._total.add(meter)
        if self.first_update_s is None:
            self.first_update_s = learned - self._started
            self._first_time, self._first_steps = learned, self.env_steps

    def _fresh(self, source: RolloutSource, meter: Meter, taken: list[int]) -> Batch:
        """The next batch in learner-owned memory; too old rollouts are dropped and counted."""
        start = time.monotonic()
        source.release(taken)  # an update that needs several batches has copied the earlier ones
        taken.clear()
        wanted, oldest = self.config.rollouts_per_update, self.config.max_policy_lag
        kept: list[Rollout] = []
        while len(kept) < wanted:
            for slot, header, rollout in source.take(wanted - len(kept), lambda: self._stopped):
                self.episodes.add(rollout.episode_return.numpy(), rollout.episode_length.numpy())
                lag = self.updates - header.version
                if self._model is not None:
                    lag = self._model.lag(slot)
                if oldest is not None and lag > oldest:
                    self.dropped += 1
                    source.release([slot])
                    continue
                taken.append(slot)
                kept.append(rollout)
                meter.rollout(header, lag)
        meter.wait_s += time.monotonic() - start
        meter.depths.append(source.depth)
        return gather(kept, self.config.device)

    def _learning_rate(self) -> float:
        hyper = self.config.algo
        if hyper.lr_schedule == "constant":
            return hyper.learning_rate
        return hyper.learning_rate * max(0.0, 1.0 - self.env_steps / self.config.total_steps)

    # -- results and checkpoints ----------------------------------------------------------------

    def _result(self, sps: float) -> Result:
        return self._meter.result(
            self.episodes,
            env_steps=self.env_steps,
            updates=self.updates,
            seconds=time.monotonic() - self._started,
            sps=sps,
            learning_rate=self._learning_rate(),
            dropped=self.dropped,
            restarts=0 if self.source is None else self.source.num_restarts,
        )

    @property
    def sps(self) -> float:
        """Environment steps per second from the first update to the latest result."""
        seconds = self._last_time - self._first_time
        return (self.env_steps - self._first_steps) / seconds if seconds > 0 else 0.0

    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` holds."""
        total = self._total
        return {
            "env_steps": self.env_steps,
            "updates": self.updates,
            "seconds_total": time.monotonic() - self._started,
            "seconds_to_first_update": self.first_update_s,
            "sps": self.sps,
            "episodic_return": self.episodes.mean_return,
            "utilisation": {
                "learner": total.utilisation_learner,
                "actor": total.utilisation_actor,
            },
            "time": {"wait": total.wait_s, "learn": total.learn_s, "sync": total.sync_s},
            "lag": {"mean": total.lag_mean, "max": total.lag_max},
            "dropped": self.dropped,
        }

    def _save(self) -> Path:
        self._epoch += self.config.deterministic
        state = {
            "env_steps": self.env_steps,
            "updates": self.updates,
            "dropped": self.dropped,
            "epoch": self._epoch,
            "best_return": self.best_return,
            "returns": list(self.episodes.returns),
            "lengths": list(self.episodes.lengths),
            "episodes": self.episodes.count,
            "learner": self.learner.state_dict(),
        }
        mean = self.episodes.mean_return
        improved = mean is not None and (self.best_return is None or mean > self.best_return)
        if improved:
            self.best_return = state["best_return"] = mean
        path = checkpoint.save(self.run_dir, self._saved_config, self.policy, state)
        if improved:
            checkpoint.point("best", path)
        checkpoint.rotate(self.run_dir, self.config.keep_checkpoints)
        return path

    def _load(self, folder: Path) -> None:
        checkpoint.load_weights(folder, self.policy)
        state = checkpoint.load_trainer(folder)
        try:
            self.env_steps, self.updates = state["env_steps"], state["updates"]
            self.dropped, self.best_return = state["dropped"], state["best_return"]
            self._epoch = state["epoch"] + (not self.config.deterministic)
            self.episodes.returns.extend(state["returns"])
            self.episodes.lengths.extend(state["lengths"])
            self.episodes.count = state["episodes"]
            self.learner.load_state_dict(state["learner"])
        except (KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{folder}/trainer.pt doesn't fit this run: {error!r}") from error
