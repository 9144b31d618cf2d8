"""Weights & Biases, MLflow and the Hugging Face Hub: the real packages, without a network."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import CheckpointError, ConfigError

sys.path.insert(0, str(Path(__file__).parent))
import hub_stub

pytestmark = pytest.mark.integrations
PAGES = Path(__file__).parents[2] / "docs/integrations"


@pytest.fixture(autouse=True)
def nothing_drawn():
    """Enables plots, unlike in other tests, because trackers receive them."""


@pytest.fixture(autouse=True)
def offline_and_installed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true",
                        "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1",
                        "MLFLOW_DISABLE_TELEMETRY": "true"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)


@pytest.fixture
def package(request):
    """Imports the package of a test; if missing, it fails where the tests are required."""
    if importlib.util.find_spec(request.param) is None:
        if os.environ.get("HEADRACE_INTEGRATION_TESTS") == "required":
            pytest.fail(f"{request.param} isn't installed")
        pytest.skip(f"needs {request.param}")
    return request.param


@pytest.fixture
def train(tiny):
    """Trains briefly with a callback; returns the contents of summary.json."""

    def run(callback, **settings) -> dict:
        config = tiny(eval_episodes=2, transport="serial", **settings)
        hr.train(config, callbacks=[callback])
        return json.loads((Path(config.run_dir) / "summary.json").read_text())

    return run


class BreaksDown:
    """Stops the run with an error at its second result."""

    def __init__(self):
        self.count = 0

    def __call__(self, result):
        self.count += 1
        if self.count == 2:
            raise RuntimeError("the disk is on fire")


# -- Weights & Biases -----------------------------------------------------------------------------


def written(file: Path) -> list[bytes]:
    """Yield the records of wandb's file: LevelDB's log format after a header of 7 bytes."""
    data, at, records, whole = file.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the end of a block, in which no record begins
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            records, whole = [*records, whole], b""
    return records


def recorded(folder: Path) -> tuple[list[dict], dict, dict, int]:
    """Return history, summary, settings and exit code of wandb's offline file."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 20
    while True:  # a process of wandb's own writes, and is not always done when finish() is
        records = []
        for data in written(file):
            records.append(wandb_internal_pb2.Record())
            records[-1].ParseFromString(data)
        if ends := [record.exit.exit_code for record in records if record.HasField("exit")]:
            break
        assert time.monotonic() < deadline, "the run was never finished"
        time.sleep(0.1)
    history = [values_of(r.history.item) for r in records if r.HasField("history")]
    summary, config = {}, {}
    for record in records:
        summary |= values_of(record.summary.update)
        config |= values_of(record.run.config.update)
    return history, summary, config, ends[-1]


def values_of(items) -> dict:
    return {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items}


@pytest.mark.parametrize("package", ["wandb"], indirect=True)
def test_wandb_has_settings_results_and_final_figures(train, tmp_path, package):
    from headrace.integrations.wandb import WandB

    summary = train(WandB("mine", tags=["short"], dir=str(tmp_path)))
    history, final, config, code = recorded(tmp_path)
    assert config["algo"]["name"] == "ppo"
    assert config["total_steps"] == 640
    metrics = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").open()]
    logged = [row for row in history if "losses/entropy" in row]
    assert len(logged) == len(metrics)
    assert [row["_step"] for row in logged] == [row["env_steps"] for row in metrics]
    assert final["eval/episodic_return"] == summary["evaluation"]["mean"]
    assert code == 0
    assert any(name.startswith("curve") for row in history for name in row), history[-2:]


@pytest.mark.parametrize("package", ["wandb"], indirect=True)
def test_a_run_that_fails_is_a_failed_run_of_wandb(tiny, tmp_path, package):
    from headrace.integrations.wandb import WandB

    with pytest.raises(RuntimeError, match="on fire"):
        hr.train(tiny(transport="serial"), callbacks=[WandB(dir=str(tmp_path)), BreaksDown()])
    assert recorded(tmp_path)[3] == 1


# -- MLflow ---------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    """Starts an MLflow server with a separate database, and returns its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = ["--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db"]
    files = ["--artifacts-destination", str(tmp_path / "artifacts")]
    where = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command = [sys.executable, "-m", "mlflow", "server", *store, *files, *where]
    with (tmp_path / "server.txt").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 100
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                break
        except OSError:
            told = (tmp_path / "server.txt").read_text()
            assert process.poll() is None, told
            assert time.monotonic() < deadline, told
            time.sleep(0.2)
    yield url
    os.killpg(process.pid, 9)
    process.wait(10)


