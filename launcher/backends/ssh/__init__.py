"""Any machine that one can log in to, as a backend of `launch`."""
