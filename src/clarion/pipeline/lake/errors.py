"""What can be wrong with a table, in one line for the person who can change it."""


class LakeError(Exception):
    """A table cannot be read or written as asked."""


class LakeRetryError(LakeError):
    """This try went wrong, by other writers or by files that are not there (yet): the same write may succeed later."""
