"""Backend for any machine that the user can log in to over ssh."""
