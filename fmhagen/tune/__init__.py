"""Tune: the search for schedules on a device.

candidates   every schedule that a lowering takes, from the limits that it states itself
prebuild     compiles them on the CPU, in parallel, and drops what spills
search       successive halving in contests with the default schedule
store        the results on disk, so that a search can go on
"""
