"""`redpoll bench`: performance of wiring on this machine, measured like the programs of the first ØMQ module."""
