# Image with headrace and Ray, for example for KubeRay:
#
#   docker build -t headrace .
#   docker build -t headrace:cuda --build-arg BASE=nvidia/cuda:12.8.1-base-ubuntu24.04 \
#       --build-arg PYTHON=3.12 --build-arg PACKAGES="python3.12-venv procps wget" .
ARG BASE=python:3.11.14-slim-bookworm
FROM ${BASE}
ARG PYTHON=3.11
# KubeRay's probes use wget, and Ray uses ps.
ARG PACKAGES="procps=2:4.0.2-3 wget=1.21.3-1+deb12u1"

# hadolint ignore=DL3008,SC2086
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ${PACKAGES} \
    && rm -rf /var/lib/apt/lists/* \
    && "python${PYTHON}" -m venv /opt/venv
ENV PATH=/opt/venv/bin:${PATH}

WORKDIR /opt/headrace
COPY pyproject.toml setup.py constraints.txt MANIFEST.in README.md LICENSE ./
COPY headrace headrace
COPY headrace_ssa headrace_ssa
# ray[default] contains the dashboard, which accepts RayJobs.
RUN pip install --no-cache-dir --constraint constraints.txt setuptools torch==2.13.0 \
    && pip install --no-cache-dir --constraint constraints.txt --no-build-isolation \
        ".[atari,plots,ray,tensorboard,video]" "ray[default]"

# Ubuntu's images already have a user with this id.
RUN (getent passwd 1000 || useradd --uid 1000 --create-home headrace) \
    && install --directory --owner=1000 /runs /home/headrace
USER 1000
WORKDIR /home/headrace
ENV HOME=/home/headrace
CMD ["headrace", "--help"]
