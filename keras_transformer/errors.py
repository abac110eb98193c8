"""The error for problems that the user can fix."""


class UserError(Exception):
    """A problem outside the program: with a file, a recipe, an argument or the disk.

    The command line prints the message as one line and exits with status 2. Any other exception
    is a defect and keeps its traceback.
    """
