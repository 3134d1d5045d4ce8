"""Writes every Debian package and Python distribution of this system as an SPDX 2.3 document.

Standard library only: it runs inside the image. The same system and SOURCE_DATE_EPOCH give the
same bytes.
Specification: https://spdx.github.io/spdx-spec/v2.3/
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

FIELDS = ["Package", "Version", "Architecture", "Maintainer", "Homepage", "db:Status-Status"]
Package = dict[str, Any]


def spdx_id(kind: str, name: str) -> str:
    """SPDX allows letters, digits, dots and dashes."""
    return "SPDXRef-" + kind + "-" + re.sub(r"[^A-Za-z0-9.-]", "-", name.replace("+", "plus"))


def package(kind: str, name: str, version: str, purl: str, **more: Any) -> Package:
    reference = {
        "referenceCategory": "PACKAGE-MANAGER",
        "referenceType": "purl",
        "referenceLocator": purl,
    }
    return {
        "SPDXID": spdx_id(kind, name),
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "externalRefs": [reference],
        **more,
    }


def distribution_id() -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("ID="):
            return line.removeprefix("ID=").strip('"')
    return "debian"


def debian_packages() -> list[Package]:
    layout = "\\t".join(f"${{{field}}}" for field in FIELDS) + "\\n"
    listing = subprocess.run(
        ["dpkg-query", "--show", f"--showformat={layout}"],
        check=True,
        capture_output=True,
        text=True,
    )
    distribution = distribution_id()
    packages = []
    for line in listing.stdout.splitlines():
        name, version, architecture, maintainer, homepage, state = line.split("\t")
        if state != "installed":
            continue
        purl = f"pkg:deb/{distribution}/{name}@{quote(version, safe='')}?arch={architecture}"
        more: dict[str, Any] = {"supplier": "Organization: " + maintainer.split(" <")[0]}
        if re.fullmatch(r"https?://[!-~]+", homepage):
            more["homepage"] = homepage
        packages.append(package("deb", f"{name}-{architecture}", version, purl, **more))
        packages[-1]["name"] = name
    return packages


def license_of(distribution: metadata.Distribution) -> str:
    """PEP 639's expression, which is SPDX's; older metadata is free text and asserts nothing."""
    expression = str(distribution.metadata.get("License-Expression") or "")
    return expression if expression and "LicenseRef" not in expression else "NOASSERTION"


def python_packages() -> list[Package]:
    packages = {}
    for distribution in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        purl = f"pkg:pypi/{name}@{quote(distribution.version, safe='')}"
        more = {"licenseDeclared": license_of(distribution), "supplier": "NOASSERTION"}
        packages.setdefault(name, package("pypi", name, distribution.version, purl, **more))
    return list(packages.values())


def document(name: str) -> dict[str, Any]:
    contents = sorted(debian_packages() + python_packages(), key=lambda each: each["SPDXID"])
    seed = hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    image = package("image", name, "", "", primaryPackagePurpose="CONTAINER")
    del image["externalRefs"], image["versionInfo"]
    versions = {each["name"]: each["versionInfo"] for each in contents}
    if "ljtrain" in versions:
        image["versionInfo"] = versions["ljtrain"]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", image["SPDXID"])]
    relations += [(image["SPDXID"], "CONTAINS", each["SPDXID"]) for each in contents]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{seed[:32]}",
        "creationInfo": {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)),
            "creators": ["Tool: ljtrain-sbom"],
        },
        "packages": [image, *contents],
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
            for one, kind, other in relations
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, help="of the image")
    parser.add_argument("--output", required=True, type=Path)
    options = parser.parse_args()
    options.output.write_text(json.dumps(document(options.name), indent=1) + "\n")


if __name__ == "__main__":
    main()
