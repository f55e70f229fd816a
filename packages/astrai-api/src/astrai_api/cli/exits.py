"""How a command ends: the exit codes that scripts can rely on, and the errors that carry them."""

from enum import IntEnum

from astrai_engine.errors import AstraiError, ConfigurationError


class ExitCode(IntEnum):
    """Exit status of ``astrai``."""

    OK = 0
    """All that was asked for was done."""
    FAILED = 1
    """It went wrong; the message says how."""
    USAGE = 2
    """The command line makes no sense."""
    UNREACHABLE = 3
    """No server answers there, it is not ready, or it stopped answering."""
    CONFIGURATION = 4
    """A setting or the model is wrong."""
    PARTIAL = 5
    """It ran to its end, but some of its parts failed; the output says which."""
    INTERRUPTED = 130
    """Ctrl-C."""


class CommandError(Exception):
    """Ends a command with one sentence on standard error.

    Args:
        message: what is wrong and what to do.
        code: the exit status.
    """

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code


def usage_error(message: str) -> CommandError:
    """Options or arguments that make no sense together."""
    return CommandError(message, ExitCode.USAGE)


def exit_code(error: CommandError | AstraiError) -> ExitCode:
    """The status for an error that ends a command."""
    match error:
        case CommandError():
            return error.code
        case ConfigurationError():
            return ExitCode.CONFIGURATION
        case _:
            return ExitCode.FAILED
