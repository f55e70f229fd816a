"""``python -m astrai_api``: the ``astrai`` command."""

from astrai_api.cli.main import main

if __name__ == "__main__":
    main()
