"""Entry point of `ldf` and `python -m ldf`; reports a missing dependency in one line."""

import sys


def main() -> None:
    """Run the command line; errors are printed in one line and exit with code 1."""
    try:
        from .cli.app import app
    except ModuleNotFoundError as missing:
        sys.exit(f"ldf: the command line needs {missing.name}: pip install 'ldf[cli]'")
    try:
        app()
    except ModuleNotFoundError as missing:
        from .extras import explain

        sys.exit(f"ldf: {explain(missing, sys.argv[1:])}")
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"ldf: {error}")


if __name__ == "__main__":
    main()
