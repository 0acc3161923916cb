"""Prints kind's own network manifest, taken out of its Go source, with an image that we can build.

Usage: network.py KIND_SOURCE KINDNETD_IMAGE
"""

import re
import sys
from pathlib import Path


def main(source: str, image: str) -> None:
    file = Path(source) / "pkg/build/nodeimage/const_cni.go"
    found = re.search(r"const defaultCNIManifest = `(.*)`\s*$", file.read_text(), re.S)
    if found is None:
        raise SystemExit(f"{file} has no constant defaultCNIManifest: this version of kind is laid out differently")
    text = found[1].replace("` + kindnetdImage + `", image)
    # Our kindnetd is one of the programs in the Kubernetes image, and asks for the name of its node.
    text = text.replace(f"image: {image}\n", f"image: {image}\n        command: [kindnetd]\n")
    node_name = "        - name: NODE_NAME\n          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}\n"
    text = text.replace("        env:\n", "        env:\n" + node_name, 1)
    # Debian's containerd 1.6 has no NRI socket to mount.
    text = text.replace("        - name: nri-plugin\n          mountPath: /var/run/nri\n", "")
    print(text.replace("      - name: nri-plugin\n        hostPath:\n          path: /var/run/nri\n", ""))


main(*sys.argv[1:])
