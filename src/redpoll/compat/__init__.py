"""Interfaces of other libraries on a bus: each module needs the library that it is named after, and no other imports it."""
