# headrace and Ray, for pods of KubeRay and anything else:  docker build -t headrace .
FROM python:3.11-slim-bookworm

# wget and ps: KubeRay's probes and Ray's look at processes.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends procps wget \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/headrace
COPY pyproject.toml setup.py constraints.txt MANIFEST.in README.md LICENSE ./
COPY headrace headrace
COPY headrace_ssa headrace_ssa
# ray[default] has the dashboard, which RayJobs are handed over to.
RUN pip install --no-cache-dir --constraint constraints.txt ".[atari,ray]" "ray[default]"

RUN useradd --uid 1000 --create-home headrace && install --directory --owner=1000 /runs
USER 1000
WORKDIR /home/headrace
CMD ["headrace", "--help"]
