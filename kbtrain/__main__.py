"""``python -m kbtrain``: the command ``kbtrain``."""

from kbtrain.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
