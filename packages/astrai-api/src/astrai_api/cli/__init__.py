"""The ``astrai`` command: one module per subcommand, imported when it is the one that runs."""
