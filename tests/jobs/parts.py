"""Program of test jobs that prints the nodes and tries to connect with and without the token."""

STRANGER = """
import os, subprocess, sys
address, known = os.environ["RAY_ADDRESS"], dict(os.environ)
code = f"import ray; ray.init({address!r}); print('IN', len(ray.nodes()))"
wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
right = {k: v for k, v in known.items() if k.startswith("RAY_AUTH")}
for name, token in (("stranger", {}), ("wrong", wrong), ("friend", right)):
    clean = {k: v for k, v in known.items() if not k.startswith("RAY_")}
    clean |= {"RAY_NUM_REDIS_GET_RETRIES": "2", "RAY_USAGE_STATS_ENABLED": "0"} | token
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True)
    print(name, done.stdout.strip() or "out", flush=True)
commands = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True).stdout
print("token on a command line:", known["RAY_AUTH_TOKEN"] in commands, flush=True)
import ray
ray.init("auto", log_to_driver=False)
print(sorted((n["NodeName"], n["Resources"]["CPU"], n["Resources"]["GPU"]) for n in ray.nodes()))
sys.exit(7)"""
