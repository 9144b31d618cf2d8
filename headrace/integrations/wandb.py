"""Logs runs to Weights & Biases."""

from __future__ import annotations

from typing import Any

from headrace.integrations import final, needed

_PATIENCE = {
    "init_timeout": 20.0,
    "finish_timeout": 60.0,
}  # seconds; older versions lack the last one


class WandB:
    """Callback that sends settings, results and the final status to Weights & Biases.

    Args:
        project: there. init: further arguments of ``wandb.init``, such as ``mode="offline"``,
            ``group`` and ``tags``; ``name`` is the run directory's unless it is given.

    Raises:
        ConfigError: wandb isn't installed.
    """

    dispensable = True

    def __init__(self, project: str = "headrace", **init: Any) -> None:
        self._wandb = needed("wandb", "wandb")
        self._init: dict[str, Any] = {"project": project, **init}

    def begin(self, trainer: Any) -> None:
        """Start a run on Weights & Biases."""
        has = self._wandb.Settings.model_fields
        patience = self._wandb.Settings(**{k: v for k, v in _PATIENCE.items() if k in has})
        known = {
            "name": trainer.run_dir.name,
            "config": trainer.config.to_json(),
            "settings": patience,
        }
        self._run = self._wandb.init(**known | self._init)

    def __call__(self, result: Any, trainer: Any) -> None:
        """Log the metrics of a result, by environment steps."""
        self._run.log(result.scalars(), step=result.env_steps)

    def end(self, trainer: Any, summary: dict[str, Any] | None) -> None:
        """Log the final metrics and the plot, and finish with the run's status."""
        if summary is not None:
            self._run.summary.update(final(summary))
            picture = trainer.run_dir / "curve.png"
            if picture.exists():
                self._run.log({"curve": self._wandb.Image(str(picture))})
        self._run.finish(exit_code=0 if summary is not None else 1)
