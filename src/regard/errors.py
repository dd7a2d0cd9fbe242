"""The exception for mistakes that a user can fix."""


class UserError(Exception):
    """A mistake in the user's input, files or environment.

    The message is one sentence that names the problem and the fix. The command line prints it without a traceback
    and exits with code 2; code that calls the library gets an ordinary exception.
    """

    exit_code = 2


class RankLost(UserError):
    """Another process of the run is missing. Nothing needs to be changed: a restart continues the run."""

    exit_code = 1
