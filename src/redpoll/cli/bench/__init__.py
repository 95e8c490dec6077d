"""`redpoll bench`: what wiring does on this machine, as the programs of the first ØMQ module measured it."""
