"""``python -m servecast`` is the command line."""

from servecast.cli.app import main

if __name__ == "__main__":
    main()
