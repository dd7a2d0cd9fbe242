"""The one exception that speaks to a person rather than to a programmer."""


class UserError(Exception):
    """A mistake the person at the keyboard can mend.

    The message is one sentence that names the thing and the fix. The command line prints it without a traceback
    and exits with code 2; code that calls the library gets an ordinary exception.
    """
