"""``astrai bench``: load on a server, measured from outside."""
