"""`launch tune`: try changes to a user's script, prove each by a duel, and write those that help as a patch."""
