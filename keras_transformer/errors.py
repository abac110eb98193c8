"""The one error that is the user's to mend."""


class UserError(Exception):
    """Something outside the program is wrong: a file, a recipe, an argument, the disk.

    The command line prints the message as one line and exits with status 2. Any other exception
    is a defect and keeps its traceback.
    """
