"""Reads logs of training runs: tables with a row per iteration or per run, and the lines of known trainers."""