@pytest.mark.parametrize("package", ["mlflow"], indirect=True)
def test_mlflow_has_settings_results_files_and_how_runs_ended(
    train, tiny, server, tmp_path, package
):
    import mlflow

    from headrace.integrations.mlflow import MLflow

    callback = MLflow("mine", server, {"kind": "short"})
    summary = train(callback)
    client = mlflow.MlflowClient(server)
    run = client.get_run(callback.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert run.data.tags["kind"] == "short"
    assert run.data.params["algo.name"] == "ppo"
    assert run.data.params["network.hidden"] in ("(64, 64)", "[64, 64]")
    assert run.data.metrics["eval/episodic_return"] == summary["evaluation"]["mean"]
    history = client.get_metric_history(callback.run_id, "losses/entropy")
    metrics = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").open()]
    assert [point.step for point in history] == [row["env_steps"] for row in metrics]
    names = {file.path for file in client.list_artifacts(callback.run_id)}
    assert names == {"summary.json", "curve.png"}

    again = MLflow("mine", server)
    with pytest.raises(RuntimeError, match="on fire"):
        config = tiny(transport="serial", run_dir=str(tmp_path / "ill"))
        hr.train(config, callbacks=[again, BreaksDown()])
    assert client.get_run(again.run_id).info.status == "FAILED"
    assert client.get_run(again.run_id).info.experiment_id == run.info.experiment_id


# -- Hugging Face Hub -----------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["huggingface_hub"], indirect=True)
def test_a_policy_goes_to_the_hub_with_its_card_and_comes_back(train, tmp_path, package):
    import torch

    from headrace.integrations import hub

    with hub_stub.serving() as stub:
        where = {"token": "hf_secret", "endpoint": stub.url}
        summary = train(hub.Hub("me/cartpole", **where))
        assert stub.tokens == {"Bearer hf_secret"}
        files = stub.repos["me/cartpole"]
        assert set(files) == {*hub.FILES, "summary.json", "README.md"}
        config = json.loads(files["config.json"])
        assert "signature" not in config
        assert str(tmp_path) not in json.dumps(config) + files["summary.json"].decode()
        card = files["README.md"].decode()
        assert card.startswith("---\n")
        assert f"{summary['evaluation']['mean']:.2f} +/- " in card
        assert 'hub.load("me/cartpole")' in card
        policy, saved = hub.load("me/cartpole", **where), hr.load(tmp_path / "run")
        for name, value in saved.state_dict().items():
            assert torch.equal(policy.state_dict()[name], value), name
        assert hub.save(tmp_path / "run", "me/cartpole", **where).startswith(stub.url)

        stub.repos["me/other"] = {"README.md": b"hello"}
        with pytest.raises(CheckpointError, match="me/other on the Hub holds no policy"):
            hub.load("me/other", **where)
        weights = bytearray(files["policy.safetensors"])
        weights[-1] ^= 1
        stub.repos["me/broken"] = files | {"policy.safetensors": bytes(weights)}
        with pytest.raises(CheckpointError, match="corrupt"):
            hub.load("me/broken", **where)


@pytest.mark.parametrize("package", ["huggingface_hub"], indirect=True)
def test_the_card_is_one_that_the_hub_reads(train, tmp_path, package):
    from huggingface_hub import ModelCard

    from headrace.integrations import hub

    class Noted:
        def __call__(self, result): ...

    summary = train(Noted())
    config = json.loads((tmp_path / "run/config.json").read_text())["config"]
    data = ModelCard(hub.card("me/cartpole", config, summary)).data
    assert data.library_name == "headrace"
    assert data.eval_results[0].dataset_name == "CartPole-v1"
    assert data.eval_results[0].metric_type == "mean_reward"


# -- the page -------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["wandb", "mlflow", "huggingface_hub"], indirect=True)
def test_the_code_of_its_page_runs(tmp_path, monkeypatch, package, request):
    page = {"huggingface_hub": "hub"}.get(package, package)
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code = re.sub(r"total_steps=[\d_]+", "total_steps=600", code)
    if package == "mlflow":
        code = code.replace("http://127.0.0.1:5000", request.getfixturevalue("server"))
    with hub_stub.serving() as stub:
        monkeypatch.setenv("HF_ENDPOINT", stub.url)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        (tmp_path / "script.py").write_text(code)
        done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True,
                              timeout=100, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


# -- no server ------------------------------------------------------------------------------------


@pytest.fixture
def nowhere():
    """Returns an address at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("package", ["mlflow", "wandb", "huggingface_hub"], indirect=True)
def test_a_run_ends_well_though_nobody_answers_its_tracker(
    train, nowhere, monkeypatch, capsys, package
):
    from headrace.integrations import hub, mlflow, wandb

    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", nowhere)
    monkeypatch.setitem(wandb._PATIENCE, "init_timeout", 5.0)
    make = {
        "mlflow": lambda: mlflow.MLflow("mine", nowhere),
        "wandb": wandb.WandB,
        "huggingface_hub": lambda: hub.Hub("me/mine", "hf_secret", nowhere, timeout_s=20.0),
    }
    assert train(make[package]())["evaluation"]["episodes"] == 2
    told = [x for x in capsys.readouterr().out.splitlines() if "training continues" in x]
    assert len(told) == (package != "wandb")  # which continues without it, and keeps its files
    assert all(re.match(r"(MLflow|Hub) failed, training continues: \S", line) for line in told), (
        told
    )
    assert "MLFLOW_HTTP_REQUEST_TIMEOUT" not in os.environ


@pytest.mark.parametrize("package", ["huggingface_hub"], indirect=True)
def test_what_the_hub_refuses_is_one_sentence(train, nowhere, tmp_path, monkeypatch, package):
    from headrace.integrations import hub

    train(lambda result: None)
    for call in (
        lambda: hub.load("me/mine", endpoint=nowhere),
        lambda: hub.save(tmp_path / "run", "me/mine", "hf_secret", nowhere, timeout_s=20.0),
    ):
        with pytest.raises(CheckpointError, match=r"me/mine.* the Hub: \S+: ") as told:
            call()
        assert "\n" not in str(told.value)
    with pytest.raises(ConfigError, match="repo_id='a b' must be a name"):
        hub.Hub("a b")
    with hub_stub.serving() as stub, pytest.raises(CheckpointError, match="can't be loaded"):
        hub.load("me/none", endpoint=stub.url)
    monkeypatch.setattr(hub, "_uploaded", lambda *_: time.sleep(60))
    with pytest.raises(CheckpointError, match=r"TimeoutError: no end within 0\.1 s"):
        hub.save(tmp_path / "run", "me/mine", "hf_secret", nowhere, timeout_s=0.1)
