"""Takes kind's own network and storage manifests out of its Go source and lets them run images that we can build.

Usage: manifests.py KIND_SOURCE OUT_FOLDER KINDNETD_IMAGE PROVISIONER_IMAGE HELPER_IMAGE
"""

import re
import sys
from pathlib import Path


def constant(source: Path, name: str, images: dict[str, str]) -> str:
    """The text of a Go raw-string constant, with the names of image constants in it replaced by ``images``."""
    text = re.search(rf"const {name} = `(.*)`\s*$", source.read_text(), re.S)
    if text is None:
        raise SystemExit(f"{source} has no constant {name}: this version of kind is laid out differently")
    return re.sub(r"` \+ (\w+) \+ `", lambda found: images[found[1]], text[1])


def network(source: Path, image: str) -> str:
    text = constant(source / "const_cni.go", "defaultCNIManifest", {"kindnetdImage": image})
    # Our kindnetd is one of the programs in the Kubernetes image, and asks for the name of its node.
    text = text.replace(f"image: {image}\n", f"image: {image}\n        command: [kindnetd]\n")
    node_name = "        - name: NODE_NAME\n          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}\n"
    text = text.replace("        env:\n", "        env:\n" + node_name, 1)
    # Debian's containerd 1.6 has no NRI socket to mount.
    text = text.replace("        - name: nri-plugin\n          mountPath: /var/run/nri\n", "")
    return text.replace("      - name: nri-plugin\n        hostPath:\n          path: /var/run/nri\n", "")


def storage(source: Path, provisioner: str, helper: str) -> str:
    images = {"storageProvisionerImage": provisioner, "storageHelperImage": helper}
    return constant(source / "const_storage.go", "defaultStorageManifest", images)


def main() -> None:
    source, out = Path(sys.argv[1]) / "pkg/build/nodeimage", Path(sys.argv[2])
    kindnetd, provisioner, helper = sys.argv[3:]
    (out / "default-cni.yaml").write_text(network(source, kindnetd))
    (out / "default-storage.yaml").write_text(storage(source, provisioner, helper))


main()
