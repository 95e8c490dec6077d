"""Pickles from untrusted peers: which are read, what is built, and where the large parts are."""
