"""``python -m servecast`` is the command line."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # see `servecast`
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; interrupted while it is still loading, it says so in one line too."""
    try:
        from servecast.cli import app

        app.main()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
