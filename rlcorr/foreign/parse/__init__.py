"""The program that parses files of other people in a process of its own. Nothing here imports the rest of rlcorr."""
