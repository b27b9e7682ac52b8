"""``python -m servecast`` is the command line."""

from servecast.cli import main

if __name__ == "__main__":
    main()
