"""Sentences of an exported configuration."""

LINK = "# made with rlcorr; this state of the playground: {address}"
COMMAND_LINE = "Or on the command line, without a change of the file:"
