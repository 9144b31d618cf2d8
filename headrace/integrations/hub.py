"""Saves policies with a model card on the Hugging Face Hub, and loads them."""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from headrace.errors import CheckpointError, ConfigError, HeadraceError
from headrace.integrations import needed
from headrace.nn.policy import Policy
from headrace.processes import safe_files
from headrace.rundir import checkpoint, checkpoint_writer
from headrace.rundir.atomic_files import json_text

FILES = ("config.json", "policy.safetensors", "SHA256SUMS")
PRIVATE = ("run_dir", "init_from", "env_file", "league", "exploit", "cluster")
"""Settings that say where something is on the machine, or the cluster, that trained."""
_ANSWER_S = 10.0  # for a file of a repository


class Hub:
    """Callback that saves the policy on the Hub after a successful run.

    Args:
        repo_id: ``user/name``; made if it isn't there. token, endpoint: of the Hub; None: as
            huggingface_hub knows them (``hf auth login``, ``HF_TOKEN``, ``HF_ENDPOINT``).
        private: whether only you, and whom you let, see a repository that is made; None: as your
            account there has it.
        timeout_s: how long saving may take.

    Raises:
        ConfigError: huggingface_hub isn't installed, or ``repo_id`` can be none.
    """

    dispensable = True

    def __init__(
        self,
        repo_id: str,
        token: str | None = None,
        endpoint: str | None = None,
        private: bool | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        _check_name(repo_id)
        self._where: dict[str, Any] = {
            "repo_id": repo_id, "token": token, "endpoint": endpoint, "private": private,
            "timeout_s": timeout_s,
        }  # fmt: skip

    def __call__(self, result: Any, trainer: Any) -> None:
        """Do nothing during training; the final policy is saved."""

    def end(self, trainer: Any, summary: dict[str, Any] | None) -> None:
        """Save the policy, unless the run failed."""
        if summary is not None:
            save(trainer.run_dir, **self._where, trust=True)  # this process has trained it


def save(
    run_dir: str | Path,
    repo_id: str,
    token: str | None = None,
    endpoint: str | None = None,
    private: bool | None = None,
    timeout_s: float = 120.0,
    trust: bool = False,
) -> str:
    """Save the policy of a run directory on the Hub with a card, and return its address.

    What goes there: weights, ``config.json``, ``summary.json`` and a README. Of the settings, those
    of :data:`PRIVATE` and all texts that are absolute paths are left out, and so is the signature.

    Args:
        trust: import a custom torso that the run names without your having named it here.
            Others as for :class:`Hub`.

    Raises:
        ConfigError: huggingface_hub isn't installed, or ``repo_id`` can be none.
        CheckpointError: there is no such run, it hasn't ended, it names a torso and isn't yours,
            or the Hub can't be reached or refuses.
    """
    hub = needed("huggingface_hub", "hub")
    _check_name(repo_id)
    run_dir = Path(run_dir)
    folder = checkpoint.find(run_dir)
    values = shareable(checkpoint.read_config(folder))
    policy = checkpoint.load_one(folder, trusted=trust)
    if not safe_files.is_file(run_dir / "summary.json"):
        raise CheckpointError(f"{run_dir} holds no summary.json: a run is saved when it has ended")
    summary = pathless(safe_files.read_json(run_dir / "summary.json"))
    api = hub.HfApi(endpoint=endpoint, token=token)
    with tempfile.TemporaryDirectory() as name:
        kept = checkpoint_writer.save_policy(Path(name), values, policy, int(summary["env_steps"]))
        (kept / "summary.json").write_text(json_text(summary), encoding="utf-8")
        (kept / "README.md").write_text(card(repo_id, values["config"], summary), encoding="utf-8")
        with _one_sentence(f"{run_dir} can't be saved as {repo_id} on the Hub"):
            return _within(timeout_s, lambda: _uploaded(api, repo_id, kept, private))


def _uploaded(api: Any, repo_id: str, folder: Path, private: bool | None) -> str:
    made = api.create_repo(repo_id, exist_ok=True, private=private)
    api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message="Save a policy")
    return str(made)


def _within(seconds: float, call: Callable[[], str]) -> str:
    """Run a call with a timeout, and return its result or raise its error.

    Raises:
        TimeoutError: the call took too long; it continues in the background.
    """
    answers: queue.Queue[tuple[str, Exception | None]] = queue.Queue()

    def work() -> None:
        try:
            answers.put((call(), None))
        except Exception as error:
            answers.put(("", error))

    threading.Thread(target=work, daemon=True).start()
    try:
        answer, failure = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no end within {seconds:g} s") from None
    if failure is not None:
        raise failure
    return answer


