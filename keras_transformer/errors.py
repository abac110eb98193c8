"""The exception class for problems that the user can fix."""


class UserError(Exception):
    """Reports a problem that the user can fix: a bad file, recipe or argument, or a full disk.

    The command line prints the message as one line and exits with status 2. Any other exception
    is a bug in the package, and its traceback is shown.
    """
