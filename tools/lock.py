"""Write the hashed locks anew: `make lock`. They hold no registry address, so they serve on any mirror."""

from __future__ import annotations

import bootstrap

FLAGS = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate", "--upgrade"]


def main() -> None:
    for name in ("demo", "test", "arq"):
        source, lock = f"requirements/{name}.in", f"requirements/{name}.lock"
        command = [str(bootstrap.UV), "pip", "compile", "-q", source, "-o", lock, *FLAGS]
        bootstrap.run(command, bootstrap.environment())
        print(f"{lock}: {(bootstrap.ROOT / lock).read_text().count('==')} packages")


if __name__ == "__main__":
    main()
