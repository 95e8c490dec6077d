"""`redpoll run`: processes that work on an app, and the one that keeps them running."""