def shareable(values: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of ``config.json`` without signature and paths.

    Spaces and the network stay as they are: words of theirs may look like paths.
    """
    config = values["config"]
    left = {name: None for name in PRIVATE if name in config} | {"network": config["network"]}
    others = {name: value for name, value in values.items() if name != "signature"}
    return others | {"config": pathless(config) | left}


def pathless(value: Any) -> Any:
    """Replace every absolute path in a JSON value by None."""
    if isinstance(value, dict):
        return {name: pathless(one) for name, one in value.items()}
    if isinstance(value, list):
        return [pathless(one) for one in value]
    if not isinstance(value, str):
        return value
    absolute = PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()
    return None if absolute or value.startswith(("~", "file:")) else value


def load(
    repo_id: str,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    trust: bool = False,
) -> Policy:
    """Load the policy of a repository on the Hub, ready for ``predict``.

    Weights are safetensors and settings JSON, so nothing is run; a custom torso is imported only
    with ``trust`` (see docs/security.md).

    Args:
        revision: a commit, tag or branch; None: the newest. Others as for :class:`Hub`.

    Raises:
        ConfigError: huggingface_hub isn't installed, or ``repo_id`` can be none.
        CheckpointError: what is there isn't headrace's, or is corrupt, or names a torso; or the
            Hub can't be reached or refuses.
    """
    hub = needed("huggingface_hub", "hub")
    errors = needed("huggingface_hub.errors", "hub")
    _check_name(repo_id)
    asked: dict[str, Any] = {"revision": revision, "token": token, "endpoint": endpoint}
    with _one_sentence(f"{repo_id} can't be loaded from the Hub"):
        try:
            files = {
                file: Path(hub.hf_hub_download(repo_id, file, etag_timeout=_ANSWER_S, **asked))
                for file in FILES
            }
        except errors.LocalEntryNotFoundError:  # one of the next kind: no answer, and no copy
            raise
        except errors.EntryNotFoundError as error:
            raise CheckpointError(f"{repo_id} on the Hub holds no policy of headrace") from error
    with tempfile.TemporaryDirectory() as folder:  # links, as in the Hub's cache, aren't read
        for name, file in files.items():
            shutil.copyfile(file, Path(folder) / name)
        return checkpoint.load_one(Path(folder), trusted=trust)


def _check_name(repo_id: str) -> None:
    errors = needed("huggingface_hub.errors", "hub")
    try:
        needed("huggingface_hub.utils", "hub").validate_repo_id(repo_id)
    except errors.HFValidationError as error:
        raise ConfigError(f"repo_id={repo_id!r} must be a name such as 'me/cartpole'") from error


@contextlib.contextmanager
def _one_sentence(what: str) -> Iterator[None]:
    """Convert errors of the Hub or the network to a CheckpointError with this beginning.

    huggingface_hub lets errors of the HTTP package through, which is another one from 1.0 on.
    """
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{what}: {type(error).__name__}: {said}") from error


def card(repo_id: str, config: dict[str, Any], summary: dict[str, Any]) -> str:
    """Write a policy's model card: environment, returns, training settings, loading."""
    hub = needed("huggingface_hub", "hub")
    env, algorithm = (
        ", ".join(config.get("tasks") or ()) or config["env"] or "own environment",
        config["algo"]["name"],
    )
    played = summary.get("evaluation")
    told, results = "It was not evaluated.", []
    if played is not None:
        told = (
            f"{played['episodes']} episodes brought a return of {played['mean']:.2f} ± "
            f"{played['std']:.2f} (standard deviation over episodes)."
        )
        results = [hub.EvalResult(
            task_type="reinforcement-learning", task_name="reinforcement-learning",
            dataset_type=env, dataset_name=env, metric_type="mean_reward",
            metric_value=f"{played['mean']:.2f} +/- {played['std']:.2f}",
        )]  # fmt: skip
    data = hub.ModelCardData(
        library_name="headrace",
        tags=["reinforcement-learning", "headrace", algorithm, env],
        model_name=repo_id.split("/")[-1],
        eval_results=results,
    )
    settings = json.dumps({"algo": config["algo"], "network": config["network"]}, indent=2)
    return f"""---
{data.to_yaml()}
---

# {algorithm.upper()} on {env}

Trained with headrace, {summary["env_steps"]:,} environment steps with seed {config["seed"]}. {told}

```python
from headrace.integrations import hub

policy = hub.load("{repo_id}")
action, state = policy.predict(obs)
```

```json
{settings}
```
"""
