"""Rules that choose a schedule where none was measured: a module for each kind of main loop."""
