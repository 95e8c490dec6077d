"""Pickles that a stranger may send: what is read, what is built, and where the large parts are."""
