"""Logs runs to an MLflow tracking server."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.integrations import final, flat, needed

_MOST = 100  # parameters that a server takes at once
_LONGEST, _LONGEST_NAME = 500, 250  # characters of a parameter, and of any name
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


class MLflow:
    """Callback that sends settings, results, the policy and plots to MLflow.

    Args:
        experiment: name of the experiment, which is created if it doesn't exist.
        tracking_uri: of the server, or of a database; None: as ``MLFLOW_TRACKING_URI`` says.
        tags: tags of the run.

    Raises:
        ConfigError: MLflow isn't installed.
    """

    dispensable = True

    def __init__(
        self,
        experiment: str = "headrace",
        tracking_uri: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> None:
        mlflow = needed("mlflow", "mlflow")
        self._entities = mlflow.entities
        self._client = mlflow.MlflowClient(tracking_uri)
        self._experiment, self._tags = experiment, tags or {}

    def begin(self, trainer: Any) -> None:
        """Start an MLflow run with all settings."""
        with _impatient():
            self._begin(trainer)

    def _begin(self, trainer: Any) -> None:
        there = self._client.get_experiment_by_name(self._experiment)
        known = self._client.create_experiment(self._experiment) if there is None else None
        number = there.experiment_id if there is not None else known
        run = self._client.create_run(number, run_name=trainer.run_dir.name, tags=self._tags)
        self.run_id: str = run.info.run_id
        settings = _named(flat(trainer.config.to_json())).items()
        parameters = [self._entities.Param(k, str(v)[:_LONGEST]) for k, v in settings]
        for some in _parts(parameters):
            self._client.log_batch(self.run_id, params=some)

    def __call__(self, result: Any, trainer: Any) -> None:
        """Log the metrics of a result, by environment steps."""
        with _impatient():
            self._log(result.scalars(), result.env_steps)

    def end(self, trainer: Any, summary: dict[str, Any] | None) -> None:
        """Log the final metrics, the files of the run, and its status."""
        with _impatient():
            self._end(trainer, summary)

    def _end(self, trainer: Any, summary: dict[str, Any] | None) -> None:
        if summary is not None:
            self._log(final(summary), summary["env_steps"])
            for name in ("summary.json", "curve.png"):
                if (trainer.run_dir / name).exists():
                    self._client.log_artifact(self.run_id, str(trainer.run_dir / name))
        status = "FINISHED" if summary is not None else "FAILED"
        self._client.set_terminated(self.run_id, status)

    def _log(self, values: dict[str, float], step: int) -> None:
        now, named = int(time.time() * 1000), _named(values).items()
        metrics = [self._entities.Metric(name, value, now, step) for name, value in named]
        self._client.log_batch(self.run_id, metrics=metrics)


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """Set short request timeouts, unless the user's environment variables set others."""
    ours = {name: value for name, value in _PATIENCE.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace characters that MLflow refuses in names; it would reject all values of a call.

    Environments choose some names: of numbers in infos, and of keys in their arguments.
    """
    return {_name(name): value for name, value in values.items()}


def _name(name: str) -> str:
    parts = re.sub(r"[^\w. :/-]", "_", name).split("/")
    name = "/".join("_" if part in ("", ".", "..") else part for part in parts)
    return name[:_LONGEST_NAME].rstrip("/.")


def _parts(values: list[Any]) -> Iterator[list[Any]]:
    for i in range(0, len(values), _MOST):
        yield values[i : i + _MOST]
