#!/usr/bin/env bash
# Installs the Debian packages that cluster tests need, if their programs are missing.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin DEBIAN_FRONTEND=noninteractive
missing=()

need() { # a program and its package
    command -v "$1" > /dev/null || missing+=("$2")
}

need slurmctld slurmctld
need slurmd slurmd
need sbatch slurm-client
need munged munge
need ip iproute2
need ps procps
[ ${#missing[@]} -gt 0 ] || exit 0
install=(apt-get install --yes --no-install-recommends "${missing[@]}")
if ! command -v apt-get > /dev/null; then
    echo "tests of clusters need ${missing[*]}, and there is no apt-get here: install what Debian" \
        "calls so" >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "tests of clusters need ${missing[*]}: run this as root, or \`sudo ${install[*]}\`" >&2
    exit 1
fi
patience=(--option Acquire::Retries=3 --option DPkg::Lock::Timeout=60 --quiet --quiet)
apt-get update "${patience[@]}"
"${install[@]}" "${patience[@]}"
